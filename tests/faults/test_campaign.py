"""One fault of the table in one real run: the run ends or goes on as promised, and the same command loses nothing.

The table with what was measured is in README.md beside this file.
"""

import json
import signal

import pytest
from campaign import MOMENTS, VICTIMS, Campaign

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(3000)]
START_SECONDS = 900.0
END_SECONDS = 300.0
CANARIES = {
    "OPENAI_API_KEY": "canary-openai-5b1d",
    "WANDB_API_KEY": "canary-wandb-90ee",
    "HF_TOKEN": "canary-hf-77a2",
    "AWS_SECRET_ACCESS_KEY": "canary-aws-3c3c",
}


@pytest.fixture
def campaign(tmp_path):
    made: list[Campaign] = []

    def begin(recipe: str = "sppo", *more: str, steps: int = 3) -> Campaign:
        made.append(Campaign(recipe, tmp_path / f"run{len(made)}", steps, more))
        return made[-1]

    yield begin
    for one in made:
        one.close()


def hits(run: Campaign) -> list[tuple[str, str]]:
    """The files of a run in which a canary stands."""
    return [
        (str(path), key) for path in run.artefacts() for key in CANARIES.values() if key.encode() in path.read_bytes()
    ]


def hit_at(campaign: Campaign, moment: str, victim: str, number: int, after_step: int = 1):
    """Start, wait until a step is logged and the moment of the next one has come, and hit the victim."""
    attempt = campaign.attempt()
    while after_step not in campaign.logged():
        assert attempt.process.poll() is None, attempt.log.read_text()[-4000:]
        assert attempt.wait_for_title("ray::", START_SECONDS)
    assert attempt.wait_for_moment(moment, START_SECONDS), attempt.log.read_text()[-4000:]
    assert attempt.hit(victim, number), f"no {victim}"
    return attempt


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("victim", ["driver", "training worker", "engine core"])
def test_sigkill_at_a_named_moment(campaign, victim, moment):
    run = campaign()
    attempt = hit_at(run, moment, victim, signal.SIGKILL)
    assert run.wait(attempt, END_SECONDS) != 0
    assert run.finish(START_SECONDS) == 0, attempt.log.read_text()[-4000:]
    assert run.violations() == []


@pytest.mark.parametrize("victim", [name for name in VICTIMS if name not in ("driver", "reward pool")])
def test_a_worker_that_is_asked_to_end(campaign, victim):
    # Ray misses its head after a minute, before which a run of three steps may be over.
    run = campaign(steps=20 if victim == "Ray head" else 3)
    attempt = hit_at(run, "rollout", victim, signal.SIGTERM)
    assert run.wait(attempt, END_SECONDS) not in (0, -signal.SIGKILL)
    assert run.finish(START_SECONDS) == 0, attempt.log.read_text()[-4000:]
    assert run.violations() == []


@pytest.mark.parametrize("victim", ["training worker", "engine core", "reward worker"])
def test_a_worker_that_is_stopped_is_named(campaign, victim):
    """A hang, not a death: after a minute the run ends with the name of what stands still."""
    run = campaign()
    attempt = hit_at(run, "rollout", victim, signal.SIGSTOP)
    assert run.wait(attempt, END_SECONDS) not in (0, -signal.SIGKILL)
    assert "has been stopped for" in attempt.log.read_text()
    assert run.finish(START_SECONDS) == 0, attempt.log.read_text()[-4000:]
    assert run.violations() == []


@pytest.mark.parametrize("recipe", ["sppo", "tandem", "serl", "pasodoble", "step_ppo"])
def test_keys_of_the_environment_stand_in_no_file_of_a_run(campaign, recipe):
    run = campaign(recipe, steps=2)
    run.environment |= CANARIES
    assert run.finish(START_SECONDS) == 0, (run.folder / "log.txt").read_text()[-4000:]
    assert run.violations() == []
    assert {"log.txt", "data.pt", "raylet.out"} <= {path.name for path in run.artefacts()}
    assert hits(run) == []
    print(f"{recipe}: {len(run.artefacts())} files")


def test_a_machine_that_goes_down_while_it_saves(campaign):
    """All processes at once while step 2 is saved: no step is lost or made twice. verl dumps its rollouts later."""
    run = campaign()
    run.environment |= CANARIES
    attempt = run.attempt()
    while 1 not in run.logged():
        assert attempt.process.poll() is None, attempt.log.read_text()[-4000:]
        assert attempt.wait_for_title("ray::", START_SECONDS)
    before = run.logged()[1]
    assert attempt.wait_for_moment("save", START_SECONDS)
    attempt.kill_everything()
    run.codes.append(-signal.SIGKILL)
    assert run.finish(START_SECONDS) == 0, attempt.log.read_text()[-4000:]
    assert run.violations() == []
    assert run.logged()[1] == before
    assert run.prompts().keys() >= {1, 3} and {len(prompts) for prompts in run.prompts().values()} == {16}
    assert {"log.txt", "data.pt", "raylet.out"} <= {path.name for path in run.artefacts()}
    assert hits(run) == []
    assert json.loads(run.metrics.read_text().splitlines()[-1])["step"] == 3
