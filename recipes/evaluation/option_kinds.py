"""The types and ranges of the options that no dataclass reads, checked before anything is loaded.

A value that only a finished evaluation would stumble over costs the whole evaluation: a rule for the denominator, a
level of the intervals, a grader's mode.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from annotated_types import Gt, Interval, Len, Lt

from recipes.core.settings import Count, NonNegative, Positive, PositiveShare, check_value
from recipes.errors import ConfigError
from recipes.evaluation.maj_at_k import Abstention
from recipes.evaluation.stats import Rule
from reward_fns import math, multiple_choice
from reward_fns.extract import AnswerScope

Text = Annotated[str, Len(1)]
_KINDS: dict[str, Any] = {
    "models": list[Any],
    "benchmarks": list[Text],
    "data": dict[str, Text | None],
    "data_dir": Text,
    "limit": Count | None,
    "level": Annotated[float, Gt(0), Lt(1)],
    "output_dir": Text,
    "engines": Count,
    "score_only": Text | None,
    "sampling": dict[str, Any],
    "sampling.preset": Literal["greedy", "model"],
    "sampling.n": Count,
    "sampling.temperature": NonNegative | None,
    "sampling.top_p": PositiveShare | None,
    "sampling.top_k": Annotated[int, Interval(ge=-1)] | None,
    "sampling.max_tokens": Count | None,
    "sampling.budgets": dict[str, Count] | None,
    "sampling.stop": list[Text],
    "sampling.seed": int,
    "metrics": dict[str, Any],
    "metrics.denominator": Rule,
    "metrics.majority": Literal["expected", "first"],
    "metrics.abstention": Abstention,
    "grading": dict[str, Any],
    "grading.math": dict[str, Any],
    "grading.math.mode": math.Mode,
    "grading.math.answer_scope": AnswerScope,
    "grading.math.time_limit": Positive,
    "grading.math.workers": Count | None,
    "grading.multiple_choice": dict[str, Any],
    "grading.multiple_choice.style": multiple_choice.Style | None,
    "grading.multiple_choice.letters": Annotated[str, Len(1)] | None,
    "grading.multiple_choice.guess": bool | None,
    "handoff": dict[str, Any],
    "legibility": dict[str, Any],
    "legibility.responses": Count | None,
    "partner": dict[str, Any],
    "engine": dict[str, Any],
}


def check_options(config: Mapping[str, Any]) -> None:
    """Refuse a value of another type or outside its range.

    Raises:
        ConfigError: naming the option, what was found and what it must be.
    """
    for name, kind in _KINDS.items():
        value: Any = config
        for part in name.split("."):
            value = value[part]
        check_value(kind, value, name)
    named = [entry.rpartition("/")[2].partition(".")[0] for entry in config["benchmarks"]]
    if len(set(named)) < len(named):
        raise ConfigError(
            f"benchmarks: two have the same name in {config['benchmarks']}, and so one place for results", "benchmarks"
        )
