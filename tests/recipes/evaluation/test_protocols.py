"""Denominators, MMLU-Pro, handoff and legibility against hand computation."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.evaluation import engines, mmlu_pro, partner
from recipes.evaluation.engines import Part
from recipes.evaluation.grade import Grade, denominator

GRADED = [
    Grade(status, False, reason, "")
    for status, reason in [
        ("score", ""),
        ("score", "no_box"),
        ("score", "timeout"),
        ("skip", "gold_unparsable"),
        ("score", "too_long:x"),
    ]
]


def test_the_sane_denominator_counts_unparsable_responses_as_wrong():
    assert denominator(GRADED, "all") == {"rule": "all", "counted": 4, "excluded": {"gold_unparsable": 1}}


def test_the_published_denominator_leaves_them_out_and_says_so():
    left_out = {"gold_unparsable": 1, "no_box": 1, "too_long": 1}
    assert denominator(GRADED, "parsable") == {"rule": "parsable", "counted": 2, "excluded": left_out}


def test_mmlu_pro_groups_are_weighted_by_questions():
    flat = dict.fromkeys(mmlu_pro.SUBJECT_QUESTIONS, 0.25)
    assert mmlu_pro.group_accuracies(flat) == pytest.approx(dict.fromkeys([*mmlu_pro.GROUPS, "Avg"], 0.25))
    only_law = flat | {"law": 1.0}
    humanities = (0.25 * (381 + 499) + 1.0 * 1101) / (381 + 1101 + 499)
    assert mmlu_pro.group_accuracies(only_law)["Humanities"] == pytest.approx(humanities)
    assert sum(mmlu_pro.SUBJECT_QUESTIONS.values()) == 12032
    assert sorted(subject for group in mmlu_pro.GROUPS.values() for subject in group) == sorted(flat)


def test_mmlu_pro_takes_the_spellings_of_existing_summaries():
    names = {name.replace(" ", "_").title(): 0.5 for name in mmlu_pro.SUBJECT_QUESTIONS}
    assert mmlu_pro.group_accuracies(names)["Avg"] == pytest.approx(0.5)


def test_mmlu_pro_subsets_and_faults():
    assert mmlu_pro.group_accuracies({"law": 1.0, "math": 0.0}, {"law": 1, "math": 3}) == pytest.approx(
        {"STEM": 0.0, "Humanities": 1.0, "Avg": 0.25}
    )
    with pytest.raises(ValueError, match=r"unknown: \['alchemy'\]"):
        mmlu_pro.group_accuracies(dict.fromkeys(mmlu_pro.SUBJECT_QUESTIONS, 0.5) | {"alchemy": 1.0})
    with pytest.raises(ValueError, match="without accuracy"):
        mmlu_pro.group_accuracies({"law": 1.0})


def test_mmlu_pro_regroups_an_existing_summary(tmp_path, capsys):
    groups = {subject: {"problems": count, "pass@1": 0.5} for subject, count in mmlu_pro.SUBJECT_QUESTIONS.items()}
    groups["law"]["pass@1"] = 1.0
    ours = {"models": {"m": {"mmlu_pro": {"groups": groups}}}}
    theirs = dict.fromkeys(mmlu_pro.SUBJECT_QUESTIONS, 0.5) | {"law": 1.0}
    assert mmlu_pro.regroup(ours)["m"] == pytest.approx(mmlu_pro.regroup(theirs)[""])
    path = tmp_path / "summary.json"
    path.write_text(json.dumps(ours))
    assert mmlu_pro.main([str(path)]) == 0
    assert "| m | 50.00 | 77.79 | 50.00 | 50.00 | 54.58 |" in capsys.readouterr().out
    path.write_text('{"models": {}}')
    assert mmlu_pro.main([str(path)]) == 2
    for content in ("5", "[]", '{"models": []}', '{"models": {"m": null}}'):
        path.write_text(content)
        assert mmlu_pro.main([str(path)]) == 2
        assert f"{path} is neither a summary.json" in capsys.readouterr().err


def test_the_official_guess_is_one_and_the_same_for_equal_options():
    hits = [gold for gold in range(10) if mmlu_pro.guess_is_right(10, gold)]
    assert len(hits) == 1


def test_mmlu_pro_drops_shots_until_the_prompt_fits():
    shots = ["one " * 10, "two " * 10, "three " * 10]
    prompt, kept = mmlu_pro.few_shot_prompt("law", shots, "Q?", lambda text: len(text.split()), budget=60)
    assert kept == 2
    assert "two" in prompt and "three" not in prompt and prompt.endswith("Q?")
    assert mmlu_pro.few_shot_prompt("law", shots, "Q?", lambda text: 10_000, budget=60)[1] == 0


def test_mmlu_pro_question_blocks():
    asked = mmlu_pro.format_question("Who?", ["x", "N/A", "y"])
    assert asked == "Question:\nWho?\nOptions:\nA. x\nB. y\nAnswer: Let's think step by step."
    worked = mmlu_pro.format_question("Who?", ["x"], "A: Let's think step by step. It is x. The answer is (A).")
    assert worked.endswith("Answer: Let's think step by step. It is x. The answer is (A).\n\n")


def scripted(*responses):
    """Two models that follow a script: one list of parts per response."""
    calls = []
    scripts = [list(parts) for parts in responses]

    def write(author, turns):
        calls.append((author, [tuple(turn) for turn in turns]))
        return [scripts[position].pop(0) for position, _ in enumerate(turns)]

    return write, calls


def test_two_models_write_in_turns_and_every_token_has_its_author():
    parts = [Part([5, 6], False), Part([7], False), Part([8, 9], True)]
    write, calls = scripted(parts)
    ((_, response),) = engines.alternate([[1, 2]], write, ("senior", "junior"), [10], [1000])
    assert response.token_ids == [5, 6, 7, 8, 9]
    assert response.authors == ["senior", "senior", "junior", "senior", "senior"]
    assert (response.ended, response.rounds) == ("stop", 3)
    assert calls == [
        ("senior", [([1, 2], 10, 1000)]),
        ("junior", [([1, 2, 5, 6], 8, 1002)]),
        ("senior", [([1, 2, 5, 6, 7], 7, 1003)]),
    ]


def test_a_handoff_ends_with_the_budget_the_rounds_or_an_empty_turn():
    def ended(parts, budget, rounds=150):
        ((_, response),) = engines.alternate([[]], scripted(parts)[0], ("s", "j"), [budget], [0], rounds)
        return response.ended

    endless = [Part([1], False)] * 9
    assert ended(endless, 3) == "length"
    assert ended(endless, 99, rounds=4) == "rounds"
    assert ended([Part([], False)], 9) == "stop"
    assert ended([], 0) == "length"


def test_responses_that_are_over_leave_the_batch_and_are_given_at_once():
    batches = []

    def write(author, turns):
        batches.append(len(turns))
        return [Part([7], turn.token_ids[0] == 1) for turn in turns]

    ended = engines.alternate([[2], [1]], write, ("s", "j"), [3, 5], [0, 0])
    position, short = next(ended)
    assert (position, batches) == (1, [2])
    ((position, long),) = ended
    assert (position, batches) == (0, [2, 1, 1])
    assert (short.authors, short.ended) == (["s"], "stop")
    assert (long.authors, long.ended) == (["s", "j", "s"], "length")


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["x", "yz", "", "é", "→ "])), max_size=30))
def test_the_spans_of_an_author_are_what_it_wrote(tokens):
    authors = [author for author, _ in tokens]
    texts = [text for _, text in tokens]
    spans = engines.author_spans(range(len(texts)), authors, "a", lambda ids: "".join(texts[i] for i in ids))
    whole = "".join(texts)
    assert "".join(whole[start:end] for start, end in spans) == "".join(
        text for author, text in tokens if author == "a"
    )
    assert all(one[1] <= two[0] for one, two in zip(spans, spans[1:], strict=False))
    assert engines.clipped(spans, 2) == [[start, min(end, 2)] for start, end in spans if start < 2]


def test_a_character_that_two_authors_share_belongs_to_the_second():
    pieces = [b"a ", "é".encode()[:1], "é".encode()[1:], b"b"]

    def decode(ids):
        return b"".join(pieces[i] for i in ids).decode(errors="replace")

    assert engines.author_spans([0, 1, 2, 3], ["s", "s", "j", "j"], "j", decode) == [[2, 4]]
    assert engines.author_spans([0, 1, 2, 3], ["s", "s", "j", "j"], "s", decode) == [[0, 2]]


def test_handoff_budget_and_ratio():
    assert engines.shared_budget(3000, 4096, 500) == 3000
    assert engines.shared_budget(3000, 4096, 2000) == 4096 - 2000 - 8
    assert engines.shared_budget(3000, 4096, 5000) == 0
    assert engines.handoff_ratio(0.5, 0.625) == pytest.approx(0.8)
    assert engines.handoff_ratio(0.5, 0.0) is None


def test_cross_entropy_is_over_tokens_not_over_responses():
    mean, tokens = partner.mean_cross_entropy([[-1.0, -3.0], [], [-0.5]])
    assert (mean, tokens) == (pytest.approx(1.5), 3)
    for faulty in ([[0.5]], [[float("-inf")]], [[]], []):
        with pytest.raises(ValueError, match="found"):
            partner.mean_cross_entropy(faulty)


def test_response_log_probs_skip_the_prompt_and_need_every_token():
    class Entry:
        logprob = -0.25

    positions = [None, {11: -9.0}, {12: -1.0, 99: -0.1}, {13: Entry()}]
    assert partner.response_log_probs(positions, [10, 11, 12, 13], 2) == [-1.0, -0.25]
    with pytest.raises(ValueError, match="position 2 has no log-probability"):
        partner.response_log_probs([None, {11: -9.0}, {99: -0.1}], [10, 11, 12], 2)
