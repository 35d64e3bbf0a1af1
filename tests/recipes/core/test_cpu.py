"""The CPU platform answers verl's calls for the host."""

import torch

from recipes.core.cpu import PlatformCPU


def test_the_platform_can_be_built_and_does_nothing_where_an_accelerator_would_act():
    platform = PlatformCPU()
    assert platform.set_device(0) is None and platform.synchronize(device_index=0) is None
    assert not platform.is_platform_available() and platform.ray_resource_name() == "GPU"
    with platform.nvtx_range("step"):
        assert not platform.is_ipc_supported()


def test_what_was_freed_goes_back_to_the_system():
    """A block at the top keeps the allocator from giving back those below it."""
    module = PlatformCPU().device_module
    blocks = [torch.ones(16 * 1024) for _ in range(3000)]
    held, top = module.memory_allocated(), blocks.pop()
    blocks.clear()
    PlatformCPU().empty_cache()
    assert module.memory_allocated() < held - 100 * 1024**2 and top.sum() == top.numel()


def test_its_device_module_stands_in_for_that_of_an_accelerator():
    module = PlatformCPU().device_module
    assert not module.is_available() and module.device_count() == 1
    assert torch.zeros(1, device=module.current_device()).device.type == "cpu" and f"{module.current_device()}" == "0"
    available, total = module.mem_get_info()
    assert 0 < module.memory_reserved() < total and 0 < module.max_memory_reserved() < total and available <= total
    module.manual_seed_all(3)
    state = module.get_rng_state()
    drawn = torch.rand(2)
    module.set_rng_state(state)
    assert torch.equal(torch.rand(2), drawn)
    assert module.synchronize is not None and module.ipc_collect() is None
    assert module.Stream is torch.cpu.Stream
