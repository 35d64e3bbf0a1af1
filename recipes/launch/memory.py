"""Estimate what a run takes of each device, before it is spent: weights, gradients, optimizer, activations, engine.

Two phases share a device and need not be held at once: *update* (the engine sleeps, unless it stays awake) and
*rollout* (trained state rests in host memory where it is offloaded). Sizes are bytes; formulas are for the dense
decoders of this collection (Llama, Qwen2, Qwen3) on FSDP with AdamW. What a library adds for itself is
:data:`CONTEXT`, an assumption.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

GIB = 1024**3
# The names that verl's configs take.
BYTES = {"fp32": 4, "float32": 4, "32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "16": 2}
# CUDA context, kernels and allocator slack of one process.
CONTEXT = GIB
# verl's fused log-probs take the vocabulary in pieces of so many tokens.
FUSED_CHUNK = 512


@dataclass(frozen=True)
class Shape:
    """A decoder's sizes, named as in its config.json."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    tied: bool = False
    qk_norm: bool = False
    qkv_bias: bool = False

    def __post_init__(self) -> None:
        if not all(isinstance(size, int) and size > 0 for size in asdict(self).values() if not isinstance(size, bool)):
            raise ValueError(f"no sizes of a decoder: {self}")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Shape":
        """Sizes from the content of a config.json; KeyError or ValueError where it is no dense decoder."""
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        kind = str(config.get("model_type", ""))
        return cls(
            config["vocab_size"],
            hidden,
            config["intermediate_size"],
            config["num_hidden_layers"],
            heads,
            config.get("num_key_value_heads") or heads,
            config.get("head_dim") or hidden // heads,
            bool(config.get("tie_word_embeddings", False)),
            kind == "qwen3",
            kind == "qwen2" or bool(config.get("attention_bias", False)),
        )

    @property
    def linears(self) -> list[tuple[int, int]]:
        """Inputs and outputs of a layer's linear maps."""
        h, q = self.hidden_size, self.num_attention_heads * self.head_dim
        kv, f = self.num_key_value_heads * self.head_dim, self.intermediate_size
        return [(h, q), (h, kv), (h, kv), (q, h), (h, f), (h, f), (f, h)]

    @property
    def layer_parameters(self) -> int:
        norms = 2 * self.hidden_size + (2 * self.head_dim if self.qk_norm else 0)
        biases = sum(out for _, out in self.linears[:3]) if self.qkv_bias else 0
        return sum(i * o for i, o in self.linears) + norms + biases

    @property
    def parameters(self) -> int:
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tied else 2)
        return embeddings + self.num_hidden_layers * self.layer_parameters + self.hidden_size

    def adapter_parameters(self, rank: int) -> int:
        """Parameters of adapters of this rank at every linear map of the layers."""
        return self.num_hidden_layers * sum(rank * (i + o) for i, o in self.linears)

    def cache_bytes(self, itemsize: int = 2) -> int:
        """Keys and values of one token."""
        return 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim * itemsize


