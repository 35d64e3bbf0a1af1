"""The optimiser of the iterations against torch's RMSprop and transformers' schedule, one run per iteration."""

import copy

import pytest
import torch
from transformers import get_linear_schedule_with_warmup
from verl.workers.config.optimizer import FSDPOptimizerConfig, build_optimizer

from recipes.sppo.iteration_optimizer import IterationRMSprop

UPDATES, ITERATIONS, LR = 7, 3, 0.05


def gradients():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(4, generator=generator) for _ in range(UPDATES * ITERATIONS)]


def updated(weight, optimizer, grads):
    seen = []
    for grad in grads:
        weight.grad = grad.clone()
        optimizer.step()
        seen.append(weight.detach().clone())
    return seen


def through_verl(weight, updates=UPDATES):
    config = FSDPOptimizerConfig(
        lr=LR,
        weight_decay=0.0,
        optimizer_impl="recipes.sppo.iteration_optimizer",
        optimizer="IterationRMSprop",
        override_optimizer_config={"updates_per_iteration": updates, "warmup_ratio": 0.3},
    )
    return build_optimizer([weight], config)


def test_each_iteration_is_a_run_of_its_own():
    weight = torch.nn.Parameter(torch.ones(4))
    found = updated(weight, through_verl(weight), gradients())
    plain = torch.nn.Parameter(torch.ones(4))
    expected = []
    for iteration in range(ITERATIONS):
        optimizer = torch.optim.RMSprop([plain], lr=LR)
        schedule = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=3, num_training_steps=UPDATES + 1)
        for grad in gradients()[iteration * UPDATES : (iteration + 1) * UPDATES]:
            # transformers' first value is 0, which would waste an update
            schedule.step()
            expected += updated(plain, optimizer, [grad])
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_no_update_is_wasted_and_the_stored_rate_stays():
    weight = torch.nn.Parameter(torch.zeros(4))
    optimizer = through_verl(weight)
    before = torch.zeros(4)
    for after in updated(weight, optimizer, gradients()):
        assert not torch.equal(after, before)
        before = after
    assert optimizer.param_groups[0]["lr"] == LR


def test_a_resumed_run_goes_on_where_it_was():
    weight = torch.nn.Parameter(torch.ones(4))
    whole = updated(weight, through_verl(weight), gradients())
    first = torch.nn.Parameter(torch.ones(4))
    optimizer = through_verl(first)
    updated(first, optimizer, gradients()[:10])
    second = torch.nn.Parameter(first.detach().clone())
    resumed = through_verl(second)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert torch.equal(updated(second, resumed, gradients()[10:])[-1], whole[-1])


@pytest.mark.parametrize("bad", [{"updates_per_iteration": 0}, {"updates_per_iteration": 5, "warmup_ratio": 1.0}])
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(ValueError):
        IterationRMSprop([torch.nn.Parameter(torch.zeros(1))], lr=0.1, **bad)
