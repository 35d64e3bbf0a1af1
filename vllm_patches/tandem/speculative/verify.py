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

import hashlib
from functools import lru_cache

import torch

from vllm_patches.tandem.schedule import GOLDEN_GAMMA, SENIOR, mix64

# Noise that both models share, a pure function of (request, position, token id). A sample of a law p is ``argmax_v p(v)
# / e_v`` with independent exponential e_v, or in logarithms ``argmax_v logit_v + g_v`` with g = -log e (the Gumbel-max
# trick). The noise comes from a counter-based hash, as the coins of ``schedule`` do: it survives preemption and
# batching, agrees on every tensor-parallel rank, and is the same whether a position is drafted by the junior, verified
# by the senior, or computed again.
_NOISE_DOMAIN = 0x6A09E667F3BCC909
_SEEDED_DOMAIN = 0xBB67AE8584CAA73B
# The largest words round up to 2**31 in single precision; a uniform of 1 would be noise of minus infinity.
_BELOW_ONE = 1 - 2.0**-24


def noise_key(stream: int, sampling_seed: int | None, request_id: str) -> int:
    """The 64-bit key of one response's noise.

    Args:
        stream: ``schedule.stream_key`` of the response.
        sampling_seed: ``SamplingParams.seed``; where there is none the request's id stands for it, so that equal
            requests without a seed differ.
        request_id: vLLM's id of the request, the same on every rank.
    """
    if sampling_seed is None:
        digest = hashlib.blake2b(request_id.encode(), digest_size=8).digest()
        salt = mix64(int.from_bytes(digest, "little"))
    else:
        salt = mix64((sampling_seed ^ _SEEDED_DOMAIN) & (1 << 64) - 1)
    return mix64(mix64(stream ^ _NOISE_DOMAIN) ^ salt)


def signed64(word: int) -> int:
    """The same 64 bits as a signed number, which is what a torch tensor holds."""
    return word - (1 << 64) if word >> 63 else word


def gumbel(keys: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """(N, V) float32 standard Gumbel noise.

    Args:
        keys: (N,) int64, ``signed64(noise_key(...))``.
        positions: (N,) int64 positions in the responses, from 0.
        vocab_size: V.
    """
    words = mix64_of(keys + (positions + 1) * signed64(GOLDEN_GAMMA))
    low, high = words.to(torch.int32), (words >> 32).to(torch.int32)
    # 32-bit counters, since a vocabulary of 150k is hashed at every position; multipliers of lowbias32 (Wellons).
    x = _ramp(vocab_size, keys.device)[None, :] + low[:, None]
    x ^= (x >> 16) & 0xFFFF
    x *= 0x21F0AAAD
    x ^= (x >> 15) & 0x1FFFF
    x ^= high[:, None]
    x *= 0x735A2D97
    x ^= (x >> 15) & 0x1FFFF
    x *= 0x21F0AAAD
    x ^= (x >> 16) & 0xFFFF
    # Small exponentials win, and 31 bits beside zero are exact in single precision.
    uniform = (x & 0x7FFFFFFF).to(torch.float32).add_(0.5).mul_(2.0**-31).clamp_(max=_BELOW_ONE)
    return uniform.neg_().log1p_().neg_().log_().neg_()


def draw(logits: torch.Tensor, keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """(N,) int64: one sample of softmax(logits) per row; ``logits`` (N, V) float32, -inf where a token is excluded."""
    return gumbel(keys, positions, logits.shape[-1]).add_(logits).argmax(dim=-1)


@lru_cache(maxsize=8)
def _ramp(size: int, device: torch.device) -> torch.Tensor:
    return (torch.arange(size, device=device) * 0x9E3779B9).to(torch.int32)


def mix64_of(x: torch.Tensor) -> torch.Tensor:
    """``schedule.mix64`` of each element; int64 wraps around as unsigned words do."""
    x = (x ^ (x >> 30) & (1 << 34) - 1) * signed64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> 27) & (1 << 37) - 1) * signed64(0x94D049BB133111EB)
    return x ^ (x >> 31) & (1 << 33) - 1


NOTHING = -1


def accept_drafts(
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
    matches = (positions < num_drafts[:, None]) & (~senior | (own == padded))
    accepted = matches.long().cumprod(dim=1).sum(dim=1)
    bonus = senior.gather(1, accepted[:, None])
    emitted = torch.where(positions < accepted[:, None], padded, NOTHING)
    emitted = torch.where((positions == accepted[:, None]) & bonus, own, emitted)
    return emitted, accepted + bonus[:, 0]
