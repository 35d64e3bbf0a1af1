"""A reward function that fails for one sample in ten, in a real run; and one that fails for all."""

import json
from collections import defaultdict
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2700)]
HERE = Path(__file__).parent
GRPO = ("preset=grpo", "reward.reward_manager.name=score_skip_fail", "algorithm.reward_faults.time_limit=2")


def test_faulty_samples_leave_the_baseline(start, small, tmp_path):
    record = tmp_path / "record.jsonl"
    run = start(
        "recipes.sppo.main",
        *small,
        *GRPO,
        "trainer.v1.trainer_mode=recording",
        "trainer.total_training_steps=2",
        f"reward.custom_reward_function.path={HERE / 'faulty_rewards.py'}",
        "algorithm.reward_faults.skip_share=0.5",
        environment={
            "VERL_USE_EXTERNAL_MODULES": "recording_trainer",
            "PYTHONPATH": str(HERE),
            "RECORD_TO": str(record),
        },
    )
    assert run.wait() == 0, run.log[-6000:]
    metrics = run.metrics()
    assert sorted(metrics) == [1, 2]
    steps = [json.loads(line) for line in record.read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2]
    totals = defaultdict(float)
    for step in steps:
        skipped = [key for key, row in step["seen"].items() if row["reward"] is None]
        assert skipped and not set(skipped) & set(step["trained"])
        groups = defaultdict(list)
        for row in step["trained"].values():
            groups[row["uid"]].append(row)
        for rows in groups.values():
            rewards = torch.tensor([row["reward"] for row in rows], dtype=torch.float64)
            expected = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
            assert torch.allclose(
                torch.tensor([row["advantage"] for row in rows], dtype=torch.float64), expected, atol=1e-4
            )
        for name, value in metrics[step["step"]].items():
            totals[name] += value
    assert totals["reward_faults/skip/raised_RuntimeError"] > 0
    assert totals["reward_faults/skip/not_finite"] > 0
    assert totals["reward_faults/score/time_out"] > 0
    assert totals["reward_faults/score/crash"] > 0


@pytest.mark.long
def test_beyond_the_budget_the_run_stops_with_the_reason(start, small):
    run = start(
        "recipes.sppo.main",
        *small,
        *GRPO,
        "trainer.v1.trainer_mode=grouped",
        "trainer.total_training_steps=2",
        f"reward.custom_reward_function.path={HERE / 'faulty_rewards.py'}",
        "reward.custom_reward_function.name=always_raises",
    )
    assert run.wait() == 1, run.log[-6000:]
    assert "256 of 256 samples could not be judged" in run.log
    assert "the endpoint is down" in run.log
    assert run.metrics() == {}
