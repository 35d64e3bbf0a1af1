"""The trainer under all five recipes: verl's synchronous V1 trainer, with the few places where a recipe joins in.

Registered as ``grouped`` for recipes that need no trainer of their own. What it adds to a step, in order:

1. After rollouts and rewards, before log-probs and advantages, :meth:`DuetTrainer.select_trained` reads each response's
   verdict, lets the hook named by ``algorithm.group_hook`` (``path``, ``name``) write rewards or take responses and
   groups out, ends the run when too much could not be judged, and removes what was skipped.
2. A recipe's own state and the step's metrics go into the checkpoint before verl names it as the latest.
3. At the end of the step, a request to save or to end is heard (:mod:`recipes.core.requests`).

How a skipped response leaves: its row is deleted from the batch, so it has no part in its group's baseline, in
whitening, in votes or in metrics. verl then fills the batch up to whole mini-batches with padding rows, whose response
mask is empty: they add nothing to a token-mean loss (its denominator counts mask tokens); a loss that divides by the
number of sequences divides by the nominal mini-batch, so it is scaled by the share of rows that is left.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from verl.trainer.ppo.v1 import PPOTrainerSync
from verl.utils.import_utils import load_extern_object

from recipes.core import data_plane, state
from recipes.core.data_plane import KVBatchMeta
from recipes.core.groups import Group, Sample, drop_unscored, group_by_prompt
from recipes.core.journal import Journal
from recipes.core.requests import Requests, requests_of_this_run
from recipes.core.reward_faults import BLOCK, RewardFaults
from recipes.core.settings import read
from recipes.errors import JournalError
from reward_fns.errors import ResultError
from reward_fns.result import Result, RunningBudget, Score, from_verl

SHOWN = "responses.jsonl"
FIELDS = ("responses", "rm_scores", "extra_fields", "reward_model", "data_source", "extra_info", "raw_prompt")


class DuetTrainer(PPOTrainerSync):
    """``PPOTrainerSync`` that drops unscored responses before anything is computed from them, and a run that listens.

    Attributes:
        group_relative: whether advantages compare the responses to one prompt, so that a group needs several of them.
        stopped: whether the run ends early because it was asked to; what belongs to the end of a whole run
            (``on_train_end``) is then left to the run that resumes.
    """

    group_relative = True
    stopped = False

    def __init__(self, config: DictConfig) -> None:
        with open_dict(config):
            # verl compares this name with "sync" in several places; it was needed only to find this class.
            config.trainer.v1.trainer_mode = "sync"
        super().__init__(config)
        self.reward_faults = read(RewardFaults, config.algorithm.get("reward_faults"), BLOCK)
        self.budget = RunningBudget(self.reward_faults.budget)
        hook = config.algorithm.get("group_hook") or {}
        arguments = OmegaConf.to_container(hook.get("kwargs") or OmegaConf.create({}))
        self.group_hook = partial(load_extern_object(hook.path, hook.name), **arguments) if hook.get("path") else None
        self.requests: Requests = requests_of_this_run()
        self._saves_done = self.requests.get("save")
        self._saved_step = -1
        self._step_metrics: dict[str, Any] = {}
        self._planned_steps = 0
        self.evaluation = _evaluation(self)

    # ------------------------------------------------------------------------------------------------ rewards

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict, *args: Any, **kwargs: Any) -> KVBatchMeta:
        batch = self.select_trained(batch, metrics)
        return super()._balance_batch(batch, metrics, *args, **kwargs)

    def select_trained(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """Apply the hook and the failure budget; return the responses to train on.

        Raises:
            reward_fns.errors.BudgetSpent: with the counts by reason; the run ends with it.
        """
        groups = self.read_groups(batch)
        if self.group_hook is not None:
            metrics.update(self.group_hook(groups) or {})
        n = self.config.actor_rollout_ref.rollout.n
        expected = self.config.data.train_batch_size * n // self.parameter_sync_step
        scored = drop_unscored(
            groups,
            self.budget,
            expected=expected,
            min_group=min(self.reward_faults.min_group, n),
            grouped=self.group_relative and n > 1,
        )
        metrics.update(scored.metrics)
        data_plane.write_rewards(batch, scored.changed)
        if not scored.dropped:
            return batch
        data_plane.clear(batch.partition_id, scored.dropped)
        return data_plane.select(batch, scored.rewards)

    def read_groups(self, batch: KVBatchMeta) -> list[Group]:
        """Read the batch as groups of decoded responses with their verdicts; a reward without one counts as a Score."""
        columns = data_plane.read(batch, *FIELDS)
        responses, rewards = columns.pop("responses"), columns.pop("rm_scores")
        texts = self.tokenizer.batch_decode([ids.tolist() for ids in responses], skip_special_tokens=True)
        samples = []
        for position, key in enumerate(batch.keys):
            fields = {name: values[position] for name, values in columns.items()}
            info = (fields.pop("extra_fields", None) or {}).get("reward_extra_info") or {}
            verdict = _verdict(info, float(rewards[position].sum()))
            samples.append(Sample(key, texts[position], verdict, len(responses[position]), fields))
        return group_by_prompt(samples)

    # ------------------------------------------------------------------------------------------------ checkpoints

    def save_own_state(self, folder: Path) -> None:
        """Write what a resumed run needs beside verl's checkpoint; nothing by default."""

    def load_own_state(self, folder: Path | None) -> None:
        """Read what :meth:`save_own_state` wrote; None at the start of a new run."""

    def _save_checkpoint(self) -> None:
        # verl names the checkpoint as the latest at the end of its save, so all else has to be there before.
        folder = state.step_folder(self.config, self.global_steps)
        self.save_own_state(folder)
        state.save_settings(folder, self.config)
        state.save_metrics(folder, {"training/global_step": self.global_steps, **self._step_metrics})
        super()._save_checkpoint()
        self._saved_step = self.global_steps

    def _setup(self) -> None:
        super()._setup()
        self.complete_setup()
        self.load_own_state(state.resumed_folder(self.config, self.global_steps) if self.global_steps else None)

    def complete_setup(self) -> None:
        """Set up what a recipe has beside verl's workers and engines, which stand and have loaded their checkpoint."""

    # ------------------------------------------------------------------------------------------------ a run's steps

    def on_train_begin(self) -> None:
        super().on_train_begin()
        self._planned_steps = self.total_training_steps
        if self.evaluation is not None:
            self.evaluation.before_training(self)

    def on_step_begin(self) -> None:
        super().on_step_begin()
        self.requests.put("step", str(self.global_steps))

    def step(self, metrics: dict, timing_raw: dict) -> KVBatchMeta:
        self._step_metrics = metrics
        return self.train_step(metrics, timing_raw)

    def train_step(self, metrics: dict, timing_raw: dict) -> KVBatchMeta:
        """Make one step of verl's, or a recipe's own."""
        return super().step(metrics, timing_raw)

    def on_step_end(self) -> None:
        self.handle_requests()
        super().on_step_end()

    def handle_requests(self) -> None:
        """Save if asked, before the engines take the new weights; end after this step if asked.

        verl's `fit` saves before this call and logs after it, and reads `total_training_steps` anew before each step:
        a step that was asked to be the last is logged as any other.
        """
        stop, saves = self.requests.get("stop"), self.requests.get("save")
        if (stop or saves != self._saves_done) and self._saved_step != self.global_steps:
            self._save_checkpoint()
        if saves != self._saves_done:
            print(f"step {self.global_steps} is saved, as asked", flush=True)
            self._saves_done = saves
        if stop and self.global_steps < self.total_training_steps:
            self.total_training_steps = self.global_steps
            self.stopped = True
            self.requests.put("stopped", str(self.global_steps))

    def _compute_metrics(
        self, batch: KVBatchMeta, metrics: dict, timing_raw: dict, global_steps: int, epoch: int
    ) -> None:
        if self.evaluation is not None:
            self.evaluation.after_step(self, metrics, timing_raw, last=global_steps >= self._planned_steps)
        self.measure_step(batch, metrics, timing_raw, global_steps, epoch)
        print(progress_line(metrics, timing_raw.get("step", 0.0), global_steps, self.total_training_steps), flush=True)

    def measure_step(self, batch: KVBatchMeta, metrics: dict, timing_raw: dict, global_steps: int, epoch: int) -> None:
        """Add what verl measures of a step, or a recipe in its place."""
        super()._compute_metrics(batch, metrics, timing_raw, global_steps=global_steps, epoch=epoch)
        every = self.config.algorithm.get("show_responses_every")
        if every and global_steps % every == 0:
            self.show_responses(batch)

    def show_responses(self, batch: KVBatchMeta) -> None:
        """Print the best and the worst response to the first prompt of a step, as :func:`marked`, and keep them.

        ``responses.jsonl`` beside the checkpoints has a line for each; ``recipes.evaluation.inspect_log`` reads it.
        """
        keys = data_plane.real_keys(batch)
        keys = [key for key in keys if data_plane.uid_of(key) == data_plane.uid_of(keys[0])]
        if not keys:
            return
        rows = data_plane.read(batch, "raw_prompt", "responses", "response_mask", "rm_scores", keys=keys)
        by_reward = sorted(range(len(keys)), key=lambda row: float(rows["rm_scores"][row].sum()))
        question = rows["raw_prompt"][0][-1]["content"]
        print(f"step {self.global_steps}, a prompt: {question}")
        shown = []
        for sample, row in enumerate(dict.fromkeys((by_reward[-1], by_reward[0]))):
            columns = [rows[name][row].tolist() for name in ("responses", "response_mask", "rm_scores")]
            reward, response = sum(columns[2]), marked(self.tokenizer.decode, *columns)
            print(f"  reward {reward:.2f}: {response}", flush=True)
            line = {"step": self.global_steps, "sample": sample, "question": question, "reward": reward}
            shown.append({**line, "response": response})
        try:
            with Journal(Path(self.config.trainer.default_local_dir) / SHOWN) as journal:
                journal.extend(shown)
        except JournalError as error:  # what is only shown ends no run
            print(f"the shown responses are not kept: {error}", flush=True)

    def on_train_end(self) -> None:
        super().on_train_end()
        if self.evaluation is not None and not self.stopped:
            self.evaluation.after_training(self)


