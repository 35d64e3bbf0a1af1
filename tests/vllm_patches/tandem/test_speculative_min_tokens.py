"""``min_tokens`` in the speculative mode: which stop tokens are excluded, and what that costs with many of them."""

import time

import numpy as np
import pytest
import torch

from vllm_patches.tandem.speculative.min_tokens import MinTokens

CPU = torch.device("cpu")


def excluded_one_by_one(logits, requests, written, least_of, stops_of):
    """The meaning: each stop token of each row whose request is shorter than its least length."""
    logits = logits.clone()
    for row, (request, length) in enumerate(zip(requests, written, strict=True)):
        if length < least_of[request]:
            logits[row, sorted(stops_of[request])] = float("-inf")
    return logits


@pytest.mark.parametrize("seed", range(20))
def test_the_stop_tokens_of_short_requests_and_no_others(seed):
    dice = np.random.default_rng(seed)
    num_requests, vocab = int(dice.integers(1, 7)), 30
    least_of = dice.integers(0, 6, num_requests).tolist()
    stops_of = [set(dice.choice(vocab, int(dice.integers(0, 9)), replace=False).tolist()) for _ in range(num_requests)]
    least_of = [least if stops else 0 for least, stops in zip(least_of, stops_of, strict=True)]
    before = dice.integers(0, 8, num_requests)
    kept, ids = MinTokens(), [f"r{i}" for i in range(num_requests)]
    for i in range(num_requests):
        kept.add(ids[i], least_of[i], stops_of[i])
    requests = np.sort(dice.integers(0, num_requests, 12))
    written = before[requests] + dice.integers(0, 4, 12)
    logits = torch.from_numpy(dice.normal(size=(12, vocab))).float()
    logits[:, 3] = float("-inf")  # what a trainer bans stays so
    expected = excluded_one_by_one(logits, requests, written, least_of, stops_of)
    early = kept.early(ids, before, CPU)
    assert (early is None) == all(length >= least for length, least in zip(before, least_of, strict=True))
    if early is not None:
        early.exclude(logits, torch.from_numpy(requests), torch.from_numpy(written))
    assert torch.equal(logits, expected)


def test_requests_past_their_least_length_or_gone_cost_nothing():
    kept = MinTokens()
    kept.add("a", 3, {5, 6})
    kept.add("b", 9, {7})
    assert kept.early(["a", "b"], np.array([3, 9]), CPU) is None
    assert kept.early(["a", "b"], np.array([2, 9]), CPU).stops.tolist() == [[5, 6]]
    kept.forget("a")
    kept.forget("unknown")
    assert kept.early(["a", "b"], np.array([2, 9]), CPU) is None


def test_many_stop_tokens_of_many_requests():
    """64 requests with 5,000 stop tokens each and five rows: the tables hold a request's own, not everybody's."""
    num_requests, num_stops, rows_each = 64, 5000, 5
    kept, ids = MinTokens(), [str(i) for i in range(num_requests)]
    for request_id in ids:
        kept.add(request_id, 5, range(num_stops))
    requests = torch.arange(num_requests).repeat_interleave(rows_each)
    logits = torch.zeros(len(requests), num_stops + 100)
    began = time.process_time()
    early = kept.early(ids, np.zeros(num_requests, dtype=np.int64), CPU)
    early.exclude(logits, requests, torch.arange(rows_each).repeat(num_requests) + 2)
    seconds = time.process_time() - began
    assert early.stops.numel() == num_requests * num_stops
    assert seconds < 0.6, "every row against everybody's stop tokens took 1.1 s and half a gigabyte"
    short = torch.arange(rows_each).repeat(num_requests) + 2 < 5
    assert logits[short, :num_stops].isneginf().all()
    assert not logits[~short].any() and not logits[:, num_stops:].any()
