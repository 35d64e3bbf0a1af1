"""What every stage that asks a model has in common: skip what is done, write what comes, count what fails."""

import argparse
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from tqdm import tqdm

from recipes.core.files import model_digest
from recipes.core.journal import Journal
from recipes.core.sampling import EndpointEngine, Engine, Request, Sampling
from recipes.step_ppo.pipeline.data import Question
from recipes.step_ppo.pipeline.records import Record
from reward_fns import math, multiple_choice
from reward_fns.completions import Answer
from reward_fns.endpoint import EndpointSettings
from reward_fns.errors import BudgetSpent, EndpointError
from reward_fns.result import FailureBudget, Score, Skip

logger = logging.getLogger(__name__)

FOUR_LINE_BREAKS = "\n\n\n\n"


def add_arguments(
    parser: argparse.ArgumentParser, *, n: int, temperature: float, top_p: float, max_tokens: int = 2048
) -> None:
    """Add the options of every generating command, with this command's defaults."""
    model = parser.add_argument_group("model")
    model.add_argument("--model", required=True, help="path or id for vLLM, or the name the endpoint knows")
    model.add_argument("--endpoint", help="root of an OpenAI-compatible server; without it vLLM runs in this process")
    model.add_argument("--chat", action="store_true", help="endpoint: use chat completions")
    model.add_argument("--api-key-env", default="OPENAI_API_KEY", help="environment variable that holds the key")
    add_endpoint_arguments(model, timeout=600.0)
    model.add_argument("--engine", type=json.loads, default={}, help="vLLM: further arguments as a JSON object")
    model.add_argument("--batch", type=int, default=1024, help="vLLM: requests that it holds at a time")
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument("--n", type=int, default=n, help=f"texts per prompt (default {n})")
    sampling.add_argument("--temperature", type=float, default=temperature, help=f"(default {temperature})")
    sampling.add_argument("--top-p", type=float, default=top_p, help=f"(default {top_p})")
    sampling.add_argument("--max-tokens", type=int, default=max_tokens, help=f"(default {max_tokens})")
    sampling.add_argument("--stop", nargs="*", default=[FOUR_LINE_BREAKS], help="texts that end a sample")
    sampling.add_argument("--seed", type=int, default=0)


def sampling_options(args: argparse.Namespace) -> dict:
    """Return what the records of a generating command depend on, for its journal."""
    names = ("model", "n", "temperature", "top_p", "max_tokens", "stop", "seed")
    return {name: getattr(args, name) for name in names} | {"weights": model_digest(args.model)}


def sampling_from(args: argparse.Namespace) -> Sampling:
    """Read the sampling that the options of `add_arguments` describe."""
    return Sampling(args.n, args.temperature, args.top_p, max_tokens=args.max_tokens, stop=tuple(args.stop))


def engine_from(args: argparse.Namespace) -> Engine:
    """Start the engine that the options of `add_arguments` describe."""
    if args.endpoint:
        return EndpointEngine(endpoint_settings(args, args.model, key_variable=args.api_key_env), chat=args.chat)
    from recipes.core.vllm_engine import VllmEngine

    print(f"loading {args.model} into vLLM", flush=True)
    options = {"enable_prefix_caching": True, "disable_log_stats": False} | args.engine
    return VllmEngine(args.model, options, window=args.batch)


def add_endpoint_arguments(group: argparse._ActionsContainer, *, timeout: float) -> None:
    """Add concurrency, time limit and attempts of requests to an endpoint."""
    group.add_argument("--concurrency", type=int, default=32, help="endpoint: requests in flight")
    group.add_argument("--timeout", type=float, default=timeout, help="endpoint: seconds for one attempt")
    group.add_argument("--attempts", type=int, default=4, help="endpoint: how often one request is sent at most")


def endpoint_settings(args: argparse.Namespace, model: str, *, key_variable: str | None) -> EndpointSettings:
    """Read the endpoint that the options of `add_endpoint_arguments` describe."""
    return EndpointSettings(
        args.endpoint, model, key_variable=key_variable, timeout=args.timeout, attempts=args.attempts,
        concurrency=args.concurrency, max_wait=20.0,
    )  # fmt: skip


