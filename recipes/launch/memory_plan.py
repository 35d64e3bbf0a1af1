"""Read a composed config as a :class:`recipes.launch.memory.Plan`: which models are trained, which engines run."""

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from recipes.errors import ConfigError
from recipes.launch.adapter_checks import tandem_senior
from recipes.launch.memory import BYTES, CONTEXT, GIB, Engine, Plan, Shape, Training
from recipes.launch.preflight import looks_local
from vllm_patches.tandem.config import TandemConfig
from vllm_patches.tandem.weight_sharing import decide

LONGEST_PACK = 16384


def check_memory(config: Any, device: str, *, show: bool = False) -> None:
    """Print the estimate on request, and refuse a run that cannot fit on its devices; on a CPU a dry run is only told.

    Raises:
        ConfigError: with the phase, the sizes and the knob that gives most.
    """
    plan = plan_of(config, device)
    if plan is None:
        if show:
            print("memory: the model's config.json is not at hand, so nothing is estimated")
        return
    if show:
        from rich.console import Console
        from rich.table import Table

        table = Table(title="Memory of one device, estimated")
        table.add_column("what")
        table.add_column("size", justify="right")
        for row in plan.rows():
            table.add_row(*row)
        Console(width=100).print(table)
    problem = plan.problem()
    if problem and show and device == "cpu":
        # What is tried without its GPUs, before it goes to them.
        print(f"memory: this machine would refuse the run, since {problem}")
    elif problem:
        raise ConfigError(problem)


def plan_of(config: Any, device: str) -> Plan | None:
    """The plan of a run; None where no model config is at hand or training is not FSDP's."""
    if not str(config.actor_rollout_ref.actor.strategy).startswith("fsdp"):
        return None
    world = config.trainer.nnodes * config.trainer.n_gpus_per_node
    trained, engines = [], []
    trees = [config] if config.get("proposer") is None else [config, config.proposer]
    for tree in trees:
        shape = shape_of(tree.actor_rollout_ref.model.path)
        if shape is None:
            return None
        trained.append(_actor(tree, shape, world, device))
        engines.append(_engine(tree, shape))
    if config.critic.get("enable"):
        shape = shape_of(config.critic.model.path)
        if shape is None:
            return None
        trained.append(_critic(config, shape, world, device))
    context = 0 if device == "cpu" else CONTEXT
    return Plan(tuple(trained), tuple(engines), device_bytes(config, device), context)


def shape_of(path: str | None) -> Shape | None:
    """A model's sizes from its folder or the hub's cache; None where they are not at hand."""
    if not path:
        return None
    if looks_local(path):
        file: Any = Path(path).expanduser() / "config.json"
    else:
        from huggingface_hub import try_to_load_from_cache

        file = try_to_load_from_cache(path, "config.json")
    try:
        return Shape.from_config(json.loads(Path(file).read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError, KeyError, ZeroDivisionError):
        return None


def device_bytes(config: Any, device: str) -> int | None:
    """The smallest accelerator of this machine, else what ``one_gpu.gb`` says, or None.

    On a CPU, a worker's share of the machine's memory; the block only names the scale there.
    """
    if device == "cpu":
        return host_bytes() // int(config.trainer.n_gpus_per_node)
    import torch

    if torch.cuda.is_available():
        sizes = [torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count())]
        return min(sizes)
    one = config.get("one_gpu")
    return int(one.gb) * GIB if one is not None else None


