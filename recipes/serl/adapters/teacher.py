"""verl's worker with a teacher for a reference model: it moves after the policy, answers in its engine, and is saved.

Every rank holds the same shards of both models, so that the average needs no communication.
"""

import torch
from verl.single_controller.base.decorator import Dispatch, register
from verl.workers.engine_workers import ActorRolloutRefWorker

from recipes.serl.adapters.averaging import move_towards
from recipes.upstream.weight_samples import digest, sample_all


class TeacherWorker(ActorRolloutRefWorker):
    """verl's worker of actor, rollout and reference, with calls for the reference."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def serve_teacher(self, global_steps: int) -> None:
        """Hand the reference's weights to the rollout engine, which must be asleep; the next sync is the policy's.

        verl's own sync runs with the reference in the actor's place, so that every check of a sync holds for it too.

        Args:
            global_steps: version of the weights that responses are marked with.
        """
        policy, self.actor = self.actor, self.ref
        try:
            await self.update_weights(global_steps=global_steps, mode="naive")
        finally:
            self.actor = policy

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def move_teacher(self, rate: float) -> float:
        """Let the reference take in `rate` of the policy; the distance left, relative to the policy's norm."""
        sums = torch.tensor(move_towards(self.ref.engine.module, self.actor.engine.module, rate), dtype=torch.float64)
        device = next(self.actor.engine.module.parameters()).device
        sums = sums.to(device)
        torch.distributed.all_reduce(sums)
        return float((sums[0] / sums[1].clamp(min=1e-30)).sqrt())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_teacher(self, path: str, global_step: int, max_ckpt_to_keep: int | None) -> str:
        """Write the reference's shards as verl writes an actor's; a digest of samples of this rank's shards."""
        self._model_alone().checkpoint_save_contents = ["model"]
        self.ref.save_checkpoint(path, None, global_step, max_ckpt_to_keep)
        return self._digest()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_teacher(self, path: str) -> str:
        """Read what `save_teacher` wrote; the digest of what is there now."""
        self._model_alone().checkpoint_load_contents = ["model"]
        self.ref.load_checkpoint(path)
        return self._digest()

    def _model_alone(self):
        # A reference has neither an optimizer nor a schedule, which verl would ask for.
        return self.ref.engine.checkpoint_manager

    def _digest(self) -> str:
        return digest(sample_all(self.ref.engine.module.state_dict().items()))
