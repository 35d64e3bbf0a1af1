"""PPO's clipped surrogate: the gradient it lets through and the one it stops."""

import pytest
import torch
from updates import clipped_surrogate

MASK = torch.tensor([[True, True], [True, False]])


def test_at_the_old_policy_it_is_the_policy_gradient():
    new = torch.zeros(2, 2, requires_grad=True)
    clipped_surrogate(torch.zeros(2, 2), new, torch.tensor([[1.0, 1.0], [-2.0, torch.nan]]), MASK).backward()
    torch.testing.assert_close(new.grad, torch.tensor([[-1 / 3, -1 / 3], [2 / 3, 0.0]]))


@pytest.mark.parametrize("ratio, advantage, moves", [(1.3, 1.0, False), (1.3, -1.0, True), (0.7, -1.0, False)])
def test_beyond_the_clip_only_the_way_back_is_open(ratio, advantage, moves):
    new = torch.tensor([[ratio]]).log().requires_grad_()
    clipped_surrogate(torch.zeros(1, 1), new, torch.tensor([[advantage]]), torch.ones(1, 1).bool()).backward()
    assert bool(new.grad) is moves
