"""Flips of the majority label between visits of a prompt."""

import json

import pytest

from recipes.serl.collection import Group
from recipes.serl.label_history import LabelHistory, Visits, flip_weight
from recipes.serl.pool import Instruction


def step(*labels, origin="dataset"):
    return [Group(Instruction(idx, "?", origin), 0.5, answer=answer) for idx, answer in labels]


def test_a_flip_is_another_label_than_at_the_visit_before():
    history = LabelHistory()
    assert history.observe(step((0, "1"), (1, "2"), (2, "3"))) == {}
    assert history.observe(step((0, "1"), (1, "5"), (7, "1"))) == {"serl/vote/flip_rate": 0.5, "serl/vote/revisited": 2}
    assert history.observe(step((1, "2"))) == {"serl/vote/flip_rate": 1.0, "serl/vote/revisited": 1}
    assert history.observe(step((1, "2"), (0, "1"))) == {"serl/vote/flip_rate": 0.0, "serl/vote/revisited": 2}


def test_writing_the_same_number_otherwise_is_no_flip():
    history = LabelHistory()
    history.observe(step((0, "1/2"), (1, "x + 1")))
    assert history.observe(step((0, " 1/2 "), (1, "x+1")))["serl/vote/flip_rate"] == 0


def test_an_equal_number_written_otherwise_is_no_flip_and_stays_one_label():
    history = LabelHistory()
    for label in ("1/2", "0.5", r"\frac{1}{2}", "0.50", "1/2"):
        group = Group(Instruction(0, "?", "dataset"), 0.9, answer=label, handle="u")
        assert history.observe([group]).get("serl/vote/flip_rate", 0.0) == 0
    assert history.weights([group]) == {"u": 0.85}


def test_prompts_that_do_not_return_and_groups_without_a_label_have_no_part():
    history = LabelHistory()
    for _ in range(2):
        assert history.observe(step((0, "1"), origin="generated")) == {}
        assert history.observe(step((1, None))) == {}


def test_a_restored_history_goes_on():
    history, restored = LabelHistory(), LabelHistory()
    history.observe(step((0, "1"), (3, "2")))
    restored.load_state_dict(json.loads(json.dumps(history.state_dict())))
    assert restored.observe(step((0, "2"), (3, "2"))) == {"serl/vote/flip_rate": 0.5, "serl/vote/revisited": 2}


@pytest.mark.parametrize(
    ("labels", "shares", "weight"),
    [
        (["1", "2"], [0.5, 0.75], 0.35),
        (["1", "2"], [0.5, 0.5], 0.5),
        (["1", "2"], [0.5, 0.6], 0.5),
        (["1", "1", "2"], [0.5, 0.75, 0.5], 0.5),
        (["1", "1"], [0.5, 0.75], 1.0),
        (["1"] * 5, [0.8] * 5, 0.85),
        (["1"] * 4, [0.8] * 4, 1.0),
        (["1"] * 5, [0.6] * 5, 1.0),
        (["2", *["1"] * 5], [0.8] * 6, 1.0),
        (["1"] * 6, [0.1, *[0.8] * 5], 0.85),
    ],
)
def test_the_worked_weights(labels, shares, weight):
    visits = Visits()
    for label, share in zip(labels, shares, strict=True):
        visits.add(label, share)
    assert flip_weight(visits) == pytest.approx(weight)


def visit(history, label, share):
    group = Group(Instruction(4, "?", "dataset"), share, answer=label, handle="u")
    history.observe([group])
    return history.weights([group])["u"]


def test_a_prompt_that_never_flips_is_lowered_five_times_also_across_a_checkpoint():
    history = LabelHistory()
    weights = [visit(history, "7", 0.9) for _ in range(7)]
    restored = LabelHistory()
    restored.load_state_dict(json.loads(json.dumps(history.state_dict())))
    weights += [visit(restored, "7", 0.9) for _ in range(5)]
    assert weights == [1.0] * 4 + [0.85] * 5 + [1.0] * 3


def test_visits_older_than_twenty_are_forgotten():
    history = LabelHistory()
    for _ in range(30):
        visit(history, "7", 0.2)
    ((_, labels, shares, _),) = history.state_dict()
    assert len(labels) == len(shares) == 20


def test_groups_without_a_label_weigh_one():
    history = LabelHistory()
    groups = [
        Group(Instruction(0, "?", "generated"), 0.9, answer="1", handle="a"),
        Group(Instruction(1, "?", "dataset"), 0.9, answer=None, handle="b"),
    ]
    history.observe(groups)
    assert history.weights(groups) == {"a": 1.0, "b": 1.0}


def test_a_state_with_the_last_label_alone_can_be_read():
    history = LabelHistory()
    history.load_state_dict([[4, "7"]])
    assert visit(history, "8", 0.9) == pytest.approx(0.35)


def test_a_label_of_an_earlier_version_counts_as_one_that_nobody_shared():
    history = LabelHistory()
    history.load_state_dict([[4, "12"]])
    assert [visit(history, "12", 0.7) for _ in range(5)] == [1.0] * 4 + [0.85]


def test_labels_that_algebra_alone_could_equate_count_as_different():
    history = LabelHistory()
    history.observe(step((0, "x^2 + 2x + 1")))
    assert history.observe(step((0, "(x + 1)^2")))["serl/vote/flip_rate"] == 1.0
