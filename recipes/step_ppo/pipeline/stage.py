"""What every stage that asks a model has in common: skip what is done, write what comes, count what fails."""

import argparse
import logging
from collections import Counter
from collections.abc import Callable, Iterable

from tqdm import tqdm

from recipes.core.journal import Journal
from recipes.core.sampling import Engine, Request
from recipes.step_ppo.pipeline.generation import engine_from, sampling_from
from recipes.step_ppo.pipeline.records import Record
from reward_fns.completions import Answer
from reward_fns.errors import BudgetSpent, EndpointError
from reward_fns.result import FailureBudget, Skip

logger = logging.getLogger(__name__)


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

    def take(self, key: str, found: "Record | Skip | EndpointError") -> None:
        """Write a record, or count why there is none.

        Raises:
            BudgetSpent: more than the budget's share of the finished requests was skipped.
        """
        self._progress.update()
        if isinstance(found, dict):
            self._journal.append(found)
            self._done += 1
            return
        reason = found.reason.partition(":")[0]
        if not self._skipped[reason]:
            logger.warning("%s skipped: %s", key, found.reason if isinstance(found, Skip) else found)
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

    def on_done(request: Request, found: "Answer | EndpointError") -> None:
        recorder.take(request.key, found if isinstance(found, EndpointError) else to_record(request, found.texts))

    engine = engine_from(args)
    try:
        engine.generate((by_key[key] for key in recorder.pending), sampling_from(args), on_done)
    finally:
        summary = recorder.close()
    return summary, engine
