"""Step-PPO as a user runs it: PRM in verl's reward pool, step rewards, raw GAE; killed in a step and resumed."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet
import pytest
import torch

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]
HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]


@pytest.fixture(scope="session")
def step_world() -> Path:
    """The toy world of this recipe, made once and cached between sessions."""
    out = REPOSITORY / "outputs" / "toy_step_ppo"
    command = [str(REPOSITORY / "examples" / "toy" / "make.py"), "--format", "step_ppo", "--out", str(out)]
    subprocess.run([sys.executable, *command], check=True, timeout=900, stdout=subprocess.DEVNULL)
    return out


@pytest.fixture(scope="session")
def step_folder(step_world, tmp_path_factory) -> Path:
    """A folder with `round0/prm`."""
    folder = tmp_path_factory.mktemp("step_ppo")
    train_prm(step_world, folder)
    return folder


def train_prm(step_world: Path, folder: Path) -> None:
    """Train a PRM with the `prm` stage on worked solutions and on ones that slip once, into `folder`/round0/prm.

    The rule of the puzzle gives the labels, so that no sampling is needed here.
    """
    trajectories, values = [], []
    for row in pyarrow.parquet.read_table(step_world / "train.parquet").to_pylist()[:160]:
        key = str(row["extra_info"]["index"])
        right = worked(row["extra_info"]["chain"], row["prompt"][0]["content"])
        lines = right.split("\n")
        slip = 2 * (len(lines) // 4)
        found = lines[slip].rpartition(" ")[2]
        wrong = [*lines[:slip], lines[slip].removesuffix(found) + ("east." if found == "west." else "west.")]
        responses = [{"text": right, "correct": True}, {"text": "\n".join(wrong + lines[slip + 1 :]), "correct": False}]
        trajectories.append({"key": key, "id": key, "responses": responses})
        for index, (response, hits) in enumerate(zip(responses, (3, 0), strict=True)):
            prefix = "\n".join(response["text"].split("\n")[: slip + 1])
            values.append(
                {"key": f"{key}/{index}", "id": key, "response_index": index, "step": slip, "kind": "Observation"}
                | {"value": hits, "num_completions": 3, "prefix_length": len(prefix)}
            )
    for name, records in (("trajectories", trajectories), ("values", values)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    subprocess.run(
        [sys.executable, "-m", "recipes.step_ppo.pipeline.prm", "--data", str(step_world / "train.parquet")]
        + ["--trajectories", str(folder / "trajectories.jsonl"), "--values", str(folder / "values.jsonl")]
        + ["--model", str(step_world / "model"), "--output", str(folder / "round0" / "prm"), "--export-backbone"]
        + ["--dtype", "float32", "--max-length", "160", "--learning-rate", "1e-3", "--warmup-steps", "2"]
        + ["--batch-size", "32", "--accumulation", "1", "--max-steps", "20"],
        check=True,
        timeout=600,
        stdout=subprocess.DEVNULL,
    )


def worked(chain: list[str], prompt: str) -> str:
    """The response that the puzzle's rule gives, without the space that joins it to the prompt."""
    sys.path.insert(0, str(REPOSITORY / "examples" / "toy"))
    from toy_world.formats import step_ppo

    direction, *turns = chain
    names = [fact.split(" ")[0] for fact in prompt.split("\n")[1].split(". ")]
    lines = [f"{names[0]} faces {direction}."]
    for number, (name, turn) in enumerate(zip(names[1:], turns, strict=True), 1):
        found = step_ppo.turned(direction, turn)
        lines += [f"Action {number}: Find {name}.", f"Observation {number}: {turn} of {direction} is {found}."]
        direction = found
    letter = step_ppo.LETTERS[step_ppo.DIRECTIONS.index(direction)]
    last = len(turns) + 1
    lines += [f"Thought {last}: {names[-1]} faces {direction}.", f"Action {last}: Finish[The answer is {letter}.]"]
    return "\n".join(lines)


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


