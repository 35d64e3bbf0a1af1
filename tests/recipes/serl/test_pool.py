"""The pools of a run: what enters, what is compared, what expires, what a checkpoint brings back."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from recipes.serl.pool import InstructionPool

SEEDS = [f"seed number {i} about topic{i} and thing{i}" for i in range(20)]
FRESH = ["alpha beta gamma delta", "one two three four", "red green blue white", "north south east west"]


def offer_all(pool, texts):
    return [pool.offer(text)[0] is not None for text in texts]


def test_near_copies_of_seeds_and_of_pending_instructions_are_dropped():
    pool = InstructionPool(SEEDS)
    instruction, similarity = pool.offer(SEEDS[3].upper() + " ")
    assert instruction is None and similarity == 1.0
    assert offer_all(pool, [FRESH[0], FRESH[0] + " epsilon"]) == [True, False]
    assert [instruction.text for instruction in pool.pop(5)] == [FRESH[0]]


@pytest.mark.parametrize(
    ("scope", "after_take", "after_step"), [("pool", True, True), ("step", False, True), ("history", False, False)]
)
def test_scope_says_with_what_a_candidate_is_compared(scope, after_take, after_step):
    pool = InstructionPool(SEEDS, scope=scope)
    assert offer_all(pool, FRESH[:1]) == [True]
    pool.pop(1)
    assert offer_all(pool, FRESH[:1]) == [after_take]
    pool.end_step()
    assert offer_all(pool, FRESH[:1]) == [after_step]


def test_pending_instructions_expire_with_the_step_unless_carried():
    pool = InstructionPool(SEEDS)
    offer_all(pool, FRESH)
    pool.pop(1)
    assert pool.end_step(carry_pending=True) == [] and len(pool) == 3
    assert offer_all(pool, [FRESH[1]]) == [False]
    assert [instruction.text for instruction in pool.end_step()] == FRESH[1:]
    assert len(pool) == 0


def test_indices_are_counted_over_the_run_and_oldest_go_first():
    pool = InstructionPool(SEEDS)
    offer_all(pool, FRESH[:2])
    pool.end_step()
    offer_all(pool, FRESH[2:])
    assert [(i.idx, i.text) for i in pool.pop(9)] == [(2, FRESH[2]), (3, FRESH[3])]


def test_kept_instructions_become_few_shot_examples_for_good():
    pool = InstructionPool(SEEDS)
    pool.add_few_shot(FRESH)
    pool.end_step()
    examples = pool.draw_examples(step=2, call=0, prompt=0)
    assert len(examples) == 8 and len(set(examples) & set(FRESH)) == 2


def test_draws_depend_on_their_place_alone():
    a, b = InstructionPool(SEEDS), InstructionPool(SEEDS)
    b.draw_examples(step=9, call=9, prompt=9)
    assert a.draw_examples(step=3, call=1, prompt=2) == b.draw_examples(step=3, call=1, prompt=2)
    draws = {tuple(a.draw_examples(step=s, call=c, prompt=p)) for s in range(3) for c in range(3) for p in range(4)}
    assert len(draws) == 36
    assert InstructionPool(SEEDS, rng_seed=1).draw_examples(step=0, call=0, prompt=0) != a.draw_examples(
        step=0, call=0, prompt=0
    )


def test_seed_prompts_are_distinct_and_leave_out_those_taken():
    pool = InstructionPool([*SEEDS, SEEDS[0]])
    first = pool.draw_seeds(5, step=1)
    rest = pool.draw_seeds(99, step=1, taken=[i.text for i in first])
    assert {i.text for i in first + rest} == set(SEEDS) and len(first + rest) == len(SEEDS)
    assert {i.origin for i in first} == {"seed"}
    assert len({i.idx for i in first + rest}) == len(SEEDS)


@pytest.mark.parametrize("scope", ["pool", "step", "history"])
def test_a_restored_pool_goes_on_as_the_original(scope):
    def advance(pool, start):
        decisions = []
        for i in range(start, start + 12):
            decisions.append(pool.offer(f"text {i % 7} of kind{i % 5} and sort{i % 3} here")[0])
            if i % 4 == 3:
                pool.add_few_shot(instruction.text for instruction in pool.pop(2))
            if i % 6 == 5:
                pool.end_step(carry_pending=i % 12 == 5)
        return decisions, pool.draw_examples(step=start, call=0, prompt=0), pool.state_dict()

    uninterrupted = InstructionPool(SEEDS, scope=scope)
    advance(uninterrupted, 0)
    restored = InstructionPool(SEEDS, scope=scope)
    restored.load_state_dict(json.loads(json.dumps(uninterrupted.state_dict())))
    assert advance(restored, 12) == advance(uninterrupted, 12)


def test_state_of_other_settings_or_of_missing_parts_is_refused():
    state = InstructionPool(SEEDS, scope="step").state_dict()
    with pytest.raises(ValueError, match="resume with the same settings"):
        InstructionPool(SEEDS, scope="history").load_state_dict(state)
    del state["few_shot"]
    with pytest.raises(ValueError, match="lacks few_shot"):
        InstructionPool(SEEDS, scope="step").load_state_dict(state)


@settings(deadline=None)
@given(st.lists(st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=7).map(" ".join), max_size=25))
def test_pool_scope_decides_as_the_loop_of_the_original(candidates):
    scorer = RougeScorer(["rougeL"], use_stemmer=False)
    seeds, pending = ["a b c d e f g", "g f e d"], []
    pool = InstructionPool(seeds, scope="pool")
    for number, text in enumerate(candidates):
        if max(scorer.score(text, other)["rougeL"].fmeasure for other in seeds + pending) > 0.7:
            assert pool.offer(text)[0] is None
        else:
            pending.append(text)
            assert pool.offer(text)[0].text == text
        if number % 5 == 4:
            assert [instruction.text for instruction in pool.pop(2)] == pending[:2]
            pending = pending[2:]
