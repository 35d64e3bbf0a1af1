"""The V1 trainer `serl`: verl's synchronous step with self-made prompts, votes and the difficulty filter inside it."""

import math
import os
from dataclasses import replace
from pathlib import Path

import transfer_queue as tq
from omegaconf import OmegaConf, open_dict
from transfer_queue import KVBatchMeta
from verl.utils.debug import marked_timer

from recipes.common.grouped_trainer import GroupedTrainer
from recipes.common.split_rollout import SplitRollout
from recipes.serl.answering import PARTITION, instruction_row, prompt_batch, rows_of
from recipes.serl.collection import Collection, Round, collect, vote_metrics
from recipes.serl.generation import InstructionGenerator, chat_tokenizer, rollout_engines
from recipes.serl.instructions import load_template
from recipes.serl.journal import Journal
from recipes.serl.judging import judge_by_label, judge_by_vote, labelled_samples
from recipes.serl.padding import reset_padding
from recipes.serl.pool import Instruction, InstructionPool
from recipes.serl.questions import read_rows
from recipes.serl.rloo_with_kl import replace_by_rloo
from recipes.serl.schedule import Schedule
from recipes.serl.settings import SerlSettings
from recipes.serl.sources import DatasetSource, SelfInstructSource
from recipes.serl.state import read_state, write_state
from reward_fns.majority import CollapseAlarm, Vote

STATE_FILE = "serl.json"


class RunStalled(RuntimeError):
    """Too many steps in a row found nothing to train on."""


