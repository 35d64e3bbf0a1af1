"""The numbers of one model on one benchmark, each with its interval and its denominator."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from recipes.evaluation.grade import Grade, right_classes
from recipes.evaluation.sample_store import Samples
from recipes.evaluation.stats import Abstention, bootstrap_mean, maj_at_k, majority_of_first, pass_at_k

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
