"""A whole round in one command, against a scripted policy and a tiny PRM; and SFT rows for verl's trainer."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import psutil
import pytest
import torch

from recipes.core.files import write_parquet
from recipes.step_ppo.pipeline import iterate, prepare
from recipes.step_ppo.pipeline.data import load_questions
from recipes.step_ppo.pipeline.records import open_journal, read
from recipes.step_ppo.sft_dataset import ContinuationDataset

sys.path.insert(0, str(Path(__file__).parent))
from scripted_server import Faults, serving  # noqa: E402
from trajectories import byte_level_tokenizer  # noqa: E402

REPOSITORY = Path(__file__).parents[3]


def keys(path):
    return [record["key"] for record in read([path])]


def test_the_split_ignores_the_order_of_sampling(tmp_path):
    for order in ([3, 0, 11, 2, 1], [1, 2, 11, 0, 3]):
        folder = tmp_path / str(order[0])
        with open_journal(folder / "trajectories.jsonl") as journal:
            journal.extend({"key": str(i), "id": str(i), "responses": []} for i in order)
        for _ in range(2):
            iterate.split_questions(folder, 1, 3)
        assert keys(folder / "dev_trajectories.jsonl") == ["0"]
        assert keys(folder / "prm_trajectories.jsonl") == ["1", "2", "3"]


def test_questions_filled_in_later_move_no_other(tmp_path):
    """`collect` may leave questions out within its budget; the next run of the command fills them in."""
    with open_journal(tmp_path / "trajectories.jsonl") as journal:
        journal.extend({"key": str(i), "id": str(i), "responses": []} for i in (1, 2, 3, 4, 6))
    iterate.split_questions(tmp_path, 2, 3)
    with open_journal(tmp_path / "trajectories.jsonl") as journal:
        journal.extend({"key": str(i), "id": str(i), "responses": []} for i in (0, 5))
    iterate.split_questions(tmp_path, 2, 3)
    assert keys(tmp_path / "dev_trajectories.jsonl") == ["1", "2"]
    assert keys(tmp_path / "prm_trajectories.jsonl") == ["3", "4", "6"]


def test_a_part_that_was_cut_short_is_filled_up(tmp_path):
    with open_journal(tmp_path / "trajectories.jsonl") as journal:
        journal.extend({"key": str(i), "id": str(i), "responses": []} for i in range(6))
    with open_journal(tmp_path / "dev_trajectories.jsonl", {"questions": [2, 3]}) as journal:
        journal.append({"key": "0", "id": "0", "responses": []})
    iterate.split_questions(tmp_path, 2, 3)
    assert keys(tmp_path / "dev_trajectories.jsonl") == ["0", "1"]
    assert keys(tmp_path / "prm_trajectories.jsonl") == ["2", "3", "4"]


def test_dry_run_names_every_stage(capsys):
    command = ["--data", "d.parquet", "--output", "r1", "--previous", "r0", "--model", "m", "--prm-model", "p"]
    iterate.main([*command, "--dry-run", "--pairs-options", "--margin 0.8"])
    lines = capsys.readouterr().out.splitlines()
    names = [shlex.split(line)[3].rpartition(".")[2] for line in lines]
    assert names == ["collect", "states", "complete", "states", "complete", "prm", "score", "pairs"]
    assert "--replay-values r0/values.jsonl --replay-fraction 0.1" in lines[5] and lines[-1].endswith("--margin 0.8")


ROUND = ["--data", "d.parquet", "--output", "r1", "--model", "m", "--prm-model", "p"]


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--replay-fraction", "1.5"], r"--replay-fraction must lie in \[0, 1\], found 1.5"),
        (["--num-completions", "0"], "must be at least 1"),
        (["--prm-questions", "0"], "must be at least 1"),
        (["--dev-questions", "-1"], "at least 0"),
        (["--previous", "nowhere"], "nowhere holds no trajectories.jsonl"),
        (["--endpoint", "http://host:8000"], "no tokenizer found at 'm': pass its folder or id with --tokenizer"),
    ],
)
def test_what_a_later_stage_would_refuse_is_refused_before_the_first(options, fault):
    with pytest.raises(ValueError, match=fault):
        iterate.main([*ROUND, *options])


@pytest.mark.parametrize("stage", [stage for stage in iterate.STAGES if stage != "collect"])
def test_an_option_that_a_later_stage_lacks_is_refused_before_the_first(stage, capsys):
    with pytest.raises(SystemExit) as ended:
        iterate.main([*ROUND, f"--{stage}-options", "--margins 0.8"])
    captured = capsys.readouterr()
    assert ended.value.code == 2 and not captured.out and "unrecognized arguments: --margins 0.8" in captured.err


def test_the_prm_alone_starts_on_several_devices(capsys):
    iterate.main([*ROUND, "--dry-run", "--prm-launcher", "accelerate launch --num_processes 4"])
    for line in capsys.readouterr().out.splitlines():
        words = shlex.split(line.removeprefix("+ "))
        launched = words[: words.index("-m")]
        assert launched == (
            ["accelerate", "launch", "--num_processes", "4"]
            if "recipes.step_ppo.pipeline.prm" in words
            else [sys.executable]
        )


SEVEN_BILLION = dict(
    vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32
)


@pytest.fixture
def gpus(monkeypatch):
    """Say how many GPUs there are, of 80 GB each."""

    def have(count):
        properties = types.SimpleNamespace(total_memory=80 * 2**30)
        monkeypatch.setattr("torch.cuda.device_count", lambda: count)
        monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: properties)

    return have


def round_of(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    return ["--data", "d.parquet", "--output", str(tmp_path / "r"), "--model", "m", "--prm-model", str(tmp_path)]


def test_a_prm_too_large_for_one_of_several_devices_needs_a_launcher(tmp_path, gpus, capsys):
    gpus(4)
    command = [*round_of(tmp_path, SEVEN_BILLION), "--dry-run"]
    with pytest.raises(ValueError, match=r"in one process takes 10\d GB.* 80 GB: .*--prm-launcher 'accelerate l"):
        iterate.main(command)
    for more in (["--prm-launcher", "accelerate launch"], ["--prm-options", "--deepspeed zero3.json"]):
        assert iterate.main([*command, *more]) == 0
    (tmp_path / "r" / "prm").mkdir(parents=True)
    (tmp_path / "r" / "prm" / "finished.json").write_text("{}")
    assert iterate.main(command) == 0, "nothing is left to train"


@pytest.mark.parametrize(("count", "layers"), [(0, 32), (1, 32), (4, 4)])
def test_other_rounds_need_none(tmp_path, gpus, capsys, count, layers):
    gpus(count)
    command = round_of(tmp_path, SEVEN_BILLION | {"num_hidden_layers": layers})
    assert iterate.main([*command, "--dry-run"]) == 0
    (tmp_path / "config.json").unlink()
    assert iterate.main([*command, "--dry-run"]) == 0, "sizes that are not at hand are no reason to refuse"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_rounds(tmp_path):
    from test_prm import language_model

    tokenizer = byte_level_tokenizer()
    model = language_model(tmp_path / "lm", tokenizer)
    items = [{"text": f"F {i}.", "question": "Q?", "options": list("wxyz"), "answer": i % 2} for i in range(12)]
    (tmp_path / "train.txt").write_text("".join(json.dumps(item) + "\n" for item in items))
    data = str(tmp_path / "p.parquet")
    prepare.main(["--dataset", "logiqa2", "--files", str(tmp_path / "train.txt"), "--output", data])
    with serving() as (url, faults):
        for number in range(2):
            folder = tmp_path / f"round{number}"
            command = [
                "--data", data, "--output", str(folder), "--model", "scripted", "--endpoint", url,
                "--prm-model", model if number == 0 else str(tmp_path / "round0" / "prm"),
                "--prm-questions", "6", "--dev-questions", "2", "--seed", str(number), "--collect-options", "--n 4",
                "--complete-options", f"--tokenizer {model}",
                "--prm-options", "--max-steps 2 --warmup-steps 0 --dtype float32", "--pairs-options", "--margin 0.0",
            ]  # fmt: skip
            if number:
                command += ["--previous", str(tmp_path / "round0")]
            assert iterate.main(command) == 0
            if number == 0:
                asked = faults.count
                assert iterate.main(command) == 0 and faults.count == asked
            trained = {record["id"] for record in read([folder / "values.jsonl"])}
            made = list(read([folder / "pairs.jsonl"]))
            assert len(keys(folder / "trajectories.jsonl")) == 12 and 0 < len(trained) <= 6
            assert any(r["kind"] == "positive" for r in made)
            assert not any(r["kind"] == "positive" and r["id"] in trained for r in made)
            assert (folder / "prm" / "backbone" / "config.json").is_file()
    statistics = [json.loads((tmp_path / f"round{i}/prm/finished.json").read_text())["statistics"] for i in (0, 1)]
    assert all(found["train_prefixes"] > 0 and found["dev_count"] > 0 for found in statistics)
    assert len(load_questions([data])) == 12


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_round_that_is_killed_again_and_again(tmp_path):
    """SIGKILL of the command alone, in collect, in complete and in prm: its stage ends with it, nothing is lost or
    doubled, and the round is the one that an uninterrupted command makes."""
    from test_prm import language_model

    tokenizer = byte_level_tokenizer()
    model = language_model(tmp_path / "lm", tokenizer)
    items = [{"text": f"F {i}.", "question": "Q?", "options": list("wxyz"), "answer": i % 2} for i in range(16)]
    (tmp_path / "train.txt").write_text("".join(json.dumps(item) + "\n" for item in items))
    data = str(tmp_path / "p.parquet")
    prepare.main(["--dataset", "logiqa2", "--files", str(tmp_path / "train.txt"), "--output", data])
    folder, whole = tmp_path / "round", tmp_path / "whole"

    def command(url: str, output: Path) -> list[str]:
        return [
            "--data", data, "--output", str(output), "--model", "scripted", "--endpoint", url, "--prm-model", model,
            "--prm-questions", "10", "--dev-questions", "0", "--collect-options", "--n 4 --concurrency 1",
            "--complete-options", f"--concurrency 1 --tokenizer {model}",
            "--prm-options", "--max-steps 30 --warmup-steps 0 --dtype float32 --save-steps 5 --learning-rate 1e-3",
            "--pairs-options", "--margin 0.0",
        ]  # fmt: skip

    with serving(Faults(delay=0.05)) as (url, _):
        assert iterate.main(command(url, whole)) == 0
        for watched in ("trajectories.jsonl", "values.jsonl", "prm/checkpoint-5/trainer_state.json"):
            child = subprocess.Popen(
                [sys.executable, "-m", "recipes.step_ppo.pipeline.iterate", *command(url, folder)],
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            )
            while child.poll() is None and not ((folder / watched).is_file() and (folder / watched).stat().st_size):
                time.sleep(0.005)
            stages = psutil.Process(child.pid).children(recursive=True)
            child.kill()
            assert child.wait() == -signal.SIGKILL and not (folder / "pairs.jsonl").exists()
            assert psutil.wait_procs(stages, timeout=20)[1] == [], "a stage outlived its command"
        assert iterate.main(command(url, folder)) == 0
    for name in ("trajectories", "values", "states", "scores", "pairs"):
        made, wanted = (list(read([path / f"{name}.jsonl"])) for path in (folder, whole))
        assert len(made) == len(wanted) > 0
        if name not in ("scores", "pairs"):
            assert sorted(made, key=by_key) == sorted(wanted, key=by_key)
    for path in (folder, whole):
        assert json.loads((path / "prm" / "finished.json").read_text())["statistics"]["train_prefixes"] > 0


def by_key(record: dict) -> str:
    return record["key"]


def test_sft_rows(tmp_path):
    tokenizer = byte_level_tokenizer()
    write_parquet(tmp_path / "s.parquet", [{"prompt": "Q\n\nThought 1:", "response": " so it is", "id": "0"}] * 2)
    rows = ContinuationDataset(str(tmp_path / "s.parquet"), tokenizer, {"max_length": 64, "pad_mode": "no_padding"})
    item = rows[1]
    trained = item["input_ids"][item["loss_mask"].bool()].tolist()
    assert len(rows) == 2 and trained[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(trained[:-1]) == " so it is" and item["loss_mask"][0] == 0
    padded = ContinuationDataset([str(tmp_path / "s.parquet")], tokenizer, {"max_length": 64, "pad_mode": "right"})[0]
    length = len(item["input_ids"])
    assert padded["input_ids"].shape == (64,) and padded["attention_mask"].sum() == length
    assert torch.equal(padded["loss_mask"][:length], item["loss_mask"]) and padded["loss_mask"][length:].sum() == 0
    with pytest.raises(ValueError, match="more than data.max_length=4"):
        ContinuationDataset(str(tmp_path / "s.parquet"), tokenizer, {"max_length": 4})[0]