class SerlTrainer(SplitRollout, GroupedTrainer):
    """SeRL on verl's V1 trainer.

    A step collects groups until `data.train_batch_size` prompts survive the difficulty filter, computes advantages,
    and updates the actor on the survivors. Rollouts, log-probs, updates, validation and checkpoints are verl's own;
    groups are settled round by round, as they come back.
    """

    def __init__(self, config) -> None:
        self.settings = SerlSettings.from_mapping(OmegaConf.to_container(config.serl, resolve=True))
        self.trained_prompts = 0
        self.skipped_steps = 0
        self.stepped = False
        vote = self.settings.vote
        self.alarm = CollapseAlarm(vote.alarm_window, vote.alarm_agreement, vote.alarm_same_answer)
        self.alarm_reason = ""
        super().__init__(config)

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        folder = self.settings.journal_dir or os.path.join(self.config.trainer.default_local_dir, "filtered_data")
        self.journal = Journal(folder)
        self.source = self._self_instruct() if self.settings.variant == "self_instruct" else self._dataset()
        self._set_length(len(self.train_dataset))

    def _set_length(self, rows: int) -> None:
        """Let the run end when the recipe says so, whatever verl makes of the number of rows and of the batch size."""
        config, settings = self.config, self.settings
        rollout, actor, trainer = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor, config.trainer
        self.schedule = Schedule(
            instructions_num_per_iteration=settings.instructions_num_per_iteration,
            iterations=settings.iterations,
            prompts_per_step=config.data.train_batch_size,
            responses_per_prompt=rollout.n,
            sequences_per_update=actor.ppo_mini_batch_size * rollout.n,
            step_slack=settings.step_slack,
            available_prompts=None if settings.variant == "self_instruct" else rows * trainer.total_epochs,
        )
        steps = self.schedule.max_steps
        self.total_training_steps = min(steps, trainer.total_training_steps or steps)
        # verl's loop divides by it and ends with its epochs: with so many no run of the source is longer.
        self.steps_per_epoch = math.ceil(rows / config.data.train_batch_size)
        with open_dict(config):
            trainer.total_training_steps = self.total_training_steps
            # Step k trains at k of so many, so that neither end of the schedule falls on a step.
            actor.optim.total_training_steps = self.total_training_steps + 1

    def _self_instruct(self) -> SelfInstructSource:
        settings = self.settings
        seeds = [row[settings.question_key] for row in read_rows(settings.seeds, settings.question_key)]
        pool = InstructionPool(
            seeds,
            threshold=settings.instructions.rouge_threshold,
            scope=settings.instructions.similarity_scope,
            rng_seed=settings.rng_seed,
        )
        template_kwargs = dict(self.config.data.get("apply_chat_template_kwargs") or {})
        batch_size = settings.instructions.few_shot_generation_batch_size or max(4, rollout_engines(self.config))
        return SelfInstructSource(
            pool,
            load_template(settings.instructions.prompt_file),
            replace(settings.instructions, few_shot_generation_batch_size=batch_size),
            self.journal,
            tokenize=chat_tokenizer(self.tokenizer, template_kwargs),
            generate=self._generate_instructions,
        )

    def _dataset(self) -> DatasetSource:
        questions = [
            "\n".join(message["content"] for message in row)
            for row in self.train_dataset.dataframe[self.config.data.prompt_key]
        ]
        return DatasetSource(questions, rng_seed=self.settings.rng_seed, epochs=self.config.trainer.total_epochs)

    def _save_checkpoint(self) -> None:
        folder = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
        state = {
            "source": self.source.state_dict(),
            "journal": self.journal.sync(),
            "trained_prompts": self.trained_prompts,
            "skipped_steps": self.skipped_steps,
            "alarm": self.alarm.state_dict(),
        }
        # verl names the checkpoint as the latest at the end of its save, so the state has to be there before.
        write_state(folder / STATE_FILE, state)
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.global_steps == 0:
            self._set_journal_back({})
            return
        if self.config.trainer.resume_mode == "resume_path":
            folder = Path(self.config.trainer.resume_from_path)
        else:
            folder = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
        state = read_state(folder / STATE_FILE)
        self.source.load_state_dict(state["source"])
        self._set_journal_back(state["journal"])
        self.trained_prompts, self.skipped_steps = state["trained_prompts"], state["skipped_steps"]
        self.alarm.load_state_dict(state["alarm"])
        self._end_when_finished()

    def _set_journal_back(self, offsets: dict[str, int]) -> None:
        aside = self.journal.set_back(offsets)
        if aside is not None:
            print(f"serl: {aside.parent} held records that do not belong to step {self.global_steps}; now in {aside}")

    def prepare_step(self) -> dict:
        """Nothing to submit ahead: the prompts of a step are written by its own policy."""
        return {}

    def _step_once(self, metrics: dict, timing_raw: dict, sample_batch_size: int) -> KVBatchMeta:
        self.stepped, rounds, unvoted = True, [], []
        with marked_timer("gen", timing_raw, color="red"):
            self.on_sample_begin()
            with marked_timer("collect", timing_raw):
                collection = self._collect(rounds, unvoted, metrics, timing_raw, sample_batch_size)
            self.on_sample_end()
        # What is left of the collection without the rollout engine's part is the recipe's own time.
        engine = timing_raw.get("instructions", 0.0) + timing_raw.get("answers", 0.0)
        timing_raw["serl_driver"] = timing_raw["collect"] - engine
        self._account(collection, metrics)
        if not rounds:
            # Nothing to train on, but verl's metrics need rows.
            rounds, unvoted = unvoted[-1:], unvoted[:-1]
        self._clear(unvoted, keep=[])
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

    def _collect(
        self,
        rounds: list[KVBatchMeta],
        unvoted: list[KVBatchMeta],
        metrics: dict,
        timing_raw: dict,
        n_prompts: int,
    ) -> Collection:
        """Collect the groups of a step; its rows go to `rounds`, those of rounds without any winner to `unvoted`."""
        multiple = self._prompts_per_update()
        left = self.schedule.prompts_left(self.trained_prompts)
        settings = self.settings

        def answer(instructions: list[Instruction]) -> Round:
            return self._answer(instructions, rounds, unvoted, metrics, timing_raw)

        return collect(
            self.source,
            answer,
            self.journal,
            step=self.global_steps,
            target=min(n_prompts, math.ceil(left / multiple) * multiple),
            round_size=n_prompts,
            multiple=multiple,
            bounds=settings.reward_difficulty_bounds,
            max_rounds=settings.limits.max_rounds,
        )

    def _generate_instructions(self, prompts: list[list[int]], step: int, call: int) -> list[str | None]:
        with marked_timer("instructions", self.timing_raw):
            generator = InstructionGenerator(
                self.get_llm_client(),
                self.tokenizer,
                self.settings.instructions,
                rng_seed=self.settings.rng_seed,
                engine=self.config.actor_rollout_ref.rollout.name,
            )
            return generator(prompts, step, call)

    def _answer(
        self,
        instructions: list[Instruction],
        rounds: list[KVBatchMeta],
        unvoted: list[KVBatchMeta],
        metrics: dict,
        timing_raw: dict,
    ) -> Round:
        rows = [self._row(instruction) for instruction in instructions]
        prompts, uids = prompt_batch(rows, self.global_steps)
        by_uid = dict(zip(uids, instructions, strict=True))
        with marked_timer("answers", timing_raw):
            self._submit_batch_to_rollout(prompts)
            batch, sampled = self.replay_buffer.sample(
                global_steps=self.global_steps, partition_id=PARTITION, batch_size=len(uids)
            )
        metrics.update(sampled)
        batch.extra_info["temperature"] = self.config.actor_rollout_ref.rollout.temperature
        with marked_timer("vote", timing_raw):
            judged, kept = self._judge(batch, by_uid, metrics)
        if len(kept) > 0:
            rounds.append(kept)
        elif len(batch) > 0:
            unvoted.append(batch)
        return judged

    def _judge(self, batch: KVBatchMeta, by_uid: dict[str, Instruction], metrics: dict) -> tuple[Round, KVBatchMeta]:
        """The round by vote or by label, and the rows of `batch` that stay; the others leave the TransferQueue.

        Where none stays, none leaves yet: verl's metrics need rows even of a step without a vote.
        """
        groups, n = self.read_groups(batch), self.config.actor_rollout_ref.rollout.n
        before = {sample.key: sample.result for group in groups for sample in group.samples}
        if self.settings.variant == "ground_truth":
            judged, settlement = judge_by_label(groups, by_uid, self.group_hook, self.reward_faults, n=n)
        else:
            judged, settlement = judge_by_vote(
                groups, by_uid, self.settings.vote, self.reward_faults, n=n, on_vote=self._watch
            )
        for name, number in settlement.metrics.items():
            if name.startswith(("reward_faults/score/", "reward_faults/skip/")):
                metrics[name] = metrics.get(name, 0.0) + number
        results = {sample.key: sample.result for group in groups for sample in group.samples}
        changed = {key: value for key, value in settlement.rewards.items() if results[key] is not before[key]}
        self._write_rewards(batch, changed)
        kept = set(settlement.kept)
        if kept and settlement.dropped:
            tq.kv_clear(keys=settlement.dropped, partition_id=batch.partition_id)
        return judged, batch.select_keys([key for key in batch.keys if key in kept])

    def _watch(self, vote: Vote) -> None:
        self.alarm_reason = self.alarm.observe(vote)

    def settle_groups(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """Nothing is left to settle: the groups of a step were, round by round."""
        return batch

    def _row(self, instruction: Instruction) -> dict:
        if instruction.origin == "dataset":
            return self.train_dataset[instruction.idx]
        return instruction_row(instruction, self.settings.answer_template, instruction.idx)

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
        """Prompts that fill whole mini-batches on every rank."""
        n = self.config.actor_rollout_ref.rollout.n
        ranks = max(self._actor_ranks()) + 1
        return math.lcm(self._get_required_batch_multiple(ranks), n) // n

    def _actor_ranks(self) -> list[int]:
        group = self.actor_rollout_wg
        if "actor" not in group._dispatch_info:
            group._dispatch_info["actor"] = group._query_dispatch_info("actor")
        return group._dispatch_info["actor"]

    def _select(self, rounds: list[KVBatchMeta], uids: list[str]) -> KVBatchMeta:
        """The rows to train on; all others leave the TransferQueue, unless nothing is trained."""
        keys, tags = rows_of(rounds, uids)
        if keys:
            self._clear(rounds, keep=keys)
        extra = {"temperature": self.config.actor_rollout_ref.rollout.temperature}
        return KVBatchMeta(keys=keys, tags=tags, partition_id=PARTITION, extra_info=extra)

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
        drop = [key for batch in rounds for key in batch.keys if key not in kept]
        if drop:
            tq.kv_clear(keys=drop, partition_id=PARTITION)

    def _account(self, collection: Collection, metrics: dict) -> None:
        step, trained = self.global_steps, len(collection.trained)
        self.trained_prompts += trained
        self.skipped_steps = 0 if trained else self.skipped_steps + 1
        metrics.update(vote_metrics(collection.groups, collection.trained))
        metrics.update({f"serl/instructions/{name}": n for name, n in self.source.take_counts().items()})
        metrics.update(
            {
                "serl/rounds": collection.rounds,
                "serl/groups": len(collection.groups),
                **{f"serl/unusable/{reason}": n for reason, n in collection.unusable.items()},
                "serl/groups_trained": trained,
                "serl/trained_prompts": self.trained_prompts,
                "serl/iteration": self.schedule.iteration(self.trained_prompts),
                "serl/skipped_steps": self.skipped_steps,
                "serl/collapse_alarm": float(bool(self.alarm_reason)),
            }
        )
        if collection.reason:
            print(f"serl: step {step} trains {trained} prompts: {collection.reason}")
        if self.alarm_reason:
            print(f"serl: step {step}: {self.alarm_reason}; the model may have collapsed to one answer")
        for group in collection.trained[: self.settings.log_instructions]:
            print(f"serl: step {step}, agreement {group.agreement:.2f}: {group.instruction.text!r}")
        if self.skipped_steps > self.settings.limits.max_skipped_steps:
            raise RunStalled(
                f"{self.skipped_steps} steps in a row trained nothing, more than serl.limits.max_skipped_steps="
                f"{self.settings.limits.max_skipped_steps}. The last one: {collection.reason}"
            )
        self._end_when_finished()

    def _val_metrics_update(
        self, data_sources, sample_uids, reward_extra_infos_dict, sample_turns, expected_acc_counts=None
    ) -> dict[str, float]:
        """Validate on problems with a gold answer alone."""
        labelled = labelled_samples(data_sources, sample_uids, reward_extra_infos_dict, expected_acc_counts)
        sources, uids, infos, expected = labelled
        return super()._val_metrics_update(sources, uids, infos, sample_turns, expected_acc_counts=expected)

    def _end_when_finished(self) -> None:
        if self.schedule.finished(self.trained_prompts, self.global_steps) or self.source.exhausted:
            # verl's loop ends after the step that this number names.
            self.total_training_steps = min(self.total_training_steps, self.global_steps)

    def on_train_end(self) -> None:
        """Validate and save after a last step that verl did not know to be the last."""
        super().on_train_end()
        if not self.stepped:
            return
        self.global_steps -= 1
        trainer = self.config.trainer
        if trainer.save_freq > 0 and self.global_steps % trainer.save_freq != 0:
            self._save_checkpoint()
        if trainer.test_freq > 0 and self.global_steps % trainer.test_freq != 0:
            self.logger.log(data=self._validate(), step=self.global_steps)
        print(f"serl: ended after {self.trained_prompts} trained prompts, at step {self.global_steps}")
