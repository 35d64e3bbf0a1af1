"""Kill runs of the five recipes at random moments and start them again until they end; print what was lost.

    python tests/faults/random_kills.py --kills 12 --recipes sppo serl --seed 0 --json outputs/random_kills.jsonl

Every kill is a SIGKILL of the driver, of one process of the run or of all of them at once, at a moment drawn evenly
over the time that an uninterrupted attempt takes; every sixth is followed by another one within seconds of the next
start. One line of JSON per kill and one per run; the exit code says whether anything was violated.
"""

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from campaign import RECIPES, VICTIMS, Campaign, random_moment

EVERYTHING = "everything"
ATTEMPT_LIMIT = 1800.0


def interrupted(recipe: str, folder: Path, steps: int, kills: int, longest: float, generator: random.Random, tell):
    """One run under `kills` kills; the campaign after its last attempt, and whether an attempt hung."""
    campaign, done, violated = Campaign(recipe, folder, steps), 0, False
    while done < kills:
        attempt, pause = campaign.attempt(), random_moment(generator, longest)
        twice = done % 6 == 5
        victim = generator.choice([*VICTIMS, EVERYTHING])
        began = time.monotonic()
        while time.monotonic() - began < pause and attempt.process.poll() is None:
            time.sleep(0.05)
        if attempt.process.poll() is None:
            if victim == EVERYTHING or not attempt.hit(victim, signal.SIGKILL):
                victim = EVERYTHING
                attempt.kill_everything()
            done += 1
            # What lost a worker ends by itself, or goes on to its end.
            code = campaign.wait(attempt, 300.0 + 2 * longest)
            hang = victim not in (EVERYTHING, "driver") and code == -signal.SIGKILL
            violated |= hang
            tell(
                {
                    "recipe": recipe,
                    "kill": done,
                    "victim": victim,
                    "after_s": round(pause, 1),
                    "code": code,
                    "hang": hang,
                }
            )
        else:
            campaign.wait(attempt, 1.0)
            shutil.rmtree(campaign.checkpoints)
            campaign.metrics.unlink(missing_ok=True)
        if twice:
            second = campaign.attempt()
            time.sleep(generator.uniform(0.0, 5.0))
            second.kill_everything()
            done += 1
            tell({"recipe": recipe, "kill": done, "victim": "everything, at the start", "code": -9})
    campaign.finish(ATTEMPT_LIMIT)
    return campaign, violated


def main(argv: list[str] | None = None) -> int:
    """Return 0 when no run violated anything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", choices=sorted(RECIPES), default=sorted(RECIPES))
    parser.add_argument("--kills", type=int, default=12, help="of each recipe")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", help="kept, and where the runs are; default: a temporary one that goes")
    parser.add_argument("--json", help="file that the lines are added to")
    args = parser.parse_args(argv)

    def tell(record: dict) -> None:
        line = json.dumps(record)
        print(line, flush=True)
        if args.json:
            Path(args.json).parent.mkdir(parents=True, exist_ok=True)
            with open(args.json, "a", encoding="utf-8") as file:
                file.write(line + "\n")

    violated = False
    root = Path(args.folder or tempfile.mkdtemp(prefix="random_kills_"))
    for recipe in args.recipes:
        generator = random.Random(f"{args.seed} {recipe}")
        began = time.monotonic()
        reference = Campaign(recipe, root / recipe / "uninterrupted", args.steps)
        reference.finish(ATTEMPT_LIMIT)
        longest = time.monotonic() - began
        found = reference.violations()
        tell({"recipe": recipe, "uninterrupted_s": round(longest), "violations": found})
        violated |= bool(found)
        if found:
            continue
        run, hung = interrupted(recipe, root / recipe / "killed", args.steps, args.kills, longest, generator, tell)
        found = run.violations(reference)
        violated |= bool(found) or hung
        tell({"recipe": recipe, "attempts": len(run.codes), "violations": found})
        run.close()
        reference.close()
    if not args.folder:
        shutil.rmtree(root, ignore_errors=True)
    return int(violated)


if __name__ == "__main__":
    sys.exit(main())
