"""The loss weight of the junior's tokens: m_t = w where the junior wrote token t, for 0 < w <= 1.

    loss = - sum over i, t of m_it * min(rho_it A_i, clip(rho_it) A_i) / N,    rho_it = pi_new / pi_old of the senior

The clipped surrogate is linear in a positive factor of the advantage, so m_it may stand on A_i: verl's own mask knows
only zeros and ones. N is the sum of m (published code, first generation) or the number of response tokens (later
generation). At a junior's token pi_old is the senior's probability of a token that the junior sampled: the ratio starts
at 1 all the same, nothing corrects for the other law, and the gradient is biased.
"""

import torch

from vllm_patches.tandem.outputs import AuthorshipError

WARNING = (
    "warning: algorithm.tandem.junior_token_loss_weight={weight:g} trains on the junior's tokens as if the senior had "
    "sampled them, which biases the gradient; weights of 0.15 to 0.2 are said to have led to a collapse."
)


def token_weights(mask: torch.Tensor, emitted: int, senior_tokens: int, weight: float) -> torch.Tensor:
    """Return m of one response, `(T,)` float32.

    Args:
        mask: `(T,)` verified authorship mask, 1 at the senior's tokens; 0 also at tokens that verl added at the end.
        emitted: the first tokens of the response, which the two models wrote.
        senior_tokens: how many of those the senior wrote, as counted when the mask was verified.
        weight: w, the weight of the junior's tokens.

    Raises:
        AuthorshipError: the mask has lost or moved the senior's tokens since.
    """
    senior = mask.bool()
    if int(senior[:emitted].sum()) != senior_tokens or int(senior.sum()) != senior_tokens:
        raise AuthorshipError(
            f"a response of {emitted} tokens by the pair has {int(senior.sum())} marked as the senior's, "
            f"{senior_tokens} when its mask was verified"
        )
    weights = torch.zeros(len(mask), dtype=torch.float32)
    weights[:emitted] = weight
    weights[senior] = 1.0
    return weights
