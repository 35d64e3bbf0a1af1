"""Steps of rollouts, and the reasons for having none."""

import random
import sys
from pathlib import Path

import pytest

from recipes.step_ppo.steps import decode_response
from recipes.step_ppo.tokens import rollout_steps

sys.path.insert(0, str(Path(__file__).parent))
from trajectories import byte_level_tokenizer, random_trajectory, sentencepiece_like_tokenizer  # noqa: E402


@pytest.fixture(scope="module", params=[byte_level_tokenizer, sentencepiece_like_tokenizer])
def tokenizer(request):
    return request.param()


def ids_of(tokenizer, text, *, eos=True):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids + [tokenizer.eos_token_id] * eos


def read(tokenizer, ids, **options):
    return rollout_steps(tokenizer, ids, {tokenizer.eos_token_id}, **options)


def test_steps_and_eos(tokenizer):
    ids = ids_of(tokenizer, " so it is\nAction 1: look it up\n\nObservation 1: it holds")
    found = read(tokenizer, ids)
    assert found.kinds == ("Thought", "Action", "Observation") and not found.malformed
    assert found.eos_index == len(ids) - 1 and found.ends[-1] == len(ids) - 2
    first = decode_response(tokenizer, ids[: found.ends[0] + 1])
    assert first.strip() == "so it is"


@pytest.mark.parametrize(
    ("text", "eos", "reason"),
    [
        ("", True, "empty"),
        ("", False, "empty"),
        (" so it is\nAction 1: look", False, "truncated"),
        ("\nAction 1: look it up", True, "step_end_in_prompt"),
        ("\n\n", True, "step_end_in_prompt"),
    ],
)
def test_malformed_rollouts_have_a_counted_reason(tokenizer, text, eos, reason):
    found = read(tokenizer, ids_of(tokenizer, text, eos=eos) if text else [tokenizer.eos_token_id] * eos)
    assert found.malformed == reason and found.ends == ()


def test_truncated_rollouts_may_be_scored(tokenizer):
    ids = ids_of(tokenizer, " so it is\nAction 1: look", eos=False)
    found = read(tokenizer, ids, score_truncated=True)
    assert found.ends[-1] == len(ids) - 1 and found.eos_index is None


def test_lines_without_text_have_no_step(tokenizer):
    assert read(tokenizer, ids_of(tokenizer, "\n\n"), style="lines").malformed == "no_step"


def test_random_rollouts_never_raise(tokenizer):
    """Texts, and ids no text would give."""
    rng = random.Random(0)
    for i in range(300):
        if i % 2:
            ids = [rng.randrange(len(tokenizer)) for _ in range(rng.randint(0, 50))]
        else:
            ids = ids_of(tokenizer, random_trajectory(rng), eos=rng.random() < 0.7)
        found = read(tokenizer, ids, score_truncated=rng.random() < 0.5)
        assert bool(found.malformed) != bool(found.ends)
        assert all(a < b for a, b in zip(found.ends, found.ends[1:], strict=False)) and len(found.ends) == len(
            found.kinds
        )
        assert all(0 <= end < len(ids) for end in found.ends)
