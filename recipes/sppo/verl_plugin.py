"""What verl's registries hold under the name `sppo`: the advantage estimator and the policy loss.

Sequence rewards go in, the loss's complete targets come out; around `loss.sppo_loss` stand the global normaliser, the
row targets and the metrics.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from recipes.core.settings import read
from recipes.sppo.advantage import best_worst, sppo_target, win_rates
from recipes.sppo.loss import sequence_log_ratio, sppo_loss
from recipes.sppo.settings import AGGREGATIONS, SECTION, SppoSettings


def compute_sppo_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    config: Mapping[str, Any] | None = None,
    index: np.ndarray | None = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Write each response's target, eta * (score - baseline), on its trained tokens.

    The target is emitted whole because the policy loss cannot see `algorithm`: one eta, nothing that can disagree.
    Rows without trained tokens (verl's padding rows among them) take no part in baselines and win rates. One output
    per session is assumed: a session that returns several would be counted as several responses.

    Args:
        token_level_rewards: `(B, T)`; a row's sum is the reward of the response, wherever it stands in the row.
        response_mask: `(B, T)`, non-zero on trained tokens. With `pairs=best_worst` the rows that are not selected are
            cleared in place, which is how verl's own rejection takes a row out of the update.
        config: verl's `algorithm` block; its key `sppo` holds the settings, see `recipes.sppo.settings.SppoSettings`.
        index: `(B,)` uid of each response's prompt; may be absent only with scope "batch".

    Returns:
        `(advantages, returns)`, both `(B, T)` float32: the target on trained tokens, 0 elsewhere.

    Raises:
        ValueError: a reward that is not finite, a setting out of range, or no uid where prompts are compared.
    """
    settings = read(SppoSettings, None if config is None else config.get("sppo"), SECTION)
    mask = response_mask.bool()
    trained = mask.any(dim=-1)
    advantages = torch.zeros(token_level_rewards.shape, dtype=torch.float32, device=token_level_rewards.device)
    if not trained.any():
        return advantages, advantages.clone()
    if index is None:
        if settings.scope == "prompt":
            raise ValueError("algorithm.sppo.scope=prompt needs the uid of each response, found none in the batch")
        index = np.arange(len(trained))

    rows = trained.nonzero().flatten()
    uid = np.asarray(index, dtype=object)[rows.cpu().numpy()]
    score = _sequence_rewards(token_level_rewards, mask)[rows]
    if settings.score == "winrate":
        score = win_rates(score, uid, kind=settings.preference, tau=settings.tau)
    target = sppo_target(score, uid, eta=settings.eta, scope=settings.scope, baseline=settings.baseline)

    advantages[rows] = target.to(advantages.dtype).unsqueeze(-1).expand(-1, mask.shape[-1])
    if settings.pairs == "best_worst":
        dropped = rows[~best_worst(score, uid)]
        response_mask[dropped] = 0
        # a caller that keeps the uncleared mask gets NaN, on which the loss raises, instead of a wrong target of 0
        advantages[dropped] = torch.nan
    advantages = torch.where(mask, advantages, 0)
    return advantages, advantages.clone()


def _sequence_rewards(token_level_rewards: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    rewards = token_level_rewards.to(torch.promote_types(token_level_rewards.dtype, torch.float32))
    # a reward may stand on a token that is not trained (a tool's), so only what is not finite there counts as padding
    return torch.where(mask | torch.isfinite(rewards), rewards, 0).sum(dim=-1)


def compute_sppo_policy_loss(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any | None = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """Squared distance of each response's summed log-ratio from its target, averaged over the global mini-batch.

    Args:
        old_log_prob, log_prob, advantages, response_mask: `(B, T)` of one micro-batch. `advantages` comes from the
            estimator `sppo` and is one value per row.
        loss_agg_mode: has no effect on this loss; modes that name another aggregation are refused.
        config: verl's ActorConfig. `config.global_batch_info` gives `global_batch_size` and `dp_size`, so that
            accumulated gradients do not depend on how the mini-batch is split; without a size the rows of this
            micro-batch that have trained tokens are counted.
        rollout_is_weights: must be None.

    Returns:
        The loss, a scalar, and its metrics: means over the micro-batch's rows that have trained tokens, in nats.

    Raises:
        ValueError: advantages that vary within a response or are not finite (another estimator's), importance weights,
            an aggregation this loss does not do, or data parallelism without the global batch size.
    """
    if loss_agg_mode not in AGGREGATIONS:
        raise ValueError(
            f"actor.loss_agg_mode={loss_agg_mode} has no meaning for the policy loss sppo, which sums tokens and "
            f"averages responses; set one of {', '.join(AGGREGATIONS)}"
        )
    if rollout_is_weights is not None:
        raise ValueError(
            "the policy loss sppo takes no importance weights; set algorithm.rollout_correction.rollout_is=null"
        )
    target = _row_targets(advantages, response_mask)
    loss = sppo_loss(old_log_prob, log_prob, target, response_mask, normalizer=_normalizer(config))
    with torch.no_grad():
        metrics = _metrics(old_log_prob, log_prob, target, response_mask)
    return loss, metrics


def _normalizer(config: Any | None) -> float | None:
    info = {} if config is None else config.global_batch_info
    dp_size = info.get("dp_size") or 1
    global_batch_size = info.get("global_batch_size")
    if global_batch_size is None:
        if dp_size > 1:
            raise ValueError(f"the policy loss sppo needs global_batch_size with {dp_size} data-parallel ranks")
        return None
    # gradients are averaged over the ranks, so each rank's sum is scaled up by their number
    return global_batch_size / dp_size


def _row_targets(advantages: torch.Tensor, response_mask: torch.Tensor) -> torch.Tensor:
    mask = response_mask.bool()
    # the value on the first trained token; a mean over thousands of equal float32 values would round
    first = mask.int().argmax(dim=-1, keepdim=True)
    target = advantages.gather(-1, first)
    if not torch.where(mask, advantages == target, True).all():
        raise ValueError(
            "the policy loss sppo needs one finite target per response, found advantages that vary or are NaN: set "
            "algorithm.adv_estimator=sppo, and rollout.calculate_log_probs=true with algorithm.sppo.pairs=best_worst"
        )
    return target.squeeze(-1)


def _metrics(
    old_log_prob: torch.Tensor, log_prob: torch.Tensor, target: torch.Tensor, response_mask: torch.Tensor
) -> dict[str, float]:
    trained = response_mask.bool().any(dim=-1)
    names = ("log_ratio_mean", "log_ratio_std", "target_mean", "target_std", "residual_abs_mean")
    if not trained.any():
        return {f"actor/sppo_{name}": 0.0 for name in names}
    log_ratio = sequence_log_ratio(old_log_prob, log_prob, response_mask)[trained]
    target = target[trained].double()
    values = torch.stack(
        [
            log_ratio.mean(),
            log_ratio.std(unbiased=False),
            target.mean(),
            target.std(unbiased=False),
            (log_ratio - target).abs().mean(),
        ]
    )
    # one transfer from the device for all of them
    return {f"actor/sppo_{name}": value for name, value in zip(names, values.tolist(), strict=True)}
