"""The experiment on SPPO: each arm's loss pulls the right way, and as far as the paper says."""

import math

import pytest
import sppo
import torch
from policy import Responses


@pytest.mark.parametrize("arm", (sppo.ARMS | sppo.STRENGTHS).values(), ids=str)
def test_a_right_response_becomes_more_likely_and_a_wrong_one_less(arm):
    old = torch.full((5, 3), -1.0)
    mask = torch.tensor([[True, True, False]] * 5)
    responses = Responses(torch.zeros(5, 1), torch.ones(5, 3), mask, old, [""] * 5)
    new = old.clone().requires_grad_()
    rows = torch.arange(5)
    loss = sppo.loss_of(arm, torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0]), [0] * 5, responses)
    loss(rows, new).backward()
    assert (new.grad[:2, :2] < 0).all() and (new.grad[2:, :2] > 0).all() and (new.grad[:, 2] == 0).all()


def target_of(arm, rewards):
    """Where the loss of a group of responses of one token is least, one response at a time."""
    number = len(rewards)
    old, mask = torch.zeros(number, 1), torch.ones(number, 1).bool()
    responses = Responses(torch.zeros(number, 1), torch.ones(number, 1), mask, old, [""] * number)
    new = old.clone().requires_grad_()
    sppo.loss_of(arm, torch.tensor(rewards), [0] * number, responses)(torch.arange(number), new).backward()
    return (-new.grad[:, 0] * number / 2).tolist()


@pytest.mark.parametrize("eta", [sppo.ETA, *sppo.OTHER_ETAS])
def test_eta_is_the_distance_between_the_targets_of_right_and_wrong(eta):
    right, wrong = target_of(sppo.Arm("soft", 1, eta), [1.0, 0.0])
    assert right - wrong == pytest.approx(eta)
    assert right == pytest.approx(eta - math.log((math.exp(eta) + 1) / 2))


def test_the_paper_mode_regresses_on_half_the_centred_reward():
    """At the old policy the loss is the mean square of eta (P_hat - 1/2); binary win rates of 1 1 0 0 0 by hand."""
    old, mask = torch.zeros(5, 1), torch.ones(5, 1).bool()
    responses = Responses(torch.zeros(5, 1), torch.ones(5, 1), mask, old, [""] * 5)
    loss = sppo.loss_of(sppo.ARMS["sppo paper K=5"], torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0]), [0] * 5, responses)
    assert float(loss(torch.arange(5), old)) == pytest.approx((2 * 0.3**2 + 3 * 0.2**2) / 5)
