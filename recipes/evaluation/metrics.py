"""The numbers of one model on one benchmark, each with its interval and its denominator."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Literal

from recipes.evaluation.grading import Grade, right_classes
from recipes.evaluation.maj_at_k import Abstention, maj_at_k, majority_of_first
from recipes.evaluation.sample_store import SampledResponse
from recipes.evaluation.stats import Rule, bootstrap_mean, counts, denominator, pass_at_k


@dataclass(frozen=True)
class MetricOptions:
    """Which numbers, and by which rules.

    Attributes:
        k: the k of pass@k and maj@k; those above the number of responses are refused.
        denominator: see `denominators.Denominator`.
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
    # saved responses may be more of one problem than of another, and one number is the mean over all problems
    mean_right = f"avg@{max(sizes)}" if len(sizes) == 1 else "avg"
    for problem, grades in graded.items():
        counted = [grade for grade in grades if counts(grade.status, grade.reason, options.denominator)]
        if len(counted) < max(options.k, default=1) or not counted:
            reasons = Counter(grade.reason.partition(":")[0] for grade in grades if grade not in counted)
            dropped[problem] = reasons.most_common(1)[0][0] if reasons else "no responses"
            continue
        right = sum(grade.right for grade in counted)
        found = {mean_right: right / len(counted)}
        for k in options.k:
            found[f"pass@{k}"] = pass_at_k(len(counted), right, k)
            if k > 1:
                found[f"maj@{k}"] = _majority(counted, k, options)
        for name, score in found.items():
            scores.setdefault(name, {})[problem] = score
    return scores, dropped


def _majority(grades: Sequence[Grade], k: int, options: MetricOptions) -> float:
    classes = [grade.answer_class for grade in grades]
    right = right_classes(grades)
    if options.majority == "first":
        return float(majority_of_first(classes, k, options.abstention) in right)
    return sum(maj_at_k(classes, name, k, options.abstention) for name in right)


def summarise(
    graded: Mapping[str, Sequence[Grade]], samples: Mapping[str, Sequence[SampledResponse]], options: MetricOptions
) -> dict:
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
    responses = [sample for found in samples.values() for sample in found]
    lengths = [sample.tokens for sample in responses if sample.tokens >= 0]
    shared = [sample for sample in responses if sample.own_tokens >= 0]
    own_share = sum(sample.own_tokens for sample in shared) / max(1, sum(sample.tokens for sample in shared))
    return {
        "problems": len(graded),
        "counted_problems": len(graded) - len(dropped),
        "dropped_problems": dict(sorted(Counter(dropped.values()).items())),
        "responses_per_problem": n,
        "denominator": asdict(denominator([(grade.status, grade.reason) for grade in flat], options.denominator)),
        "metrics": {
            name: bootstrap_mean(list(values.values()), level=options.level, seed=options.seed)._asdict()
            for name, values in scores.items()
        },
        "reasons": dict(sorted(Counter(grade.reason.partition(":")[0] or "ok" for grade in flat).items())),
        "truncated": fmean(sample.finish_reason == "length" for sample in responses),
        "mean_tokens": fmean(lengths) if lengths else None,
        **({"own_token_share": own_share} if shared else {}),
    }
