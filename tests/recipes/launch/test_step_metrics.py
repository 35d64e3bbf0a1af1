"""What a checkpoint knows of its step, in verl's order of a step."""

import json
from types import SimpleNamespace

import numpy
import torch
from omegaconf import OmegaConf

from recipes.core.state import step_folder
from recipes.launch import step_metrics


def test_each_checkpoint_has_the_metrics_of_its_own_step(tmp_path):
    config = OmegaConf.create({"trainer": {"default_local_dir": str(tmp_path)}})
    seen = []

    def step(metrics, timing_raw):
        metrics |= {"actor/loss": numpy.float32(0.5) * trainer.global_steps, "actor/tensor": torch.tensor(2.0)}
        metrics |= {"text": "no number", "several": torch.ones(2), "list": [1.0], "broken": float("nan"), "count": 3}
        return "batch"

    def save():
        # verl names the checkpoint as the latest in here.
        seen.append(step_metrics.kept(step_folder(config, trainer.global_steps)))

    trainer = SimpleNamespace(config=config, global_steps=0, step=step, _save_checkpoint=save)
    step_metrics.keep(trainer)
    for number in (1, 2, 3):
        trainer.global_steps = number
        metrics = {}
        assert trainer.step(metrics, {}) == "batch" and metrics["count"] == 3
        if number != 2:
            trainer._save_checkpoint()
    assert [known["actor/loss"] for known in seen] == [0.5, 1.5]
    assert seen[0] == {"training/global_step": 1, "actor/loss": 0.5, "actor/tensor": 2.0, "count": 3}
    assert not step_folder(config, 2).exists()


def test_a_checkpoint_without_or_with_damage_knows_nothing(tmp_path):
    assert step_metrics.kept(tmp_path) == {}
    for text in ("", "[", "3", json.dumps(["a"])):
        (tmp_path / step_metrics.FILE).write_text(text)
        assert step_metrics.kept(tmp_path) == {}
