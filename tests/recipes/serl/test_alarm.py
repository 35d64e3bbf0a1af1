"""The collapse alarm."""

from recipes.serl.alarm import CollapseAlarm


def test_only_unanimous_steps_in_a_row_raise_it():
    alarm = CollapseAlarm(0.95, 3)
    assert [alarm.update(step) for step in ([1.0], [0.96, 1.0], [0.5, 1.0], [1.0], [1.0])] == [False] * 5
    assert alarm.update([1.0]) and alarm.update([])
    assert "above 0.95 for 3 steps in a row" in alarm.message
    assert not alarm.update([0.95])


def test_a_resumed_run_goes_on_counting():
    alarm = CollapseAlarm(0.9, 2)
    alarm.update([1.0])
    restored = CollapseAlarm(0.9, 2)
    restored.load_state_dict(alarm.state_dict())
    assert restored.update([1.0])