def host_bytes(limit: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Memory of this machine, or of the container (cgroup v2) where that has less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(physical, int(limit.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        # no cgroup, or "max"
        return physical


def _ranks(node: Any, world: int) -> int:
    size = node.get("fsdp_size", -1)
    return world if size in (None, -1) else min(size, world)


def _compute(engine: Any) -> str:
    return str((engine.get("mixed_precision") or {}).get("param_dtype", "bf16"))


def _masked(model: Any, data: Any, tokens: int) -> int:
    if (model.get("override_config") or {}).get("attn_implementation") != "sdpa":
        return 0
    return tokens if model.use_remove_padding else int(data.max_prompt_length + data.max_response_length)


def _tokens(packed: bool, budget: int | None, rows: int | None, data: Any) -> int:
    longest = data.max_prompt_length + data.max_response_length
    return int(budget or LONGEST_PACK) if packed else int(rows or 1) * longest


def _fsdp(engine: Any, strategy: str, world: int, device: str) -> dict[str, Any]:
    """What a role's settings of FSDP say of its :class:`Training`."""
    ranks, host = _ranks(engine, world), device == "cpu"
    return {
        "ranks": ranks,
        "dtype": str(engine.model_dtype),
        "compute": _compute(engine),
        "offload_parameters": bool(engine.param_offload),
        "offload_optimizer": bool(engine.optimizer_offload),
        "host": host,
        "streamed": not host and strategy == "fsdp2" and bool(engine.get("offload_policy")),
        "kept_whole": ranks > 1 and not engine.get("reshard_after_forward", True),
        "deferred": ranks > 1 and bool(engine.get("use_no_sync_for_gradient_accumulation")),
    }


def _actor(tree: Any, shape: Shape, world: int, device: str) -> Training:
    group, engine = tree.actor_rollout_ref, tree.actor_rollout_ref.actor.fsdp_config
    actor = group.actor
    tokens = _tokens(
        actor.use_dynamic_bsz, actor.ppo_max_token_len_per_gpu, actor.ppo_micro_batch_size_per_gpu, tree.data
    )
    return Training(
        shape,
        rank=int(group.model.get("lora_rank") or 0),
        tokens=tokens,
        padded=not group.model.use_remove_padding,
        masked=_masked(group.model, tree.data, tokens),
        checkpointing=bool(group.model.enable_gradient_checkpointing),
        fused=bool(group.model.get("use_fused_kernels")),
        **_fsdp(engine, str(actor.strategy), world, device),
    )


def _critic(config: Any, shape: Shape, world: int, device: str) -> Training:
    critic, engine = config.critic, config.critic.fsdp
    # verl 0.9 packs the critic's micro-batches under this budget alone; a small batch does not fill it.
    rows = -(-int(config.data.train_batch_size) * int(config.actor_rollout_ref.rollout.n) // world)
    batch = rows * int(config.data.max_prompt_length + config.data.max_response_length)
    tokens = min(int(critic.get("ppo_infer_max_token_len_per_gpu") or 32768), batch)
    return Training(
        shape,
        rank=int(critic.model.get("lora_rank") or 0),
        tokens=tokens,
        padded=not critic.model.use_remove_padding,
        masked=_masked(critic.model, config.data, tokens),
        checkpointing=bool(critic.model.enable_gradient_checkpointing),
        head=False,
        **_fsdp(engine, str(critic.strategy), world, device),
    )


def _engine(tree: Any, shape: Shape) -> Engine:
    rollout, data = tree.actor_rollout_ref.rollout, tree.data
    models, shared = [shape], False
    vllm = (rollout.get("engine_kwargs") or {}).get("vllm") or {}
    if tandem := vllm.get("tandem_config"):
        models.append(shape_of(tandem.get("junior_model")) or shape)
        shared = _shares(tandem, tree.actor_rollout_ref)
    return Engine(
        tuple(models),
        share=float(rollout.gpu_memory_utilization),
        length=int(rollout.max_model_len or data.max_prompt_length + data.max_response_length),
        parallel=int(rollout.tensor_model_parallel_size),
        itemsize=BYTES.get(str(rollout.dtype), 2),
        sleeps=bool(rollout.free_cache_engine) and bool(tree.actor_rollout_ref.hybrid_engine),
        shared=shared,
    )


def _shares(tandem: Any, group: Any) -> bool:
    """Whether the junior will read the senior's weights; never with a setting that the engine does not know."""
    given = {name: value for name, value in tandem.items() if value is not None}
    known = given.keys() <= {field.name for field in fields(TandemConfig)}
    return known and decide(TandemConfig(**given), tandem_senior(group))[0]
