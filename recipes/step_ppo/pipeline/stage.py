"""What every stage that asks a model has in common: skip what is done, write what comes, count what fails."""

import argparse
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm

from recipes.common.journal import Journal
from recipes.step_ppo.pipeline.generation import Generator, Request
from recipes.step_ppo.pipeline.records import Record
from reward_fns.errors import BudgetSpent
from reward_fns.result import FailureBudget, Skip

logger = logging.getLogger(__name__)


@dataclass
class Tally:
    """Outcomes of one run of a stage. A skipped request leaves no record: the same command tries it again.

    Raises:
        BudgetSpent: from `skip`, when more than the budget's share of the finished requests was skipped.
    """

    budget: FailureBudget
    done: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    def skip(self, key: str, skip: Skip) -> None:
        """Count a request that could not be served."""
        reason = skip.reason.partition(":")[0]
        if not self.skipped[reason]:
            logger.warning("%s skipped: %s", key, skip.reason)
        self.skipped[reason] += 1
        count = self.skipped.total()
        if count >= self.budget.min_count and count > self.budget.share * (count + self.done):
            reasons = ", ".join(f"{reason} x{number}" for reason, number in self.skipped.most_common())
            raise BudgetSpent(
                f"{count} of {count + self.done} requests were skipped ({reasons}), more than the budget of "
                f"{self.budget.share:.0%}. What succeeded is kept; mend the endpoint and run the same command again."
            )

    def summary(self) -> str:
        """One clause for the closing line."""
        if not self.skipped:
            return f"{self.done} new"
        reasons = ", ".join(f"{reason} x{number}" for reason, number in self.skipped.most_common())
        return f"{self.done} new, {self.skipped.total()} skipped ({reasons}; run again to fill them in)"


def add_budget_arguments(parser: argparse.ArgumentParser) -> None:
    """`--failure-budget` and `--failure-min-count`."""
    parser.add_argument("--failure-budget", type=float, default=0.05, help="share of requests that may be skipped")
    parser.add_argument("--failure-min-count", type=int, default=8, help="fewer skips than this never end the run")


def budget_from(args: argparse.Namespace) -> FailureBudget:
    """The budget that the options describe."""
    return FailureBudget(args.failure_budget, args.failure_min_count)


def generate_into(
    journal: Journal,
    generator: Callable[[], Generator],
    requests: Iterable[Request],
    to_record: Callable[[Request, list[str]], "Record | Skip"],
    *,
    budget: FailureBudget,
    description: str,
) -> tuple[Tally, Any]:
    """Answer the requests whose key is not in the journal yet.

    Args:
        generator: makes the generator; not called when nothing is left to do.
        to_record: turns the sampled texts into the record to write, or a Skip when they cannot be judged.

    Returns:
        The tally, and the generator (None when none was needed).

    Raises:
        BudgetSpent: too many requests failed.
    """
    requests = list(requests)
    pending = [request for request in requests if request.key not in journal]
    tally = Tally(budget)
    if not pending:
        return tally, None
    progress = tqdm(total=len(requests), initial=len(requests) - len(pending), desc=description, unit="prompt")

    def on_result(request: Request, result: "list[str] | Skip") -> None:
        record = result if isinstance(result, Skip) else to_record(request, result)
        if isinstance(record, Skip):
            tally.skip(request.key, record)
        else:
            journal.append(record)
            tally.done += 1
        progress.update()

    model = generator()
    try:
        model.run(pending, on_result)
    finally:
        progress.close()
    return tally, model
