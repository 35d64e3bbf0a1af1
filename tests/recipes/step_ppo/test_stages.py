"""The sampling stages against a scripted local server: results, resume after SIGKILL, faults of the endpoint."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet
import pytest

from recipes.errors import DataError, JournalError
from recipes.step_ppo.pipeline import collect, complete, pairs, prepare, score, states, teach
from recipes.step_ppo.pipeline.data import load_questions
from recipes.step_ppo.pipeline.records import read
from recipes.step_ppo.prompts import REACT_EXAMPLE
from recipes.step_ppo.steps import clean_response
from recipes.step_ppo.tokens import encode_state
from reward_fns.errors import BudgetSpent, EndpointError

sys.path.insert(0, str(Path(__file__).parent))
from scripted_server import Faults, closed_port, scripted_text, serving  # noqa: E402
from trajectories import byte_level_tokenizer  # noqa: E402

REPOSITORY = Path(__file__).parents[3]


def records(path) -> list[dict]:
    return list(read([path]))


def by_key(path) -> dict[str, dict]:
    found = {record["key"]: record for record in records(path)}
    assert len(found) == len(records(path)), "a key stands twice"
    return found


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    items = [
        {"text": f"Fact {i}.", "question": "Which?", "options": ["w", "x", "y", "z"], "answer": i % 2}
        for i in range(24)
    ]
    (folder / "train.txt").write_text("".join(json.dumps(item) + "\n" for item in items))
    prepare.main(["--dataset", "logiqa2", "--files", str(folder / "train.txt"), "--output", str(folder / "p.parquet")])
    return str(folder / "p.parquet")


def collect_args(data, url, output, *more):
    base = ["--data", data, "--endpoint", url, "--model", "scripted", "--output", str(output), "--n", "4"]
    return [*base, "--concurrency", "4", "--attempts", "3", *more]


@pytest.fixture(scope="module")
def collected(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("collected") / "t.jsonl"
    with serving() as (url, _):
        collect.main(collect_args(data, url, out))
    return str(out)


@pytest.fixture(scope="module")
def sampled_states(collected, tmp_path_factory):
    out = tmp_path_factory.mktemp("states") / "s.jsonl"
    states.main(["--trajectories", collected, "--output", str(out), "--ratio", "0.5", "--seed", "1"])
    return str(out)


def test_collect_keeps_what_was_sampled(data, collected):
    questions = load_questions([data])
    found = by_key(collected)
    assert list(sorted(found, key=int)) == list(questions)
    for key, record in found.items():
        question = questions[key]
        for response in record["responses"]:
            assert clean_response(response["text"]) == response["text"]
            letter = response["text"].rpartition("answer is ")[2][0]
            assert response["correct"] == (letter == question.gold)
        dropped = record["dropped"].get("malformed", 0) + record["dropped"].get("duplicate", 0)
        assert len(record["responses"]) + dropped == 4


def test_collect_is_a_function_of_the_seed(data, collected, tmp_path):
    with serving() as (url, _):
        collect.main(collect_args(data, url, tmp_path / "same.jsonl", "--concurrency", "1"))
        collect.main(collect_args(data, url, tmp_path / "other.jsonl", "--seed", "5"))
    assert by_key(tmp_path / "same.jsonl") == by_key(collected)
    assert by_key(tmp_path / "other.jsonl") != by_key(collected)


def test_collect_through_chat_completions(data, tmp_path):
    with serving() as (url, _):
        collect.main(collect_args(data, f"{url}/v1", tmp_path / "c.jsonl", "--chat", "--max-questions", "3"))
    assert all(
        not r["text"].startswith("Thought 1") for record in records(tmp_path / "c.jsonl") for r in record["responses"]
    )


def test_import_of_published_trajectories(data, collected, tmp_path):
    published = [
        {"id": 3, "response": [scripted_text("p", 0, i) for i in range(5)], "pred": ["A"] * 5, "label": 1},
        {"id": 1, "response": "a\nAction 1: Finish[The answer is A and B.]", "pred": "A", "label": 0},
    ]
    (tmp_path / "published.json").write_text(json.dumps(published))
    command = ["--import-file", str(tmp_path / "published.json"), "--data", data, "--output", str(tmp_path / "t.jsonl")]
    collect.main(command)
    collect.main(command)
    found = by_key(tmp_path / "t.jsonl")
    assert set(found) == {"1", "3"}
    assert [(r["correct"], r["reason"]) for r in found["1"]["responses"]] == [(False, "multiple")]


def test_half_a_surrogate_pair_is_replaced_where_it_comes_in(data, tmp_path):
    item = {"text": "F \ud800.", "question": "Q?", "options": list("wxyz"), "answer": 1}
    (tmp_path / "d.jsonl").write_text(json.dumps(item) + "\n")
    made = str(tmp_path / "p.parquet")
    prepare.main(["--dataset", "logiqa2", "--files", str(tmp_path / "d.jsonl"), "--output", made])
    assert "F ?." in load_questions([made])["0"].prompt
    response = " so\nAction 1: see \udc00 there\nAction 2: Finish[The answer is A.]"
    (tmp_path / "published.json").write_text(json.dumps([{"id": 0, "response": response}]))
    out = str(tmp_path / "t.jsonl")
    collect.main(["--import-file", str(tmp_path / "published.json"), "--data", data, "--output", out])
    assert next(read([out]))["responses"][0]["text"].split("\n")[1] == "Action 1: see ? there"


@pytest.mark.parametrize("response", [None, ["a", None]])
def test_a_published_response_that_is_no_text_is_named(response, data, tmp_path):
    (tmp_path / "published.json").write_text(json.dumps([{"id": 0, "response": response}]))
    command = ["--import-file", str(tmp_path / "published.json"), "--data", data, "--output", str(tmp_path / "t.jsonl")]
    with pytest.raises(DataError, match=r"published\.json, item 0: 'response' must be a text or a list of texts"):
        collect.main(command)


def test_other_options_do_not_mix(data, collected, tmp_path):
    with serving() as (url, _), pytest.raises(JournalError, match="temperature"):
        collect.main(collect_args(data, url, collected, "--temperature", "0.1"))


def test_teach_gives_zero_shot_sft_data(data, tmp_path):
    out, sft = tmp_path / "t.jsonl", tmp_path / "sft.parquet"
    with serving() as (url, faults):
        teach.main(collect_args(data, url, out, "--sft-output", str(sft)))
    assert all(REACT_EXAMPLE in prompt for prompt in faults.seen)
    rows = pyarrow.parquet.read_table(sft).to_pylist()
    right = [(r["id"], x["text"]) for r in records(out) for x in r["responses"] if x["correct"]]
    assert sorted((row["id"], row["response"]) for row in rows) == sorted((key, f" {text}") for key, text in right)
    assert all(REACT_EXAMPLE not in row["prompt"] and row["prompt"].endswith("Thought 1:") for row in rows)


def test_complete_counts_hits(data, sampled_states, tokenizer_folder, tmp_path, capsys):
    out = tmp_path / "v.jsonl"
    with serving() as (url, faults):
        complete.main(complete_args(data, url, sampled_states, tokenizer_folder, out, "--keep-completions"))
    questions, wanted = load_questions([data]), by_key(sampled_states)
    found = by_key(out)
    assert set(found) == set(wanted)
    for key, record in found.items():
        gold = questions[record["id"]].gold
        hits = sum(text.rpartition("Finish[The answer is ")[2][:1] == gold for text in record["completions"])
        assert record["value"] == hits and record["prefix_length"] == len(wanted[key]["prefix"])
    tokenizer = byte_level_tokenizer()
    asked = {tuple(encode_state(tokenizer, questions[s["id"]].prompt, s["prefix"], s["rest"])) for s in wanted.values()}
    assert set(map(tuple, faults.seen)) == asked
    assert "75.0%" in capsys.readouterr().out


def test_complete_refuses_what_it_cannot_continue(data, sampled_states, tokenizer_folder, tmp_path):
    arguments = complete_args(data, closed_port(), sampled_states, tokenizer_folder, tmp_path / "v.jsonl")
    with pytest.raises(SystemExit, match="chat completions cannot go on"):
        complete.main([*arguments, "--chat"])
    with pytest.raises(ValueError, match="pass its folder or id with --tokenizer"):
        complete.main([*arguments, "--tokenizer", str(tmp_path)])


def complete_args(data, url, sampled_states, tokenizer_folder, output, *more):
    base = ["--data", data, "--states", sampled_states, "--endpoint", url, "--model", "scripted"]
    base += ["--tokenizer", tokenizer_folder]
    return [*base, "--output", str(output), "--concurrency", "4", "--attempts", "3", *more]


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    byte_level_tokenizer().save_pretrained(folder)
    return str(folder)


def score_args(data, collected, tokenizer_folder, url, output, *more):
    base = ["--data", data, "--trajectories", collected, "--prm", tokenizer_folder, "--endpoint", url]
    return [*base, "--output", str(output), "--concurrency", "4", "--attempts", "3", *more]


def test_the_whole_offline_path_without_a_model(data, collected, tokenizer_folder, tmp_path):
    with serving() as (url, _):
        score.main(score_args(data, collected, tokenizer_folder, url, tmp_path / "scores.jsonl"))
    found = by_key(tmp_path / "scores.jsonl")
    for record in records(collected):
        scored = found[record["key"]]
        assert len(scored["scores"]) == len(record["responses"]) and not scored["unscored"]
        for entry in scored["scores"]:
            text = record["responses"][entry["response_index"]]["text"]
            assert entry["kinds"] == ["Thought", *[line.split(" ")[0] for line in text.split("\n")[1:]]]
            assert all(
                abs(p[2] + p[3] - s) < 1e-5 for p, s in zip(entry["probabilities"], entry["step_scores"], strict=True)
            )
    command = ["--trajectories", collected, "--scores", str(tmp_path / "scores.jsonl"), "--margin", "0.001"]
    pairs.main([*command, "--output", str(tmp_path / "pairs.jsonl")])
    kinds = [record["kind"] for record in records(tmp_path / "pairs.jsonl")]
    counts = [[r["correct"] for r in record["responses"]] for record in records(collected)]
    assert kinds.count("contrastive") == sum(sum(c) * (len(c) - sum(c)) for c in counts)
    assert kinds.count("positive") > 0


# Faults of the endpoint


@pytest.mark.parametrize("fault", ["503", "junk", "hang up"])
def test_a_fault_that_passes_costs_nothing(data, collected, tmp_path, fault):
    with serving(Faults(first=(fault, 2))) as (url, _):
        collect.main(collect_args(data, url, tmp_path / "t.jsonl"))
    assert by_key(tmp_path / "t.jsonl") == by_key(collected)


@pytest.mark.parametrize(
    ("fault", "reason", "sent"),
    [("503", "http_503", 3), ("wrong shape", "junk_reply", 3), ("slow", "time_out", 3), ("400", "http_400", 1)],
)
def test_a_fault_that_stays_is_skipped_within_bounds_then_ends_the_run(data, tmp_path, fault, reason, sent):
    out = tmp_path / "t.jsonl"
    started = time.monotonic()
    with serving(Faults(every=fault)) as (url, faults), pytest.raises(BudgetSpent, match=reason):
        collect.main(collect_args(data, url, out, "--timeout", "0.3", "--failure-min-count", "3", "--concurrency", "2"))
    assert time.monotonic() - started < 40
    assert records(out) == []
    assert 3 * sent <= faults.count <= 5 * sent


def test_an_endpoint_that_refuses_every_request_ends_the_run_at_once(data, tmp_path):
    with serving(Faults(every="404")) as (url, faults), pytest.raises(EndpointError, match="HTTP 404"):
        collect.main(collect_args(data, url, tmp_path / "t.jsonl"))
    assert faults.count <= 4


def test_an_endpoint_that_is_down(data, tmp_path):
    with pytest.raises(BudgetSpent, match="unreachable"):
        collect.main(collect_args(data, closed_port(), tmp_path / "t.jsonl", "--failure-min-count", "2"))


def test_skips_within_the_budget_leave_no_record_and_are_filled_in_later(data, collected, tmp_path):
    out = tmp_path / "t.jsonl"
    once = ["--attempts", "1", "--failure-budget", "0.5"]
    with serving(Faults(share=0.25)) as (url, _):
        collect.main(collect_args(data, url, out, *once))
    assert 0 < len(records(out)) < 24
    with serving() as (url, faults):
        collect.main(collect_args(data, url, out, *once))
    assert faults.count == 24 - 18
    assert by_key(out) == by_key(collected)


@pytest.mark.parametrize("fault", ["503", "wrong shape", "nan"])
def test_a_broken_prm_is_never_a_zero(data, collected, tokenizer_folder, tmp_path, fault):
    out = tmp_path / "s.jsonl"
    more = ["--timeout", "0.3", "--failure-min-count", "3", "--concurrency", "2"]
    with serving(Faults(every=fault)) as (url, _), pytest.raises(BudgetSpent):
        score.main(score_args(data, collected, tokenizer_folder, url, out, *more))
    assert records(out) == []


# SIGKILL


def killed_and_resumed(arguments: list[str], output: Path, want: int) -> int:
    """Run a stage in a child until it ends; the first time, kill it as soon as it has written something new."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    kills = 0
    for _ in range(6):
        before = output.stat().st_size if output.exists() else 0
        child = subprocess.Popen(
            [sys.executable, "-m", *arguments], cwd=REPOSITORY, env=environment, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + 90
        while child.poll() is None and time.monotonic() < deadline:
            if kills < 1 and output.exists() and output.stat().st_size > before:
                child.send_signal(signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.005)
        code = child.wait(timeout=90)
        if code == 0:
            return kills
        assert code == -signal.SIGKILL, code
        assert len(records_whole(output)) < want
    raise AssertionError("the stage did not end")


def records_whole(path: Path) -> list[dict]:
    return [r for r in map(json.loads, path.read_bytes().split(b"\n")[:-1]) if "key" in r]


@pytest.fixture
def many_trajectories(tmp_path):
    """Enough of them that the stages without a model are killed while they write."""
    body = "\n".join(["first", *[f"Observation {i}: it is shown {'x' * 40}" for i in range(12)]])
    with open(tmp_path / "t.jsonl", "w") as file:
        for i in range(6000):
            responses = [
                {"text": f"{body}\nAction 9: Finish[The answer is {letter}.] {k}", "correct": letter == "A"}
                for k, letter in enumerate("AAABB")
            ]
            file.write(json.dumps({"key": str(i), "id": str(i), "responses": responses}) + "\n")
    return ["--trajectories", str(tmp_path / "t.jsonl")]


IN_LONG = ("complete", "teach", "states", "score")
"""Stages with the loop of `collect`, which asks an endpoint, or of `pairs`, which reads files."""


@pytest.mark.parametrize(
    "stage", ["collect", "pairs", *(pytest.param(name, marks=pytest.mark.long) for name in IN_LONG)]
)
def test_sigkill(stage, data, collected, sampled_states, tokenizer_folder, many_trajectories, tmp_path):
    """Killed while it writes, run again: the records of a run that was not."""
    sft = tmp_path / "sft.parquet"

    def arguments(url, output):
        return {
            "collect": lambda: collect_args(data, url, output),
            "teach": lambda: collect_args(data, url, output, "--sft-output", str(sft)),
            "complete": lambda: complete_args(data, url, sampled_states, tokenizer_folder, output),
            "score": lambda: score_args(data, collected, tokenizer_folder, url, output),
            "states": lambda: [*many_trajectories, "--output", str(output)],
            "pairs": lambda: [*many_trajectories, "--output", str(output)],
        }[stage]()

    output, whole = tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    module = {
        "collect": collect,
        "teach": teach,
        "complete": complete,
        "score": score,
        "states": states,
        "pairs": pairs,
    }
    with serving(Faults(delay=0.03)) as (url, _):
        module[stage].main(arguments(url, whole))
        taught = sft_rows(sft) if stage == "teach" else None
        command = [f"recipes.step_ppo.pipeline.{stage}", *arguments(url, output)]
        assert killed_and_resumed(command, output, len(records(whole))) == 1
    assert by_key(output) == by_key(whole)
    assert taught is None or sft_rows(sft) == taught


def sft_rows(path):
    """The rows of a file, which is removed."""
    rows = sorted(pyarrow.parquet.read_table(path).to_pylist(), key=lambda row: (row["id"], row["response"]))
    path.unlink()
    return rows


def test_a_corrupt_line_between_stages(data, collected, tmp_path):
    lines = Path(collected).read_text().splitlines(keepends=True)
    broken = tmp_path / "broken.jsonl"
    broken.write_text(lines[0] + lines[1][: len(lines[1]) // 2] + "\n" + "".join(lines[2:]))
    command = ["--trajectories", str(broken), "--output", str(tmp_path / "s.jsonl")]
    with pytest.raises(JournalError, match=r"broken.jsonl, line 2"):
        states.main(command)
