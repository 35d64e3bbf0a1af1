"""PRM values turned into token rewards."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.errors import ConfigError
from recipes.step_ppo.rewards import StepRewardConfig, centred, reward_places, token_rewards
from recipes.step_ppo.settings import StepPPOSettings

#         t0   t1   t2   t3   t4   eos
VALUES = [0.0, 0.6, 0.0, 0.9, 0.5, 0.3]
ENDS = [1, 3, 4]


def rewards(**options):
    outcome = options.pop("outcome", None)
    eos = options.pop("eos_index", 5)
    return token_rewards(VALUES, ENDS, 6, StepRewardConfig(**options), eos_index=eos, outcome=outcome)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("sum", [0, 0.6, 0, 0.9, 0.5, 0]),
        ("mean", [0, 0.2, 0, 0.3, 0.5 / 3, 0]),
        ("difference", [0, 0.6, 0, 0.3, -0.4, 0]),
        ("min", [0, 0.6, 0, 0.6, 0.5, 0]),
        ("product", [0, 0.6, 0, 0.54, 0.27, 0]),
    ],
)
def test_modes(mode, expected):
    assert rewards(mode=mode) == pytest.approx(expected)


def test_difference_telescopes_to_the_last_value():
    assert sum(rewards(mode="difference")) == pytest.approx(0.5)


def test_the_last_step_on_eos():
    assert rewards(last_step="eos") == pytest.approx([0, 0.6, 0, 0.9, 0, 0.3])
    assert rewards(last_step="eos", mode="min") == pytest.approx([0, 0.6, 0, 0.6, 0, 0.3])
    assert rewards(last_step="eos", eos_index=None) == rewards()


def test_the_outcome_takes_the_place_of_the_last_step():
    options = {"last_step": "outcome", "scale": 0.5, "outcome_weight": 1.0}
    assert rewards(**options, outcome=1.0) == pytest.approx([0, 0.3, 0, 0.45, 0, 1.0])
    assert rewards(**options, outcome=0.0) == pytest.approx([0, 0.3, 0, 0.45, 0, 0.0])
    assert rewards(**options, outcome=1.0, eos_index=None) == pytest.approx([0, 0.3, 0, 0.45, 1.0, 0])
    assert rewards(**options, outcome=1.0, mode="min") == pytest.approx([0, 0.3, 0, 0.3, 0, 0.3])


def test_wrong_responses_earn_nothing_on_average_and_right_ones_what_their_steps_are_worth():
    right = [True, False, False, False]
    found = centred([1.0, 0.0, 0.0, 0.0], right, [0.9, 0.8, 0.5, 0.2])
    assert found == pytest.approx([1.9, 0.3, 0.0, -0.3])
    assert centred([0.0, 0.0], [False, False], [0.7, 0.5]) == pytest.approx([0.1, -0.1])
    assert centred([1.0, 1.0], [True, True], [0.7, 0.5]) == pytest.approx([1.7, 1.5])
    assert centred([], [], []) == []


def test_outcome_only():
    config = StepRewardConfig(mode="outcome", outcome_weight=2.0)
    assert not config.needs_prm and config.needs_outcome
    assert token_rewards(None, [], 3, config, eos_index=2, outcome=1.0) == [0, 0, 2.0]
    assert token_rewards(None, [], 3, config, outcome=1.0) == [0, 0, 2.0]
    assert token_rewards(None, [], 0, config, outcome=1.0) == []


def test_clip():
    assert rewards(scale=10.0) == pytest.approx([0, 5.0, 0, 5.0, 5.0, 0])
    assert rewards(scale=-10.0, clip=4.0)[3] == -4.0


@pytest.mark.parametrize(
    ("values", "ends", "length"),
    [([0.1], [], 1), ([0.1], [0], 2), ([0.1, 0.2], [1, 1], 2), ([0.1, 0.2], [2], 2), ([0.1, 0.2], [-1, 1], 2)],
)
def test_steps_that_do_not_fit_the_response_are_refused(values, ends, length):
    with pytest.raises(ValueError):
        token_rewards(values, ends, length, StepRewardConfig())


def test_an_outcome_that_is_not_there_is_refused():
    with pytest.raises(ValueError):
        rewards(last_step="outcome")


@pytest.mark.parametrize("bad", [{"mode": "max"}, {"last_step": "bos"}, {"clip": 0.0}])
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(ConfigError) as refusal:
        StepPPOSettings.from_mapping({"reward": bad})
    assert refusal.value.key == f"step_ppo.reward.{next(iter(bad))}"


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=20), st.sampled_from(["sum", "mean", "difference", "min", "product"])
)
def test_rewards_stand_on_step_ends_only(values, mode):
    spread = [v for value in values for v in (0.123, value)]
    ends = list(range(1, len(spread), 2))
    found = token_rewards(spread, ends, len(spread), StepRewardConfig(mode=mode))
    assert all(found[i] == 0 for i in range(0, len(spread), 2))
    totals = {"sum": sum(values), "mean": sum(values) / len(values), "difference": values[-1]}
    if mode in totals:
        assert sum(found) == pytest.approx(totals[mode], abs=1e-9)


def test_the_outcome_stands_on_eos_wherever_that_is():
    config = StepRewardConfig(mode="outcome")
    assert token_rewards(None, [], 3, config, eos_index=1, outcome=1.0) == [0, 1.0, 0]
    assert token_rewards(None, [], 3, config, eos_index=1, outcome=0.0) == [0, 0, 0]
    assert rewards(last_step="outcome", outcome=1.0) == pytest.approx([0, 0.6, 0, 0.9, 0, 1.0])


def test_what_a_configuration_asks_for():
    assert StepRewardConfig().needs_prm and not StepRewardConfig().needs_outcome
    assert StepRewardConfig(last_step="outcome").needs_prm and StepRewardConfig(last_step="outcome").needs_outcome


@pytest.mark.parametrize("classes", [[], [2, 2], [-1], [3, -2]])
def test_the_classes_that_count_as_good_are_distinct(classes):
    """Named twice, a class would count twice, and -1 is the last one to Python."""
    with pytest.raises(ConfigError) as refusal:
        StepPPOSettings.from_mapping({"prm": {"classes": classes}})
    assert refusal.value.key == "step_ppo.prm.classes"


def test_where_the_rewards_of_steps_stand():
    values = [0.1 * place for place in range(1, 7)]
    for last_step, outcome, expected in (("step_end", None, [1, 3]), ("eos", None, [1, 5]), ("outcome", 1.0, [1, 5])):
        config = StepRewardConfig(last_step=last_step)
        assert reward_places([1, 3], config, eos_index=5) == expected and reward_places([], config, eos_index=0) == []
        rewards = token_rewards(values, [1, 3], 6, config, eos_index=5, outcome=outcome)
        assert [place for place, reward in enumerate(rewards) if reward] == expected
        assert reward_places([1, 3], config) == [1, 3]
