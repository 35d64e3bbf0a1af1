"""Step-PPO as a user runs it: PRM in verl's reward pool, step rewards, raw GAE; killed in a step and resumed."""

import os
import re
from pathlib import Path

import pandas
import pytest
import torch

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]
HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]


@pytest.fixture
def begin(start, small, step_world, step_folder, tmp_path):
    """Start step-PPO; what each step trained on goes to record.N.pt."""
    environment = {
        "TOY_DIR": str(step_world),
        "STEP_PPO_DIR": str(step_folder),
        "VERL_USE_EXTERNAL_MODULES": "recording_step_ppo",
        "PYTHONPATH": os.pathsep.join([str(HERE), str(REPOSITORY)]),
        "RECORD_TO": str(tmp_path / "record"),
    }
    return lambda *more: start("recipes.step_ppo.main", *small, *more, environment=environment)


def check_rewards(rows: dict, prm: Path, world: Path) -> None:
    """Each step is paid what it adds to what Hugging Face reads at its end, and the last, on EOS, what the answer adds;
    the KL penalty is in the token rewards."""
    from transformers import AutoTokenizer

    from recipes.step_ppo.pipeline.prm_model import load_prm
    from recipes.step_ppo.steps import covering_tokens, segment_response

    model, tokenizer = load_prm(str(prm), dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(prm)
    train = pandas.read_parquet(world / "train.parquet")
    gold = {p[-1]["content"]: one["ground_truth"] for p, one in zip(train.prompt, train.reward_model, strict=True)}
    rewarded, outcomes = 0, set()
    for row in rows.values():
        ids = torch.cat([row["prompts"], row["responses"]])
        with torch.no_grad():
            good = model(ids[None]).logits.softmax(-1)[0, len(row["prompts"]) :, [2, 3]].sum(-1)
        expected = torch.zeros(len(row["responses"]))
        text = tokenizer.decode(row["responses"], skip_special_tokens=True)
        if (steps := segment_response(text)) and row["responses"][-1] == tokenizer.eos_token_id:
            offsets = tokenizer(text, return_offsets_mapping=True)
            if offsets["input_ids"] != row["responses"][:-1].tolist():
                continue
            ends = covering_tokens(offsets["offset_mapping"], [step.end for step in steps])[:-1]
            asked = tokenizer.decode(row["prompts"], skip_special_tokens=True)
            (letter,) = {letter for question, letter in gold.items() if question in asked}
            between = re.split("Finish", text)[1:2]  # up to a second one, as the original reads it
            outcomes.add(right := re.findall("[A-D]", "".join(between)) == [letter])
            values = torch.tensor([*good[ends].tolist(), float(right)])
            expected[[*ends, -1]] = values.diff(prepend=torch.zeros(1))
            rewarded += len(ends) > 1
        assert torch.allclose(row["rm_scores"], expected, atol=1e-4)
        penalty = 0.1 * (row["old_log_probs"] - row["ref_log_prob"])
        assert torch.allclose(row["token_level_rewards"], row["rm_scores"] - penalty, atol=1e-5)
    assert outcomes == {True, False}
    assert rewarded > len(rows) // 2, "most rollouts have several rewarded steps"


def check_advantages(rows: dict, lam: float = 0.95) -> None:
    """Plain GAE, token by token, and nothing whitened."""
    for row in rows.values():
        rewards, values = row["token_level_rewards"].tolist(), row["values"].tolist()
        trace, expected = 0.0, []
        for t in reversed(range(len(values))):
            after = values[t + 1] if t + 1 < len(values) else 0.0
            trace = rewards[t] + after - values[t] + lam * trace
            expected.insert(0, trace)
        found = row["advantages"]
        assert torch.allclose(found, torch.tensor(expected), atol=1e-4)
        assert torch.allclose(row["returns"], found + row["values"], atol=1e-4)


def test_two_steps_on_the_rewards_of_a_prm(begin, step_folder, step_world, tmp_path):
    run = begin("trainer.total_training_steps=2", "trainer.test_freq=2", "algorithm.show_responses_every=2")
    assert run.wait() == 0, run.log[-6000:]
    assert re.search(r"\([+-]\d\.?\d*\)", run.log.partition("step 2, a prompt: ")[2])
    metrics = run.metrics()
    assert sorted(metrics) == [1, 2]
    for step, data in metrics.items():
        rows = torch.load(tmp_path / f"record.{step}.pt")
        assert len(rows) == 32 * 4
        check_advantages(rows)
        check_step(data)
    check_rewards(rows, step_folder / "round0" / "prm", step_world)
    assert any(key.startswith("val-core/") and "/acc/" in key for key in metrics[2])


def check_step(metrics: dict) -> None:
    assert metrics["training/rollout_probs_diff_mean"] < 1e-5
    assert metrics["actor/grad_norm"] > 0 and metrics["critic/grad_norm"] > 0
    assert metrics["reward_faults/skipped_share"] == 0 and metrics["step_ppo/steps/mean"] > 3


@pytest.mark.long
def test_train_kill_resume(begin, step_folder, step_world, tmp_path):
    arguments = ["trainer.save_freq=2", "trainer.total_training_steps=4", "trainer.test_freq=4"]
    first = begin(*arguments)
    first.wait_for_step(3)
    before = first.metrics()
    first.kill()
    for step in (1, 2, 3):
        rows = torch.load(tmp_path / f"record.{step}.pt")
        assert len(rows) == 32 * 4
        check_advantages(rows)
    check_rewards(rows, step_folder / "round0" / "prm", step_world)
    second = begin(*arguments)
    assert second.wait() == 0, second.log[-6000:]
    metrics = second.metrics()
    assert sorted(metrics) == [1, 2, 3, 4]
    assert metrics[1] == before[1] and metrics[2] == before[2], "the curve before the kill is kept"
    assert "setting global step to 2" in second.log
    for step in metrics.values():
        check_step(step)
    assert metrics[2]["actor/reward_kl_penalty"] != metrics[4]["actor/reward_kl_penalty"]
    assert any(key.startswith("val-core/") and "/acc/" in key for key in metrics[4])
    (folder,) = (second.folder / "outputs" / "checkpoints").glob("*/*/global_step_4")
    assert (folder / "actor").is_dir() and (folder / "critic").is_dir()


@pytest.mark.long
def test_outcome_only(begin, tmp_path):
    run = begin("preset=outcome", "trainer.total_training_steps=2")
    assert run.wait() == 0, run.log[-6000:]
    rows = torch.load(tmp_path / "record.2.pt")
    check_advantages(rows)
    for row in rows.values():
        assert set(row["rm_scores"][:-1].tolist()) <= {0.0} and row["rm_scores"][-1] in (0.0, 1.0)
