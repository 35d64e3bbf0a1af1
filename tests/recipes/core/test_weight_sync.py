"""verl's weight sender against an engine that never answers, over a real socket."""

import asyncio
import inspect
import time

import pytest
import torch

from recipes.core import weight_sync
from recipes.launch import leftovers


@pytest.fixture
def sender(monkeypatch, tmp_path):
    from recipes.core.vllm_distribution import alias_vllm_distribution

    alias_vllm_distribution()
    import verl.plugin.platform.platform_manager as platform_manager

    from recipes.core.cpu import PlatformCPU

    monkeypatch.setattr(platform_manager, "_current_platform", PlatformCPU())
    import verl.workers.rollout.vllm_rollout.bucketed_weight_transfer as transfer

    monkeypatch.setenv(weight_sync.VARIABLE, "1")
    # verl's own methods, which another test may have wrapped in this process.
    sender, receiver = transfer.BucketedWeightSender, transfer.BucketedWeightReceiver
    for end, name in (
        (sender, "__init__"),
        (receiver, "__init__"),
        (sender, "_init_socket"),
        (sender, "async_send_weights"),
    ):
        monkeypatch.setattr(end, name, inspect.unwrap(getattr(end, name)))
    monkeypatch.delattr(transfer.BucketedWeightSender, weight_sync.SENTINEL, raising=False)
    weight_sync.bound_acknowledgements(transfer)
    return transfer.BucketedWeightSender(f"ipc://{tmp_path}/engine.sock", bucket_size_mb=1, use_shm=True)


def test_a_silent_engine_is_an_error(sender):
    began = time.monotonic()
    with pytest.raises(weight_sync.WeightSyncTimeout, match="did not acknowledge new weights within 1 s"):
        asyncio.run(sender.async_send_weights(iter([("weight", torch.zeros(4))])))
    assert 0.9 < time.monotonic() - began < 10


@pytest.mark.parametrize("value", ["", "soon", "0", "-3"])
def test_a_limit_that_is_no_number_is_told(monkeypatch, value):
    monkeypatch.setenv(weight_sync.VARIABLE, value)
    with pytest.raises(ValueError, match="positive number of seconds"):
        weight_sync.limit_seconds()


def test_two_runs_on_a_host_do_not_share_a_socket(monkeypatch):
    """The first job of every Ray cluster has the same id, and verl names the socket after it."""
    upstream = "ipc:///tmp/rl-colocate-zmq-01000000-replica-0-rank-0.sock"
    monkeypatch.delenv(leftovers.VARIABLE, raising=False)
    assert weight_sync.socket_of_this_run(upstream) == upstream
    monkeypatch.setenv(leftovers.VARIABLE, "host-1-2-aa")
    first = weight_sync.socket_of_this_run(upstream)
    monkeypatch.setenv(leftovers.VARIABLE, "host-3-4-bb")
    second = weight_sync.socket_of_this_run(upstream)
    assert len({upstream, first, second}) == 3
    assert all(len(path) < 108 for path in (first, second)), "a Unix socket's path has at most 107 bytes"


def test_both_ends_agree_on_the_socket(sender, monkeypatch, tmp_path):
    import verl.workers.rollout.vllm_rollout.bucketed_weight_transfer as transfer

    monkeypatch.setenv(leftovers.VARIABLE, "host-1-2-aa")
    path = f"ipc://{tmp_path}/engine.sock"
    ends = transfer.BucketedWeightSender(path, bucket_size_mb=1), transfer.BucketedWeightReceiver(path, "cpu")
    assert ends[0].zmq_handle == ends[1].zmq_handle != path
