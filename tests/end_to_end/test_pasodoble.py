"""PasoDoble as a user runs it: two policies train, are killed and resume; and who is touched by which update."""

import json
import re
from pathlib import Path

import pytest
import torch

# Two online steps are run in every CI by test_quickstart.py.
pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1200)]
MODULE = "recipes.pasodoble.main"
SMALL = (
    "scale=toy",
    "pasodoble.rounds_per_step=5",
    "pasodoble.log_digests=true",
    "pasodoble.log_problems_every=1",
    "data.val_max_samples=32",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
    "trainer.default_local_dir=checkpoints",
)
ROLES = ("solver", "proposer")


@pytest.fixture
def begin(start, world):
    """Start PasoDoble on its toy world."""
    return lambda *overrides: start(MODULE, *overrides, environment={"TOY_DIR": str(world("pasodoble"))})


def digests(log: str) -> list[tuple[str, dict[str, str]]]:
    """What was printed of both policies' parameters, as (when, digest by role), in order."""
    found = re.findall(r"parameter digests, ([^:]+): (\{.*?\})", log)
    return [(when, json.loads(digest)) for when, digest in found]


def state(folder: Path, step: int) -> dict:
    return json.loads((folder / f"checkpoints/global_step_{step}/pasodoble.json").read_text().splitlines()[1])


def adam_steps(folder: Path, step: int, role: str) -> set[int]:
    """Steps the optimizer of a role has made, by its own count."""
    place = folder / f"checkpoints/global_step_{step}" / ("actor" if role == "solver" else role)
    (path,) = place.glob("optim_world_size_*_rank_0.pt")
    optimizer = torch.load(path, map_location="cpu", weights_only=False)
    return {int(entry["step"]) for entry in optimizer["state"].values()}


def agree(metrics: dict) -> None:
    """Both rollouts sampled from the policy that was trained."""
    for role in ROLES:
        if f"{role}/actor/grad_norm" in metrics:
            assert metrics[f"{role}/training/rollout_probs_diff_mean"] < 1e-5
            assert metrics[f"{role}/actor/grad_norm"] > 0


def train_kill_resume(begin, variant: list[str], kill_after: int, last: int):
    """Kill a run in the step after ``kill_after``, start it again; checkpoints are those of even steps."""
    arguments = [*SMALL, *variant, "trainer.save_freq=2", f"trainer.test_freq={last}"]
    arguments.append(f"trainer.total_training_steps={last}")
    first = begin(*arguments)
    first.wait_for_step(kill_after)
    before, cut = first.metrics(), len(first.log)
    first.kill()
    saved = kill_after // 2 * 2
    saved_state = state(first.folder, saved)
    second = begin(*arguments)
    assert second.wait() == 0, second.log[-6000:]

    metrics = second.metrics()
    assert sorted(metrics) == list(range(1, last + 1))
    assert all(metrics[step] == before[step] for step in range(1, saved + 1)), "the curve before the kill is kept"
    for values in metrics.values():
        agree(values)
    assert any(key.startswith("val-") and key.endswith("/acc/mean@1") for key in metrics[last])

    by_time = dict(digests(second.log[:cut]))
    (when, resumed), *_ = digests(second.log[cut:])
    assert when == "start" and resumed == by_time[f"step {saved}"]
    assert resumed != by_time["start"]
    final = state(second.folder, last)
    for role in ROLES:
        assert adam_steps(second.folder, saved, role) == {saved_state["updates"][role]}
        assert adam_steps(second.folder, last, role) == {final["updates"][role]}
        assert metrics[last][f"game/updates/{role}"] == final["updates"][role] > saved_state["updates"][role]
    old, new = (one["history"]["questions"] for one in (saved_state, final))
    assert any(old[dropped:] == new[: len(old) - dropped] for dropped in range(len(old))), "the history goes on"
    return second, saved_state, final


def test_online_train_kill_resume(begin):
    run, saved, final = train_kill_resume(begin, ["variant=online"], kill_after=3, last=4)
    assert saved["documents_drawn"] == 2 * 5 and final["documents_drawn"] == 4 * 5
    problems = [json.loads(line) for line in (run.folder / "checkpoints/problems.jsonl").read_text().splitlines()]
    steps = [problem["step"] for problem in problems]
    assert steps == sorted(steps), "what the killed attempt wrote of a step that came again is gone"
    assert sum(problem["fault"] is None for problem in problems) > len(problems) / 2
    from recipes.launch import leftovers

    assert leftovers.dead_runs() == []


def test_offline_train_kill_resume(begin):
    offline = ["variant=offline", "pasodoble.offline.proposer_updates=3", "pasodoble.offline.solver_updates=2"]
    # two iterations bring about a hundred questions, which would push all older ones out of the usual history
    offline.append("pasodoble.round.history_size=1000")
    run, saved, final = train_kill_resume(begin, offline, kill_after=3, last=4)
    old, new = saved["buffer"]["questions"], final["buffer"]["questions"]
    assert 0 < len(old) < len(new) and new[: len(old)] == old
    assert final["documents_drawn"] > saved["documents_drawn"] > 0


def test_each_phase_of_the_offline_variant_changes_one_policy_only(begin):
    run = begin(*SMALL, "variant=offline", "trainer.total_training_steps=1")
    assert run.wait() == 0, run.log[-6000:]
    (metrics,) = run.metrics().values()
    assert metrics["game/updates/proposer"] == 10 and metrics["game/updates/solver"] == 5
    phases = dict(digests(run.log))
    begin, between, end = phases["start"], phases["step 1, proposer phase"], phases["step 1, solver phase"]
    assert between["solver"] == begin["solver"] and between["proposer"] != begin["proposer"]
    assert end["proposer"] == between["proposer"] and end["solver"] != between["solver"]


@pytest.mark.parametrize(("frozen", "trained"), [("proposer", "solver"), ("solver", "proposer")])
def test_a_frozen_role_stays_bit_identical(begin, frozen, trained):
    run = begin(*SMALL, f"pasodoble.train_{frozen}=false", "trainer.total_training_steps=6")
    assert run.wait() == 0, run.log[-6000:]
    seen = [digest for _, digest in digests(run.log)]
    assert len(seen) == 7 and len({digest[frozen] for digest in seen}) == 1
    metrics = run.metrics()
    assert metrics[6][f"game/updates/{trained}"] >= 4 and metrics[6][f"game/updates/{frozen}"] == 0
    assert len({digest[trained] for digest in seen}) == 1 + metrics[6][f"game/updates/{trained}"]
    for values in metrics.values():
        agree(values)


def test_skipped_rounds_leave_both_policies_bit_identical(begin):
    run = begin(*SMALL, "pasodoble.round.tau_low=0.98", "trainer.total_training_steps=3")
    assert run.wait() == 0, run.log[-6000:]
    seen = [digest for _, digest in digests(run.log)]
    assert len(seen) == 4 and all(digest == seen[0] for digest in seen)
    assert all(metrics["game/skipped"] == 1 for metrics in run.metrics().values())


def test_each_role_on_devices_of_its_own(begin):
    run = begin(*SMALL, "pasodoble.layout=separate", "trainer.total_training_steps=2")
    assert run.wait() == 0, run.log[-6000:]
    for metrics in run.metrics().values():
        agree(metrics)