@dataclass(frozen=True)
class Training:
    """What is kept for one trained model on one device.

    Attributes:
        ranks: devices that share one copy.
        rank: of the adapters; 0 trains all weights.
        dtype: in which the weights, their gradients and the moments are kept.
        compute: in which FSDP gathers the weights and the model computes.
        tokens: of a micro-batch, padding included.
        padded: whether the responses of a micro-batch are rows of one length, not packed behind each other.
        masked: tokens of a row of sdpa's mask, all of a packed micro-batch; 0 where flash attention needs no mask.
        head: whether it has an output layer over the vocabulary (a critic has none).
        host: whether it computes on a processor.
        streamed: whether FSDP2 keeps weights, gradients and moments in host memory while it trains (offload_policy).
        kept_whole: whether what FSDP gathers stays gathered from the forward to the backward pass.
        deferred: whether gradients wait, whole and in float32, for the last micro-batch to be reduced.
    """

    shape: Shape
    ranks: int = 1
    rank: int = 0
    dtype: str = "fp32"
    compute: str = "bf16"
    tokens: int = 0
    padded: bool = False
    masked: int = 0
    checkpointing: bool = True
    fused: bool = False
    offload_parameters: bool = False
    offload_optimizer: bool = False
    head: bool = True
    host: bool = False
    streamed: bool = False
    kept_whole: bool = False
    deferred: bool = False

    @property
    def parameters(self) -> int:
        """Of the base model; a critic has an output of one value in the place of the head."""
        s = self.shape
        body = self._embedding + s.num_hidden_layers * s.layer_parameters + s.hidden_size
        return body + (self._head if self.head else s.hidden_size)

    @property
    def _embedding(self) -> int:
        return self.shape.vocab_size * self.shape.hidden_size

    @property
    def _head(self) -> int:
        return self._embedding if self.head and not self.shape.tied else 0

    @property
    def trained(self) -> int:
        return self.shape.adapter_parameters(self.rank) if self.rank else self.parameters

    @property
    def weights(self) -> int:
        adapters = self.trained if self.rank else 0
        return self._kept(self.parameters + adapters)

    @property
    def gradients(self) -> int:
        return 4 * self.trained if self.deferred else self._kept(self.trained)

    @property
    def optimizer(self) -> int:
        """AdamW's two moments."""
        return 2 * self._kept(self.trained)

    def _kept(self, parameters: int) -> int:
        """One number for each of so many parameters, shared out over the ranks."""
        return 0 if self.streamed else parameters * BYTES[self.dtype] // self.ranks

    @property
    def stepping(self) -> int:
        """What AdamW computes beside its state, the root of the second moment.

        On an accelerator of all parameters at once (torch 2.13, optim/adam.py:762), on a processor of one after the
        other, where the root and its quotient stand beside each other (line 544).
        """
        if not self.host:
            return self._kept(self.trained)
        linear = max(self.rank * max(pair) if self.rank else pair[0] * pair[1] for pair in self.shape.linears)
        largest = linear if self.rank else max(linear, self._embedding)
        return 2 * largest * BYTES[self.dtype] // self.ranks

    @property
    def gathered(self) -> int:
        """The units that FSDP holds whole: the embedding or the head, a layer, and the one that it fetches ahead."""
        if self.kept_whole:
            return BYTES[self.compute] * self.parameters
        layers = 1 if self.host and self.ranks == 1 else 2
        return BYTES[self.compute] * (self._embedding + layers * self.shape.layer_parameters)

    @property
    def layer_activations(self) -> int:
        """What autograd saves for one layer and token: inputs of linear maps, norms, rotary, attention, gate."""
        s, size = self.shape, BYTES[self.compute]
        q, kv = s.num_attention_heads * s.head_dim, s.num_key_value_heads * s.head_dim
        # float32 in the norms, as transformers computes them; what a frozen weight multiplies is not kept
        norm = 4 if self.rank else 4 + size
        norms = norm * 2 * s.hidden_size
        qk = norm * (q + kv) if s.qk_norm else 0
        # beside a mask, sdpa gets keys and values repeated to the number of heads (transformers 5.10,
        # integrations/sdpa_attention.py:59), and keeps the mask of every layer as numbers
        repeated = q if self.masked else kv
        attention = size * (s.hidden_size + 2 * q + 2 * repeated + q + self.masked)
        gate = size * (s.hidden_size + 4 * s.intermediate_size)
        return norms + qk + attention + gate

    @property
    def kept(self) -> int:
        """What the forward pass leaves for the backward pass, the logits left out."""
        s = self.shape
        layer = BYTES[self.compute] * s.hidden_size if self.checkpointing else self.layer_activations
        last_norm = (4 + BYTES[self.compute]) * s.hidden_size
        return self.tokens * (layer * s.num_hidden_layers + last_norm)

    @property
    def activations(self) -> int:
        """The logits are gone when a layer goes back, which has two gradients of the gate beside what was kept."""
        again = self.layer_activations if self.checkpointing else 0
        gate = 2 * BYTES[self.compute] * self.shape.intermediate_size
        return self.kept + max(self.tokens * (again + gate), self.logits)

    @property
    def logits(self) -> int:
        """bfloat16 from the model, float32 for the log-probs, and the gradient of either.

        In float32 (verl 0.9.1, utils/torch_functional.py:logprobs_from_logits_v2) the logits, the gradient of their
        log-sums and that of `gather`, as many bytes. Padded rows are cut out into a copy, and the nested view of them
        keeps the first (transformer_impl.py, `torch.nested.narrow`).
        """
        if not self.head:
            return 0
        if self.fused:
            return min(self.tokens, FUSED_CHUNK) * self.shape.vocab_size * (2 + 4 + 4 + 2)
        cut = BYTES[self.compute] if self.padded else 0
        return self.tokens * self.shape.vocab_size * (2 + 4 + 4 + 2 + cut)

    @property
    def reducing(self) -> int:
        """What a backward pass takes beside the gradients of the micro-batches before, at the largest unit of FSDP.

        Its gradients are copied in float32 and reduced into new memory before they are added (torch 2.13,
        _fully_shard/_fsdp_collectives.py:foreach_reduce). A tied embedding stays gathered, and its gradient comes
        twice, from the head and from the input.
        """
        size, embedding = BYTES[self.compute], self._embedding
        tied = size * embedding if self.shape.tied else 0
        each = 4 + max(size, 4 // self.ranks)
        if self.rank:
            return self.shape.adapter_parameters(self.rank) // self.shape.num_hidden_layers * each + tied + self.kept
        layer = self.shape.layer_parameters * each + tied + self.kept
        head = embedding * each + self.kept if self._head else 0
        return max(layer, head, embedding * max(each, size * (3 if self.shape.tied else 2)))

    @property
    def update(self) -> int:
        """Bytes on a device while this model is updated, in the second micro-batch of the second update or later."""
        moments = (self.gathered + self.activations, self.reducing, self.stepping)
        return self.weights + self.gradients + self.optimizer + max(moments)

    @property
    def building(self) -> int:
        """On a processor the weights stand twice while FSDP2 takes them over (verl 0.9.1, transformer_impl.py:471).

        On an accelerator the first copy is in host memory.
        """
        return 2 * self.weights if self.host else 0

    @property
    def resting(self) -> int:
        """Bytes on a device while something else runs."""
        weights = 0 if self.offload_parameters else self.weights
        return weights + (0 if self.offload_optimizer else self.optimizer)


@dataclass(frozen=True)
class Engine:
    """A rollout engine on one device.

    Attributes:
        models: shapes of the models it holds; two for tandem.
        shared: whether one set of weights, the first model's, serves them all.
        share: of the device that it takes.
        length: tokens of the longest sequence.
        sleeps: gives its memory back while models are updated.
    """

    models: tuple[Shape, ...]
    share: float
    length: int
    parallel: int = 1
    itemsize: int = 2
    sleeps: bool = True
    shared: bool = False

    @property
    def weights(self) -> int:
        held = self.models[:1] if self.shared else self.models
        return sum(m.parameters for m in held) * self.itemsize // self.parallel

    @property
    def cache_per_token(self) -> int:
        return sum(m.cache_bytes(self.itemsize) for m in self.models) // self.parallel

    def cache(self, device: int) -> int:
        """Bytes left for keys and values, after the weights and the working memory of a pass."""
        return int(self.share * device) - self.weights - CONTEXT


@dataclass(frozen=True)
class Plan:
    """A run on one device."""

    trained: tuple[Training, ...]
    engines: tuple[Engine, ...]
    device: int | None
    context: int = CONTEXT

    def update(self) -> int:
        """Bytes at the peak of the update of the largest model, the others resting."""
        peaks = []
        for model in self.trained:
            rest = sum(other.resting for other in self.trained if other is not model)
            peaks.append(model.update + rest)
        awake = sum(int(e.share * self._engines_device) for e in self.engines if not e.sleeps)
        return max(peaks, default=0) + awake + 2 * self.context

    def rollout(self) -> int:
        """Bytes while the largest engine writes, all trained models resting."""
        device = self._engines_device
        wanted = max((max(int(e.share * device), e.weights + self.context) for e in self.engines), default=0)
        return sum(model.resting for model in self.trained) + wanted + self.context

    def problem(self) -> str | None:
        """A sentence where the run cannot fit, with the knob that gives most; None where it fits or nobody knows."""
        if self.device is None:
            return None
        if self.host:
            return self._problem_of_a_host()
        for engine in self.engines:
            room, needed = engine.cache(self.device), engine.length * engine.cache_per_token
            if room < needed:
                return (
                    f"the engine's share of {engine.share:.0%} of {_gib(self.device)} leaves {_gib(max(room, 0))} for "
                    f"keys and values beside {_gib(engine.weights)} of weights, and one sequence of {engine.length} "
                    f"tokens takes {_gib(needed)}: raise actor_rollout_ref.rollout.gpu_memory_utilization, or shorten "
                    "the sequences"
                )
        for phase, bytes_needed in (("update", self.update()), ("rollout", self.rollout())):
            if bytes_needed > self.device:
                knob, after = self.best_knob(phase)
                return (
                    f"the {phase} phase needs about {_gib(bytes_needed)} of a device's {_gib(self.device)}; what gives "
                    f"most is {knob}, which leaves {_gib(after)}"
                )
        return None

    @property
    def host(self) -> bool:
        """Whether the models are trained on processors, in memory that engines do not take a share of."""
        return any(model.host for model in self.trained)

    @property
    def _engines_device(self) -> int:
        return 0 if self.host else self.device or 0

    def _problem_of_a_host(self) -> str | None:
        assert self.device is not None
        if (building := sum(model.building for model in self.trained)) > self.device:
            return (
                f"on a CPU the weights stand twice while a model is built, which needs about {_gib(building)} of the "
                f"{_gib(self.device)} of memory that a worker has here: take a smaller model, or a machine with a GPU"
            )
        if (needed := self.update()) > self.device:
            knob, after = self.best_knob("update")
            return (
                f"the update phase needs about {_gib(needed)} of the {_gib(self.device)} of memory that a worker has "
                f"on this machine's CPU; what gives most is {knob}, which leaves {_gib(after)}"
            )
        return None

    def best_knob(self, phase: str) -> tuple[str, int]:
        """The setting whose change lowers a phase most, and what the phase takes then."""
        measure = Plan.update if phase == "update" else Plan.rollout
        return min(((name, measure(plan)) for name, plan in self._changes()), key=lambda item: item[1])

    def _changes(self) -> list[tuple[str, "Plan"]]:
        def training(**changes: Any) -> Plan:
            return replace(self, trained=tuple(replace(model, **changes) for model in self.trained))

        with_critic = any(not model.head for model in self.trained)

        def named(actor: str, critic: str) -> str:
            return f"actor_rollout_ref.{actor}, critic.{critic}" if with_critic else f"actor_rollout_ref.{actor}"

        half = tuple(replace(model, tokens=model.tokens // 2) for model in self.trained)
        adapters, checkpointing = "model.lora_rank=32", "model.enable_gradient_checkpointing=true"
        offload = "param_offload=true and optimizer_offload=true"
        found = [
            (named(adapters, adapters), training(rank=32)),
            (named("actor.fsdp_config.model_dtype=bf16", "fsdp.model_dtype=bf16"), training(dtype="bf16")),
            (named(checkpointing, checkpointing), training(checkpointing=True)),
            ("actor_rollout_ref.model.use_fused_kernels=true", training(fused=True)),
            (
                "half of " + named("actor.ppo_max_token_len_per_gpu", "ppo_infer_max_token_len_per_gpu"),
                replace(self, trained=half),
            ),
            (
                named(f"actor.fsdp_config.{offload}", f"fsdp.{offload}"),
                training(offload_parameters=True, offload_optimizer=True),
            ),
            (
                "twice as many devices",
                replace(self, trained=tuple(replace(m, ranks=2 * m.ranks) for m in self.trained)),
            ),
        ]
        if self.host:
            # Offloaded state stays in the same memory, more workers share it, and the fused kernels are for GPUs.
            return [change for change in found if not re.search(r"offload|devices|fused", change[0])]
        lower = tuple(replace(e, share=e.share / 2) for e in self.engines)
        return [*found, ("half of actor_rollout_ref.rollout.gpu_memory_utilization", replace(self, engines=lower))]

    def rows(self) -> list[tuple[str, str]]:
        """The estimate as lines of a table."""
        found = []
        for number, model in enumerate(self.trained):
            name = f"model {number + 1}" if len(self.trained) > 1 else "actor"
            found += [
                (f"{name}: weights", _gib(model.weights)),
                (f"{name}: gradients, optimizer", f"{_gib(model.gradients)}, {_gib(model.optimizer)}"),
                (f"{name}: gathered units", _gib(model.gathered)),
                (f"{name}: activations of {model.tokens:,} tokens", _gib(model.activations)),
            ]
            if model.building:
                found.append((f"{name}: while it is built", _gib(model.building)))
        for engine in self.engines:
            found.append(("engine: weights", _gib(engine.weights)))
            if self.device and not self.host:
                tokens = max(engine.cache(self.device), 0) // engine.cache_per_token
                found.append(("engine: room for keys and values", f"{tokens:,} tokens"))
        found.append(("peak while models are updated", _gib(self.update())))
        found.append(("peak while responses are written", _gib(self.rollout())))
        found.append(("the device has", _gib(self.device) if self.device else "a size that is not known here"))
        return found


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"
