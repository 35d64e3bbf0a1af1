"""The teacher's move towards the policy, on plain and on sharded models."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from recipes.serl.adapters.averaging import move_towards


class Tied(nn.Module):
    """A model whose output layer is its embedding, and that has a buffer."""

    def __init__(self, value, width=3):
        super().__init__()
        self.embedding, self.head = nn.Embedding(4, width), nn.Linear(width, 4, bias=False)
        self.head.weight = self.embedding.weight
        self.middle = nn.Linear(width, width)
        self.register_buffer("positions", torch.arange(3))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.fill_(value)

    def forward(self, ids):
        return self.head(self.middle(self.embedding(ids)))


def values(model):
    return {float(value) for parameter in model.parameters() for value in parameter.detach().flatten()}


def test_every_parameter_moves_once_also_a_shared_one():
    teacher, policy = Tied(1.0), Tied(2.0)
    difference, norm = move_towards(teacher, policy, 0.25)
    count = sum(parameter.numel() for parameter in policy.parameters())
    assert values(teacher) == {1.25} and values(policy) == {2.0}
    assert (difference, norm) == pytest.approx((0.75**2 * count, 4.0 * count))


@given(st.floats(0, 1), st.integers(1, 5))
def test_repeated_moves_leave_the_share_of_the_start_that_the_rate_says(rate, times):
    teacher, policy = Tied(1.0), Tied(3.0)
    for _ in range(times):
        move_towards(teacher, policy, rate)
    assert max(values(teacher)) == pytest.approx(3 - 2 * (1 - rate) ** times, abs=1e-5)


def test_gradients_know_nothing_of_the_move():
    teacher, policy = Tied(1.0), Tied(2.0)
    policy(torch.tensor([0, 1])).sum().backward()
    move_towards(teacher, policy, 0.5)
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in teacher.parameters())


def test_a_policy_in_lower_precision_is_taken_in_at_the_teachers():
    teacher, policy = Tied(1.0), Tied(2.0).to(torch.bfloat16)
    move_towards(teacher, policy, 1e-5)
    assert max(values(teacher)) == pytest.approx(1.00001, abs=1e-7)
    assert next(teacher.parameters()).dtype == torch.float32


def test_models_that_are_not_sharded_alike_are_refused():
    with pytest.raises(ValueError, match=r"embedding.weight \(4, 3\) and embedding.weight \(4, 2\)"):
        move_towards(Tied(1.0), Tied(1.0, width=2), 0.5)


class Gathered(nn.Module):
    """A root as FSDP2 leaves it on several ranks after a forward pass: its parameters are copies until `reshard`."""

    def __init__(self, value):
        super().__init__()
        self.shards = [nn.Parameter(torch.full((3,), value))]
        self.weight = nn.Parameter(self.shards[0].detach().clone())

    def reshard(self):
        self.weight = self.shards[0]


def test_the_shards_move_and_not_what_a_forward_pass_gathered():
    teacher, policy = Gathered(1.0), Gathered(2.0)
    with torch.no_grad():
        policy.shards[0].fill_(3.0)
    move_towards(teacher, policy, 0.5)
    assert teacher.shards[0].tolist() == [2.0] * 3


def test_sharded_models_move_after_a_forward_pass(tmp_path):
    from torch.distributed.fsdp import fully_shard

    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        teacher, policy = Tied(1.0), Tied(2.0)
        for model in (teacher, policy):
            fully_shard(model.middle, mesh=mesh)
            fully_shard(model, mesh=mesh)
            with torch.no_grad():
                model(torch.tensor([0, 1]))
        move_towards(teacher, policy, 0.25)
        out = teacher(torch.tensor([0]))
        plain = Tied(1.25)(torch.tensor([0]))
        assert torch.allclose(out.detach(), plain.detach())
    finally:
        torch.distributed.destroy_process_group()
