"""Tandem as a user runs it: two models in one engine, SIGTERM, an engine that is killed, and the same command again."""

import contextlib
import json
import math
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from recipes.launch import leftovers

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]
SMOLLM2 = Path(__file__).resolve().parents[2] / "examples" / "toy" / "smollm2.py"
PAIR = ("data.val_max_samples=16", "algorithm.tandem.validation=both", "trainer.save_freq=1")


def check_steps(metrics: dict, most: float = 1e-5, responses: int = 256) -> None:
    """Both models write, one coin a word; and the senior trains on its own tokens."""
    for step in metrics.values():
        redraws = step["tandem/redraws_per_response"] * responses
        assert redraws > 4 * responses
        assert abs(step["tandem/senior_redraw_share"] - 0.5) < 4 * math.sqrt(0.25 / redraws)
        assert step["tandem/switches_per_response"] > 1
        assert step["training/rollout_probs_diff_mean"] < most, "the senior's own tokens, under the senior's weights"
        assert step["actor/grad_norm"] > 0


def check_end_as_asked(run, step: int) -> dict[int, dict]:
    """SIGTERM after `step` ends the run with a checkpoint; its metrics."""
    run.wait_for_step(step)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 75, run.log[-6000:]
    metrics = run.metrics()
    last = max(metrics)
    assert f"ended after step {last}, as asked" in run.log
    assert step <= last <= step + 2 and sorted(metrics) == list(range(1, last + 1))
    (tracker,) = run.folder.rglob("latest_checkpointed_iteration.txt")
    assert tracker.read_text() == str(last)
    return metrics


@pytest.mark.long
def test_a_padded_vocabulary_and_two_ids_that_end(start, small, padded_world):
    """verl's engine never writes an id that the tokenizer does not know; the actor gives those some probability."""
    overrides = (*PAIR, "trainer.total_training_steps=2", "algorithm.tandem.keep_best=false")
    run = start("recipes.tandem.main", *small, *overrides, environment={"TOY_DIR": str(padded_world)})
    assert run.wait() == 0, run.log[-6000:]
    check_steps(run.metrics(), most=2e-3)


def test_train_and_be_asked_to_end(start, small):
    overrides = (*PAIR, "trainer.test_freq=2", "trainer.total_training_steps=9", "algorithm.show_responses_every=1")
    run = start("recipes.tandem.main", *small, *overrides, "data.train_batch_size=16")
    metrics = check_end_as_asked(run, 2)
    check_steps(metrics, responses=128)
    told = r"step 2 of 9, reward 0\.\d{3}, held-out toy_arithmetic \d+\.\d%, \d+ s, about \d+ min left"
    assert re.search(told, run.log) and re.search(r"reward [01]\.00: .*⟦.+⟧", run.log)
    (kept,) = run.folder.rglob("responses.jsonl")
    shown = list(map(json.loads, kept.open()))
    assert shown[0]["step"] == 1 and any("⟦" in one["response"] for one in shown)
    assert {"val-core/toy_arithmetic/acc/mean@4", "val-joint-core/toy_arithmetic/acc/mean@4"} <= metrics[2].keys()
    assert [path.name for path in run.folder.rglob("best/best.json")] == ["best.json"]


