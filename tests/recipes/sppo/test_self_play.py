"""Self-play in a game without a best response: three responses that beat each other in a circle.

SPPO's claim for general preferences (paper, section 3 and theorem 4.1) is that the average policy of self-play goes to
the equilibrium, a mixture. A scalar score per response orders the three and names one of them the best.
"""

import pytest
import torch

from recipes.sppo.advantage import sppo_target, win_rates
from recipes.sppo.loss import sppo_loss
from reward_fns import judge

# P(row beats column)
CIRCLE = 0.5 + torch.tensor([[0.0, 0.5, -0.3], [-0.5, 0.0, 0.2], [0.3, -0.2, 0.0]], dtype=torch.float64)
EQUILIBRIUM = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
# Of a Bradley-Terry model fitted to the circle only the order matters here: the first response is the best.
SCORES = torch.tensor([0.3, -0.4, 0.1], dtype=torch.float64)
ROUNDS, RESPONSES, STEP_SIZE = 300, 64, 0.2


def exploitability(policy):
    """How far a best response's win rate exceeds one half; 0 at the equilibrium alone."""
    return float((CIRCLE @ policy).max() - 0.5)


def fitted(logits, responses, target):
    """The logits that minimise SPPO's loss on the responses of the policy that wrote them."""
    old, mask = torch.log_softmax(logits, dim=0), torch.ones(len(responses), 1)
    logits = logits.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([logits], max_iter=20, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        new = torch.log_softmax(logits, dim=0)
        value = sppo_loss(old[responses, None], new[responses, None], target, mask)
        value.backward()
        return value

    optimizer.step(loss)
    return logits.detach()


def play(rates_of):
    """The last policy of self-play from the uniform one, and the average over all rounds."""
    generator = torch.Generator().manual_seed(0)
    logits, total = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for _ in range(ROUNDS):
        policy = torch.softmax(logits, dim=0)
        total += policy
        responses = torch.multinomial(policy, RESPONSES, replacement=True, generator=generator)
        target = sppo_target(rates_of(responses), [0] * RESPONSES, eta=STEP_SIZE, scope="prompt", baseline="half")
        logits = fitted(logits, responses, target)
    return policy, total / ROUNDS


def test_with_pairwise_verdicts_the_average_policy_goes_to_the_equilibrium():
    assert exploitability(EQUILIBRIUM) == pytest.approx(0, abs=1e-12)
    _, average = play(
        lambda responses: torch.tensor(judge.win_rates(CIRCLE[responses][:, responses].tolist()), dtype=torch.float64)
    )
    assert exploitability(average) < 0.03
    assert average.tolist() == pytest.approx(EQUILIBRIUM.tolist(), abs=0.05)


def test_with_scalar_scores_it_ends_at_a_response_that_another_one_beats():
    policy, average = play(lambda responses: win_rates(SCORES[responses], [0] * RESPONSES, kind="binary"))
    assert max(policy) > 0.95 and exploitability(policy) > 0.15
    assert exploitability(average) > 0.15
