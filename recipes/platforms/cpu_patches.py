"""What verl 0.9 hard-codes for accelerators, mended for the CPU platform: one function per patch.

:func:`install` is called by the plug-in in every process of a run that was launched with ``VERL_PLATFORM=cpu``, and
nowhere else. A patch of a module waits for that module's import, checks the upstream code against the ledger in
:mod:`recipes.upstream.compat` and refuses one it does not know, with a message in
:mod:`recipes.upstream.startup_errors`. Each leaves a sentinel, so that a second call changes nothing.
"""

import functools
import traceback

import wrapt

from recipes.upstream import compat, startup_errors
from recipes.upstream.vllm_distribution import alias_vllm_distribution

SENTINEL = "_verl_duets_cpu"


def name_one_collective_backend(module) -> None:
    """Initialise the process group with ``cpu:gloo``.

    Symptom: torch's ``ValueError: duplicate device type``. Trigger: verl asks for ``cpu:gloo,<device>:<backend>``,
    which is ``cpu:gloo,cpu:gloo`` here. Safe: a caller that names a backend keeps it.
    """
    upstream = module.initialize_global_process_group_ray
    if hasattr(upstream, SENTINEL):
        return

    @functools.wraps(upstream)
    def initialize_global_process_group_ray(timeout_second=None, backend=None):
        return upstream(timeout_second=timeout_second, backend=backend or "cpu:gloo")

    setattr(initialize_global_process_group_ray, SENTINEL, True)
    module.initialize_global_process_group_ray = initialize_global_process_group_ray


def offload_to_pageable_memory(module) -> None:
    """Let FSDP2 offload into ordinary memory.

    Symptom: ``Cannot access accelerator device when none is available`` in a reference policy. Trigger: verl builds
    ``CPUOffloadPolicy(pin_memory=True)``, and pinning needs an accelerator. Safe: pinning only speeds up copies that do
    not happen here.
    """
    upstream = module.CPUOffloadPolicy
    if hasattr(upstream, SENTINEL):
        return

    def pageable_offload_policy(pin_memory: bool = True):
        return upstream(pin_memory=False)

    setattr(pageable_offload_policy, SENTINEL, True)
    module.CPUOffloadPolicy = pageable_offload_policy


MODULE_PATCHES = (
    ("verl.utils.distributed", "initialize_global_process_group_ray", name_one_collective_backend),
    ("verl.workers.engine.fsdp.transformer_impl", "CPUOffloadPolicy", offload_to_pageable_memory),
)


def _guarded(patch, module, symbol: str) -> None:
    try:
        if not hasattr(getattr(module, symbol.partition(":")[2], None), SENTINEL):
            compat.ensure([row for row in compat.LEDGER if row.symbol == symbol])
        patch(module)
    except Exception:
        startup_errors.messages.append(traceback.format_exc())


def install() -> None:
    """Apply every patch to this process, each when verl imports the module it concerns."""
    alias_vllm_distribution()
    for name, attribute, patch in MODULE_PATCHES:
        wrapt.when_imported(name)(
            lambda module, patch=patch, symbol=f"{name}:{attribute}": _guarded(patch, module, symbol)
        )
