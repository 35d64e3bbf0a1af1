"""The cold-start command against an endpoint that fails in every way, and SIGKILL: exactly the right records."""

import hashlib
import json
import re
import signal
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest

from recipes.pasodoble.cold_start.make_sft_data import main
from recipes.pasodoble.knowledge import draw_index

from .conftest import Fault

DOCUMENTS = [f"Document {i} about {{braces}} and \\frac{{1}}{{2}}." for i in range(40)]
SAMPLES = 3
FAULTS = [429, 500, 503, "hang", "reset", "torn", "cut", "html"]


def chance(text, sides):
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) % sides


def user_text(payload):
    return payload["messages"][-1]["content"]


def answer(payload):
    """The scripted generator and judge; which proposals survive is a pure function of their question."""
    user = user_text(payload)
    if payload["model"] == "judge":
        return [judge(user)]
    if "External knowledge" in user:
        return [propose(payload["seed"], i) for i in range(payload["n"])]
    return [solve(user, i) for i in range(payload["n"])]


def propose(seed, i):
    question = f"What is task {seed} of sample {chr(97 + i)}?"
    kind = chance(question, 8)
    if kind == 0:
        return "thinking without end"
    if kind == 1:
        return f"t</think><problem>{question}</problem><answer>no box</answer>"
    return f"t</think><problem>{question}</problem><answer>\\boxed{{{gold(question)}}}</answer>"


def gold(question):
    return str(10_000_000_000 + chance("gold" + question, 10**6))


def judge(question):
    kind = chance("judge" + question, 6)
    if kind == 0:
        return {"content": None, "refusal": "I cannot help with that."}
    if kind == 1:
        return "I do not know."
    return f"<answer>\\boxed{{{'-1' if kind == 2 else gold(question)}}}</answer>"


def solve(question, i):
    kind = chance(f"solve{i}" + question, 3)
    return ["no box", "\\boxed{-1}", f"t</think>\\boxed{{{gold(question)}}}"][kind]


def faulty(payload, attempt):
    """Most requests fail once or twice first, each in its own way."""
    text = json.dumps(payload["messages"])
    if attempt >= chance("times" + text, 3):
        return None
    kind = FAULTS[chance(f"kind{attempt}" + text, len(FAULTS))]
    return Fault(kind, "0.2" if kind == 429 else None)


def confirmed(question):
    return chance(question, 8) > 1 and chance("judge" + question, 6) > 2


def expected_records(seeds, records):
    """Kept questions in stream order, and the solutions of each that agree."""
    questions = [f"What is task {seed} of sample {chr(97 + i)}?" for seed in seeds for i in range(SAMPLES)]
    kept = [q for q in questions if confirmed(q)][:records]
    solutions = [(q, solve(q, i)) for q in kept for i in range(SAMPLES) if chance(f"solve{i}" + q, 3) == 2]
    return kept, solutions


def stream_of_seeds(count):
    return [draw_index(42, -1, document, 2**31) for document in range(count)]


