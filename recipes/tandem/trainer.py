"""V1 trainer `tandem`: stop on faulty authorship, log shares per author, keep the best checkpoint.

The update is verl's own GRPO: the response mask, which is the authorship mask, gates loss, normaliser and advantages. A
loss weight of the junior's tokens widens it, after everything is measured. The baselines run on the same trainer with
an ordinary engine, so that their checkpoints are chosen by the same measure.
"""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ray
import torch
from omegaconf import OmegaConf, open_dict

from recipes.core import data_plane
from recipes.core.data_plane import KVBatchMeta
from recipes.core.settings import read
from recipes.core.trainer import DuetTrainer
from recipes.tandem.agent_loop import COUNTS, FAULT, JOINT, SOLO
from recipes.tandem.authorship import Authorship
from recipes.tandem.junior_weight import token_weights
from recipes.tandem.selection import macro_pass_at_k, problems, update_best
from recipes.tandem.settings import BLOCK, SECTION, TandemSettings, junior_weight, tandem_config
from vllm_patches.tandem.outputs import AuthorshipError
from vllm_patches.tandem.schedule import STRATEGIES
from vllm_patches.tandem.speculative.round import Outcome, SpeculativeStats

logger = logging.getLogger(__name__)


def drafting_metrics(engines: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """What drafts were worth: acceptance, tokens and drafts per round and request, cost per token; {} in other modes.

    Args:
        engines: of each engine what its worker's `tandem_stats` counted since the last step.
    """
    total = SpeculativeStats()
    for counts in engines:
        if "outcome" in counts:
            total.add(Outcome(**counts["outcome"]), counts["cost_ratio"])
    if not total.outcome.rounds:
        return {}
    return {
        "tandem/draft_acceptance": total.acceptance,
        "tandem/tokens_per_round": total.emitted_per_round,
        "tandem/drafts_per_round": total.outcome.drafted / total.outcome.rounds,
        "tandem/cost_per_token": total.cost_per_token,
    }


ROLLOUT = "tandem_vllm"
PASS_METRIC = "val-core/macro/pass@{}"


class TandemTrainer(DuetTrainer):
    """`DuetTrainer` that stops on a response whose authorship is not verified."""

    def __init__(self, config):
        super().__init__(config)
        self.settings = read(TandemSettings, config.algorithm.get("tandem"), BLOCK)
        rollout = config.actor_rollout_ref.rollout
        section = None
        if rollout.name == ROLLOUT:
            section = OmegaConf.to_container(rollout.engine_kwargs.vllm[SECTION], resolve=True)
        elif self.settings.portable is not None:
            section = self.settings.portable["tandem_config"]
        self.tandem = None if section is None else tandem_config(section)
        self.junior_weight = 0.0 if section is None else junior_weight(self.settings, section)
        self.senior_share = 1.0

    def select_trained(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        if self.tandem is not None:
            metrics.update(self.check_authorship(batch))
            metrics.update(drafting_metrics(self.engine_counts()))
        return super().select_trained(batch, metrics)

    def engine_counts(self) -> list[dict]:
        """What each tandem engine counted since the last call; empty on the portable path."""
        if self.config.actor_rollout_ref.rollout.name != ROLLOUT:
            return []
        servers = [replica.server_handle for replica in self.llm_server_manager.get_replicas()]
        return ray.get([server.tandem_stats.remote() for server in servers])

    def check_authorship(self, batch: KVBatchMeta) -> dict[str, float]:
        """Check the authorship of a step's responses and return its metrics.

        Raises:
            AuthorshipError: a response without a verified mask, or coins that fell on the senior implausibly often.
        """
        total = Authorship()
        for fields in data_plane.read(batch, "extra_fields")["extra_fields"]:
            fields = fields or {}
            require_no_fault((fields.get("reward_extra_info") or {}).get(FAULT))
            if COUNTS not in fields:
                raise AuthorshipError("a response came without verified authorship: is its agent loop `tandem`?")
            total += Authorship(**fields[COUNTS])
        if STRATEGIES[self.tandem.selection_strategy].start is None:
            self._require_plausible(total)
        self.senior_share = total.senior_tokens / total.tokens if total.tokens else 1.0
        return total.metrics()

    def _require_plausible(self, total: Authorship) -> None:
        deviation = total.deviation(self.tandem.prob_senior)
        if deviation > self.settings.plausible_sd:
            raise AuthorshipError(
                f"{total.senior_redraws} of {total.redraws} redraws fell on the senior, {deviation:.1f} standard "
                f"deviations from prob_senior={self.tandem.prob_senior} (algorithm.tandem.plausible_sd is "
                f"{self.settings.plausible_sd}): are the dataset's extra_info.index values distinct?"
            )

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        batch = super()._compute_advantage(batch, metrics)
        if self.junior_weight:
            return self._weigh_junior_tokens(batch)
        if self.tandem is not None and self.settings.normaliser == "response":
            # the clipped surrogate is linear in the advantage: senior / response tokens turns one mean into the other
            rows = data_plane.read(batch, "advantages")["advantages"]
            batch = data_plane.write(batch, {"advantages": [row * self.senior_share for row in rows]})
        return batch

    def _weigh_junior_tokens(self, batch: KVBatchMeta) -> KVBatchMeta:
        """Train on the junior's tokens too, at their weight (`junior_weight.py`).

        Only from here on, so that what was measured before (rollout against actor, entropy) is of the senior's tokens.
        """
        weights = self._token_weights(batch)
        trained = [(row > 0).long() for row in weights]
        batch = data_plane.write(
            batch,
            {"response_mask": trained, "loss_mask": weights if self.settings.normaliser == "senior" else trained},
        )
        # again: the advantages so far are 0 at the junior's tokens, and a response may have no others
        batch = super()._compute_advantage(batch, {})
        rows = data_plane.read(batch, "advantages")["advantages"]
        weighed = [row * weight for row, weight in zip(rows, weights, strict=True)]
        return data_plane.write(batch, {"advantages": weighed})

    def _token_weights(self, batch: KVBatchMeta) -> list[torch.Tensor]:
        rows = data_plane.read(batch, "response_mask", "extra_fields")
        weights = []
        for mask, fields, tag in zip(rows["response_mask"], rows["extra_fields"], batch.tags, strict=True):
            if data_plane.is_padding(tag):
                weights.append(torch.zeros(len(mask)))
                continue
            counts = Authorship(**fields[COUNTS])
            weights.append(token_weights(mask, counts.tokens, counts.senior_tokens, self.junior_weight))
        return weights

    def _validate(self) -> dict[str, float]:
        if self.tandem is None or self.settings.validation == SOLO:
            metrics = self._validate_by(SOLO)
        elif self.settings.validation == JOINT:
            metrics = self._validate_by(JOINT)
        else:
            metrics = self._validate_by(SOLO) | self._validate_jointly_beside()
        if self.settings.keep_best:
            metric = PASS_METRIC.format(self.settings.pass_k)
            directory = Path(self.config.trainer.default_local_dir)
            if update_best(directory, self.global_steps, metric, metrics[metric]):
                logger.warning("global_step_%d is the best so far: %s %.4f", self.global_steps, metric, metrics[metric])
        return metrics

    def _validate_by(self, authors: str) -> dict[str, float]:
        self.agent_loop_manager.validation_authors = authors
        metrics = super()._validate()
        self.engine_counts()  # begins again: a step's counts are of its rollouts
        return metrics

    def _validate_jointly_beside(self) -> dict[str, float]:
        """Validate the pair, with metrics under `val-joint-*` and the dump in a folder of its own."""
        folder = self.config.trainer.get("validation_data_dir", None)
        with open_dict(self.config):
            self.config.trainer.validation_data_dir = folder and f"{folder}/joint"
            try:
                metrics = self._validate_by(JOINT)
            finally:
                self.config.trainer.validation_data_dir = folder
        return {f"val-joint-{key.removeprefix('val-')}": value for key, value in metrics.items()}

    def _val_metrics_update(
        self, data_sources, sample_uids, reward_extra_infos_dict, sample_turns, expected_acc_counts=None
    ) -> dict[str, float]:
        for fault in reward_extra_infos_dict.pop(FAULT, ()):
            require_no_fault(fault)
        metrics = super()._val_metrics_update(
            data_sources, sample_uids, reward_extra_infos_dict, sample_turns, expected_acc_counts=expected_acc_counts
        )
        accuracies = reward_extra_infos_dict.get("acc") or reward_extra_infos_dict["reward"]
        verdicts = problems(
            data_sources, sample_uids, accuracies, reward_extra_infos_dict.get("skipped"), expected_acc_counts
        )
        macro, each, left_out = macro_pass_at_k(verdicts, self.settings.pass_k, self.settings.benchmarks)
        metrics[PASS_METRIC.format(self.settings.pass_k)] = macro
        metrics |= {f"val-core/{name}/pass@{self.settings.pass_k}": value for name, value in each.items()}
        metrics["val-aux/macro/problems_left_out"] = left_out
        return metrics


def require_no_fault(fault: str | None) -> None:
    """Raise AuthorshipError for a fault that an agent loop reported."""
    if fault:
        raise AuthorshipError(f"{fault}; the run stops, since it would train on the junior's tokens")