def judge(question: Question, responses: Sequence[str]) -> list[Score | Skip]:
    """A Score of 1 or 0 with its reason for each response, or a Skip when the gold answer or the checker is at fault.

    Multiple choice: exactly one capital letter A-D behind the first `Finish`, equal to the gold one (LPR code).
    Maths: the final box, checked for equivalence.
    """
    if question.style == "react":
        return [multiple_choice.score(text, question.gold, style="finish", letters="ABCD") for text in responses]
    return math.score_batch(responses, [question.gold] * len(responses))


def correct(result: Score) -> bool:
    """Whether a judged response is right."""
    return result.acc > 0


def add_budget_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--failure-budget` and `--failure-min-count`."""
    parser.add_argument("--failure-budget", type=float, default=0.05, help="share of requests that may be skipped")
    parser.add_argument("--failure-min-count", type=int, default=8, help="fewer skips than this never end the run")


class Recorder:
    """Writes the records of one run of a stage, counts skips and shows progress.

    A skipped request leaves no record: the same command tries it again.

    Args:
        journal: where records go.
        keys: all requests of the stage; `pending` are those without a record.
        args: with the options of `add_budget_arguments`.
        description: of the progress bar.
    """

    def __init__(self, journal: Journal, keys: Iterable[str], args: argparse.Namespace, description: str):
        keys = list(keys)
        self.pending = [key for key in keys if key not in journal]
        self._journal, self._budget = journal, FailureBudget(args.failure_budget, args.failure_min_count)
        self._done, self._skipped = 0, Counter[str]()
        self._progress = tqdm(
            total=len(keys), initial=len(keys) - len(self.pending), desc=description, disable=not self.pending
        )

    def add(self, key: str, result: "Record | Skip | EndpointError") -> None:
        """Write a record, or count why there is none.

        Raises:
            BudgetSpent: more than the budget's share of the finished requests was skipped.
        """
        self._progress.update()
        if isinstance(result, dict):
            self._journal.append(result)
            self._done += 1
            return
        reason = result.reason.partition(":")[0]
        if not self._skipped[reason]:
            logger.warning("%s skipped: %s", key, result.reason if isinstance(result, Skip) else result)
        self._skipped[reason] += 1
        count = self._skipped.total()
        if count >= self._budget.min_count and count > self._budget.share * (count + self._done):
            raise BudgetSpent(
                f"{count} of {count + self._done} requests were skipped ({self._reasons()}), more than the budget of "
                f"{self._budget.share:.0%}. Finished records are kept; fix the endpoint and run the same command again."
            )

    def close(self) -> str:
        """End the progress bar and return one clause for the closing line."""
        self._progress.close()
        if not self._skipped:
            return f"{self._done} new"
        skipped = f"{self._skipped.total()} skipped ({self._reasons()}; run again to fill them in)"
        return f"{self._done} new, {skipped}"

    def _reasons(self) -> str:
        return ", ".join(f"{reason} x{number}" for reason, number in self._skipped.most_common())


def generate_into(
    journal: Journal,
    requests: Iterable[Request],
    args: argparse.Namespace,
    to_record: Callable[[Request, list[str]], "Record | Skip"],
    description: str,
) -> tuple[str, Engine | None]:
    """Answer the requests whose key is not in the journal yet.

    Args:
        args: with the options of `generation.add_arguments` and `add_budget_arguments`.
        to_record: turns the sampled texts into the record to write, or a Skip when they cannot be judged.
        description: of the progress bar.

    Returns:
        One clause about what was done, and the engine (None when nothing was left to do).

    Raises:
        BudgetSpent: too many requests failed.
        EndpointError: the endpoint refuses every request.
    """
    by_key = {request.key: request for request in requests}
    recorder = Recorder(journal, by_key, args, description)
    if not recorder.pending:
        return recorder.close(), None

    def on_done(request: Request, answer: "Answer | EndpointError") -> None:
        recorder.add(request.key, answer if isinstance(answer, EndpointError) else to_record(request, answer.texts))

    engine = engine_from(args)
    try:
        engine.generate((by_key[key] for key in recorder.pending), sampling_from(args), on_done)
    finally:
        summary = recorder.close()
    return summary, engine