def progress_line(metrics: dict, seconds: float, step: int, total: int) -> str:
    """A step for who watches: reward, held-out accuracy where it was measured, seconds, time left at this pace."""
    own = "critic/score/mean"
    rewards = {key.replace(own, "reward"): value for key, value in metrics.items() if key.endswith(own)}
    said = [f"step {step} of {total}", *(f"{name} {value:.3f}" for name, value in rewards.items())]
    accuracies = ((re.fullmatch(r"val-core/(.+)/acc/mean@\d+", key), value) for key, value in metrics.items())
    said += [f"held-out {key[1]} {value:.1%}" for key, value in accuracies if key]
    return ", ".join([*said, f"{seconds:.0f} s", f"about {(total - step) * seconds / 60:.0f} min left"])


def marked(decode: Callable[[list[int]], str], ids: list[int], mask: list[float], rewards: list[float]) -> str:
    """A response for who reads it: ⟦what is not trained on, as a partner's tokens⟧, and (+0.5) behind a rewarded step.

    Args:
        ids, mask, rewards: one for each token; the reward of the last one, the response's end, is not marked.
    """
    parts: list[str] = []
    run: list[int] = []
    for position, token in enumerate(ids):
        run.append(token)
        last = position + 1 == len(ids)
        reward = 0.0 if last else rewards[position]
        if last or reward or (mask[position] > 0) != (mask[position + 1] > 0):
            text = decode(run)
            parts += [text if mask[position] > 0 else f"⟦{text}⟧", f"({reward:+.2g})" if reward else ""]
            run = []
    return "".join(parts)


def _verdict(info: dict, score: float) -> Result:
    try:
        return from_verl(info)
    except ResultError:
        return Score(score)


def _evaluation(trainer: DuetTrainer) -> Any:
    """The evaluation of the policy as it trains, made from the class that the config's block `evaluation` names."""
    block = trainer.config.get("evaluation")
    if block is None:
        return None
    module, _, name = str(block._target_).rpartition(".")
    return load_extern_object(f"pkg://{module}", name)()
