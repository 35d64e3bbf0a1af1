"""The quickstart's supervisor: progress from the metrics file, and nothing left running after a signal."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from quickstart_train import follow

from recipes.launch.resume import carry_metrics_over, join_metrics

SCRIPT = Path(__file__).parents[2] / "examples" / "quickstart_train.py"


def supervisor(tmp_path, code, steps=2):
    command = [sys.executable, str(SCRIPT), "--steps", str(steps), "--metrics", str(tmp_path / "metrics.jsonl")]
    command += ["--log", str(tmp_path / "train.log"), "--", sys.executable, "-c", code, str(tmp_path)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "HOME": str(tmp_path)}
    )


def test_follow_yields_whole_records_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    records = follow(path)
    assert next(records) == []
    path.write_text('{"step": 1}\n{"st')
    assert next(records) == [{"step": 1}]
    assert next(records) == []
    with path.open("a") as file:
        file.write('ep": 2}\n{"step": 3}\n')
    assert next(records) == [{"step": 2}, {"step": 3}]


def test_follow_of_a_run_that_goes_on(tmp_path):
    """Its file begins anew, and gets the earlier records back at its end, as `recipes.launch` does it."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step":{step},"data":{{}}}}\n' for step in range(3)))
    carry_metrics_over(path, 1)
    records = follow(path)
    assert [record["step"] for record in next(records)] == [0, 1, 2]
    with path.open("wb") as file:
        assert next(records) == []
        file.write(b'{"step":1,"data":{"a":1}}\n')
        for step in range(2, 9):
            file.write(f'{{"step":{step},"data":{{}}}}\n'.encode())
            file.flush()
            assert [record["step"] for record in next(records)] == ([step] if step > 2 else [])
    join_metrics(path)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == list(range(9))
    assert next(records) == next(records) == []


def test_progress_and_status_of_a_run_that_ends(tmp_path):
    code = """
import json, sys
print("hello from the run")
with open(sys.argv[1] + "/metrics.jsonl", "w") as file:
    for record in (
        {"step": 0, "data": {"val-core/toy_arithmetic/acc/mean@1": 0.25}},
        {"step": 1, "data": {"critic/score/mean": 0.3}},
        {"step": 2, "data": {"critic/score/mean": 0.4, "val-core/toy_arithmetic/acc/mean@1": 0.5}},
    ):
        file.write(json.dumps(record) + "\\n")
"""
    process = supervisor(tmp_path, code)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0
    assert "held-out accuracy 25.0%" in output and "held-out accuracy 50.0%" in output
    assert "reward 0.400" in output and "2/2" in output
    assert "hello from the run" in (tmp_path / "train.log").read_text()


def test_a_run_that_loads_for_long_says_what_it_does(tmp_path):
    """A second instead of sixty between two lines; the stages are those that the run tells."""
    code = """
import sys, time
time.sleep(3)
print("sppo: the training workers load the model (3 s)", file=sys.stderr, flush=True)
time.sleep(3)
"""
    run = (
        f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import quickstart_train as q; q.SILENT_SECONDS = 1.0"
    )
    run += f"; from pathlib import Path; t = Path({str(tmp_path)!r})"
    run += f"; sys.exit(q.supervise([sys.executable, '-c', {code!r}], 2, t / 'metrics.jsonl', t / 'train.log'))"
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if " s: " in line]
    assert len(lines) >= 3
    assert "starting Ray" in lines[0] and "the training workers load the model" in lines[-1]


def test_a_failing_run_shows_the_end_of_its_log(tmp_path):
    process = supervisor(tmp_path, "import sys; print('the reason'); sys.exit(7)")
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 7
    assert "the reason" in errors and "status 7" in errors.splitlines()[-1]


# The run starts a child that starts a grandchild in its own session and then dies, as Ray's daemons do.
GRANDCHILD = "import signal, time; [signal.signal(s, signal.SIG_IGN) for s in (2, 15)]; time.sleep(600)"
CHILD = f"""
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", {GRANDCHILD!r}], start_new_session=True).pid, flush=True)
time.sleep(4)
"""
STUBBORN = f"""
import json, os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE, text=True)
orphan = int(child.stdout.readline())
child.wait()
with open(sys.argv[1] + "/pids.partial", "w") as file:
    json.dump([os.getpid(), orphan], file)
os.rename(sys.argv[1] + "/pids.partial", sys.argv[1] + "/pids")
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing_running(tmp_path, number):
    process = supervisor(tmp_path, STUBBORN)
    deadline = time.monotonic() + 60
    while not (tmp_path / "pids").exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.2)
    pids = json.loads((tmp_path / "pids").read_text())
    assert all(psutil.pid_exists(pid) for pid in pids)
    process.send_signal(number)
    process.communicate(timeout=100)
    assert process.returncode == 128 + number
    assert not [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