class Command:
    """The command on an endpoint, in this process or, to be killed, in one of its own."""

    def __init__(self, endpoint, folder, *options, records=40):
        self.folder = folder
        knowledge = folder.parent / "knowledge.jsonl"
        knowledge.write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS))
        self.arguments = [
            *("--output-dir", str(folder), "--name", "sft"),
            *("--knowledge", str(knowledge), "--max-document-tokens", "0", "--records", str(records)),
            *("--generator-model", "generator", "--generator-base-url", endpoint.base_url),
            *("--judge-model", "judge", "--judge-base-url", endpoint.base_url, "--samples", str(SAMPLES)),
            *("--timeout", "1", "--first-wait", "0.01", "--max-wait", "1", *options),
        ]

    def start(self):
        call = [sys.executable, "-m", "recipes.pasodoble.cold_start.make_sft_data", *self.arguments]
        return subprocess.Popen(call, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run(self):
        return main(self.arguments)

    @property
    def journal(self):
        return self.folder / "sft.journal.jsonl"

    def lines(self):
        return self.journal.read_bytes().count(b"\n") if self.journal.is_file() else 0

    def journaled(self):
        events = [json.loads(line) for line in self.journal.read_text().splitlines()[1:]]
        return [(event["kind"], event["document"], event.get("sample")) for event in events]

    def json(self, name):
        return json.loads((self.folder / name).read_text())


def check_datasets(command, records):
    kept, solutions = expected_records(stream_of_seeds(200), records)
    proposer, solver = command.json("sft.json"), command.json("solver_sft.json")
    assert [record["problem"] for record in proposer] == kept and len(kept) == records
    assert [(r["problem"], r["response"].removeprefix("<think>\n")) for r in solver] == solutions and solutions
    for record in proposer:
        assert record["solution"] == record["solver_gpt_pred"] == gold(record["problem"])
    assert command.json("sft.report.json")["complete"] is True


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret-value")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "out"


def test_every_fault_at_once_costs_no_record(start_endpoint, folder, capsys):
    endpoint = start_endpoint(answer=answer, script=faulty)
    command = Command(endpoint, folder)
    start = time.monotonic()
    assert command.run() == 0
    assert time.monotonic() - start < 90
    check_datasets(command, 40)
    assert max(endpoint.answered.values()) == 1
    printed = capsys.readouterr().out
    assert json.loads(printed[printed.index("{") :])["proposer"]["kept"] == 40

    asked = len(endpoint.requests)
    before = (folder / "sft.json").read_bytes(), (folder / "solver_sft.json").read_bytes()
    assert command.run() == 0
    assert len(endpoint.requests) == asked
    assert ((folder / "sft.json").read_bytes(), (folder / "solver_sft.json").read_bytes()) == before


def test_sigkill_again_and_again_loses_nothing_and_doubles_nothing(start_endpoint, folder):
    endpoint = start_endpoint(answer=answer, script=faulty, delay=0.02)
    command = Command(endpoint, folder, "--concurrency", "4")
    for lines in (5, 60):
        process = command.start()
        deadline = time.monotonic() + 60
        while command.lines() < lines and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert process.poll() is None, process.communicate()[1]
        process.send_signal(signal.SIGKILL)
        process.communicate()
    # what a kill in the middle of a write leaves behind
    with command.journal.open("ab") as file:
        file.write(b'{"kind": "verdict", "docu')
    assert command.run() == 0
    check_datasets(command, 40)
    keys = command.journaled()
    assert len(keys) == len(set(keys))
    # answered but not journaled when a process ended: at most what was under way, on either endpoint
    assert sum(endpoint.answered.values()) - len(keys) <= 3 * 2 * 4


def test_more_records_go_on_from_the_same_journal(start_endpoint, folder):
    endpoint = start_endpoint(answer=answer)
    assert Command(endpoint, folder, records=10).run() == 0
    first = json.loads((folder / "sft.json").read_text())
    more = Command(endpoint, folder, records=25)
    assert more.run() == 0
    check_datasets(more, 25)
    assert json.loads((folder / "sft.json").read_text())[:10] == first
    # the only answers paid for twice were under way when the first run had enough
    assert sum(endpoint.answered.values()) - len(more.journaled()) <= 2 * 4 * SAMPLES


def test_the_files_are_what_the_trainers_read(start_endpoint, folder):
    command = Command(start_endpoint(answer=answer), folder, records=12)
    assert command.run() == 0
    for name, user in (("sft", "External knowledge: "), ("solver_sft", "What is task ")):
        records = command.json(f"{name}.json")
        for record in records:
            roles = [message["role"] for message in record["conversations"]]
            assert roles == ["system", "user", "assistant"]
            assert record["conversations"][1]["content"].startswith(user)
            assert record["conversations"][2]["content"] == record["response"]
            assert record["response"].startswith("<think>\n")
            assert record["knowledge"] in DOCUMENTS
        assert pq.read_table(folder / f"{name}.parquet")["messages"].to_pylist() == [
            r["conversations"] for r in records
        ]
    info = command.json("dataset_info.json")
    assert info["sft"]["file_name"] == "sft.json" and info["solver_sft"]["columns"] == {"messages": "conversations"}
    fields = "problem response solution solver_gpt_response solver_gpt_pred level is_proposer_answer_correct is_valid"
    assert set(command.json("sft.json")[0]) == {*fields.split(), "knowledge", "conversations"}
    for record in command.json("solver_sft.json"):
        assert all(record["knowledge"] not in message["content"] for message in record["conversations"])
    assert all("secret-value" not in path.read_text(errors="ignore") for path in folder.iterdir())

    p = command.json("sft.report.json")["proposer"]
    assert p["completions"] == p["documents"] * SAMPLES
    assert p["without_question"] > 0 and p["judge_refused"] > 0 and p["judge_without_answer"] > 0
    assert p["judged"] > p["judge_refused"] + p["judge_without_answer"] + p["confirmed"]
    assert p["confirmed"] >= p["kept"] == 12


@pytest.mark.parametrize(
    "status, code, sentence",
    [(500, 1, r"[4-9] requests in a row failed.*the same command goes on from here"), (401, 2, "answered HTTP 401")],
)
def test_an_endpoint_that_stays_down_ends_the_run(start_endpoint, folder, capsys, status, code, sentence):
    # Requests that were under way when the fourth failed may fail and be counted too.
    endpoint = start_endpoint(answer=answer, script=lambda payload, attempt: Fault(status))
    command = Command(endpoint, folder, "--max-failures", "4", "--max-tries", "2")
    start = time.monotonic()
    assert command.run() == code
    assert time.monotonic() - start < 30
    assert re.search(sentence, capsys.readouterr().err.strip().splitlines()[-1])
    assert command.json("sft.report.json")["complete"] is False


def test_a_generator_that_never_succeeds_ends_the_run(start_endpoint, folder, capsys):
    endpoint = start_endpoint(answer=lambda payload: ["nothing to parse"] * payload["n"])
    assert Command(endpoint, folder, "--max-fruitless", "15").run() == 1
    assert re.search("1[5-9] documents in a row gave no record", capsys.readouterr().err)
    assert len(endpoint.requests) < 40


def test_bad_input_is_refused_with_one_sentence(start_endpoint, folder, monkeypatch, capsys):
    endpoint = start_endpoint(answer=answer)

    def refused(*options):
        assert Command(endpoint, folder, *options).run() == 2
        return capsys.readouterr().err.strip().splitlines()[-1]

    assert "no column 'body'; it has ['text']" in refused("--text-column", "body")
    assert "does not exist" in refused("--knowledge", "/nowhere/k.jsonl")
    assert "no tokenizer could be loaded" in refused("--max-document-tokens", "100", "--tokenizer", "./nowhere")
    assert "records must be at least 1" in refused("--records", "0")
    texts = folder.parent / "prompts.yaml"
    assert "cannot be read" in refused("--prompts", str(texts))
    for text, sentence in (
        ("solver_sytem: Answer", "unknown key pasodoble.prompts.solver_sytem"),
        ("proposer_user: Write a problem", "has no {knowledge}"),
        ("[solver_system]", "must map names of prompts to texts"),
    ):
        texts.write_text(text)
        assert sentence in refused("--prompts", str(texts))
    monkeypatch.setenv("OPENAI_API_KEY", "")
    assert "OPENAI_API_KEY is not set" in refused()
    monkeypatch.setenv("OPENAI_API_KEY", "secret-value")
    assert not endpoint.requests
    assert Command(endpoint, folder, records=5).run() == 0
    assert "was made with other settings" in refused("--judge-model", "other") and "judge was" in refused(
        "--judge-model", "x"
    )
