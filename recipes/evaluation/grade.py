"""Grade the responses to a benchmark with `reward_fns`, and group equal answers for the majority vote."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

from recipes.evaluation.benchmarks import Kind, Problem
from recipes.evaluation.mmlu_pro import LETTERS, guess_is_right
from recipes.evaluation.sample_store import SampledResponse, Samples
from recipes.evaluation.stats import Abstention, bootstrap_mean, maj_at_k, majority_of_first, pass_at_k
from reward_fns import math, multiple_choice
from reward_fns.check_dataset import check
from reward_fns.majority import majority_vote
from reward_fns.result import Score

# Responses judged in one call of the grader's pool.
_CHUNK = 4096
# Reasons with which a grader says that a response holds no answer it could read.
UNREAD = frozenset(
    "no_answer no_finish missing not_text no_box unclosed_box empty_box no_phrase empty_phrase only_thinking empty "
    "part_of_formula denied_box quoted_box several_boxes unparsable too_long too_deep too_many_digits".split()
)


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

    @property
    def unread(self) -> bool:
        """Whether the response holds no answer that the grader could read."""
        return self.reason.partition(":")[0] in UNREAD


def grade(
    kind: Kind,
    samples: Samples,
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
    flat = [(problem, sample.response) for problem, responses in samples.items() for sample in responses]
    results = []
    for start in range(0, len(flat), _CHUNK):
        chunk = flat[start : start + _CHUNK]
        if kind == "math":
            results += math.score_batch([text for _, text in chunk], [golds[name] for name, _ in chunk], **options)
        else:
            results += [multiple_choice.score(text, golds[name], **options) for name, text in chunk]
    graded: dict[str, list[Grade]] = {problem: [] for problem in samples}
    for (problem, _), result in zip(flat, results, strict=True):
        scored = isinstance(result, Score)
        right, reason = scored and result.acc == 1.0, result.reason
        if guess and scored and not result.pred:
            gold = LETTERS.index(multiple_choice.gold_letter(golds[problem], LETTERS))
            right, reason = guess_is_right(choices[problem], gold), "guessed"
        graded[problem].append(Grade("score" if scored else "skip", right, reason, result.pred))
    if not classes:
        return graded
    scope = options.get("answer_scope", "final")
    return {problem: _with_classes(kind, samples[problem], grades, scope) for problem, grades in graded.items()}


def _with_classes(kind: Kind, samples: Sequence[SampledResponse], grades: list[Grade], scope: str) -> list[Grade]:
    if kind != "math":
        return [replace(grade, answer_class=grade.answer or None) for grade in grades]
    # A response without an answer for the grader has none for the vote, which reads by other rules.
    readable = [index for index, grade in enumerate(grades) if not grade.unread]
    names = dict(zip(readable, answer_classes([samples[i].response for i in readable], scope), strict=True))
    return [replace(grade, answer_class=names.get(index)) for index, grade in enumerate(grades)]


def answer_classes(responses: Sequence[str], answer_scope: str = "final") -> list[str | None]:
    """The class of each response's answer, named by the first answer in it; None for a response without one."""
    names: list[str | None] = [None] * len(responses)
    rest = list(range(len(responses)))
    while rest:
        vote = majority_vote([responses[i] for i in rest], min_answers=1, ties="earliest", answer_scope=answer_scope)
        if vote.winner is None:
            break
        members = {index for index, reward in zip(rest, vote.rewards, strict=True) if reward}
        for index in members:
            names[index] = vote.answers[vote.winner]
        rest = [i for i, answer in zip(rest, vote.answers, strict=True) if i not in members and answer]
    return names


def right_classes(grades: Iterable[Grade]) -> set[str]:
    """The classes that count as right: those whose first response is."""
    first: dict[str, bool] = {}
    for grade in grades:
        if grade.answer_class is not None:
            first.setdefault(grade.answer_class, grade.right)
    return {name for name, right in first.items() if right}


def faulty_golds(kind: str, problems: Sequence[Problem], grading: Mapping[str, Any]) -> dict[str, str]:
    """The problems whose gold answer cannot serve, with the reason, by problem id; unlabelled ones are left out.

    Args:
        kind: "math" or "multiple_choice".
        grading: the benchmark's grading options; `letters` limits the options of a multiple choice.
    """
    labelled = [problem for problem in problems if problem.gold is not None]
    if kind == "multiple_choice":
        faults = {problem.id: _choice_problem(problem, grading.get("letters", LETTERS)) for problem in labelled}
        return {name: fault for name, fault in faults.items() if fault}
    # Many problems have the same answer, which needs one check.
    distinct = {repr(problem.gold): problem.gold for problem in labelled}
    faults = {list(distinct)[offender.row]: offender.problem for offender in check(list(distinct.values()))}
    return {problem.id: faults[repr(problem.gold)] for problem in labelled if repr(problem.gold) in faults}


def _choice_problem(problem: Problem, letters: str) -> str | None:
    letter = multiple_choice.gold_letter(problem.gold, letters)
    if not letter:
        return f"gold {problem.gold!r} is no option"
    if problem.options and letters.index(letter) >= len(problem.options):
        return f"gold {letter} of {len(problem.options)} options"
    return None


