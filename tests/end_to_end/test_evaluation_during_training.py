"""`evaluation.every=N` in a real run: the numbers are those of the evaluation's own command on the saved weights."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1200)]
# Weights move within two steps; the second is saved as a model that can be loaded, and evaluated.
SAVED_AND_READ = (
    "trainer.total_training_steps=2",
    "trainer.save_freq=2",
    "actor_rollout_ref.actor.optim.lr=1e-3",
    "actor_rollout_ref.actor.optim.lr_warmup_steps=0",
    "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]",
    "evaluation.every=2",
)
ENGINE = ["engine.dtype=float32", "engine.max_model_len=96", "engine.kv_cache_memory_bytes=67108864"]


def responses(folder):
    (path,) = folder.glob("*/test.responses.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    return {line["problem"]: line["response"] for line in lines}


def result(folder):
    summary = json.loads((folder / "summary.json").read_text())
    return next(iter(summary["models"].values()))["test"]


READINGS = [
    "handoff.separator='='",
    "partner.legibility_responses=20",
]


def test_the_readings_with_the_junior_are_those_of_the_command_on_the_saved_weights(start, small, toy_world, tmp_path):
    data = [f"benchmarks=[{toy_world / 'test.parquet'}]", "limit=40", *READINGS]
    run = start(
        "recipes.tandem.main",
        *small,
        "trainer.val_before_train=false",
        *SAVED_AND_READ,
        f"trainer.default_local_dir={tmp_path / 'run'}",
        "evaluation.partner.readings=[sentence_handoff,word_handoff,legibility]",
        *(f"evaluation.{item}" for item in data),
    )
    assert run.wait() == 0, run.log[-6000:]
    logged = run.metrics()[2]
    during = tmp_path / "run" / "evaluation" / "step_2"

    saved = tmp_path / "run" / "global_step_2" / "actor" / "huggingface"
    pair = [f"models=[{{name:trained,path:'{saved}'}},{{name:start,path:'{toy_world / 'model'}'}}]"]
    pair += [f"partner.model={toy_world / 'model'}", "macro={mine: [test]}"]
    engine = [item.replace("=96", "=97") for item in ENGINE]
    command = [sys.executable, "-m", "recipes.evaluation.main", *pair, *data, *engine, "engine.enforce_eager=true"]
    done = subprocess.run(
        [*command, "sampling.max_tokens=32", f"output_dir={tmp_path / 'pair'}"],
        env=os.environ | {"VLLM_CPU_OMP_THREADS_BIND": "nobind"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    summary = json.loads((tmp_path / "pair" / "summary.json").read_text())
    models = summary["models"]
    assert set(models) == {"trained", "trained+sentence_handoff", "trained+word_handoff", "start"}
    for reading in ("sentence_handoff", "word_handoff"):
        name = f"policy+{reading}/test.responses.jsonl"
        assert texts(during / name) == texts(tmp_path / "pair" / f"trained+{reading}" / "test.responses.jsonl")
        found = models[f"trained+{reading}"]["test"]
        assert logged[f"evaluation/test/{reading}/pass@1"] == found["metrics"]["pass@1"]["mean"]
        assert logged[f"evaluation/test/{reading}/ratio/pass@1"] == found["handoff_ratio"]["pass@1"]
    alone = models["trained"]["test"]
    nats = logged["evaluation/test/legibility/nats_per_token"]
    assert abs(nats - alone["legibility"]["nats_per_token"]) < 1e-4 and 0 < nats < 5
    assert models["start"]["test"]["legibility"]["nats_per_token"] != alone["legibility"]["nats_per_token"]
    report = (tmp_path / "pair" / "summary.md").read_text()
    assert "| trained | macro mine | pass@1 |" in report and "| start | test | " in report


def texts(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    return {line["problem"]: line["response"] for line in lines}


def test_the_numbers_of_a_step_are_those_of_its_saved_weights(start, small, toy_world, tmp_path):
    data = [f"benchmarks=[{toy_world / 'test.parquet'}]", "limit=60"]
    run = start(
        "recipes.sppo.main",
        *small,
        "preset=grpo",
        "trainer.val_before_train=true",
        *SAVED_AND_READ,
        f"trainer.default_local_dir={tmp_path / 'run'}",
        *(f"evaluation.{item}" for item in data),
    )
    assert run.wait() == 0, run.log[-6000:]
    metrics = run.metrics()
    assert "evaluation/test/pass@1" in metrics[0] and "evaluation/test/pass@1" not in metrics[1]
    assert metrics[2]["timing_s/evaluation"] > 0

    saved = tmp_path / "run" / "global_step_2" / "actor" / "huggingface"
    command = [sys.executable, "-m", "recipes.evaluation.main", f"models=[{saved}]", *data, *ENGINE]
    done = subprocess.run(
        [*command, "sampling.max_tokens=32", "engine.enforce_eager=true", f"output_dir={tmp_path / 'alone'}"],
        env=os.environ | {"VLLM_CPU_OMP_THREADS_BIND": "nobind"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    during = tmp_path / "run" / "evaluation" / "step_2"
    assert responses(during) == responses(tmp_path / "alone")
    assert result(during) == result(tmp_path / "alone")
    assert metrics[2]["evaluation/test/pass@1"] == result(tmp_path / "alone")["metrics"]["pass@1"]["mean"]
    assert metrics[2]["evaluation/test/counted_problems"] == 60
    assert responses(tmp_path / "run" / "evaluation" / "step_0") != responses(during), "the weights have changed"
