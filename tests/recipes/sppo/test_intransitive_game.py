"""SPPO's claim for general preferences: in a game without a best response, play averages to the game's equilibrium.

Three responses beat each other in a circle. No scalar score orders them; the equilibrium of the game is a mixture, and
the average of the policies of self-play goes there (SPPO paper, section 3 and theorem 4.1).
"""

import pytest
import torch

from recipes.sppo.advantage import sppo_target, win_rates
from recipes.sppo.loss import sppo_loss
from reward_fns import judge

ETA, ROUNDS, RESPONSES = 0.2, 300, 128
# P(row beats column). A circle of advantages has its equilibrium where each response is played as often as the other
# two differ.
EQUILIBRIUM = torch.tensor([0.2, 0.3, 0.5])
CIRCLE = 0.5 + torch.tensor([[0.0, 0.5, -0.3], [-0.5, 0.0, 0.2], [0.3, -0.2, 0.0]])


def judged(responses: torch.Tensor) -> torch.Tensor:
    """Win rates as the hook computes them: the row means of the judge's matrix, a response against itself at 1/2."""
    return torch.tensor(judge.win_rates(CIRCLE[responses][:, responses].tolist()), dtype=torch.float64)


def best_scalar(responses: torch.Tensor) -> torch.Tensor:
    """Win rates of the scalar scores that fit the judge best over all pairs: its mean over opponents."""
    return win_rates(CIRCLE.mean(dim=1)[responses], [0] * len(responses))


def fitted(logits: torch.Tensor, responses: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The logits that minimise the loss on the responses of the policy that wrote them."""
    old, mask = torch.log_softmax(logits, dim=0), torch.ones(len(responses), 1)
    logits = logits.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([logits], max_iter=20, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        new = torch.log_softmax(logits, dim=0)
        value = sppo_loss(old[responses, None], new[responses, None], target, mask)
        value.backward()
        return value

    optimizer.step(loss)
    return logits.detach()


def policies(rates_of) -> torch.Tensor:
    """(ROUNDS, 3) probabilities of self-play from the uniform policy; each round fits the loss to a sampled group."""
    generator = torch.Generator().manual_seed(0)
    logits, seen = torch.zeros(3, dtype=torch.float64), []
    for _ in range(ROUNDS):
        seen.append(torch.softmax(logits, dim=0))
        responses = torch.multinomial(seen[-1], RESPONSES, replacement=True, generator=generator)
        target = sppo_target(rates_of(responses), [0] * RESPONSES, eta=ETA, scope="prompt", baseline="half")
        logits = fitted(logits, responses, target)
    return torch.stack(seen)


def gap(policy: torch.Tensor) -> float:
    """How much a best response wins over one half against a policy: 0 at the equilibrium."""
    return float((CIRCLE.double() @ policy.double()).max() - 0.5)


def test_the_circle_has_its_equilibrium_where_it_is_said():
    assert gap(EQUILIBRIUM) == pytest.approx(0.0, abs=1e-6)
    assert gap(torch.tensor([1 / 3, 1 / 3, 1 / 3])) > 0.05


def test_the_average_policy_of_self_play_goes_to_the_equilibrium():
    play = policies(judged)
    average = play.mean(dim=0)
    assert gap(average) < 0.02, average
    torch.testing.assert_close(average, EQUILIBRIUM.double(), atol=0.05, rtol=0)


def test_scalar_scores_end_at_a_response_that_another_one_beats():
    """The control: the same loss on the best scalar scores settles on one response and loses to the next."""
    play = policies(best_scalar)
    assert play[-1].max() > 0.95 and gap(play[-1]) > 0.15, play[-1]