@pytest.mark.long
def test_a_killed_engine_ends_the_run_which_resumes(start, small):
    arguments = [*small, *PAIR, "trainer.total_training_steps=9"]
    first = start("recipes.tandem.main", *arguments)
    first.wait_for_step(1)
    before = first.metrics()
    family = first.descendants()
    engine(first).kill()
    assert first.wait(120) not in (0, None)
    assert "died" in first.log or "run failed" in first.log
    weights = set(leftovers.unmapped("verl_weights_*"))
    deadline = time.monotonic() + 10
    while (left := [process for process in family if alive(process)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left
    assert not weights & set(leftovers.unmapped("verl_weights_*")), "those of another run do not stay unmapped"
    # The kill may fall on a step that is nearly done.
    done = max(int(folder.name.removeprefix("global_step_")) for folder in first.folder.rglob("global_step_*"))

    second = start("recipes.tandem.main", *arguments)
    metrics = check_end_as_asked(second, done + 1)
    assert f"setting global step to {done}" in second.log
    assert metrics[1] == before[1], "the curve before the kill is kept"
    check_steps(metrics)


def alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def engine(run) -> psutil.Process:
    for process in run.descendants():
        if "VLLM::EngineCor" in " ".join(process.cmdline()):
            return process
    raise LookupError("the run has no engine")


@pytest.fixture
def real_world(toy_world, tmp_path):
    """SmolLM2-135M without a supervised start, and the toy's sums."""
    model = toy_world.parent / "smollm2"
    made = subprocess.run([sys.executable, SMOLLM2, "--out", model], capture_output=True, text=True, timeout=1000)
    if "cannot fetch" in made.stderr or "did not fetch" in made.stderr:
        pytest.skip(made.stderr.splitlines()[-1])
    assert made.returncode == 0, made.stderr
    for path in (model, *toy_world.glob("*.parquet")):
        (tmp_path / ("model" if path is model else path.name)).symlink_to(path)
    return tmp_path


def test_two_steps_of_a_real_model(start, small, real_world):
    """A chat template, 49,152 tokens and, where that is faster, bfloat16; it knows no sums, so any reward will do."""
    reward = real_world / "reward.py"
    reward.write_text("def compute_score(solution_str, **_):\n    return len(solution_str) % 2\n")
    sizes = ("data.train_batch_size=4", "data.max_response_length=48", "actor_rollout_ref.actor.ppo_mini_batch_size=4")
    own = (f"reward.custom_reward_function.path={reward}", "trainer.total_training_steps=2", *small[-3:])
    environment = {"LETTERS_DIR": str(real_world)}
    run = start("recipes.tandem.main", "scale=smollm2_135m", *sizes, *own, environment=environment)
    assert run.wait() == 0, run.log[-6000:]
    check_steps(run.metrics(), most=0.02, responses=32)


ENGINE = "actor_rollout_ref.rollout.engine_kwargs.vllm.tandem_config."


@pytest.fixture
def near(toy_world, tmp_path):
    """The toy model with noise on its weights: a junior that the senior contradicts now and then."""
    import transformers

    noise = torch.Generator().manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_pretrained(toy_world / "model", dtype=torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight += 0.2 * weight.std() * torch.randn(weight.shape, generator=noise)
    model.save_pretrained(tmp_path / "near")
    transformers.AutoTokenizer.from_pretrained(toy_world / "model").save_pretrained(tmp_path / "near")
    return tmp_path / "near"


@pytest.mark.long
def test_a_junior_that_drafts_trains_and_resumes(start, small, near):
    mode = (f"{ENGINE}junior_model={near}", f"{ENGINE}mode=speculative", "trainer.save_freq=1")
    first = start("recipes.tandem.main", *small, *mode, "trainer.total_training_steps=1")
    assert first.wait() == 0, first.log[-6000:]
    assert "tandem decoding: mode speculative (as configured)" in first.log
    second = start("recipes.tandem.main", *small, *mode, "trainer.total_training_steps=2")
    assert second.wait() == 0, second.log[-6000:]
    assert "setting global step to 1" in second.log
    metrics = second.metrics()
    steps = [metrics[1], metrics[2]]
    check_steps(metrics)
    for step in steps:
        assert 0.3 < step["tandem/draft_acceptance"] < 0.999, "drafts of the senior's turns stand, and do not"
        assert 1 < step["tandem/tokens_per_round"] < step["tandem/drafts_per_round"] + 1 <= 5
        assert step["tandem/cost_per_token"] == pytest.approx(
            (1 + step["tandem/drafts_per_round"]) / step["tandem/tokens_per_round"], rel=0.01
        ), "a junior of the senior's size"


@pytest.mark.long
def test_a_senior_that_always_writes_trains_on_every_token(start, small):
    """p = 1 through the whole trainer: no junior token, and everything a GRPO run reports."""
    run = start(
        "recipes.tandem.main",
        *small,
        "trainer.total_training_steps=1",
        f"{ENGINE}prob_senior=1.0",
    )
    assert run.wait() == 0, run.log[-6000:]
    step = run.metrics()[1]
    assert step["tandem/senior_token_share"] == 1.0 and step["tandem/switches_per_response"] == 0.0
    assert step["training/rollout_probs_diff_mean"] < 1e-5


@pytest.fixture
def portable(start, small, toy_world):
    """The launcher with a device for each model; the CPU has as many as one names."""
    served = "--dtype float32 --max-model-len 128 --enforce-eager --kv-cache-memory-bytes 67108864"
    variables = {"SCALE": "toy", "MODEL_PATH": str(toy_world / "model"), "JUNIOR_DEVICE": "1", "JUNIOR_ARGS": served}
    variables |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    return lambda *more: start("recipes/tandem/run_qwen3_4b.sh", *small, *more, environment=variables)


@pytest.mark.long
def test_the_portable_path_trains(portable):
    """Two ordinary engines: the same coins, the same mask, the same agreement of rollout and actor."""
    run = portable("trainer.total_training_steps=2")
    assert run.wait() == 0, run.log[-6000:]
    check_steps(run.metrics())
    deadline = time.monotonic() + 30
    while juniors := [p.pid for p in psutil.process_iter(["cmdline"]) if "junior" in (p.info["cmdline"] or [])]:
        assert time.monotonic() < deadline, juniors
        time.sleep(0.2)


@pytest.mark.long
def test_the_portable_path_trains_on_the_juniors_tokens(portable):
    """The junior's tokens weigh a tenth, and only the senior's are compared."""
    run = portable("algorithm.tandem.junior_token_loss_weight=0.1", "trainer.total_training_steps=2")
    assert run.wait() == 0, run.log[-6000:]
    assert "junior_token_loss_weight=0.1 trains on the junior's tokens" in run.log
    steps = run.metrics()
    assert sorted(steps) == [1, 2]
    check_steps(steps)
