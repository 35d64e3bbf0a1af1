"""Self-certainty: how far the next-token distributions of the policy are from the uniform one.

Source: Intuitor (arXiv 2505.19590), `verl-intuitor/verl/workers/actor/dp_actor.py`; see specs/extensions, section 2.
"""

import torch


def self_certainty(logits: torch.Tensor, rows: int = 1024) -> torch.Tensor:
    """The certainty of each distribution in nats: logsumexp(z) - mean(z), which is KL(uniform || p) + log V.

    Args:
        logits: (..., V), of any floating type; the sums are taken in float32.
        rows: so many distributions at a time are copied to float32.

    Returns:
        (...), float32; log V for a uniform distribution, and more for any other.
    """
    flat = logits.reshape(-1, logits.shape[-1])
    parts = (part.float() for part in flat.split(rows))
    found = [torch.logsumexp(part, dim=-1) - part.mean(dim=-1) for part in parts]
    return torch.cat(found).reshape(logits.shape[:-1])
