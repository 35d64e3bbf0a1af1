"""Flips of the majority label between visits of a prompt."""

import json

from recipes.serl.collection import Group
from recipes.serl.label_history import LabelHistory
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
