"""The cold-start command against vLLM's own OpenAI server on a tiny model."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from recipes.pasodoble.make_sft_data import main

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(420)]


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
def server(tmp_path_factory):
    pytest.importorskip("vllm")
    folder = tmp_path_factory.mktemp("served")
    make_model(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--served-model-name", "tiny", "--dtype", "float32", "--enforce-eager"]
    command += ["--max-model-len", "1024", "--max-num-seqs", "32", "--kv-cache-memory-bytes", "67108864"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    url = f"http://127.0.0.1:{port}/v1"
    try:
        deadline = time.monotonic() + 300
        while True:
            assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()[-3000:]
            try:
                urllib.request.urlopen(f"{url}/models", timeout=5)
                break
            except OSError:
                time.sleep(1)
        yield url, folder
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def test_real_completions_are_asked_for_and_journaled(server, tmp_path, monkeypatch, capsys):
    url, model = server
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    knowledge = tmp_path / "k.jsonl"
    knowledge.write_text('{"text": "one and one is two"}\n{"text": "' + "two " * 2000 + '"}\n')
    arguments = ["--output-dir", str(tmp_path / "out"), "--name", "sft", "--knowledge", str(knowledge)]
    arguments += ["--tokenizer", str(model), "--max-document-tokens", "64", "--records", "5", "--samples", "4"]
    arguments += ["--generator-model", "tiny", "--generator-base-url", url, "--max-tokens", "24"]
    arguments += ["--judge-model", "tiny", "--judge-base-url", url, "--max-fruitless", "6"]
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
    arguments += ["--max-document-tokens", "0", "--generator-model", "tiny", "--generator-base-url", url]
    arguments += ["--judge-model", "tiny", "--judge-base-url", url, "--max-failures", "3", "--max-tokens", "24"]
    start = time.monotonic()
    assert main(arguments) == 1
    assert time.monotonic() - start < 60
    assert "cannot take this request: HTTP 400" in capsys.readouterr().err
