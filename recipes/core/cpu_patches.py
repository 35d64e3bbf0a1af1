"""What verl 0.9 and transformers do for accelerators, replaced for the CPU platform: one function per patch.

:func:`install` is called by the plug-in in every process of a run that was launched with ``VERL_PLATFORM=cpu``, and
nowhere else. A second call changes nothing.
"""

from recipes.core.patching import patch_when_imported
from recipes.core.vllm_distribution import alias_vllm_distribution
from vllm_patches.upstream import is_replaced, replaces

USED_BY = "recipes/core/cpu_patches.py"


def name_one_collective_backend(module) -> None:
    """Initialise the process group with ``cpu:gloo``.

    Symptom: torch's ``ValueError: duplicate device type``. Trigger: verl asks for ``cpu:gloo,<device>:<backend>``,
    which is ``cpu:gloo,cpu:gloo`` here. Safe: a caller that names a backend keeps it.
    """
    upstream = module.initialize_global_process_group_ray
    if is_replaced(upstream):
        return

    @replaces(upstream)
    def initialize_global_process_group_ray(timeout_second=None, backend=None):
        return upstream(timeout_second=timeout_second, backend=backend or "cpu:gloo")

    module.initialize_global_process_group_ray = initialize_global_process_group_ray


def offload_to_pageable_memory(module) -> None:
    """Let FSDP2 offload into ordinary memory.

    Symptom: ``Cannot access accelerator device when none is available`` in a reference policy. Trigger: verl builds
    ``CPUOffloadPolicy(pin_memory=True)``, and pinning needs an accelerator. Safe: pinning only speeds up copies that do
    not happen here.
    """
    upstream = module.CPUOffloadPolicy
    if is_replaced(upstream):
        return

    @replaces(upstream)
    def pageable_offload_policy(pin_memory: bool = True):
        return upstream(pin_memory=False)

    module.CPUOffloadPolicy = pageable_offload_policy


def attend_within_sequences(module) -> None:
    """Compute the attention of a packed row a sequence at a time, see `recipes.core.packed_attention`.

    Symptom: a pass over 32 responses takes three times as long. Trigger: without flash attention a row of many
    sequences is one product under a mask. Safe: the mask's blocks are what is computed, and the rest goes to sdpa.
    """
    from recipes.core.packed_attention import within_sequences

    upstream = module.ALL_ATTENTION_FUNCTIONS["sdpa"]
    if is_replaced(upstream):
        return
    module.AttentionInterface.register("sdpa", replaces(upstream)(within_sequences(upstream)))


def install() -> None:
    """Apply every patch to this process, each when verl imports the module it concerns."""
    alias_vllm_distribution()
    patch_when_imported("verl.utils.distributed", USED_BY, name_one_collective_backend)
    patch_when_imported("verl.workers.engine.fsdp.transformer_impl", USED_BY, offload_to_pageable_memory)
    patch_when_imported("transformers.modeling_utils", USED_BY, attend_within_sequences)
