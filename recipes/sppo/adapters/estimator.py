"""verl's advantage estimator `sppo`: sequence rewards in, the loss's complete targets out."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from recipes.core.settings import read
from recipes.sppo.advantage import best_worst, sppo_target, win_rates
from recipes.sppo.settings import SECTION, SppoSettings


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
