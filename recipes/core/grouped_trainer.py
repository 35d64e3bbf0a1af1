"""verl's synchronous V1 trainer with a stage between sampling and advantages that sees whole groups.

Registered as ``grouped`` (``trainer.v1.trainer_mode=grouped``). After rollouts and rewards, before log-probs and
advantages, it reads each response's verdict, lets the hook named by ``algorithm.group_hook`` (``path``, ``name``) write
rewards or take responses and groups out, stops the run when the failure budget is spent, and removes what was skipped.

How a skipped response leaves: its row is deleted from the batch, so it has no part in its group's baseline, in
whitening, in votes or in metrics. verl then fills the batch up to whole mini-batches with padding rows, whose
response mask is empty: they add nothing to a token-mean loss (its denominator counts mask tokens); a loss that
divides by the number of sequences divides by the nominal mini-batch, so it is scaled by the share of rows that is
left.
"""

from functools import partial

from omegaconf import OmegaConf, open_dict
from verl.trainer.ppo.v1 import PPOTrainerSync
from verl.utils.import_utils import load_extern_object

from recipes.core import data_plane
from recipes.core.data_plane import KVBatchMeta
from recipes.core.groups import Group, Sample, group_by_prompt, settle
from recipes.core.reward_faults import BLOCK, RewardFaults
from recipes.core.settings import read
from reward_fns.errors import ResultError
from reward_fns.result import Result, Score, from_verl

FIELDS = ("responses", "rm_scores", "extra_fields", "reward_model", "data_source", "extra_info", "raw_prompt")


class GroupedTrainer(PPOTrainerSync):
    """``PPOTrainerSync`` that settles the groups of a step before anything is computed from their rewards."""

    def __init__(self, config):
        with open_dict(config):
            # verl compares this name with "sync" in several places; it was needed only to find this class.
            config.trainer.v1.trainer_mode = "sync"
        super().__init__(config)
        self.reward_faults = read(RewardFaults, config.algorithm.get("reward_faults"), BLOCK)
        hook = config.algorithm.get("group_hook") or {}
        arguments = OmegaConf.to_container(hook.get("kwargs") or OmegaConf.create({}))
        self.group_hook = partial(load_extern_object(hook.path, hook.name), **arguments) if hook.get("path") else None

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict, *args, **kwargs) -> KVBatchMeta:
        batch = self.settle_groups(batch, metrics)
        return super()._balance_batch(batch, metrics, *args, **kwargs)

    def settle_groups(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """Apply the hook and the failure budget; return the responses to train on.

        Raises:
            reward_fns.errors.BudgetSpent: with the counts by reason; the run ends with it.
        """
        groups = self.read_groups(batch)
        if self.group_hook is not None:
            metrics.update(self.group_hook(groups) or {})
        n = self.config.actor_rollout_ref.rollout.n
        settlement = settle(
            groups,
            self.reward_faults.budget,
            expected=self.config.data.train_batch_size * n // self.parameter_sync_step,
            min_group=min(self.reward_faults.min_group, n),
            grouped=n > 1,
        )
        metrics.update(settlement.metrics)
        data_plane.write_rewards(batch, settlement.changed)
        if not settlement.dropped:
            return batch
        data_plane.clear(batch.partition_id, settlement.dropped)
        return data_plane.select(batch, settlement.rewards)

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


def _verdict(info: dict, score: float) -> Result:
    try:
        return from_verl(info)
    except ResultError:
        return Score(score)
