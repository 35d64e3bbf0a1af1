"""The V1 trainer `step_ppo`: verl's synchronous PPO step with un-whitened GAE or PURE's estimators on step rewards,
and skipped rollouts left out."""

import torch
from omegaconf import open_dict

from recipes.core import data_plane
from recipes.core.data_plane import KVBatchMeta, padded, unpadded
from recipes.core.trainer import DuetTrainer
from recipes.step_ppo.advantage import gae
from recipes.step_ppo.pure import ESTIMATORS, Rollout, pure_rloo, pure_token
from recipes.step_ppo.settings import StepPPOSettings


class StepPPOTrainer(DuetTrainer):
    """Own advantage stage; rollouts, log-probs, values, updates, validation and checkpoints are verl's."""

    group_relative = False

    def __init__(self, config) -> None:
        self.settings = StepPPOSettings.from_mapping(config.step_ppo)
        with open_dict(config):
            self.pure = config.algorithm.adv_estimator if config.algorithm.adv_estimator in ESTIMATORS else None
            if self.pure:
                # verl's own stage runs first and knows no such name; what it writes is replaced.
                config.algorithm.adv_estimator = "rloo"
        super().__init__(config)

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        infos = self._reward_infos(batch)
        batch = super()._compute_advantage(batch, metrics)
        if self.pure:
            metrics.update(self._overwrite_pure_advantages(batch, infos))
        else:
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

    def _overwrite_pure_advantages(self, batch: KVBatchMeta, infos: dict[str, dict]) -> dict[str, float]:
        """Advantages by PURE; verl's padding has none."""
        names = ("rm_scores", "response_mask", "extra_fields")
        charged = ("token_level_rewards",) if self.config.algorithm.use_kl_in_reward else ()
        rows = data_plane.read(batch, *names, *charged)
        numbers, rollouts = [], []
        for number, key in enumerate(batch.keys):
            if key not in infos:
                continue
            rewards = rows["rm_scores"][number].double()
            kl = rewards - rows["token_level_rewards"][number].double() if charged else torch.zeros_like(rewards)
            outcome = infos[key]["acc"] if infos[key]["verified"] else None
            ends = rows["extra_fields"][number]["step_ends"]
            numbers.append(number)
            rollouts.append(Rollout(key.rsplit("_", 2)[0], rewards, ends, kl, outcome))
        weight = self.settings.verifiable.weight
        if self.pure == "pure_token":
            found = pure_token(rollouts, outcome_weight=weight)
        else:
            limit = self.config.data.max_response_length
            found = pure_rloo(rollouts, outcome_weight=weight, max_response_length=limit)
        advantages = [torch.zeros_like(mask, dtype=torch.float32) for mask in rows["response_mask"]]
        for number, row in zip(numbers, found, strict=True):
            advantages[number] = row.float()
        data_plane.write(batch, {"advantages": advantages, "returns": advantages}, keys=batch.keys)
        sums = [(float(rollout.rewards.sum()), rollout.outcome) for rollout in rollouts]
        agree = [(total > 0) == (outcome > 0.5) for total, outcome in sums if outcome is not None]
        return {
            "step_ppo/pure/return/mean": sum(total for total, _ in sums) / len(sums),
            **({"step_ppo/pure/sign_agrees_with_outcome": sum(agree) / len(agree)} if agree else {}),
        }

    def _telemetry(self, batch: KVBatchMeta, infos: dict[str, dict]) -> dict[str, float]:
        lengths = {key: tag["response_len"] for key, tag in zip(batch.keys, batch.tags, strict=True) if key in infos}
        count = len(infos)
        return {
            "step_ppo/tokens/mean": sum(lengths[key] for key in infos) / count,
            "step_ppo/steps/mean": sum(info["n_steps"] for info in infos.values()) / count,
            "step_ppo/steps/max": max(info["n_steps"] for info in infos.values()),
            "step_ppo/acc": sum(info["acc"] for info in infos.values()) / count,
            "step_ppo/malformed": sum(info["malformed"] for info in infos.values()) / count,
        }
