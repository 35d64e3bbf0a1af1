"""Preference pairs: exact counts, strict margin, distinct records."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.step_ppo.pairs import (
    Candidate,
    candidates_of,
    one_pair_per_question,
    outcome_pairs,
    pair_record,
    process_pairs,
)
from recipes.step_ppo.pipeline import pairs
from recipes.step_ppo.pipeline.records import open_journal, read


def candidates(right, wrong):
    scores = [(score, True) for score in right] + [(score, False) for score in wrong]
    return [Candidate(i, f"response {i}", ok, score, (score,), num_lines=i + 1) for i, (score, ok) in enumerate(scores)]


def texts(found, kind):
    return [(p.chosen.index, p.reject.index) for p in found if p.kind == kind]


def test_toy_question():
    found = process_pairs(candidates([0.9, 0.4, 0.2], [0.1, 0.8]), margin=0.45)
    # every correct x every incorrect, hardest incorrect first
    assert texts(found, "contrastive") == [(0, 4), (0, 3), (1, 4), (1, 3), (2, 4), (2, 3)]
    assert texts(found, "positive") == [(0, 1), (0, 2)]
    assert [p.kind for p in found] == ["contrastive"] * 6 + ["positive"] * 2


def test_the_margin_is_strict():
    group = candidates([0.75, 0.25], [])
    assert texts(process_pairs(group, margin=0.5), "positive") == []
    assert texts(process_pairs(group, margin=0.4999), "positive") == [(0, 1)]
    assert texts(process_pairs(candidates([0.5, 0.5], []), margin=0.0), "positive") == []


def test_contrastive_pairs_need_no_margin():
    assert len(process_pairs(candidates([0.1], [0.9]), margin=0.5)) == 1


def test_best_of_keeps_the_highest_scores_in_sampling_order():
    found = process_pairs(candidates([0.2, 0.9, 0.5, 0.7], [0.3, 0.1, 0.6]), margin=0.25, best_of=2, max_negatives=2)
    assert texts(found, "contrastive") == [(1, 6), (1, 4), (3, 6), (3, 4)]
    # any correct response may be the worse one, chosen or not; best first
    assert texts(found, "positive") == [(1, 2), (1, 0), (3, 0)]


def test_responses_without_a_score_are_left_out():
    group = [*candidates([0.9], [0.1]), Candidate(2, "unscored", True), Candidate(3, "unscored", False)]
    assert texts(process_pairs(group, margin=0.1), "contrastive") == [(0, 1)]


def test_line_bounds_concern_positive_pairs_only():
    group = candidates([0.9, 0.1], [0.5])
    assert texts(process_pairs(group, margin=0.5, min_chosen_lines=2), "positive") == []
    assert texts(process_pairs(group, margin=0.5, min_reject_lines=3), "positive") == []
    assert len(texts(process_pairs(group, margin=0.5, min_chosen_lines=9, min_reject_lines=9), "contrastive")) == 2


def test_questions_the_prm_was_trained_on_have_no_positive_pairs():
    found = process_pairs(candidates([0.9, 0.1], [0.5]), margin=0.5, positive=False)
    assert texts(found, "positive") == [] and len(found) == 2


def test_negative_margin_would_pair_a_response_with_itself():
    with pytest.raises(ValueError, match="margin"):
        process_pairs(candidates([0.5], []), margin=-0.1)


def test_vanilla_pairs():
    group = [Candidate(i, str(i), ok) for i, ok in enumerate([True, False, True, False, False])]
    assert [(p.chosen.index, p.reject.index) for p in outcome_pairs(group)] == [
        (0, 1), (0, 3), (0, 4), (2, 1), (2, 3), (2, 4),
    ]  # fmt: skip


@pytest.mark.parametrize(("most", "chosen"), [(0, ["0"]), (1, ["0", "1", "same line"]), (2, None), (None, None)])
def test_vanilla_pairs_choose_no_response_that_finishes_again_and_again(most, chosen):
    finish = "Action 2: Finish[The answer is A.]"
    texts = {"0": "Thought 1", "1": f"Thought\n{finish}", "same line": finish + finish, "2": f"{finish}\n{finish}"}
    group = [Candidate(i, text, True) for i, text in enumerate(texts.values())]
    group.append(Candidate(len(group), f"{finish}\n{finish}\n{finish}", False))
    found = [p.chosen.text for p in outcome_pairs(group, max_finish_lines=most)]
    assert found == ([texts[name] for name in chosen] if chosen else list(texts.values()))
    if most == 1:
        assert outcome_pairs(group) == outcome_pairs(group, max_finish_lines=1), "the code's configuration"


def test_the_command_bounds_finishes_of_vanilla_pairs_alone(tmp_path, capsys):
    twice = "Action 1: Finish[The answer is A.]\nAction 2: Finish[The answer is A.]"
    responses = [{"text": twice, "correct": True}, {"text": "x", "correct": True}, {"text": "y", "correct": False}]
    trajectories = tmp_path / "t.jsonl"
    trajectories.write_text(json.dumps({"key": "q", "id": "q", "responses": responses}) + "\n")
    common = ["--trajectories", str(trajectories), "--output"]
    assert pairs.main([*common, str(tmp_path / "a.jsonl")]) == 0
    assert "= 1 pairs" in capsys.readouterr().out
    assert pairs.main([*common, str(tmp_path / "b.jsonl"), "--max-finish-lines", "-1"]) == 0
    assert "= 2 pairs" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        pairs.main([*common, str(tmp_path / "c.jsonl"), "--scores", str(trajectories), "--max-finish-lines", "1"])


@given(
    st.lists(st.floats(0, 1), max_size=6),
    st.lists(st.floats(0, 1), max_size=6),
    st.floats(0, 1),
)
def test_counts_and_distinctness(right, wrong, margin):
    found = process_pairs(candidates(right, wrong), margin=margin)
    assert len(texts(found, "contrastive")) == len(right) * len(wrong)
    assert len(texts(found, "positive")) == sum(a - b > margin for a in right for b in right)
    records = [pair_record("q", p) for p in found]
    assert len({r["key"] for r in records}) == len({(r["chosen"], r["reject"]) for r in records}) == len(records)


def test_records_share_nothing():
    """The original wrote all pairs of a question into one dict: each must stay as it was made."""
    found = process_pairs(candidates([0.9, 0.8, 0.7], [0.3, 0.2]), margin=0.05)
    records = [pair_record("q", p) for p in found]
    before = [json.dumps(r) for r in records]
    records[-1].update(chosen="overwritten")
    records[-1]["chosen_full_rewards"].append(1.0)
    assert [json.dumps(r) for r in records[:-1]] == before[:-1]
    assert len(set(before)) == len(before)
    assert len({id(r["chosen_full_rewards"]) for r in records}) == len(records)


def test_a_record_holds_the_step_scores_of_both_sides_where_there_are_any():
    (pair,) = process_pairs(candidates([0.9], [0.1]), margin=0.5)
    record = pair_record("q", pair)
    assert (record["chosen_full_rewards"], record["reject_full_rewards"]) == ([0.9], [0.1])
    (pair,) = outcome_pairs([Candidate(0, "a", True), Candidate(1, "b", False)])
    record = pair_record("q", pair)
    assert (record["chosen_full_rewards"], record["reject_full_rewards"]) == (None, None)


def test_one_pair_per_question():
    found = process_pairs(candidates([0.9, 0.4], [0.1]), margin=0.1)
    assert one_pair_per_question(found, random.Random(0))[0] in found
    assert one_pair_per_question([], random.Random(0)) == []


def write(path, records):
    with open_journal(path) as journal:
        journal.extend(records)
    return str(path)


@pytest.fixture
def files(tmp_path):
    trajectories, scores = [], []
    for q in range(3):
        responses = [
            {"text": f"{q} a", "correct": True},
            {"text": f"{q} b", "correct": True},
            {"text": "c", "correct": False},
        ]
        trajectories.append({"key": str(q), "id": str(q), "responses": responses})
        steps = [[0.9, 0.9], [0.9, 0.2], [0.5, 0.5]]
        scores.append(
            {
                "key": str(q),
                "id": str(q),
                "scores": [
                    {"response_index": i, "step_scores": s, "kinds": ["Thought", "Action"]} for i, s in enumerate(steps)
                ],
            }
        )
    return write(tmp_path / "t.jsonl", trajectories), write(tmp_path / "s.jsonl", scores), tmp_path


def written(path):
    return list(read([path]))


def test_command_counts_and_prm_train_exclusion(files):
    trajectories, scores, folder = files
    train = write(folder / "train.jsonl", [{"key": "1/0/0", "id": "1"}])
    out = folder / "pairs.jsonl"
    command = ["--trajectories", trajectories, "--scores", scores, "--output", str(out), "--prm-train", train]
    pairs.main(command)
    records = written(out)
    assert sum(r["kind"] == "contrastive" for r in records) == 6
    # product .81 against .18
    assert [r["id"] for r in records if r["kind"] == "positive"] == ["0", "2"]
    assert records[0]["chosen_full_rewards"] == [0.9, 0.9]
    pairs.main(command)
    assert written(out) == records


def test_command_without_action_scores(files):
    trajectories, scores, folder = files
    out = folder / "pairs.jsonl"
    pairs.main(["--trajectories", trajectories, "--scores", scores, "--output", str(out), "--remove-action"])
    # without the Action step both correct responses score .9
    assert {r["kind"] for r in written(out)} == {"contrastive"}


def test_scores_of_other_trajectories_are_refused(files):
    trajectories, _, folder = files
    other = write(
        folder / "o.jsonl",
        [{"key": "0", "id": "0", "scores": [{"response_index": 7, "step_scores": [0.1], "kinds": ["Thought"]}]}],
    )
    with pytest.raises(ValueError, match="other trajectories"):
        pairs.main(["--trajectories", trajectories, "--scores", other, "--output", str(folder / "p.jsonl")])


def test_the_bounds_are_ten_chosen_and_ten_rejected():
    right, wrong = [0.5 + i / 100 for i in range(12)], [i / 100 for i in range(12)]
    assert len(process_pairs(candidates(right, wrong), margin=1.0)) == 100


def test_bounds_below_their_least_are_refused():
    group = candidates([0.9, 0.1], [0.5])
    assert texts(process_pairs(group, margin=0.5, best_of=1, max_negatives=0), "contrastive") == []
    assert texts(process_pairs(group, margin=0.5, best_of=1), "contrastive") == [(0, 2)]
    for bad in ({"best_of": 0}, {"max_negatives": -1}):
        with pytest.raises(ValueError, match="best_of must be at least 1 and max_negatives at least 0"):
            process_pairs(group, margin=0.5, **bad)


def test_a_score_of_zero_is_the_lowest():
    assert texts(process_pairs(candidates([0.0, 0.5], [0.0, 0.5]), margin=1.0, best_of=1), "contrastive") == [
        (1, 3),
        (1, 2),
    ]
    assert texts(process_pairs(candidates([0.5, 0.0], []), margin=0.4), "positive") == [(0, 1)]
    assert texts(process_pairs(candidates([0.0, 0.0], []), margin=0.0), "positive") == []


def test_line_bounds_are_inclusive_and_off_by_default():
    group = candidates([0.9, 0.1], [])
    assert texts(process_pairs(group, margin=0.5, min_chosen_lines=1, min_reject_lines=2), "positive") == [(0, 1)]
    unknown = [Candidate(0, "a", True, 0.9), Candidate(1, "b", True, 0.1)]
    assert texts(process_pairs(unknown, margin=0.5), "positive") == [(0, 1)]
    assert texts(process_pairs(unknown, margin=0.5, min_chosen_lines=1), "positive") == []
    assert texts(process_pairs(unknown, margin=0.5, min_reject_lines=1), "positive") == []


def test_candidates_take_their_scores_by_response():
    trajectory = {"id": "q", "responses": [{"text": "a\nb", "correct": 1}, {"text": "c", "correct": 0}]}
    record = {"scores": [{"response_index": 1, "step_scores": [0.5, 0.5], "kinds": ["Thought", "Action"]}]}
    options = {"reduction": "product", "drop_kinds": ()}
    assert candidates_of(trajectory, record, **options, skip_last=0) == [
        Candidate(0, "a\nb", True, None, None, 2),
        Candidate(1, "c", False, 0.25, (0.5, 0.5), 1),
    ]
    assert [c.score for c in candidates_of(trajectory, record, **options, skip_last=2)] == [None, None]
    assert [c.score for c in candidates_of(trajectory, None, **options, skip_last=0)] == [None, None]
    record["scores"].append(record["scores"][0] | {"response_index": 2})
    with pytest.raises(ValueError, match="response 2 of 2"):
        candidates_of(trajectory, record, **options, skip_last=0)
