"""Noise that both models share, a pure function of (request, position, token id), and samples drawn with it.

A sample of a law p is ``argmax_v p(v) / e_v`` with independent exponential e_v, or in logarithms
``argmax_v logit_v + g_v`` with g = -log e (the Gumbel-max trick). The noise comes from a counter-based hash, as the
coins of ``schedule`` do: it survives preemption and batching, agrees on every tensor-parallel rank, and is the same
whether a position is drafted by the junior, verified by the senior, or computed again.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import torch

from vllm_patches.tandem.schedule import GOLDEN_GAMMA, mix64

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
