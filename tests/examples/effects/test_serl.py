"""The experiment on votes: the rewards of its arms, a loop that learns, and a page that says what the logs say."""

import random
from pathlib import Path

import pytest
import serl
from chains import accuracy, prompts, warmed_up

from reward_fns.majority import majority_vote

PAGE = Path(serl.__file__).parent / "serl.md"
VOTE = majority_vote(["4", "4", "4", "5", "5", ""])


def test_rewards_of_each_arm():
    assert serl.rewards_of("votes", VOTE, "5", random.Random(0)) == [1, 1, 1, 0, 0, 0]
    assert serl.rewards_of("truth", VOTE, "5", random.Random(0)) == [0, 0, 0, 1, 1, 0]
    drawn = {tuple(serl.rewards_of("random", VOTE, "5", random.Random(seed))) for seed in range(20)}
    assert drawn == {(1, 1, 1, 0, 0, 0), (0, 0, 0, 1, 1, 0)}


@pytest.fixture
def small(monkeypatch):
    """A world without wrong facts and little warm-up, in which a handful of steps is enough."""
    monkeypatch.setattr(serl, "PROMPTS", 16)
    monkeypatch.setattr(serl, "EVALUATE", 4)
    return {"wrong": 0, "same": 0.0, "seed": 1, "rate": 3e-4, "steps": 8, "warm_up": 100, "low": 0.0, "high": 1.0}


def test_the_loop_learns_from_labels_and_logs_every_step(small):
    records = list(serl.train(small | {"reward": "truth"}))
    assert [record["step"] for record in records] == [0, 4, 8]
    assert all(len(records[-1][metric]) == 4 for metric in serl.METRICS)
    assert records[-1]["trained"] == [16, 16, 16, 16]
    assert records[-1]["greedy"] > records[0]["greedy"] + 0.05


def test_bounds_that_nothing_meets_train_nothing(small):
    records = list(serl.train(small | {"reward": "votes", "steps": 4, "low": 0.99, "high": 0.995}))
    assert records[-1]["trained"] == [0, 0, 0, 0]
    assert records[-1]["greedy"] == records[0]["greedy"]


def test_every_start_leaves_room():
    """To gain on every rung, and to lose on the one whose votes are worse than its greedy responses."""
    for setting, records in serl.read_all(serl.FOLDER):
        assert 0.1 < records[0]["greedy"] < 0.9, setting["name"]


def test_ranks_and_separation_by_hand():
    assert serl.ranks([3.0, 1.0, 3.0]) == [2.5, 1.0, 2.5]
    assert serl.spearman([1, 2, 3], [9, 8, 7]) == pytest.approx(-1)
    assert serl.separation([1, 2, 2], [False, True, False]) == 0.75


def test_the_page_says_what_the_logs_say():
    assert serl.report() in PAGE.read_text(encoding="utf-8")


def test_the_same_setting_gives_the_same_start():
    start = warmed_up(0, 0.0, 0.6, 1, 8)
    warmed_up.cache_clear()
    questions = prompts(1, 50)
    assert accuracy(start, questions, generator=None, greedy=True) == accuracy(
        warmed_up(0, 0.0, 0.6, 1, 8), questions, generator=None, greedy=True
    )
