"""The V1 trainer `step_ppo`: verl's synchronous PPO step with un-whitened GAE on step rewards, and skipped rollouts
left out."""

from collections.abc import Mapping
from dataclasses import replace

from recipes.core import data_plane
from recipes.core.data_plane import KVBatchMeta, padded, unpadded
from recipes.core.groups import Group
from recipes.core.trainer import DuetTrainer
from recipes.step_ppo.advantage import gae
from recipes.step_ppo.rewards import centred
from recipes.step_ppo.settings import StepPPOSettings
from reward_fns.result import Score


class StepPPOTrainer(DuetTrainer):
    """Own advantage stage, or centred step scores for verl's; all else is verl's."""

    def __init__(self, config) -> None:
        self.settings = StepPPOSettings.from_mapping(config.step_ppo)
        self.group_relative = self.settings.reward.centre
        super().__init__(config)

    def read_groups(self, batch: KVBatchMeta) -> list[Group]:
        groups = super().read_groups(batch)
        if self.settings.reward.centre:
            infos = self._reward_infos(batch)
            for group in groups:
                centre(group, {sample.key: infos[sample.key]["process"] for sample in group.samples})
        return groups

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        infos = self._reward_infos(batch)
        batch = super()._compute_advantage(batch, metrics)
        if not self.settings.reward.centre:
            self._overwrite_advantages(batch)
        metrics.update(self._telemetry(batch, infos))
        return batch

    def _reward_infos(self, batch: KVBatchMeta) -> dict[str, dict]:
        """Read the reward manager's verdict on each rollout, by key, padding rows left out."""
        keys = data_plane.real_keys(batch)
        rows = data_plane.read(batch, "extra_fields", keys=keys)["extra_fields"]
        return {key: row["reward_extra_info"] for key, row in zip(keys, rows, strict=True)}

    def _overwrite_advantages(self, batch: KVBatchMeta) -> None:
        algorithm = self.config.algorithm
        rewards = "token_level_rewards" if algorithm.use_kl_in_reward else "rm_scores"
        rows = data_plane.read(batch, rewards, "values", "response_mask")
        advantages, returns = gae(
            padded(rows[rewards]).float(),
            padded(rows["values"]).float(),
            padded(rows["response_mask"]),
            gamma=algorithm.gamma,
            lam=algorithm.lam,
            whiten=self.settings.whiten_advantages,
        )
        lengths = [len(mask) for mask in rows["response_mask"]]
        fields = {"advantages": unpadded(advantages, lengths), "returns": unpadded(returns, lengths)}
        # All rows are named: the batch that verl holds stays as it is.
        data_plane.write(batch, fields, keys=batch.keys)

    def _telemetry(self, batch: KVBatchMeta, infos: dict[str, dict]) -> dict[str, float]:
        lengths = {key: tag["response_len"] for key, tag in zip(batch.keys, batch.tags, strict=True) if key in infos}
        count = len(infos)
        return {
            "step_ppo/tokens/mean": sum(lengths[key] for key in infos) / count,
            "step_ppo/steps/mean": sum(info["n_steps"] for info in infos.values()) / count,
            "step_ppo/steps/max": max(info["n_steps"] for info in infos.values()),
            "step_ppo/acc": sum(info["acc"] for info in infos.values()) / count,
            "step_ppo/malformed": sum(info["malformed"] for info in infos.values()) / count,
            "step_ppo/process": sum(info["process"] for info in infos.values()) / count,
        }


def centre(group: Group, process: Mapping[str, float]) -> None:
    """Write the rewards of `rewards.centred` to the responses of one prompt that were judged; `process` by key."""
    scored = [(sample, sample.result) for sample in group.samples if isinstance(sample.result, Score)]
    values = centred(
        [result.value for _, result in scored],
        [bool(result.acc) for _, result in scored],
        [process[sample.key] for sample, _ in scored],
    )
    for (sample, result), value in zip(scored, values, strict=True):
        sample.result = replace(result, value=value)
