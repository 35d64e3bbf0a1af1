"""The V1 trainer `step_ppo`: verl's synchronous PPO step with un-whitened GAE on step rewards, and skipped rollouts
left out."""

import json
import logging
from collections import Counter
from pathlib import Path

import torch
import transfer_queue as tq
from omegaconf import OmegaConf, open_dict
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from recipes.errors import CheckpointError
from recipes.step_ppo.gae import gae
from recipes.step_ppo.journal import write_atomically
from recipes.step_ppo.length_alarm import LengthAlarm
from recipes.step_ppo.settings import StepPPOSettings
from reward_fns.errors import BudgetSpent
from reward_fns.result import Score, Skip

logger = logging.getLogger(__name__)

STATE_FILE = "step_ppo.json"


class StepPPOTrainer(PPOTrainerSync):
    """Own advantage stage; rollouts, log-probs, values, updates, validation and checkpoints are verl's."""

    def __init__(self, config) -> None:
        self.settings = StepPPOSettings.from_mapping(OmegaConf.to_container(config.step_ppo, resolve=True))
        self.alarm = LengthAlarm(self.settings.length_alarm)
        with open_dict(config):
            # verl compares the name with "sync" in five places; this trainer is synchronous in all of them.
            config.trainer.v1.trainer_mode = "sync"
        super().__init__(config)

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        infos = self._reward_infos(batch)
        self._leave_out_skipped(batch, infos)
        batch = super()._compute_advantage(batch, metrics)
        self._overwrite_advantages(batch)
        metrics.update(self._telemetry(batch, infos))
        return batch

    def _reward_infos(self, batch: KVBatchMeta) -> dict[str, dict]:
        """What the reward manager said about each rollout, by key; padding rows are none."""
        keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
        data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["extra_fields"])
        return {
            # The queue may wrap each row's mapping.
            key: getattr(fields, "data", fields)["reward_extra_info"]
            for key, fields in zip(keys, list(data["extra_fields"]), strict=True)
        }

    def _leave_out_skipped(self, batch: KVBatchMeta, infos: dict[str, dict]) -> None:
        """Mask rollouts whose reward could not be had: they leave advantages, both losses and their token counts.

        Raises:
            BudgetSpent: too many of them, or all.
        """
        results = [Skip(info["reason"]) if info["skipped"] else Score(0.0) for info in infos.values()]
        self.settings.failure_budget.require(results)
        skipped = [key for key, info in infos.items() if info["skipped"]]
        if len(skipped) == len(infos):
            raise BudgetSpent(f"no rollout of this step has a reward ({results[0].reason})")
        if not skipped:
            return
        data = tq.kv_batch_get(keys=skipped, partition_id=batch.partition_id, select_fields=["response_mask"])
        empty = [torch.zeros_like(mask) for mask in data["response_mask"].unbind()]
        # verl counts the tokens of an update on `loss_mask` and sums the losses over `response_mask`.
        fields = {
            name: torch.nested.as_nested_tensor(empty, layout=torch.jagged) for name in ("response_mask", "loss_mask")
        }
        tq.kv_batch_put(
            keys=skipped, partition_id=batch.partition_id, fields=TensorDict(fields, batch_size=len(skipped))
        )

    def _overwrite_advantages(self, batch: KVBatchMeta) -> None:
        algorithm = self.config.algorithm
        rewards = "token_level_rewards" if algorithm.use_kl_in_reward else "rm_scores"
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=[rewards, "values", "response_mask"]
        )
        mask = data["response_mask"]
        padded = {name: data[name].to_padded_tensor(0.0).float() for name in (rewards, "values")}
        advantages, returns = gae(
            padded[rewards],
            padded["values"],
            mask.to_padded_tensor(0),
            gamma=algorithm.gamma,
            lam=algorithm.lam,
            whiten=self.settings.whiten_advantages,
        )
        lengths = mask.offsets().diff().tolist()
        fields = {
            name: torch.nested.as_nested_tensor(
                [row[:length] for row, length in zip(table, lengths, strict=True)], layout=torch.jagged
            )
            for name, table in (("advantages", advantages), ("returns", returns))
        }
        tq.kv_batch_put(
            keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(fields, batch_size=len(batch))
        )

    def _telemetry(self, batch: KVBatchMeta, infos: dict[str, dict]) -> dict[str, float]:
        lengths = {key: tag["response_len"] for key, tag in zip(batch.keys, batch.tags, strict=True) if key in infos}
        count = len(infos)
        tokens = sum(lengths[key] for key in infos) / count
        steps = sum(info["n_steps"] for info in infos.values()) / count
        growth = self.alarm.update(tokens, steps)
        if growth["alarm"]:
            logger.warning(
                "step %d: responses have grown to %.2f times the tokens and %.2f times the steps of the first steps; "
                "see 'Length growth' in the recipe's README",
                self.global_steps,
                growth["token_growth"],
                growth["step_growth"],
            )
        reasons = Counter(info["reason"].partition(":")[0] for info in infos.values() if info["reason"])
        return {
            "step_ppo/tokens/mean": tokens,
            "step_ppo/steps/mean": steps,
            "step_ppo/steps/max": max(info["n_steps"] for info in infos.values()),
            "step_ppo/acc": sum(info["acc"] for info in infos.values()) / count,
            "step_ppo/malformed": sum(info["malformed"] for info in infos.values()) / count,
            "step_ppo/skipped": sum(info["skipped"] for info in infos.values()) / count,
            **{f"step_ppo/length/{name}": value for name, value in growth.items()},
            **{f"step_ppo/reason/{reason}": number / count for reason, number in reasons.items()},
        }

    def _save_checkpoint(self) -> None:
        folder = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
        folder.mkdir(parents=True, exist_ok=True)
        # verl names the checkpoint as the latest at the end of its save, so the state has to be there before.
        write_atomically(folder / STATE_FILE, json.dumps({"length_alarm": self.alarm.state_dict()}))
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.global_steps == 0:
            return
        if self.config.trainer.resume_mode == "resume_path":
            folder = Path(self.config.trainer.resume_from_path)
        else:
            folder = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
        try:
            self.alarm.load_state_dict(json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))["length_alarm"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise CheckpointError(
                f"{folder / STATE_FILE} is missing or damaged ({error}): resume from another checkpoint"
            ) from error
