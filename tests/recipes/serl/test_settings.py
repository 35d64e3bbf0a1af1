"""The `serl` block: defaults, and refusal of what cannot be meant."""

import pytest

from recipes.errors import ConfigError
from recipes.serl.settings import SerlSettings

LEAST = {"seeds": "seeds.jsonl"}


def test_defaults_are_the_constants_of_the_original():
    settings = SerlSettings.from_mapping(LEAST)
    instructions = settings.instructions
    assert (instructions.few_shot_generation, instructions.few_shot_generation_batch_size) == (8, 4)
    sampling = (instructions.temperature, instructions.top_p, instructions.presence_penalty, instructions.max_tokens)
    assert sampling == (0.8, 0.95, 2.0, 1024)
    assert instructions.rouge_threshold == 0.7 and settings.reward_difficulty_bounds == (0.2, 0.8)
    assert settings.instructions_num_per_iteration == 2000 and settings.rng_seed == 42


def test_nested_values_are_read_and_whole_numbers_are_numbers():
    settings = SerlSettings.from_mapping(
        {**LEAST, "instructions": {"temperature": 1}, "reward_difficulty_bounds": [0, 1], "limits": {"max_rounds": 3}}
    )
    assert settings.instructions.temperature == 1.0 and settings.reward_difficulty_bounds == (0.0, 1.0)
    assert settings.limits.max_rounds == 3 and settings.limits.max_skipped_steps == 5


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({}, "serl.seeds is not set"),
        ({"variant": "maj"}, "serl.variant must be 'self_instruct', 'majority' or 'ground_truth', found 'maj'"),
        ({"sede": 1}, "unknown key serl.sede; did you mean seeds"),
        ({"instructions": {"top_k": 1}}, "unknown key serl.instructions.top_k; did you mean top_p"),
        ({"instructions": 3}, "serl.instructions must be an object, found 3"),
        (
            {"instructions": {"max_tokens": 0}},
            "max_tokens must be greater than or equal to 1, found 0",
        ),
        ({"instructions": {"max_tokens": 1.5}}, "serl.instructions.max_tokens must be a valid integer, found 1.5"),
        ({"instructions": {"temperature": True}}, "must be a valid number, found True"),
        (
            {"instructions": {"temperature": float("nan")}},
            "temperature must be a finite number, found nan",
        ),
        ({"instructions": {"rouge_threshold": 0.0}}, "rouge_threshold must be greater than 0"),
        ({"instructions": {"similarity_scope": "all"}}, "similarity_scope must be 'pool', 'step' or 'history'"),
        ({"instructions": {"overlong_prompt": "cut"}}, "overlong_prompt"),
        ({"reward_difficulty_bounds": [0.8, 0.2]}, "reward_difficulty_bounds"),
        ({"reward_difficulty_bounds": [0.2]}, "serl.reward_difficulty_bounds.1 is not set"),
        ({"reward_difficulty_bounds": "0.2 0.8"}, "must be a valid array"),
        ({"seeds": 3}, "serl.seeds must be a valid string"),
        ({"iterations": 0}, "serl.iterations must be greater than or equal to 1"),
        ({"step_slack": 0.5}, "serl.step_slack must be greater than or equal to 1"),
        ({"vote": {"convention": "serl"}}, "serl.vote.convention must be 'default' or 'reference'"),
        ({"statistics": "none"}, "serl.statistics"),
        ({"limits": {"max_rounds": 0}}, "serl.limits.max_rounds"),
        ({"vote": {"rule": "vote"}}, "serl.vote.rule must be 'majority', .* or 'self_certainty'"),
        ({"vote": {"trained_share": 0}}, "serl.vote.trained_share must be greater than 0"),
        ({"vote": {"alarm_stops_after": 0}}, "serl.vote.alarm_stops_after must be greater than or equal to 1"),
        ({"instructions_num_per_iteration": None}, "null takes the rows of a dataset"),
    ],
)
def test_bad_blocks_are_refused_with_the_key(block, message):
    with pytest.raises(ConfigError, match=message):
        SerlSettings.from_mapping({**LEAST, **block} if block else block)


def test_only_self_instruction_needs_seeds():
    assert SerlSettings.from_mapping({"variant": "majority"}).seeds is None


@pytest.mark.parametrize(("share", "n", "trained"), [(0.5, 64, 32), (1.0, 3, 3), (0.1, 30, 3), (1 / 3, 9, 3)])
def test_the_answers_that_train_are_a_whole_number(share, n, trained):
    assert SerlSettings.from_mapping({**LEAST, "vote": {"trained_share": share}}).trained_of(n) == trained


@pytest.mark.parametrize(("share", "n"), [(0.5, 5), (0.5, 2), (0.3, 4)])
def test_a_share_that_is_no_whole_number_is_refused(share, n):
    with pytest.raises(ConfigError, match=r"serl.vote.trained_share.*whole number of at least 2"):
        SerlSettings.from_mapping({**LEAST, "vote": {"trained_share": share}}).trained_of(n)


def test_with_labels_all_answers_train():
    block = {**LEAST, "variant": "ground_truth", "vote": {"trained_share": 0.5}}
    assert SerlSettings.from_mapping(block).trained_of(8) == 8
