"""The rollout engine follows the trainer, checked in every run: a sync that does nothing ends the run with a sentence.

Weight syncs fail silently upstream: an adapter that is never merged, a sync that is dropped, weights that go to
another engine. Runs started by :mod:`recipes.launch` compare a sample of every tensor on both sides of each sync
and watch the difference between rollout and actor from the first step.
``VERL_DUETS_SYNC_GUARD=off`` leaves both out. An error of the comparison itself is logged, and that sync goes unjudged.
"""

import hashlib
import logging
import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from recipes.core.patching import patch_when_imported
from recipes.errors import StaleRollout, WeightTransferError
from vllm_patches.upstream import is_replaced, replaces

logger = logging.getLogger(__name__)

PER_TENSOR = 256
ENOUGH = 64
PATIENCE = 2

Samples = Mapping[str, torch.Tensor]


def sample(tensor: torch.Tensor) -> torch.Tensor:
    """At most ``PER_TENSOR`` elements at equal distances, on the CPU, in the tensor's own type."""
    flat = tensor.detach()
    flat = flat.to_local() if hasattr(flat, "to_local") else flat
    flat = flat.reshape(-1)
    # An odd distance, so that it does not stay in one column of a matrix.
    stride = (flat.numel() // PER_TENSOR) | 1
    if flat.is_floating_point() and flat.element_size() == 1:
        flat = flat.view(torch.uint8)  # which torch can compare
    return flat[::stride][:PER_TENSOR].contiguous().cpu().clone()


def sample_all(named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Samples by name."""
    return {name: sample(tensor) for name, tensor in named}


def digest(samples: Samples) -> str:
    """SHA-256 over names and sampled bytes, in the order of the names."""
    hashed = hashlib.sha256()
    for name in sorted(samples):
        hashed.update(name.encode())
        hashed.update(samples[name].view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()


def moved(before: Samples | None, after: Samples, precision: torch.dtype | None = None) -> int:
    """Count the sampled elements that changed, in ``precision`` where it is given; new names do not count."""
    count = 0
    for name, value in after.items():
        former = (before or {}).get(name)
        if former is None or former.shape != value.shape:
            continue
        if precision is not None:
            former, value = former.to(precision), value.to(precision)
        count += int((former != value).sum())
    return count


class Follower:
    """Whether one side of a sync moves when the other does; remembers the last samples of its own side."""

    def __init__(self) -> None:
        self.last: Samples | None = None
        self.strikes = 0

    def update(self, leader_moved: int, samples: Samples) -> bool:
        """Take the samples of a sync.

        Args:
            leader_moved: sampled elements by which the side before this one moved since the last sync.

        Returns:
            False when this side stood still ``PATIENCE`` times in a row while the other moved.
        """
        still = self.last is not None and leader_moved >= ENOUGH and moved(self.last, samples) == 0
        self.strikes = self.strikes + 1 if still else 0
        self.last = dict(samples)
        return self.strikes < PATIENCE


class DifferenceWatch:
    """Watch the mean difference of the probabilities that rollout engine and actor give a response's tokens.

    Args:
        limit: a mean difference above it is a fault by itself.
    """

    GROWTH = 10.0

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.first: float | None = None
        self.strikes = 0

    def update(self, value: float) -> bool:
        """Take the value of a step; False when the last ``PATIENCE`` were too high."""
        if value != value:
            return True  # no trained token
        if self.first is None:
            self.first = value
        grown = value > max(self.limit / 10, self.GROWTH * self.first)
        self.strikes = self.strikes + 1 if value > self.limit or grown else 0
        return self.strikes < PATIENCE


def difference_limit(dtype: str, quantized: bool, truncated: bool) -> float:
    """The mean difference of probabilities that no working sync reaches.

    Measured on the toy world: below 1e-6 in float32 with a sync, above 0.1 without. The other limits leave room for
    rounding, and for the renormalised probabilities that top-p and top-k sampling reports.
    """
    if truncated:
        return 0.5
    if quantized:
        return 0.25
    return 1e-3 if dtype in ("float32", "fp32", "float") else 0.1


VARIABLE = "VERL_DUETS_SYNC_GUARD"
USED_BY = "recipes/core/sync_guard.py"
METRIC = "training/rollout_probs_diff_mean"


def wanted() -> bool:
    """Whether the environment of the run leaves the guard on."""
    return os.environ.get(VARIABLE, "on").strip().lower() not in ("off", "0", "false")


def ask_for_log_probs(config: Any, overrides: list[str]) -> None:
    """Let the rollout return log-probs, which the watch compares, unless the command line decides."""
    key = "actor_rollout_ref.rollout.calculate_log_probs"
    if wanted() and not any(item.lstrip("+").startswith(f"{key}=") for item in overrides):
        config.actor_rollout_ref.rollout.calculate_log_probs = True


def watch_actor(module) -> None:
    """Let the training worker tell its rollout adapter, before a sync, what the trained parameters are now."""
    worker = module.ActorRolloutRefWorker
    upstream = worker.update_weights
    if is_replaced(upstream):
        return

    @replaces(upstream)
    async def update_weights(self, *args, **kwargs):
        rollout = getattr(self, "rollout", None)
        if rollout is not None:
            rollout.trained_samples = _samples_or_none(lambda: _trained(self.actor.engine.module))
        return await upstream(self, *args, **kwargs)

    worker.update_weights = update_weights


def _samples_or_none(named) -> dict | None:
    """Samples of what ``named()`` gives; None, and a line in the log, where they cannot be taken."""
    try:
        return sample_all(named())
    except Exception:
        logger.warning("weights cannot be sampled, so that this sync goes unjudged", exc_info=True)
        return None


def _trained(module):
    return [(name, value) for name, value in module.named_parameters() if value.requires_grad]


def watch_sender(module) -> None:
    """Let the rollout adapter compare what it sends with what was trained, and the engine with what was sent."""
    adapter = module.ServerAdapter
    upstream = adapter.update_weights
    if is_replaced(upstream):
        return

    @replaces(upstream)
    async def update_weights(self, weights, *args, **kwargs):
        if kwargs.get("wire_format", "named_tensors") != "named_tensors":
            return await upstream(self, weights, *args, **kwargs)
        sent: list[dict | None] = []
        await upstream(self, _sampled(weights, sent), *args, **kwargs)
        if None in sent:
            return
        expected = _claim(self, {name: value for part in sent for name, value in part.items()})
        await self._execute_method("verl_duets_verify_sync", kwargs={"expected": expected})

    adapter.update_weights = update_weights


async def _sampled(weights, sent: list):
    """The stream of weights, with the samples of each tensor left in ``sent``."""
    from verl.workers.rollout.utils import ensure_async_iterator

    async for name, tensor in ensure_async_iterator(weights):
        sent.append(_samples_or_none(lambda pair=(name, tensor): [pair]))
        yield name, tensor


def _claim(adapter, sent: dict) -> dict[str, Any]:
    """What the engine is told about a sync; raises where what was trained is not what was sent.

    Raises:
        StaleRollout: the trained parameters moved, what was sent did not.
    """
    import torch

    precision = getattr(torch, str(adapter.config.dtype), torch.bfloat16)
    trained = adapter.__dict__.pop("trained_samples", None)
    if not hasattr(adapter, "sync_follower"):
        adapter.sync_follower, adapter.last_trained = Follower(), None
    former = adapter.sync_follower.last
    sent_moved = moved(former, sent, precision)
    trained_moved = moved(adapter.last_trained, trained, precision) if trained else 0
    if trained:
        adapter.last_trained = trained
    if not adapter.sync_follower.update(trained_moved, sent):
        raise StaleRollout(
            f"the actor's parameters moved ({trained_moved} sampled elements), but what was sent to the rollout engine "
            f"is the same for the {adapter.sync_follower.strikes}. time: it samples from an old policy. With adapters, "
            "verl merged nothing or sent the base model alone; compare actor_rollout_ref.model.lora with the README"
        )
    quantized = bool(getattr(adapter.config, "quantization", None))
    return {"digest": digest(sent), "tensors": len(sent), "moved": 0 if quantized else sent_moved}


def watch_engine(module) -> None:
    """Let vLLM's worker sample what it is handed and what it then holds, and compare when the trainer asks."""
    extension = module.vLLMColocateWorkerExtension
    load, receive = extension._update_weights, extension.update_weights_from_ipc
    if is_replaced(load):
        return

    @replaces(load)
    def _update_weights(self, weights, *args, **kwargs):
        self.verl_duets_received.append(_samples_or_none(lambda: weights))
        return load(self, weights, *args, **kwargs)

    @replaces(receive)
    def update_weights_from_ipc(self, *args, **kwargs):
        self.verl_duets_received = []
        return receive(self, *args, **kwargs)

    def verl_duets_verify_sync(self, expected):
        verify(self, expected)

    extension._update_weights, extension.update_weights_from_ipc = _update_weights, update_weights_from_ipc
    extension.verl_duets_verify_sync = verl_duets_verify_sync


def verify(worker, expected: dict[str, Any]) -> None:
    """Compare a sync with what the trainer says that it sent.

    Raises:
        WeightTransferError: other weights arrived than were sent.
        StaleRollout: what was sent moved, the engine's parameters did not.
    """
    parts, held = getattr(worker, "verl_duets_received", []), _samples_or_none(lambda: _held(worker))
    if None in parts or held is None:
        return
    received = {name: value for part in parts for name, value in part.items()}
    if digest(received) != expected["digest"]:
        raise WeightTransferError(
            f"the rollout engine was handed other weights than its trainer sent: {len(received)} tensors arrived, "
            f"{expected['tensors']} were sent, and their contents differ; another trainer may send to this engine"
        )
    if not hasattr(worker, "verl_duets_follower"):
        worker.verl_duets_follower = Follower()
    if not worker.verl_duets_follower.update(expected["moved"], held):
        raise StaleRollout(
            f"new weights arrived ({expected['moved']} sampled elements differ from the last ones), but the rollout "
            f"engine's own parameters have not changed for the {worker.verl_duets_follower.strikes}. time: it samples "
            "from an old policy"
        )


def _held(worker):
    """The parameters an engine computes with: the model's, and the adapters' in the slots that its layers read."""
    model = worker.model_runner.model
    yield from model.named_parameters()
    for name, layer in model.named_modules():
        for slot in ("lora_a_stacked", "lora_b_stacked"):
            held = getattr(layer, slot, None)
            if held is None:
                continue
            # one tensor, or one for each of the linear maps that vLLM joined
            for number, tensor in enumerate((held,) if hasattr(held, "shape") else held):
                yield f"{name}.{slot}.{number}", tensor


def watch_difference(module) -> None:
    """Let the trainer end the run when rollout and actor disagree about the responses' tokens."""
    trainer = module.PPOTrainer
    upstream = trainer._compute_old_log_prob
    if is_replaced(upstream):
        return

    @replaces(upstream)
    def _compute_old_log_prob(self, batch, metrics):
        batch = upstream(self, batch, metrics)
        if METRIC in metrics:
            _check_difference(self, float(metrics[METRIC]))
        return batch

    trainer._compute_old_log_prob = _compute_old_log_prob


def _check_difference(trainer, value: float) -> None:
    rollout = trainer.config.actor_rollout_ref.rollout
    if not hasattr(trainer, "verl_duets_difference"):
        truncated = rollout.top_p < 1 or rollout.top_k > 0
        limit = difference_limit(str(rollout.dtype), bool(rollout.get("quantization")), truncated)
        trainer.verl_duets_difference = DifferenceWatch(limit)
    watch = trainer.verl_duets_difference
    if not watch.update(value):
        raise StaleRollout(
            f"rollout and actor disagree about the responses' tokens: the mean difference of their probabilities is "
            f"{value:.2g} (first step {watch.first:.2g}, limit {watch.limit:.2g}), {watch.strikes} steps in a row: "
            f"the engine does not hold the weights that are trained. {VARIABLE}=off lets the run go on"
        )


WATCHED = {
    "verl.workers.engine_workers": watch_actor,
    "verl.workers.rollout.vllm_rollout.vllm_rollout": watch_sender,
    "verl.workers.rollout.vllm_rollout.utils": watch_engine,
    "verl.trainer.ppo.v1.trainer_base": watch_difference,
}


def install() -> None:
    """Put the guard into this process as soon as verl imports what it watches."""
    if wanted():
        for module, watch in WATCHED.items():
            patch_when_imported(module, USED_BY, watch)
