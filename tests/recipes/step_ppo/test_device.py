"""A GPU that torch cannot use ends a stage with a sentence, and not with days on the processor."""

import argparse

import pytest
import torch

from recipes.core import nvidia
from recipes.errors import EnvironmentProblem
from recipes.step_ppo.pipeline import command, score, training_run
from recipes.step_ppo.pipeline.training_run import add_training_arguments, trainer_arguments


@pytest.fixture
def machine(monkeypatch):
    """Say which driver the machine has; torch finds no accelerator."""

    def has(driver):
        monkeypatch.setattr(torch.accelerator, "is_available", lambda *args, **kwargs: False)
        monkeypatch.setattr(nvidia, "nvidia_driver", lambda: driver)

    return has


def train():
    parser = argparse.ArgumentParser()
    add_training_arguments(parser, learning_rate=1e-6, max_length=8, seed=0, unit="pairs")
    return trainer_arguments(parser.parse_args(["--output", "out"]))


def score_nothing():
    score.score_locally(argparse.Namespace(prm="/no/such/model", dtype="float32"), 0, [], print)


@pytest.mark.parametrize("stage", [train, score_nothing])
def test_a_gpu_that_torch_cannot_use_is_refused(machine, stage, monkeypatch):
    machine("driver 470.57.02")
    with pytest.raises(EnvironmentProblem, match=r"driver 470.57.02\) and torch .* cannot use them: .*CUDA_VISIBLE"):
        stage()
    monkeypatch.setattr("sys.argv", ["/anywhere/stage.py"])
    with pytest.raises(SystemExit) as ended:
        command.run(stage)
    assert str(ended.value.code).startswith("stage: this machine has NVIDIA devices")


@pytest.mark.parametrize("faster", [True, False])
def test_a_machine_without_one_computes_on_its_processor(machine, faster, monkeypatch):
    machine(None)
    monkeypatch.setattr(training_run, "bfloat16_is_faster", lambda: faster)
    assert train()["use_cpu"] and train()["bf16"] == faster
    with pytest.raises(OSError, match="/no/such/model"):
        score_nothing()
