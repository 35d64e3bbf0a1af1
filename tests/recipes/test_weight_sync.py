"""verl's weight sender against an engine that never answers, over a real socket."""

import asyncio
import time

import pytest
import torch

from recipes import weight_sync


@pytest.fixture
def sender(monkeypatch, tmp_path):
    pytest.importorskip("vllm")
    from recipes.platforms.cpu_patches import alias_vllm_distribution

    alias_vllm_distribution()
    import verl.plugin.platform.platform_manager as platform_manager

    from recipes.platforms.cpu import PlatformCPU

    monkeypatch.setattr(platform_manager, "_current_platform", PlatformCPU())
    import verl.workers.rollout.vllm_rollout.bucketed_weight_transfer as transfer

    monkeypatch.setenv(weight_sync.VARIABLE, "1")
    for name in ("_init_socket", "async_send_weights"):
        monkeypatch.setattr(transfer.BucketedWeightSender, name, getattr(transfer.BucketedWeightSender, name))
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
