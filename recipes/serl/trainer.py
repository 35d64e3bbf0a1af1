"""The V1 trainer `serl`: verl's synchronous step with self-made prompts, votes and the difficulty filter inside it."""

import math
from dataclasses import replace

import torch
from omegaconf import open_dict
from verl.utils.debug import marked_timer

from recipes.core import data_plane
from recipes.core.data_plane import TRAIN, KVBatchMeta, padded, unpadded
from recipes.core.files import read_rows
from recipes.serl.collection import Collection, Round, collect
from recipes.serl.estimators import rloo_advantage
from recipes.serl.generation import chat_tokenizer, generate_texts, instruction_row, prompt_batch, rollout_engines
from recipes.serl.instructions import load_template
from recipes.serl.judging import judge_by_label, judge_by_vote
from recipes.serl.pool import Instruction, InstructionPool
from recipes.serl.run import RunStalled, SerlRun
from recipes.serl.sources import DatasetSource, SelfInstructSource
from reward_fns.majority import Vote

# What verl computes for each response token after sampling.
TOKEN_FIELDS = (
    "old_log_probs",
    "log_probs",
    "entropy",
    "self_certainty",
    "ref_log_prob",
    "token_level_rewards",
    "advantages",
    "returns",
)


def reset_padding(batch: KVBatchMeta) -> None:
    """Set the padding rows of `batch` to zeros of their own length.

    verl makes them from a copy of a real row and resets what sampling wrote; log-probs and advantages would keep the
    length of the row they came from.
    """
    keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if data_plane.is_padding(tag)]
    if not keys:
        return
    columns = data_plane.read(batch, keys=keys)
    zeros = [torch.zeros(len(response)) for response in columns["responses"]]
    data_plane.write(batch, {name: zeros for name in TOKEN_FIELDS if name in columns}, keys=keys)


def replace_by_rloo(batch: KVBatchMeta) -> KVBatchMeta:
    """Replace the advantages and returns of `batch` in the TransferQueue.

    verl's own pass has written `token_level_rewards`, the scores less the penalty; their difference is the penalty.
    """
    rows = data_plane.read(batch, "response_mask", "rm_scores", "token_level_rewards")
    lengths = [len(row) for row in rows["response_mask"]]
    mask, scores, rewards = (padded(rows[name]) for name in ("response_mask", "rm_scores", "token_level_rewards"))
    real = torch.tensor([not data_plane.is_padding(tag) for tag in batch.tags])
    prompts = [data_plane.uid_of(key) for key in data_plane.real_keys(batch)]
    penalty = scores - rewards
    advantages, returns = torch.zeros_like(penalty), torch.zeros_like(penalty)
    advantages[real], returns[real] = rloo_advantage(
        scores.sum(dim=1)[real], prompts, penalty[real], mask[real], kl_coef=1.0
    )
    values = {"advantages": unpadded(advantages, lengths), "returns": unpadded(returns, lengths)}
    return data_plane.write(batch, values)


