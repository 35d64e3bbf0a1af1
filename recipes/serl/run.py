"""Length, checkpoint state and end of a SeRL run under verl's loop."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, open_dict

from recipes.core import state
from recipes.core.split_rollout import SplitRollout
from recipes.core.trainer import DuetTrainer
from recipes.errors import RunError
from recipes.serl.collection import Collection, vote_metrics
from recipes.serl.judging import labelled_samples
from recipes.serl.settings import SerlSettings
from recipes.serl.sources import Journal, Source
from reward_fns.majority import CollapseAlarm


@dataclass(frozen=True)
class Schedule:
    """When a run ends: its length counted in trained prompts.

    The original code uses `instructions_num_per_iteration` only for the length of the learning-rate schedule and has to
    be stopped by hand; here a run ends when `iterations` times that many prompts were trained, or after `max_steps`
    trainer steps, so that steps which train fewer prompts, or none, cannot prolong it without limit. Where prompts come
    from a dataset, `available_prompts` (its rows times its epochs) bounds it; `None` where the model writes them.
    """

    instructions_num_per_iteration: int = 2000
    iterations: int = 1
    prompts_per_step: int = 16
    step_slack: float = 1.0
    available_prompts: int | None = None

    @property
    def total_prompts(self) -> int:
        """Prompts to train in all."""
        total = self.instructions_num_per_iteration * self.iterations
        return total if self.available_prompts is None else min(total, self.available_prompts)

    @property
    def full_steps(self) -> int:
        """Trainer steps when each trains `prompts_per_step` prompts: 125 in the original set-up."""
        return math.ceil(self.total_prompts / self.prompts_per_step)

    @property
    def max_steps(self) -> int:
        """The most trainer steps a run may take."""
        return math.ceil(self.full_steps * self.step_slack)

    def prompts_left(self, trained_prompts: int) -> int:
        """Prompts still to train."""
        return max(0, self.total_prompts - trained_prompts)

    def iteration(self, trained_prompts: int) -> int:
        """Number of the current iteration, from 1; the last one when all are done."""
        return min(self.iterations, trained_prompts // self.instructions_num_per_iteration + 1)

    def finished(self, trained_prompts: int, step: int) -> bool:
        """Whether the run ends after `step`: all prompts are trained, or no more steps may be taken."""
        return trained_prompts >= self.total_prompts or step >= self.max_steps


STATE_FILE = "serl.json"


class RunStalled(RunError):
    """Too many steps in a row found nothing to train on."""


class RunCollapsed(RunError):
    """The votes look like those of a model that answers everything alike."""


class SerlRun(SplitRollout, DuetTrainer):
    """Length, checkpoint state and end of a run; a subclass gives the source of prompts and the step."""

    journal: Journal
    source: Source
    schedule: Schedule

    def __init__(self, config: DictConfig) -> None:
        self.settings = SerlSettings.from_mapping(config.serl)
        self.trained_prompts = 0
        self.skipped_steps = 0
        self.alarmed_steps = 0
        self.stepped = False
        vote = self.settings.vote
        self.alarm = CollapseAlarm(vote.alarm_window, vote.alarm_agreement, vote.alarm_same_answer)
        self.alarm_reason = ""
        super().__init__(config)

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        folder = self.settings.journal_dir or os.path.join(self.config.trainer.default_local_dir, "filtered_data")
        self.journal = Journal(folder)
        self.set_length(len(self.train_dataset))

    def set_length(self, rows: int) -> None:
        """Set the number of steps by the recipe's schedule; verl would derive it from rows and batch size."""
        config, settings = self.config, self.settings
        actor, trainer = config.actor_rollout_ref.actor, config.trainer
        self.schedule = Schedule(
            instructions_num_per_iteration=settings.instructions_num_per_iteration or rows,
            iterations=settings.iterations,
            prompts_per_step=config.data.train_batch_size,
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

    def own_state(self) -> dict:
        """What a resumed run needs beside verl's checkpoint; JSON types."""
        return {
            "source": self.source.state_dict(),
            "journal": self.journal.sync(),
            "trained_prompts": self.trained_prompts,
            "skipped_steps": self.skipped_steps,
            "alarmed_steps": self.alarmed_steps,
            "alarm": self.alarm.state_dict(),
        }

    def save_own_state(self, folder: Path) -> None:
        state.save(folder / STATE_FILE, self.own_state())

    def load_own_state(self, folder: Path | None) -> None:
        if folder is None:
            self._set_journal_back({})
            return
        content = state.load(folder / STATE_FILE)
        self.source.load_state_dict(content["source"])
        self._set_journal_back(content["journal"])
        self.trained_prompts, self.skipped_steps = content["trained_prompts"], content["skipped_steps"]
        self.alarmed_steps = content["alarmed_steps"]
        self.alarm.load_state_dict(content["alarm"])
        self._end_when_finished()

    def _set_journal_back(self, offsets: dict[str, int]) -> None:
        aside = self.journal.set_back(offsets)
        if aside is not None:
            print(f"serl: {aside.parent} held records that do not belong to step {self.global_steps}; now in {aside}")

    def account(self, collection: Collection, metrics: dict) -> None:
        """Count what a step trained, log it, and end the run where it is finished.

        Raises:
            RunStalled: more steps in a row than `serl.limits.max_skipped_steps` trained nothing.
            RunCollapsed: the alarm stood for `serl.vote.alarm_stops_after` steps in a row.
        """
        step, trained = self.global_steps, len(collection.trained)
        self.trained_prompts += trained
        self.skipped_steps = 0 if trained else self.skipped_steps + 1
        self.alarmed_steps = self.alarmed_steps + 1 if self.alarm_reason else 0
        metrics.update(vote_metrics(collection.groups, collection.trained))
        metrics.update({f"serl/instructions/{name}": n for name, n in self.source.pop_counts().items()})
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
        stops_after = self.settings.vote.alarm_stops_after
        if stops_after is not None and self.alarmed_steps >= stops_after:
            raise RunCollapsed(
                f"step {step}: {self.alarm_reason}, for the {self.alarmed_steps}. step in a row "
                f"(serl.vote.alarm_stops_after={stops_after}). The last checkpoint stands; choose one from before the "
                "first alarm (serl/collapse_alarm in the log)"
            )
        self._end_when_finished()

    def _end_when_finished(self) -> None:
        if self.schedule.finished(self.trained_prompts, self.global_steps) or self.source.exhausted:
            # verl's loop ends after the step that this number names.
            self.total_training_steps = min(self.total_training_steps, self.global_steps)

    def on_train_end(self) -> None:
        """Validate and save after the last step, where the run ended before the number of steps verl was given."""
        super().on_train_end()
        if self.stopped or not self.stepped:
            return
        self.global_steps -= 1
        trainer = self.config.trainer
        if trainer.save_freq > 0 and self.global_steps % trainer.save_freq != 0:
            self._save_checkpoint()
        if trainer.test_freq > 0 and self.global_steps % trainer.test_freq != 0:
            self.logger.log(data=self._validate(), step=self.global_steps)
        print(f"serl: ended after {self.trained_prompts} trained prompts, at step {self.global_steps}")

    def _val_metrics_update(
        self, data_sources, sample_uids, reward_extra_infos_dict, sample_turns, expected_acc_counts=None
    ) -> dict[str, float]:
        """Validate on problems with a gold answer alone."""
        sources, uids, infos, expected = labelled_samples(
            data_sources, sample_uids, reward_extra_infos_dict, expected_acc_counts
        )
        return super()._val_metrics_update(sources, uids, infos, sample_turns, expected_acc_counts=expected)
