"""Which prompts train on their gold answer beside the process reward model.

PURE (arXiv 2504.15275) keeps the answers of a tenth of its prompts: a process reward alone is gamed within a few
hundred updates, and a few verified outcomes hold it.
"""

import hashlib
from collections.abc import Sequence


def keeps_answer(prompt_ids: Sequence[int], share: float) -> bool:
    """Whether a prompt is in the share that keeps its answer; the same in every epoch, run and process."""
    digest = hashlib.blake2b(repr([int(i) for i in prompt_ids]).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64
