"""The guard on the objects that it wraps: an adapter that sends, an engine that is handed weights."""

import asyncio
import logging
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf

from recipes.core import sync_guard
from recipes.errors import StaleRollout, WeightTransferError


class Layer(torch.nn.Linear):
    """A linear layer with the adapter slots of vLLM's."""

    def __init__(self):
        super().__init__(16, 16, bias=False)
        self.lora_a_stacked = (torch.zeros(1, 1, 8, 16),)
        self.lora_b_stacked = (torch.zeros(1, 1, 16, 8),)


class Head(torch.nn.Linear):
    """vLLM's output layer keeps its adapter slots as plain tensors."""

    def __init__(self):
        super().__init__(16, 4, bias=False)
        self.lora_a_stacked, self.lora_b_stacked = torch.zeros(1, 1, 8, 16), torch.zeros(1, 1, 4, 8)


def make_engine():
    """verl's worker extension as far as a sync goes, guarded; adapters land in the slots, weights in the layer."""

    class Extension:
        def update_weights_from_ipc(self, weights, **kwargs):
            self._update_weights(weights, **kwargs)

        def _update_weights(self, weights, peft_config=None, base_sync_done=False):
            for name, value in weights:
                with torch.no_grad():
                    if "lora_A" in name:
                        self.layer.lora_a_stacked[0].copy_(value.reshape(1, 1, 8, 16))
                    elif "lora_B" in name:
                        self.layer.lora_b_stacked[0].copy_(value.reshape(1, 1, 16, 8))
                    else:
                        self.layer.weight.copy_(value)

    sync_guard.watch_engine(SimpleNamespace(vLLMColocateWorkerExtension=Extension))
    engine = Extension()
    engine.layer = Layer()
    engine.model_runner = SimpleNamespace(model=torch.nn.Sequential(engine.layer, Head()))
    return engine


def make_trainer(engine, handed=None):
    """verl's rollout adapter, guarded, with its engine in this process; ``handed`` gets the weights in its place."""

    class ServerAdapter:
        config = SimpleNamespace(dtype="float32", quantization=None)
        dropped = False

        async def update_weights(self, weights, **kwargs):
            arrived = [item async for item in weights]
            (handed or engine).update_weights_from_ipc([] if self.dropped else arrived)

        async def _execute_method(self, method, kwargs):
            getattr(engine, method)(**kwargs)

    sync_guard.watch_sender(SimpleNamespace(ServerAdapter=ServerAdapter))
    return ServerAdapter()


def sync(trainer, weights, trained=None):
    if trained is not None:
        trainer.trained_samples = dict(trained)
    asyncio.run(trainer.update_weights(iter(weights)))


def full(step):
    return [("w", torch.full((16, 16), float(step)))]


def adapters(step):
    return [
        ("q.lora_A.weight", torch.full((8, 16), float(step))),
        ("q.lora_B.weight", torch.full((16, 8), float(step))),
    ]


@pytest.mark.parametrize("weights", [full, adapters])
def test_a_sync_that_arrives_passes(weights):
    trainer = make_trainer(make_engine())
    for step in range(5):
        sync(trainer, weights(step), weights(step))


@pytest.mark.parametrize("weights", [full, adapters])
def test_a_sync_that_does_not_arrive_ends_at_once(weights):
    trainer = make_trainer(make_engine())
    sync(trainer, weights(0))
    trainer.dropped = True
    with pytest.raises(WeightTransferError, match="0 tensors arrived"):
        sync(trainer, weights(1))


@pytest.mark.parametrize("weights", [full, adapters])
def test_weights_that_arrive_and_are_not_applied_end_the_run(weights):
    engine = make_engine()
    trainer = make_trainer(engine)
    sync(trainer, weights(0))
    # vLLM accepts the tensors and keeps its own: what a dropped add_lora, or a load under wrong names, looks like
    frozen = [
        engine.layer.weight.clone(),
        *(t[0].clone() for t in (engine.layer.lora_a_stacked, engine.layer.lora_b_stacked)),
    ]
    load = type(engine)._update_weights

    def forgetful(self, *args, **kwargs):
        load(self, *args, **kwargs)
        with torch.no_grad():
            self.layer.weight.copy_(frozen[0])
            self.layer.lora_a_stacked[0].copy_(frozen[1])
            self.layer.lora_b_stacked[0].copy_(frozen[2])

    type(engine)._update_weights = forgetful
    sync(trainer, weights(1))
    with pytest.raises(StaleRollout, match="own parameters have not changed"):
        sync(trainer, weights(2))


def test_adapters_that_are_trained_and_never_sent_end_the_run():
    """Nothing merged: the same base model is sent after every update."""
    trainer = make_trainer(make_engine())
    sync(trainer, full(0), adapters(0))
    sync(trainer, full(0), adapters(1))
    with pytest.raises(StaleRollout, match="what was sent to the rollout engine is the same"):
        sync(trainer, full(0), adapters(2))


def test_adapters_of_two_roles_that_are_swapped_end_the_run():
    """Each role's adapters go to the other's engine, and each role asks its own."""
    solver, proposer = make_engine(), make_engine()
    trainers = [make_trainer(solver, handed=proposer), make_trainer(proposer, handed=solver)]
    proposer.update_weights_from_ipc([])
    solver.update_weights_from_ipc(adapters(7))
    for number, trainer in enumerate(trainers):
        with pytest.raises(WeightTransferError, match="other weights than its trainer sent"):
            sync(trainer, adapters(number))


@pytest.mark.parametrize("end", ["_trained", "_held"])
def test_an_error_of_the_comparison_is_logged_and_ends_nothing(monkeypatch, caplog, end):
    def fails(_):
        raise TypeError("a tensor of an unknown kind")

    monkeypatch.setattr(sync_guard, end, fails)
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(logging.getLogger("recipes"), "propagate", True)
    assert sync_guard._samples_or_none(lambda: fails(None)) is None
    assert "goes unjudged" in caplog.text
    trainer = make_trainer(make_engine())
    sync(trainer, full(0), full(0))


def test_a_step_without_learning_rate_is_no_fault():
    trainer = make_trainer(make_engine())
    for _ in range(4):
        sync(trainer, full(0), adapters(0))


def test_log_probs_are_asked_for_unless_the_command_line_decides(monkeypatch):
    def asked(*overrides):
        config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"calculate_log_probs": False}}})
        sync_guard.ask_for_log_probs(config, list(overrides))
        return config.actor_rollout_ref.rollout.calculate_log_probs

    assert asked("scale=toy") is True
    assert asked("actor_rollout_ref.rollout.calculate_log_probs=false") is False
    monkeypatch.setenv(sync_guard.VARIABLE, "off")
    assert asked() is False
