"""Estimate what a run takes of each device before it is spent, and refuse what cannot fit.

Sizes are bytes, of dense decoders (Llama, Qwen2, Qwen3) on FSDP with AdamW. Within 15 % of what verl's own workers take
where that was measured (``tests/benchmarks/memory_estimate.jsonl``).
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from recipes.core.settings import policies
from recipes.errors import ConfigError
from recipes.launch.preflight import looks_local

GIB = 1024**3
# The names that verl's configs take.
BYTES = {"fp32": 4, "float32": 4, "32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "16": 2}
# CUDA context, kernels and allocator slack of one process: an assumption.
CONTEXT = GIB
# verl's fused log-probs take the vocabulary in pieces of so many tokens.
FUSED_CHUNK = 512
ADVICE = (
    "train adapters (model.lora_rank), offload (param_offload, optimizer_offload), lower gpu_memory_utilization or the "
    "tokens of a micro-batch, or take more devices"
)

SecondModel = Callable[[Any], tuple[str, bool] | None]
"""What an engine holds beside its policy, from the policy's `actor_rollout_ref`: the model's path, and whether it reads
the policy's own weights."""


def no_second_model(group: Any) -> None:
    """Most engines hold one model."""


@dataclass(frozen=True)
class Shape:
    """A decoder's sizes, named as in its config.json."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool = False
    qk_norm: bool = False

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Shape":
        """Sizes from the content of a config.json; KeyError or ValueError where it is no dense decoder."""
        names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        sizes = [config[name] for name in names]
        sizes += [config.get("num_key_value_heads") or sizes[4], config.get("head_dim") or sizes[1] // sizes[4]]
        if not all(isinstance(size, int) and size > 0 for size in sizes):
            raise ValueError(f"no sizes of a decoder: {sizes}")
        return cls(*sizes, bool(config.get("tie_word_embeddings")), config.get("model_type") == "qwen3")

    @property
    def linears(self) -> list[tuple[int, int]]:
        """Inputs and outputs of a layer's linear maps."""
        h, q, kv, f = (
            self.hidden_size,
            self.heads * self.head_dim,
            self.kv_heads * self.head_dim,
            self.intermediate_size,
        )
        return [(h, q), (h, kv), (h, kv), (q, h), (h, f), (h, f), (f, h)]

    @property
    def layer(self) -> int:
        """Parameters of a layer; norms and biases, less than a thousandth, are left out."""
        return sum(i * o for i, o in self.linears)

    @property
    def embedding(self) -> int:
        return self.vocab_size * self.hidden_size

    @property
    def parameters(self) -> int:
        return self.embedding * (1 if self.tied else 2) + self.num_hidden_layers * self.layer

    def adapter_parameters(self, rank: int) -> int:
        """Parameters of adapters of this rank at every linear map of the layers."""
        return self.num_hidden_layers * sum(rank * (i + o) for i, o in self.linears)

    def saved_per_token(self, size: int, mask: int) -> int:
        """What autograd saves in one layer: inputs of linear maps, norms (in float32), attention, gate.

        Beside a mask, sdpa gets keys and values repeated to the number of heads, and keeps a row of it in every layer.
        """
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        norms = (4 + size) * (2 * self.hidden_size + (q + kv if self.qk_norm else 0))
        attention = 3 * q + 2 * (q if mask else kv) + mask
        return norms + size * (2 * self.hidden_size + attention + 4 * self.intermediate_size)


class Model(NamedTuple):
    """Bytes of a trained model: weights, gradients and AdamW's moments; the most in its update; what else may run
    beside; and while it is loaded."""

    state: int
    update: int
    resting: int
    building: int


class Engine(NamedTuple):
    """Bytes of a rollout engine: its weights, its share of the device, its longest sequence's keys and values."""

    weights: int
    share: int
    sequence: int
    sleeps: bool


