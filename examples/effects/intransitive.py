"""Self-play in a game without a best response: three responses that beat each other in a circle.

The equilibrium is a mixture. SPPO's claim for general preferences is that the average policy of self-play goes there
(Wu et al. 2024, theorem 4.1); a scalar score per response orders the three and names one of them the best.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from recipes.sppo.advantage import sppo_target, win_rates
from recipes.sppo.loss import sppo_loss
from reward_fns import judge

ROUNDS, RESPONSES, STEP_SIZE = 300, 64, 0.2
# P(row beats column)
CIRCLE = 0.5 + torch.tensor([[0.0, 0.5, -0.3], [-0.5, 0.0, 0.2], [0.3, -0.2, 0.0]], dtype=torch.float64)
EQUILIBRIUM = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)


def exploitability(policy: Tensor) -> float:
    """How far a best response's win rate against a policy (3,) exceeds one half; 0 at the equilibrium alone."""
    return float((CIRCLE @ policy).max() - 0.5)


def bradley_terry_scores() -> Tensor:
    """(3,) scores of mean 0 whose sigmoid(s_i - s_j) have the largest likelihood under the judge, all pairs alike."""
    scores = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([scores], max_iter=50, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = -(CIRCLE * torch.nn.functional.logsigmoid(scores[:, None] - scores)).sum()
        value.backward()
        return value

    optimizer.step(loss)
    return (scores - scores.mean()).detach()


def rates_of(kind: str, responses: Tensor) -> Tensor:
    """(K,) win rates within a group: by the judge, by Bradley-Terry scores, or by which of those is the greater."""
    if kind == "judge":
        return torch.tensor(judge.win_rates(CIRCLE[responses][:, responses].tolist()), dtype=torch.float64)
    scores = bradley_terry_scores()[responses]
    return win_rates(scores, [0] * len(responses), kind="binary" if kind == "greater score" else "bradley_terry")


def fitted(logits: Tensor, responses: Tensor, target: Tensor) -> Tensor:
    """The logits (3,) that minimise SPPO's loss on the responses of the policy that wrote them."""
    old, mask = torch.log_softmax(logits, dim=0), torch.ones(len(responses), 1)
    logits = logits.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([logits], max_iter=20, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        new = torch.log_softmax(logits, dim=0)
        value = sppo_loss(old[responses, None], new[responses, None], target, mask)
        value.backward()
        return value

    optimizer.step(loss)
    return logits.detach()


def play(setting: dict) -> Iterable[dict]:
    """Self-play from the uniform policy; a record every tenth of the rounds, with the policy and the average so far."""
    generator = torch.Generator().manual_seed(setting["seed"])
    logits, total = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for number in range(1, setting["rounds"] + 1):
        policy = torch.softmax(logits, dim=0)
        total += policy
        if number % (setting["rounds"] // 10) == 0:
            average = total / number
            yield {
                "round": number,
                "policy": [round(share, 4) for share in policy.tolist()],
                "average": [round(share, 4) for share in average.tolist()],
                "policy_gap": round(exploitability(policy), 4),
                "average_gap": round(exploitability(average), 4),
            }
        responses = torch.multinomial(policy, RESPONSES, replacement=True, generator=generator)
        rates = rates_of(setting["preference"], responses)
        target = sppo_target(rates, [0] * RESPONSES, eta=STEP_SIZE, scope="prompt", baseline="half")
        logits = fitted(logits, responses, target)
