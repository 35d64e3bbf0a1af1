"""The game's part of a checkpoint: complete, atomic, and refused when it is not what the run needs."""

import json

import pytest

from recipes.errors import StateError
from recipes.pasodoble.settings import RoundSettings
from recipes.pasodoble.state import FILE, GameState


def used_state():
    state = GameState(RoundSettings(), "base-1")
    state.history.score([[1, 2], [3]])
    state.history.commit()
    for i in range(4):
        state.buffer.append(f"q{i} \ud800", "a", 0.5)
    state.buffer.draw(3)
    assert list(state.draw_documents(5)) == [0, 1, 2, 3, 4]
    state.updates["solver"] += 2
    return state


def test_a_resumed_state_goes_on_as_if_uninterrupted(tmp_path):
    state = used_state()
    state.save(tmp_path)
    resumed = GameState(RoundSettings(), "base-1")
    resumed.load(tmp_path)
    for one in (state, resumed):
        assert list(one.draw_documents(2)) == [5, 6]
        assert [q.question[:2] for q in one.buffer.draw(2)] == ["q3", "q0"]
        assert one.history.score([[1, 2]]) == [0.5]
        assert one.updates == {"proposer": 0, "solver": 2}
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize(
    "damage, sentence",
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_text(path.read_text()[:50]), "is damaged"),
        (lambda path: path.write_text(json.dumps({"history": {}})), "is damaged"),
    ],
)
def test_a_missing_or_damaged_state_is_refused(tmp_path, damage, sentence):
    used_state().save(tmp_path)
    damage(tmp_path / FILE)
    with pytest.raises(StateError, match=sentence):
        GameState(RoundSettings(), "base-1").load(tmp_path)


def test_another_base_or_other_rules_are_refused(tmp_path):
    used_state().save(tmp_path)
    with pytest.raises(StateError, match="knowledge was 'base-1' and is 'base-2'"):
        GameState(RoundSettings(), "base-2").load(tmp_path)
    with pytest.raises(StateError, match="history_size was 100 and is 7"):
        GameState(RoundSettings(history_size=7), "base-1").load(tmp_path)