def check_rewards(rows: dict, prm: Path) -> None:
    """Rewards stand at the ends of the steps of the text and are what Hugging Face reads there; the KL penalty is in
    the token rewards."""
    from transformers import AutoTokenizer

    from recipes.step_ppo.pipeline.prm_model import load_prm
    from recipes.step_ppo.steps import covering_tokens, segment_response

    model, tokenizer = load_prm(str(prm), dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(prm)
    rewarded = 0
    for row in rows.values():
        ids = torch.cat([row["prompts"], row["responses"]])
        with torch.no_grad():
            good = model(ids[None]).logits.softmax(-1)[0, len(row["prompts"]) :, [2, 3]].sum(-1)
        expected = torch.zeros(len(row["responses"]))
        if row["responses"][-1] == tokenizer.eos_token_id:
            text = tokenizer.decode(row["responses"], skip_special_tokens=True)
            offsets = tokenizer(text, return_offsets_mapping=True)
            if offsets["input_ids"] != row["responses"][:-1].tolist():
                continue
            ends = covering_tokens(offsets["offset_mapping"], [step.end for step in segment_response(text)])
            expected[ends] = good[ends]
            rewarded += len(ends) > 2
        assert torch.allclose(row["rm_scores"], expected, atol=1e-4)
        penalty = 0.1 * (row["old_log_probs"] - row["ref_log_prob"])
        assert torch.allclose(row["token_level_rewards"], row["rm_scores"] - penalty, atol=1e-5)
    assert rewarded > len(rows) // 2, "most rollouts have several rewarded steps"


def check_advantages(rows: dict, lam: float = 0.95) -> None:
    """Plain GAE, token by token, and nothing whitened."""
    means = []
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
        means.append(found.mean())
    assert abs(torch.stack(means).mean()) > 0.05, "whitened advantages would have mean 0"


def test_train_kill_resume(begin, step_folder, tmp_path):
    arguments = ["trainer.save_freq=2", "trainer.total_training_steps=4", "trainer.test_freq=4"]
    first = begin(*arguments)
    first.wait_for_step(3)
    time.sleep(1)
    before = first.metrics()
    first.kill()
    for step in (1, 2, 3):
        rows = torch.load(tmp_path / f"record.{step}.pt")
        assert len(rows) == 32 * 4
        check_advantages(rows)
    check_rewards(rows, step_folder / "round0" / "prm")
    second = begin(*arguments)
    assert second.wait() == 0, second.log[-6000:]
    metrics = second.metrics()
    assert sorted(metrics) == [1, 2, 3, 4]
    assert metrics[1] == before[1] and metrics[2] == before[2], "the curve before the kill is kept"
    assert "setting global step to 2" in second.log
    for step in metrics.values():
        assert step["training/rollout_probs_diff_mean"] < 1e-5
        assert step["actor/grad_norm"] > 0 and step["critic/grad_norm"] > 0
        assert step["step_ppo/skipped"] == 0 and step["step_ppo/steps/mean"] > 3
    assert metrics[2]["actor/reward_kl_penalty"] != metrics[4]["actor/reward_kl_penalty"]
    assert any(key.startswith("val-core/") and "/acc/" in key for key in metrics[4])
    (folder,) = (second.folder / "outputs" / "checkpoints").glob("*/*/global_step_4")
    assert (folder / "actor").is_dir() and (folder / "critic").is_dir()
    assert json.loads((folder / "step_ppo.json").read_text())["length_alarm"]["count"] == 4


def test_outcome_only(begin, tmp_path):
    run = begin("preset=outcome", "trainer.total_training_steps=2")
    assert run.wait() == 0, run.log[-6000:]
    rows = torch.load(tmp_path / "record.2.pt")
    check_advantages(rows)
    for row in rows.values():
        assert set(row["rm_scores"][:-1].tolist()) <= {0.0} and row["rm_scores"][-1] in (0.0, 1.0)
