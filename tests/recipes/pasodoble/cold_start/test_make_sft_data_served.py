"""The cold-start command against vLLM's own OpenAI server: an untrained model, and the models of the toy world."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from recipes.pasodoble.cold_start.make_sft_data import main

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]
REPOSITORY = Path(__file__).resolve().parents[4]


def make_model(folder):
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    words.train_from_iterator(["one and one is two"], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<|end|>", pad_token="<|end|>")
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "
    tokenizer.save_pretrained(folder)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=2048,
        eos_token_id=tokenizer.eos_token_id,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)


@pytest.fixture(scope="module")
def server(tmp_path_factory, vllm_server):
    folder = tmp_path_factory.mktemp("served")
    make_model(folder)
    with vllm_server(folder, folder / "log", max_model_len=1024) as url:
        yield url, folder


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


def test_real_completions_are_asked_for_and_journaled(server, tmp_path, monkeypatch, capsys):
    url, model = server
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    knowledge = tmp_path / "k.jsonl"
    knowledge.write_text('{"text": "one and one is two"}\n{"text": "' + "two " * 2000 + '"}\n')
    arguments = ["--output-dir", str(tmp_path / "out"), "--name", "sft", "--knowledge", str(knowledge)]
    arguments += ["--tokenizer", str(model), "--max-document-tokens", "64", "--records", "5", "--samples", "4"]
    arguments += ["--generator-model", "toy", "--generator-base-url", url, "--max-tokens", "24"]
    arguments += ["--judge-model", "toy", "--judge-base-url", url, "--max-fruitless", "6"]
    # an untrained model proposes nothing that parses: the run ends, says so, and keeps what it paid for
    assert main(arguments) == 1
    assert "gave no record that the judge confirms" in capsys.readouterr().err
    events = [json.loads(line) for line in (tmp_path / "out" / "sft.journal.jsonl").read_text().splitlines()[1:]]
    assert len(events) >= 6
    for event in events:
        assert event["kind"] == "proposals" and len(event["completions"]) == 4
        assert len(set(event["completions"])) > 1
    report = json.loads((tmp_path / "out" / "sft.report.json").read_text())
    assert report["proposer"]["completions"] == 4 * len(events) and report["failed_in_this_run"] == {}


def test_a_prompt_that_is_too_long_for_the_server_is_no_reason_to_wait(server, tmp_path, monkeypatch, capsys):
    url, _ = server
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    knowledge = tmp_path / "k.jsonl"
    knowledge.write_text('{"text": "' + "two " * 2000 + '"}\n')
    arguments = ["--output-dir", str(tmp_path / "out"), "--name", "sft", "--knowledge", str(knowledge)]
    arguments += ["--max-document-tokens", "0", "--generator-model", "toy", "--generator-base-url", url]
    arguments += ["--judge-model", "toy", "--judge-base-url", url, "--max-failures", "3", "--max-tokens", "24"]
    start = time.monotonic()
    assert main(arguments) == 1
    assert time.monotonic() - start < 60
    assert "answered HTTP 400" in capsys.readouterr().err