Rule = Literal["all", "parsable"]


@dataclass(frozen=True)
class MetricOptions:
    """Which numbers, and by which rules.

    Attributes:
        k: the k of pass@k and maj@k; those above the number of responses are refused.
        denominator: "all", every judged response counts and one without an answer is wrong; "parsable", a response
            without a readable answer is left out, as the published evaluation of SeRL does. The second favours models
            whose wrong responses hold no readable answer.
        majority: "expected", exact over every choice of k responses, or "first", the vote of the first k as published
            scripts count it.
        abstention: whether having no answer is a vote.
        level: of the intervals.
        seed: of the bootstrap.
    """

    k: tuple[int, ...] = (1,)
    denominator: Rule = "all"
    majority: Literal["expected", "first"] = "expected"
    abstention: Abstention = "silent"
    level: float = 0.95
    seed: int = 0


def counts(grade: Grade, rule: Rule) -> bool:
    """Whether a response is in the denominator."""
    return grade.status == "score" and not (rule == "parsable" and grade.unread)


def denominator(grades: Sequence[Grade], rule: Rule) -> dict[str, Any]:
    """What an accuracy was divided by: the rule, the responses that count, and those left out by reason."""
    excluded = Counter(g.reason.partition(":")[0] or g.status for g in grades if not counts(g, rule))
    return {"rule": rule, "counted": len(grades) - excluded.total(), "excluded": dict(sorted(excluded.items()))}


def per_problem(
    graded: Mapping[str, Sequence[Grade]], options: MetricOptions
) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    """Every metric as problem -> score, and the problems left out with the reason.

    A problem leaves when fewer of its responses count than some k needs: under the rule "all", when its gold answer
    is faulty; under "parsable", when too few of its responses can be read. So all k are averaged over the same
    problems.
    """
    scores: dict[str, dict[str, float]] = {}
    dropped: dict[str, str] = {}
    sizes = {len(grades) for grades in graded.values()}
    # Saved responses may be more of one problem than of another, and one number is the mean over all problems.
    mean_right = f"avg@{max(sizes)}" if len(sizes) == 1 else "avg"
    for problem, grades in graded.items():
        counted = [grade for grade in grades if counts(grade, options.denominator)]
        if len(counted) < max(options.k, default=1) or not counted:
            reasons = Counter(grade.reason.partition(":")[0] for grade in grades if grade not in counted)
            dropped[problem] = reasons.most_common(1)[0][0] if reasons else "no responses"
            continue
        right = sum(grade.right for grade in counted)
        scores.setdefault(mean_right, {})[problem] = right / len(counted)
        for k in options.k:
            scores.setdefault(f"pass@{k}", {})[problem] = pass_at_k(len(counted), right, k)
            if k > 1:
                scores.setdefault(f"maj@{k}", {})[problem] = _majority(counted, k, options)
    return scores, dropped


def _majority(grades: Sequence[Grade], k: int, options: MetricOptions) -> float:
    classes = [grade.answer_class for grade in grades]
    right = right_classes(grades)
    if options.majority == "first":
        return float(majority_of_first(classes, k, options.abstention) in right)
    return sum(maj_at_k(classes, name, k, options.abstention) for name in right)


def summarise(graded: Mapping[str, Sequence[Grade]], samples: Samples, options: MetricOptions) -> dict[str, Any]:
    """All numbers of one model on one benchmark, ready for JSON.

    Raises:
        ValueError: a k above the number of responses per problem, or no problem that counts.
    """
    n = min((len(grades) for grades in graded.values()), default=0)
    if n < max(options.k, default=1):
        raise ValueError(f"pass@{max(options.k)} needs as many responses per problem, found {n}; raise sampling.n")
    scores, dropped = per_problem(graded, options)
    if not scores:
        raise ValueError(f"none of {len(graded)} problems counts: {dict(Counter(dropped.values()))}")
    flat = [grade for grades in graded.values() for grade in grades]
    responses = [sample for of_problem in samples.values() for sample in of_problem]
    lengths = [sample.tokens for sample in responses if sample.tokens >= 0]
    shared = [sample for sample in responses if sample.own_tokens >= 0]
    own_share = sum(sample.own_tokens for sample in shared) / max(1, sum(sample.tokens for sample in shared))
    return {
        "problems": len(graded),
        "counted_problems": len(graded) - len(dropped),
        "dropped_problems": dict(sorted(Counter(dropped.values()).items())),
        "responses_per_problem": n,
        "denominator": denominator(flat, options.denominator),
        "metrics": {
            name: bootstrap_mean(list(values.values()), level=options.level, seed=options.seed)._asdict()
            for name, values in scores.items()
        },
        "reasons": dict(sorted(Counter(grade.reason.partition(":")[0] or "ok" for grade in flat).items())),
        "unread": fmean(grade.unread for grade in flat),
        "truncated": fmean(sample.finish_reason == "length" for sample in responses),
        "mean_tokens": fmean(lengths) if lengths else None,
        **({"own_token_share": own_share} if shared else {}),
    }
