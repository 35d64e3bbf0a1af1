"""The host processor as a verl platform: chosen by ``VERL_PLATFORM=cpu``, never detected.

verl asks its platform object for devices, memory figures, collectives and the name of a Ray resource. This one
answers for the CPU. Two answers are not literally true, because verl 0.9 reads them in only one way: the Ray
resource is called ``GPU`` (a logical one; verl counts no other name), and the current device is the string ``cpu``
that formats as ``0`` (verl builds both ``tensor.to(device)`` and ``f"{name}:{device}"`` from it).
"""

import ctypes
import os
import resource
import types
from contextlib import nullcontext

import psutil
import torch
from verl.plugin.platform import PlatformBase

FORWARDED_VARIABLES = ("VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND", "OMP_NUM_THREADS")


class _CurrentDevice(str):
    """``cpu`` for torch, ``0`` inside an f-string."""

    def __format__(self, spec: str) -> str:
        return "0"


CURRENT_DEVICE = _CurrentDevice("cpu")


def _nothing(*_, **__) -> None:
    """What an accelerator has to do and a host has not."""


class _CpuModule(types.ModuleType):
    """What verl calls on ``torch.cuda``, answered for the host; the rest falls through to ``torch.cpu``."""

    set_device = synchronize = ipc_collect = reset_peak_memory_stats = staticmethod(_nothing)
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)

    def is_available(self) -> bool:
        """False: callers that would query an accelerator's memory return early."""
        return False

    @staticmethod
    def empty_cache() -> None:
        """Give back what was freed, half of an update's memory: `recipes.launch.cpu.ALLOCATOR` keeps it."""
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
            trim(0)

    def current_device(self) -> str:
        return CURRENT_DEVICE

    def device_count(self) -> int:
        return 1

    def get_rng_state(self, *_) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, *_) -> None:
        torch.set_rng_state(state)

    def get_device_name(self, *_) -> str:
        return "CPU"

    def memory_allocated(self, *_) -> int:
        """Resident bytes of this process."""
        return psutil.Process().memory_info().rss

    memory_reserved = memory_allocated

    def max_memory_allocated(self, *_) -> int:
        """Peak resident bytes of this process."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    max_memory_reserved = max_memory_allocated

    def mem_get_info(self, *_) -> tuple[int, int]:
        """(available, total) bytes of the host."""
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    def __getattr__(self, name: str):
        return getattr(torch.cpu, name)


CPU_MODULE = _CpuModule("verl_duets_cpu")


class PlatformCPU(PlatformBase):
    """verl's platform interface on the host processor, with gloo collectives and shared-memory weight transfer."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = CPU_MODULE

    set_device = synchronize = set_allocator_settings = staticmethod(_nothing)
    empty_cache = staticmethod(CPU_MODULE.empty_cache)
    profiler_start = profiler_stop = cudart = staticmethod(_nothing)
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """False: a driver without an accelerator may belong to a cluster that has them."""
        return False

    def current_device(self) -> str:
        return CURRENT_DEVICE

    def device_count(self) -> int:
        return 1

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return (None, None)

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "VERL_DUETS_VISIBLE_CPUS"

    def nvtx_range(self, msg: str) -> nullcontext:
        return nullcontext()

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def rollout_env_vars(self) -> dict[str, str]:
        return {name: os.environ[name] for name in FORWARDED_VARIABLES if name in os.environ}
