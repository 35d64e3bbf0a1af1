"""Grade the responses to a benchmark with `reward_fns`, and group equal answers for the majority vote."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from recipes.evaluation.denominators import UNPARSABLE
from recipes.evaluation.mmlu_pro import LETTERS, guess_is_right
from recipes.evaluation.sample_store import SampledResponse
from reward_fns import math, multiple_choice
from reward_fns.majority import majority_vote
from reward_fns.result import Score

Kind = Literal["math", "multiple_choice"]
_CHUNK = 4096


@dataclass(frozen=True)
class Grade:
    """The judgement of one response.

    Attributes:
        status: "score", or "skip" when it could not be judged by no fault of its own.
        right: whether the answer equals the gold answer.
        reason: why it is what it is; "" for a plain right answer.
        answer: the answer that was judged.
        answer_class: responses with equal answers have the same; None without a usable answer.
    """

    status: str
    right: bool
    reason: str
    answer: str
    answer_class: str | None = None


def grade(
    kind: Kind,
    samples: Mapping[str, Sequence[SampledResponse]],
    golds: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
    *,
    classes: bool = True,
    choices: Mapping[str, int] | None = None,
) -> dict[str, list[Grade]]:
    """Grade every response to every problem.

    Args:
        kind: how answers are read and compared.
        samples: responses by problem.
        golds: gold answer by problem.
        options: for "math" those of `reward_fns.math.MathOptions`, for "multiple_choice" those of
            `reward_fns.multiple_choice.score`.
        classes: also find the classes of equal answers, which maj@k needs.
        choices: number of options of each problem. With `guess` in the options, a response without a readable letter is
            right if MMLU-Pro's guess among them hits, and its reason is "guessed".
    """
    options = dict(options or {})
    guess = bool(options.pop("guess", False)) and choices is not None
    flat = [(problem, sample) for problem, found in samples.items() for sample in found]
    judged = []
    for start in range(0, len(flat), _CHUNK):
        judged += _judge(kind, flat[start : start + _CHUNK], golds, options)
    results: dict[str, list[Grade]] = {problem: [] for problem in samples}
    for (problem, _), result in zip(flat, judged, strict=True):
        scored = isinstance(result, Score)
        right, reason = scored and result.acc == 1.0, result.reason
        if guess and scored and not result.pred:
            right, reason = _guess(choices[problem], golds[problem]), "guessed"
        results[problem].append(Grade("score" if scored else "skip", right, reason, result.pred))
    if not classes:
        return results
    return {problem: _with_classes(kind, samples[problem], found, options) for problem, found in results.items()}


def _guess(options: int, gold: Any) -> bool:
    return guess_is_right(options, LETTERS.index(multiple_choice.gold_letter(gold, LETTERS)))


def _judge(kind: Kind, chunk: Sequence[tuple[str, SampledResponse]], golds: Mapping[str, Any], options: dict) -> list:
    if kind == "math":
        return math.score_batch([s.response for _, s in chunk], [golds[problem] for problem, _ in chunk], **options)
    return [multiple_choice.score(sample.response, golds[problem], **options) for problem, sample in chunk]


def _with_classes(kind: Kind, samples: Sequence[SampledResponse], grades: list[Grade], options) -> list[Grade]:
    if kind != "math":
        named = [grade.answer or None for grade in grades]
    else:
        # A response without an answer for the grader has none for the vote, which reads by other rules.
        readable = [i for i, grade in enumerate(grades) if grade.reason.partition(":")[0] not in UNPARSABLE]
        scope = (options or {}).get("answer_scope", "final")
        found = answer_classes([samples[i].response for i in readable], scope)
        classes = dict(zip(readable, found, strict=True))
        named = [classes.get(i) for i in range(len(samples))]
    return [
        Grade(grade.status, grade.right, grade.reason, grade.answer, name)
        for grade, name in zip(grades, named, strict=True)
    ]


def answer_classes(responses: Sequence[str], answer_scope: str = "final") -> list[str | None]:
    """The class of each response's answer, named by the first answer in it; None for a response without one."""
    names: list[str | None] = [None] * len(responses)
    left = list(range(len(responses)))
    while left:
        vote = majority_vote([responses[i] for i in left], min_answers=1, ties="earliest", answer_scope=answer_scope)
        if vote.winner is None:
            break
        name = vote.answers[vote.winner]
        won = {index for index, reward in zip(left, vote.rewards, strict=True) if reward}
        for index in won:
            names[index] = name
        left = [index for index, answer in zip(left, vote.answers, strict=True) if index not in won and answer]
    return names


def right_classes(grades: Iterable[Grade]) -> set[str]:
    """The classes that count as right: those whose first response is."""
    first: dict[str, bool] = {}
    for found in grades:
        if found.answer_class is not None:
            first.setdefault(found.answer_class, found.right)
    return {name for name, right in first.items() if right}
