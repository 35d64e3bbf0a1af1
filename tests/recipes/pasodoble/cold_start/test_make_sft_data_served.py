"""The cold-start command against vLLM's own OpenAI server with the models of the toy world."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from recipes.pasodoble.cold_start.make_sft_data import main

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]
REPOSITORY = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def toy_world():
    out = REPOSITORY / "outputs" / "toy_pasodoble"
    make = [sys.executable, str(REPOSITORY / "examples/toy/make.py"), "--format", "pasodoble", "--out", str(out)]
    subprocess.run(make, check=True, timeout=1200, stdout=subprocess.DEVNULL)
    return out


@pytest.fixture(scope="module")
def toy_servers(toy_world, tmp_path_factory, vllm_server):
    """Addresses of a server with the toy Proposer and of one with the toy Solver."""
    logs = tmp_path_factory.mktemp("toy_servers")
    with (
        vllm_server(toy_world / "proposer", logs / "proposer", max_model_len=256) as proposer,
        vllm_server(toy_world / "model", logs / "solver", max_model_len=256) as solver,
    ):
        yield proposer, solver


def test_models_that_can_propose_and_solve_make_exactly_what_is_wanted(
    toy_world, toy_servers, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    texts = yaml.safe_load((REPOSITORY / "recipes/pasodoble/config/scale/toy.yaml").read_text())["pasodoble"]["prompts"]
    prompts = tmp_path / "prompts.yaml"
    prompts.write_text(yaml.safe_dump(texts))
    out, (proposer, solver) = tmp_path / "out", toy_servers
    arguments = ["--output-dir", str(out), "--name", "sft", "--records", "12", "--samples", "4", "--seed", "3"]
    arguments += ["--prompts", str(prompts), "--knowledge", str(toy_world / "knowledge.jsonl"), "--temperature", "1.0"]
    arguments += ["--max-document-tokens", "0", "--generator-model", "toy", "--judge-model", "toy"]
    arguments += ["--generator-base-url", proposer, "--judge-base-url", solver, "--max-tokens", "80"]
    assert main(arguments) == 0, capsys.readouterr().err

    records = json.loads((out / "sft.json").read_text())
    report = json.loads((out / "sft.report.json").read_text())
    assert len(records) == report["proposer"]["kept"] == 12
    assert report["proposer"]["without_question"] < report["proposer"]["completions"] / 2
    assert report["proposer"]["confirmed"] >= 12 and report["failed_in_this_run"] == {}
    assert len({json.dumps(record) for record in records}) > 6
    known = {json.loads(line)["text"] for line in (toy_world / "knowledge.jsonl").read_text().splitlines()}
    for record in records:
        assert any(text in json.dumps(record) for text in known)

    journal = (out / "sft.journal.jsonl").read_bytes()
    assert main(arguments) == 0
    assert (out / "sft.journal.jsonl").read_bytes() == journal, "a complete run asks for nothing more"
    assert json.loads((out / "sft.json").read_text()) == records
