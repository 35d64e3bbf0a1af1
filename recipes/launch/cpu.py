"""What a run on host processors is given by itself: its precision, its threads, its allocator, the size of a transfer.

A model of the toy's size is fastest on one thread in float32. A real one wants all cores, and bfloat16 where that is
faster.
"""

import os
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

SMALL = 20_000_000
"""Parameters under which a model counts as a toy."""
MIB = 1024**2
DTYPES = (
    "actor_rollout_ref.rollout.dtype",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype",
    "actor_rollout_ref.ref.fsdp_config.mixed_precision.param_dtype",
    "critic.fsdp.mixed_precision.param_dtype",
    "reward.reward_model.rollout.dtype",
)
"""What is computed in; master weights, gradients and moments stay in float32."""
KV_BYTES = 1024 * MIB
"""The most that an engine's keys and values get by themselves."""
# A waiting thread looks 20,000 times (some microseconds), then sleeps: 285 tokens a second, 245 without looking.
WAITING = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "20000"}
# glibc gives every large tensor back to the system and faults it in again: a third of a training pass. Only its first
# arena can keep them, and Ray trains in a thread that would get another.
ALLOCATOR = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(8 * 1024**3),
    "MALLOC_TRIM_THRESHOLD_": str(16 * 1024**3),
    "MALLOC_TOP_PAD_": str(256 * MIB),
}


@cache
def bfloat16_is_faster(least: float = 1.3) -> bool:
    """Whether products in bfloat16 beat those in float32 here, by a measurement of some milliseconds.

    The processor's flags do not tell: with AMX bfloat16 is five times as fast, with AVX512-BF16 alone half as fast.
    """
    import torch

    def seconds(dtype: torch.dtype) -> float:
        a, b = torch.ones(512, 576, dtype=dtype), torch.ones(576, 1536, dtype=dtype)
        times = []
        for _ in range(6):
            start = time.perf_counter()
            torch.mm(a, b)
            times.append(time.perf_counter() - start)
        return min(times)

    return seconds(torch.float32) > least * seconds(torch.bfloat16)


def fit_cpu(config: Any, device: str, overrides: Sequence[str] = ()) -> None:
    """Fit the CPU layer to the machine and the model; what stands in `overrides` stays.

    Polls faster than verl's 2 s for finished rollouts, and lets a vLLM engine of one rank be one process: its worker
    would be another one that imports all of vLLM.
    """
    from omegaconf import OmegaConf

    from recipes.launch.memory import shape_of

    if device != "cpu":
        return
    typed = {item.lstrip("+~").partition("=")[0] for item in overrides}
    sampler = config.trainer.v1.sampler.custom_sampler
    if sampler.path is None:
        sampler.path, sampler.name = "pkg://recipes.core.replay_buffer", "FastPollingReplayBuffer"
    shape = shape_of(config.actor_rollout_ref.model.path)
    real = shape is None or shape.parameters >= SMALL
    if real and bfloat16_is_faster():
        for key in set(DTYPES) - typed:
            OmegaConf.update(config, key, "bfloat16")
    served = config.reward.reward_model
    _fit_engine(config.actor_rollout_ref.rollout, shape, "actor_rollout_ref.rollout", typed)
    _fit_engine(served.rollout, shape_of(served.model_path), "reward.reward_model.rollout", typed)
    if shape is not None:
        # A tensor is sent whole, in float32; the embedding is the largest.
        sync = config.actor_rollout_ref.rollout.checkpoint_engine
        largest = -(-4 * shape.embedding // MIB) + 1
        sync.update_weights_bucket_megabytes = max(sync.update_weights_bucket_megabytes, largest)
    if real:
        for key in {f"{model}.use_remove_padding" for model in ("actor_rollout_ref.model", "critic.model")} - typed:
            # Rows of a micro-batch in one, each under a mask of its own: no time goes into padding.
            OmegaConf.update(config, key, True)
        for optim in (config.actor_rollout_ref.actor.optim, config.critic.optim):
            if optim.optimizer == "AdamW" and optim.override_optimizer_config is None:
                optim.override_optimizer_config = {"fused": True}
    set_environment(real)


def _fit_engine(rollout: Any, shape: Any, key: str, typed: set[str]) -> None:
    """One process for one rank, and keys and values for all sequences at once, within `KV_BYTES`."""
    from omegaconf import open_dict

    engine = rollout.engine_kwargs.get("vllm")
    if engine is None:
        return
    with open_dict(rollout):
        if rollout.tensor_model_parallel_size * rollout.pipeline_model_parallel_size == 1:
            engine.setdefault("distributed_executor_backend", "uni")
        configured = engine.get("kv_cache_memory_bytes")
        if shape is not None and configured and f"{key}.engine_kwargs.vllm.kv_cache_memory_bytes" not in typed:
            size = 2 if rollout.dtype == "bfloat16" else 4
            token = 2 * shape.num_hidden_layers * shape.kv_heads * shape.head_dim * size
            needed = (rollout.max_num_seqs or 1) * (rollout.max_model_len or 1024) * token
            engine.kv_cache_memory_bytes = max(configured, min(KV_BYTES, needed))


def set_environment(real: bool) -> None:
    """Threads and allocator of every process, read when it starts.

    A toy's processes take half of the cores each, so that engine and trainer do not wait for each other. A real model's
    take all, and sleep at barriers: threads that spin beside another busy process stall it for seconds. What vLLM
    compiles for log-probabilities costs a toy's first step 6 s and every token more than it saves; a real model writes
    a third faster with it.
    """
    cores = os.cpu_count() or 2
    settings = {"OMP_NUM_THREADS": str(cores if real else max(1, cores // 2))}
    settings |= WAITING | ALLOCATOR if real else {"TORCHDYNAMO_DISABLE": "1"}
    for name, value in settings.items():
        os.environ.setdefault(name, value)
