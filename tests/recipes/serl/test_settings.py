"""The `serl` block: defaults, and refusal of what cannot be meant."""

import pytest

from recipes.errors import ConfigError
from recipes.serl.settings import SerlSettings

LEAST = {"seeds": "seeds.jsonl"}


def test_nested_values_are_read_and_whole_numbers_are_numbers():
    settings = SerlSettings.from_mapping(
        {**LEAST, "instructions": {"temperature": 1}, "reward_difficulty_bounds": [0, 1], "limits": {"max_rounds": 3}}
    )
    assert settings.instructions.temperature == 1.0 and settings.reward_difficulty_bounds == (0.0, 1.0)
    assert settings.limits.max_rounds == 3 and settings.limits.max_skipped_steps == 5


@pytest.mark.parametrize(
    ("block", "key"),
    [
        ({}, "serl.seeds"),
        ({"variant": "maj"}, "serl.variant"),
        ({"sede": 1}, "serl.sede"),
        ({"instructions": {"top_k": 1}}, "serl.instructions.top_k"),
        ({"instructions": {"max_tokens": 0}}, "serl.instructions.max_tokens"),
        ({"instructions": {"rouge_threshold": 0.0}}, "serl.instructions.rouge_threshold"),
        ({"instructions": {"similarity_scope": "all"}}, "serl.instructions.similarity_scope"),
        ({"reward_difficulty_bounds": [0.8, 0.2]}, "serl.reward_difficulty_bounds"),
        ({"reward_difficulty_bounds": [0.2]}, "serl.reward_difficulty_bounds.1"),
        ({"answer_template": "ask"}, "serl.answer_template"),
        ({"step_slack": 0.5}, "serl.step_slack"),
        ({"vote": {"convention": "serl"}}, "serl.vote.convention"),
        ({"vote": {"trained_share": 0}}, "serl.vote.trained_share"),
        ({"vote": {"rule": "majority"}}, "serl.vote.rule"),
        ({"instructions_num_per_iteration": None}, "serl.instructions_num_per_iteration"),
    ],
)
def test_bad_blocks_are_refused_with_the_key(block, key):
    with pytest.raises(ConfigError) as refusal:
        SerlSettings.from_mapping({**LEAST, **block} if block else block)
    assert refusal.value.key == key


def test_only_self_instruction_needs_seeds():
    assert SerlSettings.from_mapping({"variant": "majority"}).seeds is None


@pytest.mark.parametrize(("share", "n", "trained"), [(0.5, 64, 32), (1.0, 3, 3), (0.1, 30, 3), (1 / 3, 9, 3)])
def test_the_answers_that_train_are_a_whole_number(share, n, trained):
    assert SerlSettings.from_mapping({**LEAST, "vote": {"trained_share": share}}).trained_of(n) == trained


@pytest.mark.parametrize(("share", "n"), [(0.5, 5), (0.5, 2), (0.3, 4)])
def test_a_share_that_is_no_whole_number_is_refused(share, n):
    with pytest.raises(ConfigError) as refusal:
        SerlSettings.from_mapping({**LEAST, "vote": {"trained_share": share}}).trained_of(n)
    assert refusal.value.key == "serl.vote.trained_share"


def test_with_labels_all_answers_train():
    block = {**LEAST, "variant": "ground_truth", "vote": {"trained_share": 0.5}}
    assert SerlSettings.from_mapping(block).trained_of(8) == 8
