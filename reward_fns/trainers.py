"""The rewards in the signatures of other trainers and harnesses; verl's own is `compute_score` in `math`.

| caller | what to give it |
|---|---|
| TRL `GRPOTrainer`, `RLOOTrainer` | `reward_funcs=trl_reward("solution")`; None, which TRL takes out, for a Skip |
| verifiers and prime-rl | `vf.Rubric(funcs=[verifiers_reward()])`; a Skip raises SkipError |
| lm-evaluation-harness | `register_lm_eval_filter()`, then `filter: [{function: reward_fns}]` in the task's yaml |
| anything else | `reward_fns.math.score(response, gold)`, a Score or a Skip |

None of these packages is imported before it is needed.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from reward_fns.errors import OptionError, SkipError
from reward_fns.extract import extract_boxed
from reward_fns.gold import gold_answers
from reward_fns.math import ascore, read_options, score_batch
from reward_fns.result import Score, Skip

UNJUDGED = "[unjudged]"
"""What a filter of lm-evaluation-harness leaves of a response that could not be judged."""


def response_text(completion: Any) -> Any:
    """The text of a completion: a string, or messages of a conversation, whose last assistant's one counts.

    Returns:
        The text; what is neither comes back as it is, and is scored as no text.
    """
    if isinstance(completion, Mapping):
        completion = [completion]
    if isinstance(completion, str) or not isinstance(completion, Sequence):
        return completion
    said = [_field(message, "content") for message in completion if _field(message, "role") in (None, "assistant")]
    content = said[-1] if said else ""
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = "".join(str(_field(part, "text") or "") for part in content)
    return content if isinstance(content, str) else ""


def _field(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, Mapping) else getattr(message, name, None)


def trl_reward(column: str = "solution", **options: Any) -> Callable[..., list[float | None]]:
    """A reward function for TRL: one float for each completion, None where it could not be judged.

    Args:
        column: the dataset's column with the gold answers.
        options: see `reward_fns.math.MathOptions`.

    Raises:
        OptionError: an unknown option; when called, a dataset without the column.
    """
    read_options(options)

    def math_reward(completions: Sequence[Any], **columns: Any) -> list[float | None]:
        golds = columns.get(column)
        if golds is None:
            raise OptionError(f"the dataset has no column {column!r}; found {sorted(columns)}")
        results = score_batch([response_text(completion) for completion in completions], golds, **options)
        return [result.value if isinstance(result, Score) else None for result in results]

    return math_reward


def verifiers_reward(**options: Any) -> Callable[..., Awaitable[float]]:
    """A function for a verifiers Rubric, as environments for prime-rl use it: `answer` is the gold answer.

    Raises:
        OptionError: an unknown option.
        SkipError: when called, the sample could not be judged. verifiers logs an exception of a reward function.
    """
    read_options(options)

    async def math_reward(completion: Any, answer: Any, **_unused: Any) -> float:
        result = await ascore(response_text(completion), answer, **options)
        if isinstance(result, Skip):
            raise SkipError(result.reason)
        return result.value

    return math_reward


def filter_responses(
    responses: Iterable[Sequence[str]], docs: Sequence[Mapping[str, Any]], gold_key: str = "answer", **options: Any
) -> list[list[str]]:
    """What exact match can compare: the doc's own gold text for a right response, else the answer as boxed.

    Args:
        responses: for each document the responses to it.
        docs: the documents, with the gold answer under `gold_key`.

    Returns:
        As `responses`; UNJUDGED for a response that could not be judged, "" for one without an answer.
    """
    groups = [list(group) for group in responses]
    flat = [(text, doc[gold_key]) for group, doc in zip(groups, docs, strict=True) for text in group]
    results = iter(score_batch([text for text, _ in flat], [gold for _, gold in flat], **options))
    filtered = []
    for group, doc in zip(groups, docs, strict=True):
        filtered.append([_filtered(text, doc[gold_key], next(results)) for text in group])
    return filtered


def _filtered(text: str, gold: Any, result: Score | Skip) -> str:
    if isinstance(result, Skip):
        return UNJUDGED
    if result.value > 0:
        return gold if isinstance(gold, str) else gold_answers(gold)[0][0]
    return result.pred or extract_boxed(text).text


def register_lm_eval_filter(name: str = "reward_fns") -> type:
    """Register the filter with lm-evaluation-harness.

    In a task: `filter_list: [{name: strict, filter: [{function: reward_fns, gold_key: answer}, {function:
    take_first}]}]`.

    Returns:
        The filter class.
    """
    from lm_eval.api.filter import Filter
    from lm_eval.api.registry import register_filter

    @register_filter(name)
    class RewardFilter(Filter):
        """Right responses become the gold text, so that exact match counts them."""

        def __init__(self, gold_key: str = "answer", **options: Any):
            read_options(options)
            self._gold_key, self._options = gold_key, options
            super().__init__()

        def apply(self, resps: Iterable[Sequence[str]], docs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
            return filter_responses(resps, docs, self._gold_key, **self._options)

    return RewardFilter
