"""Run a recipe, or the reward pool, for long, and print whether memory, descriptors, shared memory or time grow.

    python tests/faults/soak.py --recipe sppo --steps 200 --json outputs/soak.jsonl
    python tests/faults/soak.py --pool 1000000

A run is sampled every few seconds: memory that is its own (USS) and open descriptors of each process, by title, and the
shared memory of the host. What counts is the slope after a warm-up: at most 1 MB of memory for 100 steps, at most one
descriptor for 100 steps; the time of the last quarter of the steps at most a quarter over that of the second. The pool
grades answers, right and wrong, in one process; its parent and its workers are held to the same. Let nothing else
run: when it ends, pages of libraries that both had mapped become this run's own.
"""

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import psutil
from campaign import RECIPES, Campaign

# What grows grows with the steps; their size only makes them longer. Appended to the overrides of a campaign.
_FEW_PROMPTS = (
    "data.train_batch_size=8",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=64",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=64",
)
SHORTER = {
    "sppo": _FEW_PROMPTS,
    "tandem": _FEW_PROMPTS,
    # An iteration of 640 instructions ends after 160 steps of four.
    "serl": ("data.train_batch_size=4", "serl.instructions_num_per_iteration=4000"),
    "pasodoble": ("pasodoble.rounds_per_step=1",),
    "step_ppo": (),
}
MEGABYTE = 1 << 20
SAMPLE_SECONDS = 5.0
MEMORY_PER_100_STEPS = 1.0
DESCRIPTORS_PER_100_STEPS = 1.0


