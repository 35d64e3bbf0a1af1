"""verl's worker with an actor that returns the self-certainty of every token beside its log-probs and entropies.

verl hands the logits of a forward pass to the loss function, as a logits processor, where the batch says
`distillation_use_topk`, and returns what it makes of them with the log-probs. In the pass that computes old log-probs,
which has no loss, the loss function is :func:`certainty_processor` for the time of the call.
"""

from typing import Any

import torch
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from recipes.serl.certainty import self_certainty

FIELD = "self_certainty"


def certainty_processor(student_logits: torch.Tensor | None = None, **_: Any) -> Any:
    """verl's two calls of a loss function: with logits (1, tokens, V) a field of each token, without them the loss."""
    if student_logits is not None:
        return {FIELD: self_certainty(student_logits)}
    return torch.zeros(()), {}


class CertainActor(TrainingWorker):
    """An actor whose passes for old log-probs, those that ask for entropies, return `self_certainty` as well."""

    def infer_batch(self, data):
        """verl's, surrounded; other passes (those of a reference by its adapter) are verl's own."""
        if not tu.get(data, key="calculate_entropy", default=False):
            return super().infer_batch(data)
        loss = self.loss_fn
        self.loss_fn = certainty_processor
        tu.assign_non_tensor(data, distillation_use_topk=True, compute_loss=True)
        try:
            return super().infer_batch(data)
        finally:
            self.loss_fn = loss


class CertaintyWorker(ActorRolloutRefWorker):
    """verl's worker with a `CertainActor`."""

    actor_worker_cls = CertainActor
