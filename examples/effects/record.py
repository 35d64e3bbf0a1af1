"""Logs of the experiments, and intervals over their seeds.

A run is one JSONL file: its first line is what it was run with, each further line is one evaluation. Tables and
pictures are made from these files alone.
"""

import argparse
import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

Runs = list[tuple[dict[str, Any], list[dict[str, Any]]]]

RESULTS = Path(__file__).parent / "results"

# Two-sided 95 % quantiles of Student's t for 1 to 9 degrees of freedom.
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def run_all(train: Callable[[dict], Iterable[dict]], settings: Sequence[dict], folder: Path, *, workers: int) -> None:
    """Train every setting whose log is not complete yet, `workers` at a time; a log is written when its run ends.

    A setting holds `name`, unique in the folder, and what `train` needs; `train` yields one record per evaluation.
    """
    folder.mkdir(parents=True, exist_ok=True)
    left = [setting for setting in settings if not (folder / f"{setting['name']}.jsonl").exists()]
    print(f"{folder.name}: {len(settings) - len(left)} runs stand, {len(left)} to do", flush=True)
    with ProcessPoolExecutor(max_workers=workers, initializer=_one_thread) as pool:
        for name in pool.map(_run, [(train, setting, folder) for setting in left]):
            print(f"{folder.name}/{name}", flush=True)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _run(task: tuple[Callable[[dict], Iterable[dict]], dict, Path]) -> str:
    train, setting, folder = task
    lines = [setting, *train(setting)]
    partial = folder / f"{setting['name']}.jsonl.partial"
    partial.write_text("".join(json.dumps(line) + "\n" for line in lines))
    os.replace(partial, folder / f"{setting['name']}.jsonl")
    return str(setting["name"])


def read_all(folder: Path) -> Runs:
    """(setting, records) of every run in the folder, by name.

    Raises:
        FileNotFoundError: the folder holds no log.
    """
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise FileNotFoundError(f"no logs in {folder}: run the experiment first")
    return [(lines[0], lines[1:]) for lines in ([json.loads(line) for line in file.open()] for file in files)]


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


def by_seed(runs: Runs, value: Callable[[list[dict]], float], **wanted: Any) -> dict[int, float]:
    """The value of each run whose setting is as wanted, by seed."""
    return {
        setting["seed"]: value(records)
        for setting, records in runs
        if all(setting[key] == expected for key, expected in wanted.items())
    }


def shown(values: tuple[float, float]) -> str:
    """Mean and half-width of the interval, with a sign."""
    return f"{values[0]:+.1f} ± {values[1]:.1f}"


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