def trained_model(shape: Shape, model: Any, fsdp: Any, tokens: int, config: Any, *, host: bool, head: bool) -> Model:
    """What one role takes, from its nodes of the config and the tokens of a micro-batch, padding included."""
    world, ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node, fsdp.get("fsdp_size") or -1
    bytes_each = BYTES.get(str(fsdp.model_dtype), 4) / (world if ranks < 0 else min(ranks, world))
    size = BYTES.get(str(OmegaConf.select(fsdp, "mixed_precision.param_dtype")), 2)
    base = shape.parameters - (0 if head or shape.tied else shape.embedding)
    adapters = shape.adapter_parameters(int(model.get("lora_rank") or 0))
    weights, moments = bytes_each * (base + adapters), 2 * bytes_each * (adapters or base)
    state = weights + 1.5 * moments

    sdpa = (model.get("override_config") or {}).get("attn_implementation") == "sdpa"
    mask = (tokens if model.use_remove_padding else _longest(config)) if sdpa else 0
    saved, hidden = shape.saved_per_token(size, mask), shape.hidden_size
    # With checkpointing a layer keeps its input, and is computed again when the gradient comes.
    layer, again = (size * hidden, saved) if model.enable_gradient_checkpointing else (saved, 0)
    forward = shape.num_hidden_layers * layer + (4 + size) * hidden
    # bfloat16 from the model, float32 for the log-probs, and the gradient of either: gone when a layer goes back.
    chunk = min(tokens, FUSED_CHUNK) if model.get("use_fused_kernels") else tokens
    logits = chunk * shape.vocab_size * 12 if head else 0
    activations = tokens * forward + max(tokens * (again + 2 * size * shape.intermediate_size), logits)
    # FSDP gathers the embedding and a layer. On an accelerator AdamW's step takes one number more for every parameter.
    peak = max(size * (shape.embedding + shape.layer) + activations, 0 if host else moments / 2)
    resting = (0 if fsdp.param_offload else weights) + (0 if fsdp.optimizer_offload else moments)
    # On a processor the weights stand twice for a moment; else the first copy is in host memory.
    return Model(int(state), int(state + peak), int(resting), int(2 * weights) if host else 0)


def rollout_engine(tree: Any, shape: Shape, device: int, second: tuple[str, bool] | None) -> Engine:
    """The engine of one policy, and of the `SecondModel` that it may hold."""
    rollout, models, held = tree.actor_rollout_ref.rollout, [shape], [shape]
    if second is not None:
        path, shared = second
        models = [shape, shape_of(path) or shape]
        held = models[:1] if shared else models
    parallel, size = int(rollout.tensor_model_parallel_size), BYTES.get(str(rollout.dtype), 2)
    token = sum(2 * model.num_hidden_layers * model.kv_heads * model.head_dim for model in models)
    return Engine(
        sum(model.parameters for model in held) * size // parallel,
        int(rollout.gpu_memory_utilization * device),
        int(rollout.max_model_len or _longest(tree)) * token * size // parallel,
        bool(rollout.free_cache_engine and tree.actor_rollout_ref.hybrid_engine),
    )


