"""The table of accuracies of step-PPO's two tests, from their logs."""

from collections.abc import Callable, Iterable, Sequence

import record

Records = Sequence[dict]
# Records by arm and seed.
Arms = dict[str, dict[int, list[dict]]]


def mean_accuracy(records: Records) -> float:
    """The mean over the evaluations of training, the start left out."""
    return sum(r["accuracy"] for r in records[1:]) / len(records[1:])


def mean(records: Records) -> float:
    """`mean_accuracy` in %."""
    return 100 * mean_accuracy(records)


def last(records: Records) -> float:
    """Accuracy at the end, in %."""
    return 100 * records[-1]["accuracy"]


def halved(records: Records) -> bool:
    """Whether a run ends below half of its own best evaluation."""
    return records[-1]["accuracy"] < max(r["accuracy"] for r in records) / 2


def of_seeds(seeds: dict[int, list[dict]], measure: Callable[[Records], float]) -> dict[int, float]:
    """The measure of each seed's records."""
    return {seed: measure(records) for seed, records in seeds.items()}


def plain(values: Iterable[float], digits: int = 1) -> str:
    """Mean and 95 % interval."""
    center, half = record.mean_and_interval(list(values))
    return f"{center:.{digits}f} ± {half:.{digits}f}"


def arms_table(
    runs: Arms,
    labels: dict[str, str],
    settings: dict[str, str],
    heading: str,
    collapsed: Callable[[Records], bool],
    every: int,
) -> str:
    """Accuracy in % over training and at the end, against the arm `outcome`, with length and collapse.

    `settings` are the cells of the column `heading`, by arm; `every` is the first evaluation after the start.
    """
    end = next(iter(runs["outcome"].values()))[-1].get("step")
    lines = [
        f"| arm | {heading} | mean of steps {every} to {end} | less outcome only | step {end} "
        "| less outcome only | steps written | well-formed, % | collapsed |",
        "|" + "---|" * 9,
        _start_row(runs["outcome"]),
    ]
    for arm, seeds in runs.items():
        cells = [labels[arm], settings[arm]]
        for measure in (mean, last):
            found = of_seeds(seeds, measure)
            cells.append(plain(found.values()))
            cells.append("" if arm == "outcome" else _signed(found, of_seeds(runs["outcome"], measure)))
        cells += [plain(r[-1]["steps"] for r in seeds.values())]
        cells += [plain(100 * r[-1]["well_formed"] for r in seeds.values())]
        lines.append(f"| {' | '.join(cells)} | {sum(map(collapsed, seeds.values()))} of {len(seeds)} |")
    return "\n".join(lines)


def _start_row(seeds: dict[int, list[dict]]) -> str:
    accuracy, steps, formed = (
        plain(factor * r[0][key] for r in seeds.values())
        for key, factor in (("accuracy", 100), ("steps", 1), ("well_formed", 100))
    )
    return f"| start | | | | {accuracy} | | {steps} | {formed} | |"


def _signed(first: dict[int, float], second: dict[int, float]) -> str:
    change, half = record.difference(first, second)
    cell = f"{change:+.1f} ± {half:.1f}"
    return f"**{cell}**" if abs(change) > half else cell
