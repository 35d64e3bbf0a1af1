"""Which drafted tokens stand, by who was to write them; and why the text keeps tandem decoding's law.

One round of a request, with the text emitted so far given: the junior J drafts d_1 ... d_K, each a sample of its own
law after what precedes it. The senior S reads all of them in one pass. For k = 1 ... K, with author A_k from the
schedule replayed over the drafts:

    junior: d_k is emitted
    senior: its own sample s_k is emitted; if s_k differs from d_k the round ends here
    after d_K: where the senior writes next, its sample is emitted too; where the junior does, nothing

Both models sample position t of a response with the same noise e_t(v), independent exponentials over the vocabulary
that depend on request and position alone (``noise``): d = argmax J(v) / e_t(v), s = argmax S(v) / e_t(v).

*Law.* The token emitted at position t is argmax L(v) / e_t(v), where L is the law of the author A_t, after the text
before t. Induction over t: the text before t fixes A_t (schedule) and L (the author's model). If A_t is the junior,
what is emitted is the draft, which was made after exactly the text before t, since all drafts before it stood. If A_t
is the senior, what is emitted is s_t, whether it equals the draft or replaces it; the senior read the text before t,
all of it drafts that stood. The noise e_t is used at no other position, hence independent of the text before t, and
argmax L(v) / e_t(v) is then a sample of L (the least of exponentials with rates L(v)). So every token is a fresh sample
of its author's law given the text: tandem decoding. Nothing depends on K, on which drafts were thrown away, or on when
a position is computed again, so the text itself, not only its law, is the same for every K, batch and preemption.

*Cost.* s = d has a probability of at least (1 - TV) / (1 + TV), for the total variation distance TV of the two laws;
the rejection sampler of Leviathan et al. (2023) reaches 1 - TV, and needs the draft's probabilities and fresh noise.
With K >= 1 every round emits at least one token.
"""

from __future__ import annotations

import torch

from vllm_patches.tandem.schedule import SENIOR

NOTHING = -1


def settle(
    drafts: torch.Tensor, num_drafts: torch.Tensor, authors: torch.Tensor, own: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What each request emits in this round.

    Args:
        drafts: (N, K) drafted token ids, the first ``num_drafts`` of each row.
        num_drafts: (N,) between 0 and K.
        authors: (N, K + 1) author of each position after the drafts before it.
        own: (N, K + 1) the senior's own sample at each position; read only where the senior writes.

    Returns:
        (N, K + 1) emitted token ids, ``NOTHING`` after the last, and (N,) how many.
    """
    positions = torch.arange(authors.shape[1], device=drafts.device)
    padded = torch.nn.functional.pad(drafts, (0, 1), value=NOTHING)
    senior = authors == SENIOR
    stands = (positions < num_drafts[:, None]) & (~senior | (own == padded))
    standing = stands.long().cumprod(dim=1).sum(dim=1)
    bonus = senior.gather(1, standing[:, None])
    emitted = torch.where(positions < standing[:, None], padded, NOTHING)
    emitted = torch.where((positions == standing[:, None]) & bonus, own, emitted)
    return emitted, standing + bonus[:, 0]