def parts_of(
    config: Any, device: str, size: int, second_model: SecondModel = no_second_model
) -> tuple[list[Model], list[Engine]] | None:
    """The trained models, a critic last, and the engines; None without FSDP or where a config.json is not at hand."""
    if not str(config.actor_rollout_ref.actor.strategy).startswith("fsdp"):
        return None
    models, engines, host = [], [], device == "cpu"
    for tree in policies(config).values():
        group, actor = tree.actor_rollout_ref, tree.actor_rollout_ref.actor
        if (shape := shape_of(group.model.path)) is None:
            return None
        packed, rows = int(actor.ppo_max_token_len_per_gpu or 16384), int(actor.ppo_micro_batch_size_per_gpu or 1)
        tokens = packed if actor.use_dynamic_bsz else rows * _longest(tree)
        models.append(trained_model(shape, group.model, actor.fsdp_config, tokens, config, host=host, head=True))
        engines.append(rollout_engine(tree, shape, size, second_model(group)))
    if (critic := config.critic).get("enable"):
        if (shape := shape_of(critic.model.path)) is None:
            return None
        # verl 0.9 packs the critic's micro-batches under this budget alone; a small batch does not fill it.
        rows = config.data.train_batch_size * config.actor_rollout_ref.rollout.n
        batch = -(-rows // (config.trainer.nnodes * config.trainer.n_gpus_per_node)) * _longest(config)
        tokens = min(int(critic.get("ppo_infer_max_token_len_per_gpu") or 32768), batch)
        models.append(trained_model(shape, critic.model, critic.fsdp, tokens, config, host=host, head=False))
    return models, engines


def phases_of(models: list[Model], engines: list[Engine], *, host: bool) -> dict[str, int]:
    """Bytes at the peak of each: one model is updated while the others rest, the largest engine writes.

    On a host an engine takes no share of the memory that models are trained in.
    """
    resting = sum(model.resting for model in models)
    update = max(model.update - model.resting for model in models) + resting
    if host:
        return {"loading": sum(model.building for model in models), "update": update}
    awake = sum(engine.share for engine in engines if not engine.sleeps)
    largest = max(max(engine.share, engine.weights + CONTEXT) for engine in engines)
    return {"update": update + awake + 2 * CONTEXT, "rollout": resting + largest + CONTEXT}


def problem_of(models: list[Model], engines: list[Engine], size: int, *, host: bool) -> str | None:
    """Why a run cannot fit on devices of this size; None where it fits."""
    for engine in () if host else engines:
        room = max(engine.share - engine.weights - CONTEXT, 0)
        if room < engine.sequence:
            return (
                f"an engine has {_gib(room)} for keys and values beside {_gib(engine.weights)} of weights, and its "
                f"longest sequence takes {_gib(engine.sequence)}: raise "
                "actor_rollout_ref.rollout.gpu_memory_utilization, or shorten the sequences"
            )
    for phase, needed in phases_of(models, engines, host=host).items():
        if needed > size:
            return f"the {phase} phase needs about {_gib(needed)} of the {_gib(size)} that a worker has here: {ADVICE}"
    return None


def check_memory(config: Any, device: str, *, second_model: SecondModel = no_second_model, show: bool = False) -> None:
    """Print the estimate on request, and refuse a run that cannot fit on its devices; on a CPU a dry run is only told.

    Raises:
        ConfigError: with the phase and the sizes.
    """
    size, host = device_bytes(config, device), device == "cpu"
    if (parts := parts_of(config, device, size or 0, second_model)) is None:
        if show:
            print("memory: the model's config.json is not at hand, so nothing is estimated")
        return
    if show:
        estimate = {"weights, gradients and moments": sum(model.state for model in parts[0])}
        estimate |= {"weights of the engines": sum(engine.weights for engine in parts[1])}
        estimate |= {f"peak of the {phase} phase": needed for phase, needed in phases_of(*parts, host=host).items()}
        for name, needed in estimate.items():
            print(f"memory of a device: {name:<32} {_gib(needed):>12}")
        print(f"memory of a device: {'it has':<32} {_gib(size) if size else 'unknown here':>12}")
    problem = problem_of(*parts, size, host=host) if size else None
    if problem and show and host:
        # What is tried without its GPUs, before it goes to them.
        print(f"memory: this machine would refuse the run, since {problem}")
    elif problem:
        raise ConfigError(problem)


def shape_of(path: str | None) -> Shape | None:
    """A model's sizes from its folder or the hub's cache; None where they are not at hand."""
    from huggingface_hub import try_to_load_from_cache

    try:
        local = looks_local(path or "")
        file = Path(path or "").expanduser() / "config.json" if local else try_to_load_from_cache(path, "config.json")
        return Shape.from_config(json.loads(Path(file).read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError, KeyError, ZeroDivisionError):
        return None


def device_bytes(config: Any, device: str) -> int | None:
    """The smallest accelerator here, else what ``one_gpu.gb`` says, or None; on a CPU, a worker's share of memory."""
    if device == "cpu":
        return host_bytes() // int(config.trainer.n_gpus_per_node)
    import torch

    if torch.cuda.is_available():
        return min(torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count()))
    return int(config.one_gpu.gb) * GIB if config.get("one_gpu") else None


def host_bytes(limit: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Memory of this machine, or of the container (cgroup v2) where that has less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(physical, int(limit.read_text(encoding="utf-8")))
    except (OSError, ValueError):  # no cgroup, or "max"
        return physical


def _longest(tree: Any) -> int:
    return int(tree.data.max_prompt_length + tree.data.max_response_length)


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"