def slope(points: list[tuple[float, float]]) -> float:
    """Least-squares slope of y over x; 0 for fewer than two different x."""
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / max(n, 1), sum(y for _, y in points) / max(n, 1)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def course(points: list[tuple[float, float]], parts: int = 6) -> list[float]:
    """Means of y over equal parts of the points, in their order: a leak goes on where a warm-up has ended."""
    cuts = [len(points) * part // parts for part in range(parts + 1)]
    means = [[y for _, y in points[low:high]] for low, high in pairwise(cuts)]
    return [round(sum(values) / len(values), 1) for values in means if values]


def name_of(process: psutil.Process) -> str:
    """The first word of a title, without the method that an actor runs at this moment."""
    words = process.cmdline()
    first = (words[0] if words else process.name()).split(" ")[0]
    return first.split(".")[0] if first.startswith("ray::") else first.rpartition("/")[2][:40]


def shared_memory() -> int:
    """Bytes in /dev/shm."""
    total = 0
    for entry in os.scandir("/dev/shm"):
        with contextlib.suppress(OSError):
            total += entry.stat().st_blocks * 512
    return total


def watch_run(recipe: str, steps: int, warm_up: int, folder: Path, limit: float) -> dict:
    """Run a recipe to its end, or until the time is over; the figures."""
    campaign = Campaign(recipe, folder, steps, ("trainer.save_freq=-1", *SHORTER[recipe]))
    attempt, began = campaign.attempt(), time.monotonic()
    memory, descriptors, shared = defaultdict(list), defaultdict(list), []
    while attempt.process.poll() is None and time.monotonic() - began < limit:
        time.sleep(SAMPLE_SECONDS)
        step = max(campaign.logged(), default=0)
        if step < warm_up:
            continue
        for process in attempt.processes():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                key = f"{name_of(process)} {process.pid}"
                memory[key].append((step, process.memory_full_info().uss / MEGABYTE))
                descriptors[key].append((step, process.num_fds()))
        shared.append((step, shared_memory() / MEGABYTE))
    if attempt.process.poll() is None:
        attempt.kill_everything()
    campaign.close()
    logged = campaign.logged()
    times = [logged[step]["timing_s/step"] for step in sorted(logged) if "timing_s/step" in logged[step]]
    quarter = max(1, len(times) // 4)
    second, last = times[quarter : 2 * quarter] or times, times[-quarter:]
    return {
        "recipe": recipe,
        "steps": len(logged),
        "from_step": warm_up,
        "seconds": round(time.monotonic() - began),
        "memory_mb": {name: course(points) for name, points in memory.items()},
        "memory_mb_per_100_steps": {name: round(100 * slope(points), 2) for name, points in memory.items()},
        "descriptors": {name: course(points) for name, points in descriptors.items()},
        "descriptors_per_100_steps": {name: round(100 * slope(points), 2) for name, points in descriptors.items()},
        "shared_memory_mb_per_100_steps": round(100 * slope(shared), 2),
        "step_time_ratio": round((sum(last) / len(last)) / (sum(second) / len(second)), 3) if times else None,
    }


def watch_pool(answers: int) -> dict:
    """Grade so many answers through one pool of two workers; the figures over its tenths."""
    from reward_fns.pool import Pool

    me, began, points, rates = psutil.Process(), time.monotonic(), [], []
    with Pool(2, time_limit=30) as pool:
        done = 0
        while done < answers:
            started = time.monotonic()
            # New numbers each time, so that what a cache keeps would show; every third answer is wrong.
            numbers = range(done, min(done + 1000, answers))
            rows = [((rf"\frac{{{n}}}{{7}}",), f"{n if n % 3 else n + 1}/7") for n in numbers]
            outcomes = pool.map("reward_fns.algebra:judge", rows)
            done += len(outcomes)
            faulty = [outcome for outcome in outcomes if outcome.kind.value != "done"]
            assert not faulty, faulty[0]
            rates.append(len(outcomes) / (time.monotonic() - started))
            family = [me, *me.children(recursive=True)]
            with contextlib.suppress(psutil.NoSuchProcess):
                uss = sum(process.memory_full_info().uss for process in family) / MEGABYTE
                points.append((done, uss, sum(process.num_fds() for process in family)))
    late = points[len(points) // 10 :]
    return {
        "answers": done,
        "seconds": round(time.monotonic() - began),
        "memory_mb_per_100000_answers": round(1e5 * slope([(x, mb) for x, mb, _ in late]), 3),
        "descriptors_first_last": [points[0][2], points[-1][2]],
        "answers_per_second_second_and_last_quarter": [
            round(sum(part) / max(len(part), 1))
            for part in (rates[len(rates) // 4 : len(rates) // 2], rates[-(len(rates) // 4 or 1) :])
        ],
    }


def verdict(figures: dict) -> list[str]:
    """What grows more than it may."""
    found = []
    for name, mb in figures.get("memory_mb_per_100_steps", {}).items():
        if mb > MEMORY_PER_100_STEPS:
            found.append(f"{name} grows by {mb} MB per 100 steps")
    for name, count in figures.get("descriptors_per_100_steps", {}).items():
        if count > DESCRIPTORS_PER_100_STEPS:
            found.append(f"{name} opens {count} descriptors per 100 steps")
    if (figures.get("step_time_ratio") or 0) > 1.25:
        found.append(f"steps take {figures['step_time_ratio']} times as long at the end")
    if figures.get("memory_mb_per_100000_answers", 0) > MEMORY_PER_100_STEPS:
        found.append(f"the pool grows by {figures['memory_mb_per_100000_answers']} MB per 100,000 answers")
    return found


def main(argv: list[str] | None = None) -> int:
    """Return 0 when nothing grows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--recipe", choices=sorted(RECIPES))
    what.add_argument("--pool", type=int, metavar="ANSWERS")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--warm-up", type=int, default=50, help="steps that do not count")
    parser.add_argument("--seconds", type=float, default=7200.0, help="after which a run is ended")
    parser.add_argument("--json", help="file that the figures are added to")
    args = parser.parse_args(argv)
    if args.pool:
        figures = watch_pool(args.pool)
    else:
        folder = Path(tempfile.mkdtemp(prefix="soak_"))
        figures = watch_run(args.recipe, args.steps, args.warm_up, folder, args.seconds)
        shutil.rmtree(folder, ignore_errors=True)
    figures["grows"] = verdict(figures)
    print(json.dumps(figures, indent=2))
    if args.json:
        with open(args.json, "a", encoding="utf-8") as file:
            file.write(json.dumps(figures) + "\n")
    return int(bool(figures["grows"]))


if __name__ == "__main__":
    sys.exit(main())
