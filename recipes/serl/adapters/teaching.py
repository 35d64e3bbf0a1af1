"""The trainer's side of a teacher: when it answers, moves, is saved and restored."""

import ray
from verl.utils.debug import marked_timer

from recipes.common import data_plane, state
from recipes.common.data_plane import KVBatchMeta
from recipes.errors import StateError
from recipes.serl.adapters.certainty import CertaintyWorker
from recipes.serl.adapters.generation import sample_texts
from recipes.serl.adapters.run import STATE_FILE, SerlRun
from recipes.serl.adapters.teacher import TeacherWorker
from recipes.serl.teacher import moving_rate

FOLDER = "teacher"


class Teaching(SerlRun):
    """Workers that know more than verl's where the settings ask for it; without a teacher the rest does nothing.

    Each round of a step wakes the engines twice: with the policy's weights, then with the teacher's. The policy comes
    first, as its weights are in the engines when a step begins.
    """

    teacher_serves = False

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        worker = CertaintyWorker if self.settings.vote.rule == "self_certainty" else None
        worker = TeacherWorker if self.settings.teacher.answers else worker
        if worker is not None:
            self.role_worker_mapping = dict.fromkeys(self.role_worker_mapping, ray.remote(worker))

    def serve_policy(self) -> None:
        """Give the engines the policy's weights back, if the teacher has answered since."""
        if self.teacher_serves:
            self.checkpoint_manager.sleep_replicas()
            self.checkpoint_manager.update_weights(self.global_steps - 1)
            self.teacher_serves = False

    def on_step_end(self) -> None:
        """Sync the policy's weights, as every step does."""
        super().on_step_end()
        self.teacher_serves = False

    def teacher_texts(self, batch: KVBatchMeta, uids: list[str], seed: str) -> dict[str, list[str | None]]:
        """The teacher's answers to the prompts of a round, by uid; None for a request that failed.

        Prompts are those that the policy has answered, token for token, sampled with the settings of its rollouts.
        """
        first = {data_plane.uid_of(key): key for key in reversed(batch.keys)}
        answered, n = [uid for uid in uids if uid in first], self.settings.teacher.answers
        prompts = data_plane.read(batch, "prompts", keys=[first[uid] for uid in answered])["prompts"]
        rollout = self.config.actor_rollout_ref.rollout
        sampling = {
            "temperature": rollout.temperature,
            "top_p": rollout.top_p,
            "top_k": rollout.top_k,
            "max_tokens": self.config.data.max_response_length,
        }
        with marked_timer("teacher", self.timing_raw):
            self.checkpoint_manager.sleep_replicas()
            self.actor_rollout_wg.serve_teacher(global_steps=self.global_steps - 1)
            self.teacher_serves = True
            texts = sample_texts(
                self.get_llm_client(),
                self.tokenizer,
                sampling,
                [ids.tolist() for ids in prompts for _ in range(n)],
                seed=seed,
                engine=rollout.name,
            )
        return {uid: texts[place * n : (place + 1) * n] for place, uid in enumerate(answered)}

    def move_teacher(self, metrics: dict) -> None:
        """Let the teacher take in its share of the policy, after every step."""
        settings = self.settings.teacher
        if not settings.answers:
            return
        steps = self.config.trainer.total_training_steps
        rate = moving_rate(self.global_steps, steps, first=settings.rate_first, last=settings.rate_last)
        metrics["serl/teacher/rate"] = rate
        metrics["serl/teacher/distance"] = self.actor_rollout_wg.move_teacher(rate)[0]

    def _save_checkpoint(self) -> None:
        if self.settings.teacher.answers:
            folder = state.step_folder(self.config, self.global_steps) / FOLDER
            keep = self.config.trainer.get("max_actor_ckpt_to_keep", None)
            self.teacher_digests = self.actor_rollout_wg.save_teacher(str(folder), self.global_steps, keep)
        super()._save_checkpoint()

    def own_state(self) -> dict:
        """Digests of the teacher's shards beside the rest, by which a resumed run knows its teacher again."""
        taught = {"teacher": self.teacher_digests} if self.settings.teacher.answers else {}
        return super().own_state() | taught

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.global_steps == 0 or not self.settings.teacher.answers:
            return
        step_folder = state.resumed_folder(self.config, self.global_steps)
        wanted, folder = state.load(step_folder / STATE_FILE).get("teacher"), step_folder / FOLDER
        if wanted is None or not folder.is_dir():
            raise StateError(
                f"{step_folder} holds no teacher, so this is the checkpoint of another run: {state.REMEDY}"
            )
        found = self.actor_rollout_wg.load_teacher(str(folder))
        if found != wanted:
            raise StateError(f"{folder} is not the teacher that this checkpoint was saved with: {state.REMEDY}")
        print(f"serl: the teacher of step {self.global_steps} is back, digest {found[0][:12]}")
