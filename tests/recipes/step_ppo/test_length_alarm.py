"""The alarm for growing responses."""

import json

import pytest

from recipes.step_ppo.length_alarm import LengthAlarm, LengthAlarmSettings
from recipes.step_ppo.settings import StepPPOSettings

SETTINGS = LengthAlarmSettings(baseline_steps=2, window=2, factor=1.5)


def run(alarm, lengths):
    return [alarm.update(tokens, steps)["alarm"] for tokens, steps in lengths]


def test_growth_over_the_yardstick_raises_it():
    assert run(LengthAlarm(SETTINGS), [(90, 4), (110, 4), (140, 4), (155, 4), (160, 4)]) == [0, 0, 0, 0, 1]


def test_steps_alone_raise_it():
    assert run(LengthAlarm(SETTINGS), [(100, 4), (100, 4), (100, 7), (100, 7)]) == [0, 0, 0, 1]


def test_shrinking_and_empty_responses_do_not():
    assert run(LengthAlarm(SETTINGS), [(100, 0), (100, 0), (5, 9), (5, 9)]) == [0, 0, 0, 0]


def test_state_survives_a_checkpoint():
    lengths = [(90, 4), (110, 4), (140, 4), (155, 4), (160, 4), (100, 3)]
    whole = LengthAlarm(SETTINGS)
    expected = [whole.update(*pair) for pair in lengths]
    first, second = LengthAlarm(SETTINGS), LengthAlarm(SETTINGS)
    found = [first.update(*pair) for pair in lengths[:3]]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert found + [second.update(*pair) for pair in lengths[3:]] == expected


@pytest.mark.parametrize("bad", [{"baseline_steps": 0}, {"window": 0}, {"factor": 1.0}])
def test_ranges(bad):
    with pytest.raises(ValueError, match=f"step_ppo.length_alarm.{next(iter(bad))} must be"):
        StepPPOSettings.from_mapping({"length_alarm": bad})