class SerlTrainer(SerlRun):
    """SeRL on verl's V1 trainer.

    A step collects groups until `data.train_batch_size` prompts survive the difficulty filter, computes advantages,
    and updates the actor on the survivors. Rollouts, log-probs, updates, validation and checkpoints are verl's own;
    groups are judged round by round, as they come back.
    """

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        self.source = self.self_instruct() if self.settings.variant == "self_instruct" else self.dataset()

    def self_instruct(self) -> SelfInstructSource:
        """Prompts that the policy writes itself."""
        settings, instructions = self.settings, self.settings.instructions
        seeds = [row[settings.question_key] for row in read_rows(settings.seeds, settings.question_key)]
        pool = InstructionPool(
            seeds,
            threshold=instructions.rouge_threshold,
            scope=instructions.similarity_scope,
            rng_seed=settings.rng_seed,
            similarity=instructions.similarity,
        )
        batch_size = instructions.few_shot_generation_batch_size or max(4, rollout_engines(self.config))
        return SelfInstructSource(
            pool,
            load_template(instructions.prompt_file),
            replace(instructions, few_shot_generation_batch_size=batch_size),
            self.journal,
            tokenize=chat_tokenizer(self.tokenizer, dict(self.config.data.get("apply_chat_template_kwargs") or {})),
            generate=self._generate_instructions,
        )

    def dataset(self) -> DatasetSource:
        """Prompts of the training data."""
        prompts = [[dict(one) for one in row] for row in self.train_dataset.dataframe[self.config.data.prompt_key]]
        return DatasetSource(
            [prompt[-1]["content"] for prompt in prompts],
            [tuple(prompt[:-1]) for prompt in prompts],
            rng_seed=self.settings.rng_seed,
            epochs=self.config.trainer.total_epochs,
        )

    def prepare_step(self) -> dict:
        """Submit nothing ahead: the prompts of a step are written by its own policy."""
        return {}

    def _step_once(self, metrics: dict, timing_raw: dict, sample_batch_size: int) -> KVBatchMeta:
        self.stepped = True
        with marked_timer("gen", timing_raw, color="red"):
            self.on_sample_begin()
            with marked_timer("collect", timing_raw):
                collection = self._collect(sample_batch_size)
            self.on_sample_end()
        # What is left of the collection without the rollout engine's part is the recipe's own time.
        engine = sum(timing_raw.get(name, 0.0) for name in ("instructions", "answers"))
        timing_raw["serl_driver"] = timing_raw["collect"] - engine
        metrics.update(collection.metrics)
        self.account(collection, metrics)
        return self._train(collection, metrics, timing_raw)

    def _collect(self, n_prompts: int) -> Collection:
        multiple = self._prompts_per_update()
        prompts_left = self.schedule.prompts_left(self.trained_prompts)
        return collect(
            self.source,
            self._answer,
            self.journal,
            step=self.global_steps,
            target=min(n_prompts, math.ceil(prompts_left / multiple) * multiple),
            round_size=n_prompts,
            multiple=multiple,
            bounds=self.settings.reward_difficulty_bounds,
            max_rounds=self.settings.limits.max_rounds,
        )

    def _generate_instructions(self, prompts: list[list[int]], step: int, call: int) -> list[str | None]:
        with marked_timer("instructions", self.timing_raw):
            return generate_texts(
                self.get_llm_client(),
                self.tokenizer,
                self.settings.instructions,
                prompts,
                seed=f"{self.settings.rng_seed}/instructions/{step}/{call}",
                engine=self.config.actor_rollout_ref.rollout.name,
            )

    def _answer(self, instructions: list[Instruction]) -> Round:
        """Sample the answers of one round and judge them."""
        prompts, uids = prompt_batch([self._row(instruction) for instruction in instructions], self.global_steps)
        with marked_timer("answers", self.timing_raw):
            self._submit_batch_to_rollout(prompts)
            batch, sampled = self.replay_buffer.sample(
                global_steps=self.global_steps, partition_id=TRAIN, batch_size=len(uids)
            )
        batch.extra_info["temperature"] = self.config.actor_rollout_ref.rollout.temperature
        with marked_timer("vote", self.timing_raw):
            judged = self._judge(batch, dict(zip(uids, instructions, strict=True)))
        return replace(judged, metrics=sampled | judged.metrics)

    def _judge(self, batch: KVBatchMeta, by_uid: dict[str, Instruction]) -> Round:
        """Judge a round by vote or by label; what cannot train leaves the TransferQueue.

        Where none stays, none leaves yet: verl's metrics need rows even of a step without a vote.
        """
        groups, n = self.read_groups(batch), self.config.actor_rollout_ref.rollout.n
        if self.settings.variant == "ground_truth":
            judged, scored = judge_by_label(
                groups, by_uid, self.group_hook, self.budget, n=n, min_group=self.reward_faults.min_group
            )
        else:
            judged, scored = judge_by_vote(groups, by_uid, self.settings.vote, self.budget, n=n, on_vote=self._watch)
        data_plane.write_rewards(batch, scored.changed)
        kept = scored.kept
        if kept:
            data_plane.clear(TRAIN, scored.dropped)
        faults = ("reward_faults/score/", "reward_faults/skip/")
        return replace(
            judged,
            rows=data_plane.select(batch, kept) if kept else batch,
            trainable=bool(kept),
            metrics=judged.metrics
            | {name: number for name, number in scored.metrics.items() if name.startswith(faults)},
        )

    def _watch(self, vote: Vote) -> None:
        self.alarm_reason = self.alarm.observe(vote)

    def select_trained(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """Return the batch as it is: its groups were judged round by round."""
        return batch

    def _row(self, instruction: Instruction) -> dict:
        if instruction.origin == "dataset":
            return self.train_dataset[instruction.idx]
        return instruction_row(instruction, self.settings.answer_template, instruction.idx)

    def _train(self, collection: Collection, metrics: dict, timing_raw: dict) -> KVBatchMeta:
        """Update on the survivors of a collection; returns the rows of which verl's metrics are made."""
        rounds = [answered.rows for answered in collection.answered if answered.trainable]
        spare = [answered.rows for answered in collection.answered if len(answered.rows) and not answered.trainable]
        if not rounds:
            # Nothing to train on, but verl's metrics need rows.
            rounds, spare = spare[-1:], spare[:-1]
        self._clear(spare, keep=[])
        if not rounds:
            raise RunStalled(f"step {self.global_steps} has no response at all: {collection.reason}")
        if self._statistics_before_filter():
            rounds = [self._with_advantages(batch, metrics, timing_raw) for batch in rounds]
        batch = self._select(rounds, [group.handle for group in collection.trained])
        if len(batch) == 0:
            return self._skip_update(rounds, metrics, timing_raw)
        if self._statistics_before_filter():
            batch = self._balance_batch(batch, metrics=metrics)
            reset_padding(batch)
        else:
            batch = self._with_advantages(batch, metrics, timing_raw)
        with marked_timer("update_actor", timing_raw, color="red"):
            return self._update_actor(batch, metrics=metrics)

    def _with_advantages(self, batch: KVBatchMeta, metrics: dict, timing_raw: dict) -> KVBatchMeta:
        batch = self._balance_batch(batch, metrics=metrics)
        with marked_timer("old_log_prob", timing_raw, color="blue"):
            batch = self._compute_old_log_prob(batch, metrics=metrics)
        if self.use_reference_policy:
            with marked_timer("ref", timing_raw, color="olive"):
                batch = self._compute_ref_log_prob(batch, metrics=metrics)
        with marked_timer("adv", timing_raw, color="brown"):
            return self._compute_advantage(batch, metrics=metrics)

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        algorithm = self.config.algorithm
        if algorithm.adv_estimator != "serl_rloo" or not algorithm.use_kl_in_reward:
            return super()._compute_advantage(batch, metrics)
        with open_dict(algorithm):
            # verl's own pass adds the KL penalty and its metrics; its advantages are replaced below.
            algorithm.adv_estimator = "serl_reinforce_pp"
            batch = super()._compute_advantage(batch, metrics)
            algorithm.adv_estimator = "serl_rloo"
        return replace_by_rloo(batch)

    def _statistics_before_filter(self) -> bool:
        """Whether dropped groups take part in the advantages of the others; per-group estimators cannot tell."""
        algorithm = self.config.algorithm
        per_group = algorithm.adv_estimator in ("serl_grpo", "grpo") and not algorithm.use_kl_in_reward
        return self.settings.statistics == "before" and not per_group

    def _prompts_per_update(self) -> int:
        """Count the prompts that fill whole mini-batches on every rank."""
        trained = self.settings.trained_of(self.config.actor_rollout_ref.rollout.n)
        ranks = max(self._actor_ranks()) + 1
        return math.lcm(self._get_required_batch_multiple(ranks), trained) // trained

    def _actor_ranks(self) -> list[int]:
        group = self.actor_rollout_wg
        if "actor" not in group._dispatch_info:
            group._dispatch_info["actor"] = group._query_dispatch_info("actor")
        return group._dispatch_info["actor"]

    def _select(self, rounds: list[KVBatchMeta], uids: list[str]) -> KVBatchMeta:
        """Select the rows to train on; all others leave the TransferQueue, unless nothing is trained."""
        trained = set(uids)
        real = data_plane.join([data_plane.select(rows, data_plane.real_keys(rows)) for rows in rounds])
        batch = data_plane.select(real, lambda key: data_plane.uid_of(key) in trained)
        batch.extra_info = {"temperature": self.config.actor_rollout_ref.rollout.temperature}
        if batch.keys:
            self._clear(rounds, keep=batch.keys)
        return batch

    def _skip_update(self, rounds: list[KVBatchMeta], metrics: dict, timing_raw: dict) -> KVBatchMeta:
        """Leave the last round for verl's metrics, which need a batch, and train on nothing."""
        last = rounds[-1]
        if not self._statistics_before_filter():
            last = self._with_advantages(last, metrics, timing_raw)
        self._clear(rounds, keep=last.keys)
        return last

    @staticmethod
    def _clear(rounds: list[KVBatchMeta], keep: list[str]) -> None:
        kept = set(keep)
        data_plane.clear(TRAIN, [key for batch in rounds for key in batch.keys if key not in kept])
