"""Exported logs, read by Inspect's own reader where inspect-ai is installed.

It does not share an environment with verl well; INSPECT_PYTHON names the interpreter of another one.
"""

import json
import os
import subprocess
import sys

import pytest

from recipes.evaluation import inspect_log
from recipes.evaluation.main import main as evaluate

PYTHON = os.environ.get("INSPECT_PYTHON", sys.executable)
READ = """
import json, sys
from inspect_ai.log import read_eval_log, list_eval_logs
(found,) = list_eval_logs(sys.argv[1])
log = read_eval_log(found)
print(json.dumps({
    "status": log.status, "task": log.eval.task, "model": log.eval.model, "epochs": log.eval.config.epochs,
    "metrics": {name: metric.value for name, metric in log.results.scores[0].metrics.items()},
    "samples": [
        [s.id, s.epoch, s.input, s.target, s.output.completion, s.output.stop_reason, s.scores["verl_duets"].value,
         s.messages[-1].text]
        for s in log.samples
    ],
}))
"""


@pytest.fixture
def exported(tmp_path):
    data = tmp_path / "sums.jsonl"
    golds = ["2", r"\\frac{"]
    data.write_text("\n".join(json.dumps({"problem": f"What is {n}?", "answer": g}) for n, g in enumerate(golds)))
    rows = [
        {"problem": str(n), "sample": i, "response": rf"\boxed{{{2 + i}}}", "tokens": 4, "finish_reason": finish}
        for n in range(2)
        for i, finish in enumerate(["stop", "length"])
    ]
    saved = tmp_path / "saved.jsonl"
    saved.write_text("\n".join(json.dumps(row | {"prompt_tokens": 9}) for row in rows))
    arguments = [f"benchmarks=[{data}]", f"score_only={saved}", f"output_dir={tmp_path / 'out'}"]
    assert evaluate(arguments) == 0
    assert inspect_log.main([str(tmp_path / "out"), "--output", str(tmp_path / "logs")]) == 0
    return tmp_path / "logs"


def test_the_log_holds_every_response_with_its_grade(exported):
    (path,) = exported.glob("*.json")
    log = json.loads(path.read_text())
    assert (log["eval"]["task"], log["eval"]["model"]) == ("sums", "saved")
    values = [sample["scores"]["verl_duets"]["value"] for sample in log["samples"]]
    assert values == ["C", "I", "N", "N"], "a faulty gold answer is no fault of the response"
    assert [sample["epoch"] for sample in log["samples"]] == [1, 2, 1, 2]
    assert log["samples"][1]["output"]["choices"][0]["stop_reason"] == "max_tokens"
    assert log["results"]["scores"][0]["metrics"]["pass@1"]["value"] == 0.5


def test_inspects_own_reader_opens_the_log(exported):
    probe = subprocess.run([PYTHON, "-c", "import inspect_ai"], capture_output=True, timeout=300)
    if probe.returncode:
        pytest.skip("no inspect-ai here; INSPECT_PYTHON may name an interpreter that has it")
    done = subprocess.run([PYTHON, "-c", READ, str(exported)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["status"], found["task"], found["model"], found["epochs"]) == ("success", "sums", "saved", 2)
    assert found["metrics"]["pass@1"] == 0.5
    first, second = found["samples"][:2]
    assert first[:7] == ["0", 1, "What is 0?", "2", r"\boxed{2}", "stop", "C"]
    assert second[5:7] == ["max_tokens", "I"]
    assert first[7] == r"\boxed{2}"


def test_an_unfinished_evaluation_is_refused(tmp_path, capsys):
    assert inspect_log.main([str(tmp_path)]) == 2
    assert "is no output folder of a finished evaluation" in capsys.readouterr().err


def test_what_a_training_run_showed_is_a_log_of_its_steps(tmp_path, capsys):
    """The first step was made again after a kill, and another kill left half a line."""
    line = {"step": 10, "sample": 0, "question": "1 + 1?", "reward": 0.0, "response": "3"}
    lines = [line, line | {"reward": 1.0, "response": "⟦1 + 1⟧ = 2"}, line | {"step": 20}]
    path = tmp_path / "run" / "responses.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps(one) + "\n" for one in lines) + '{"step": 30, "sam')
    assert inspect_log.main([str(path), "--output", str(tmp_path)]) == 0
    (written,) = tmp_path.glob("*.json")
    log = json.loads(written.read_text())
    assert (log["eval"]["task"], log["eval"]["model"]) == ("training", "run")
    found = [(one["id"], one["scores"]["verl_duets"]["value"], one["messages"][1]["content"]) for one in log["samples"]]
    assert found == [("step 10", 1.0, "⟦1 + 1⟧ = 2"), ("step 20", 0.0, "3")]
    assert log["results"]["scores"][0]["metrics"]["mean reward"]["value"] == 0.5
    for other in ('{"step": 1}\n', ""):
        path.write_text(other)
        assert inspect_log.main([str(path)]) == 2 and "no responses of a training run" in capsys.readouterr().err
