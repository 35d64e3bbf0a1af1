"""The shared noise: bit for bit the documented hash, Gumbel, independent across requests, positions and tokens."""

import numpy as np
import pytest
import torch

from vllm_patches.tandem.schedule import GOLDEN_GAMMA, mix64, stream_key
from vllm_patches.tandem.speculative.verify import draw, gumbel, noise_key, signed64

MASK32, MASK64 = (1 << 32) - 1, (1 << 64) - 1


def keys_of(number: int, request: int = 0) -> torch.Tensor:
    return torch.tensor([signed64(noise_key(stream_key(7, request), seed, "")) for seed in range(number)])


def hashed(key: int, position: int, token: int) -> int:
    """The hash of one (key, position, token), in unbounded integers."""
    word = mix64((key + (position + 1) * GOLDEN_GAMMA) & MASK64)
    x = (token * 0x9E3779B9 + word) & MASK32
    x = (x ^ x >> 16) * 0x21F0AAAD & MASK32
    x = (x ^ x >> 15 ^ word >> 32) * 0x735A2D97 & MASK32
    x = (x ^ x >> 15) * 0x21F0AAAD & MASK32
    return (x ^ x >> 16) & 0x7FFFFFFF


def test_the_noise_is_the_documented_hash():
    for key in (0, 1, MASK64, noise_key(stream_key(1, 2), 3, "a")):
        positions = torch.tensor([0, 1, 77, 100_000])
        found = gumbel(torch.full((4,), signed64(key)), positions, 300)
        uniform = np.array([[(hashed(key, int(p), v) + 0.5) / 2**31 for v in range(300)] for p in positions])
        np.testing.assert_allclose(found.numpy(), -np.log(-np.log1p(-uniform)), rtol=2e-5, atol=2e-5)


def test_the_largest_word_is_noise_too_and_never_hides_the_one_token_that_is_allowed():
    key, position, token, vocab_size = noise_key(17, 5, "r"), 287, 58129, 60_000
    assert hashed(key, position, token) >= (1 << 31) - 64, "rounds up to 2**31 in single precision"
    keys, positions = torch.tensor([signed64(key)]), torch.tensor([position])
    assert -3.1 < float(gumbel(keys, positions, vocab_size)[0, token]) < -2.8
    logits = torch.full((1, vocab_size), float("-inf"))
    logits[0, token] = 3.0
    assert draw(logits, keys, positions).tolist() == [token]


def test_it_depends_on_request_position_and_nothing_else():
    keys, positions = keys_of(5), torch.arange(5)
    together = gumbel(keys, positions, 64)
    alone = torch.cat([gumbel(keys[i : i + 1], positions[i : i + 1], 64) for i in range(5)])
    assert torch.equal(together, alone)
    assert torch.equal(gumbel(keys, positions, 200)[:, :64], together), "a larger vocabulary adds noise, changes none"


def test_equal_requests_without_a_seed_differ_and_with_a_seed_do_not():
    stream = stream_key(0, 9)
    assert noise_key(stream, None, "a") != noise_key(stream, None, "b")
    assert noise_key(stream, 4, "a") == noise_key(stream, 4, "b")
    assert len({noise_key(stream_key(0, request), seed, "") for request in range(50) for seed in range(50)}) == 2500


def in_cells(exponentials: torch.Tensor, cells: int = 50) -> np.ndarray:
    """Counts of samples in cells of equal probability under the exponential law."""
    return np.bincount(
        (-torch.expm1(-exponentials.double().ravel()) * cells).long().clamp(max=cells - 1), minlength=cells
    )


def test_exponentials_are_exponential(chi_square):
    counts = in_cells(torch.exp(-gumbel(keys_of(400), torch.arange(400) % 7, 500)))
    assert chi_square(counts, np.full(50, 4000)) > 1e-3
    # the smallest of a vocabulary decide, so the tail beside zero is looked at on its own
    smallest = torch.exp(-gumbel(keys_of(4000), torch.zeros(4000, dtype=torch.long), 5000).amax(dim=1)) * 5000
    assert chi_square(in_cells(smallest), np.full(50, 80)) > 1e-3


@pytest.mark.parametrize("along", ["tokens", "positions", "seeds", "requests"])
def test_neighbours_are_independent(along, chi_square):
    size = 40_000
    if along == "tokens":
        pairs = gumbel(keys_of(size // 8), torch.zeros(size // 8, dtype=torch.long), 9)
        first, second = pairs[:, :-1].ravel(), pairs[:, 1:].ravel()
    elif along == "positions":
        noise = gumbel(keys_of(1).expand(size + 1), torch.arange(size + 1), 1)[:, 0]
        first, second = noise[:-1], noise[1:]
    else:
        keys = keys_of(size + 1) if along == "seeds" else torch.cat([keys_of(1, request=r) for r in range(size + 1)])
        noise = gumbel(keys, torch.zeros(size + 1, dtype=torch.long), 1)[:, 0]
        first, second = noise[:-1], noise[1:]
    bins = [np.floor(np.exp(-np.exp(-x.double().numpy())) * 8).astype(int).clip(0, 7) for x in (first, second)]
    table = np.bincount(bins[0] * 8 + bins[1], minlength=64)
    assert chi_square(table, np.full(64, len(bins[0]) / 64)) > 1e-3


def test_samples_follow_the_law_and_near_laws_give_equal_samples(chi_square):
    logits = torch.tensor([2.0, 0.0, -1.0, float("-inf"), 1.0, -4.0])
    size = 60_000
    tokens = draw(logits.expand(size, -1).clone(), keys_of(size), torch.zeros(size, dtype=torch.long))
    counts = np.bincount(tokens.numpy(), minlength=6)
    assert chi_square(counts, size * logits.double().softmax(-1)) > 1e-3
    near = draw(logits.expand(size, -1) + 0.05 * torch.randn(6), keys_of(size), torch.zeros(size, dtype=torch.long))
    assert 0.9 < float((near == tokens).double().mean()) < 1, "near laws agree nearly always: that is the coupling"
