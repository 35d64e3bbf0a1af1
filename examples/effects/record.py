"""Logs of the experiments, and intervals over their seeds.

An experiment has one JSONL file, and each run one line in it: what it was run with, and a record per evaluation. Tables
and pictures are made from these files alone.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

Runs = list[tuple[dict[str, Any], list[dict[str, Any]]]]

RESULTS = Path(__file__).parent / "results"

# Two-sided 95 % quantiles of Student's t for 1 to 9 degrees of freedom.
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def run_all(
    train: Callable[[dict], Iterable[dict]], settings: Sequence[dict], log: Path, part: str = "", *, workers: int
) -> None:
    """Train every setting that the log has no run of yet, `workers` at a time; a run is logged when it ends.

    A setting holds `name`, unique in its part of the log, and what `train` needs; `train` yields one record per
    evaluation.
    """
    done = {setting["name"] for setting, _ in _read(log, part)}
    todo = [setting for setting in settings if setting["name"] not in done]
    print(f"{log.stem} {part}: {len(settings) - len(todo)} runs stand, {len(todo)} to do", flush=True)
    with ProcessPoolExecutor(max_workers=workers, initializer=_one_thread) as pool:
        for setting, records in pool.map(_run, [(train, setting) for setting in todo]):
            with log.open("a") as file:
                file.write(json.dumps({"part": part, "setting": setting, "records": records}) + "\n")
            print(f"{log.stem} {part} {setting['name']}", flush=True)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _run(task: tuple[Callable[[dict], Iterable[dict]], dict]) -> tuple[dict, list[dict]]:
    train, setting = task
    return setting, list(train(setting))


def read_all(log: Path, part: str = "") -> Runs:
    """(setting, records) of every run in a part of the log, by name; FileNotFoundError where it has none."""
    if runs := _read(log, part):
        return sorted(runs, key=lambda run: run[0]["name"])
    raise FileNotFoundError(f"no runs {part} in {log}: run the experiment first")


def _read(log: Path, part: str) -> Runs:
    lines = [json.loads(line) for line in log.open()] if log.exists() else []
    return [(line["setting"], line["records"]) for line in lines if line["part"] == part]


def mean_and_interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and half the width of its 95 % interval by Student's t over the seeds.

    Raises:
        ValueError: fewer than two values, or more than ten.
    """
    if not 2 <= len(values) <= len(T_95) + 1:
        raise ValueError(f"an interval needs 2 to {len(T_95) + 1} seeds, found {len(values)}")
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, T_95[len(values) - 2] * math.sqrt(variance / len(values))


def difference(first: dict[int, float], second: dict[int, float]) -> tuple[float, float]:
    """Mean and half-width of first - second, paired by seed; the seeds must be the same.

    Raises:
        ValueError: other seeds on one side.
    """
    if first.keys() != second.keys():
        raise ValueError(f"seeds differ: {sorted(first)} and {sorted(second)}")
    return mean_and_interval([first[seed] - second[seed] for seed in sorted(first)])


def command_line(description: str, run: Callable[[int], None], report: Callable[[], str], draw: Callable[[], None]):
    """`run` trains with so many workers at a time; `report` prints what `report()` returns and draws the picture."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("what", choices=["run", "report"])
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    if given.what == "run":
        run(given.workers)
    else:
        print(report())
        draw()
