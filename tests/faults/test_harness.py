"""The harness itself, on a run that takes seconds: it is content with one that resumes, and sees what is lost."""

import subprocess
import sys
import time

import campaign
import pytest
from campaign import Attempt, Campaign

# A run as verl's: each step takes a while, is dumped, logged and saved; it goes on behind its last checkpoint.
RUN = """
import json, os, sys, time, zipfile
from pathlib import Path
from recipes.launch import resume
folder, steps, lie = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
checkpoints, metrics = folder / "checkpoints", folder / "metrics.jsonl"
first = resume.resume_step(checkpoints)[0]
resume.carry_metrics_over(metrics, first)
if first < steps:
    (folder / "rollouts").mkdir(exist_ok=True)
    metrics.write_text("")
    for step in range(first + 1, steps + 1):
        time.sleep(0.3)
        prompt = f"prompt {step}" if lie != "other prompts" or step == 1 else "prompt 1"
        (folder / "rollouts" / f"{step}.jsonl").write_text(json.dumps({"input": prompt}) + "\\n")
        if not (lie == "a lost line" and step == 2):
            with metrics.open("a") as file:
                file.write(json.dumps({"step": step, "data": {"loss": 1.0}}) + "\\n")
        records = checkpoints / "filtered_data"
        records.mkdir(parents=True, exist_ok=True)
        number = 1 if lie == "a doubled record" else step - 1
        (records / f"keep_{step}.jsonl").write_text(json.dumps({"idx": number}) + "\\n")
        actor = checkpoints / f"global_step_{step}" / "actor"
        actor.mkdir(parents=True, exist_ok=True)
        for path in (actor / "model_world_size_1_rank_0.pt", actor.parent / "data.pt"):
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("data", "x")
        if not (lie == "no last checkpoint" and step == steps):
            (checkpoints / "latest_checkpointed_iteration.txt").write_text(str(step))
    if lie == "no last checkpoint":
        (checkpoints / f"global_step_{steps}" / "data.pt").unlink()
resume.join_metrics(metrics)
resume.restore_metrics(metrics)
if lie == "scratch":
    (checkpoints / ".state.json.1.partial").write_text("")
sys.exit(1 if lie == "a failure" else 0)
"""


@pytest.fixture
def short_runs(monkeypatch):
    """Let campaigns start this run in the place of a recipe."""
    lies = {"lie": "none"}
    monkeypatch.setattr(campaign, "toy_world", lambda world: "/nowhere")

    def attempt(self):
        log = self.folder / "log.txt"
        command = [sys.executable, "-c", RUN, str(self.folder), str(self.steps), lies["lie"]]
        with log.open("ab") as stream:
            process = campaign.subprocess.Popen(
                command, env=self.environment, stdout=stream, stderr=stream, start_new_session=True
            )
        return Attempt(process, log)

    monkeypatch.setattr(Campaign, "attempt", attempt)
    return lies


def test_a_run_that_nobody_interrupts_violates_nothing(short_runs, tmp_path):
    run = Campaign("sppo", tmp_path / "run", 3)
    assert run.finish(60) == 0 and run.violations(run) == []
    run.close()


@pytest.mark.parametrize(
    ("lie", "told"),
    [
        ("a failure", "ended with code 1"),
        ("a lost line", "the metrics have steps"),
        ("a doubled record", "twice"),
        ("other prompts", "other prompts"),
        ("no last checkpoint", "the last complete checkpoint is 2"),
        ("scratch", "left behind"),
    ],
)
def test_each_loss_is_told(short_runs, tmp_path, lie, told):
    reference, run = Campaign("sppo", tmp_path / "reference", 3), Campaign("sppo", tmp_path / "run", 3)
    assert reference.finish(60) == 0
    short_runs["lie"] = lie
    run.finish(60)
    assert any(told in sentence for sentence in run.violations(reference)), run.violations(reference)
    reference.close()
    run.close()


def test_a_run_that_never_began_is_a_finding(short_runs, tmp_path):
    made = Campaign("sppo", tmp_path / "run", 3)
    made.codes.append(2)
    found = made.violations()
    made.close()
    assert any("ended with code 2" in sentence for sentence in found)
    assert "the metrics have steps []" in found


def test_a_rollout_is_seen_by_the_time_that_its_actor_takes(tmp_path):
    """Idle at first, busy after two seconds, over after four."""
    loop = "while (left := until - time.monotonic()) > 0:\n    left < 2 or time.sleep(0.1)"
    actor = f"import time\nuntil = time.monotonic() + 4\n{loop}"
    driver = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {actor!r}, 'ray::AgentLoopWorker'])"
    attempt = Attempt(subprocess.Popen([sys.executable, "-c", driver]), tmp_path / "log.txt")
    assert attempt.wait_for_title("ray::AgentLoopWorker", 60)
    began = time.monotonic()
    assert attempt.wait_for_moment("rollout", 60) and time.monotonic() - began > 1
    assert not attempt.wait_for_title("no such actor", 60) and attempt.process.poll() == 0
    assert not attempt.wait_for_moment("rollout", 60)
