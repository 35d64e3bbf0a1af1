"""The file that ReClor's leaderboard takes: one predicted option per test question, in the order of the questions.

python -m recipes.evaluation.reclor outputs/evaluation/my_model/reclor.responses.jsonl predictions.npy
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from recipes.errors import JournalError
from recipes.evaluation.sample_store import SampledResponse, read_samples
from reward_fns.multiple_choice import finish_letter, strict_letter

LETTERS = "ABCD"


def predictions(samples: Sequence[SampledResponse], style: str = "strict") -> tuple[np.ndarray, int]:
    """Options counted from 0, in order of the problem ids, and how many had to be guessed.

    A response without exactly one letter counts as option A, as in the LPR paper's evaluation: the leaderboard has no
    "none".

    Args:
        samples: the first response to each question is used; ids are the positions of the questions.

    Raises:
        ValueError: ids that are not the positions 0 to n-1.
    """
    first = {int(sample.problem): sample for sample in samples if sample.sample == 0}
    if not first:
        raise ValueError("found no response to any question")
    if sorted(first) != list(range(len(first))):
        raise ValueError(
            f"expected the questions 0 to {len(first) - 1}, each once; found ids up to {max(first, default=-1)}"
        )
    read = finish_letter if style == "finish" else strict_letter
    letters = [read(first[position].response, LETTERS)[0] for position in range(len(first))]
    return np.array([LETTERS.index(letter or "A") for letter in letters], dtype=np.int64), letters.count("")


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m recipes.evaluation.reclor", description=__doc__.splitlines()[0])
    parser.add_argument("responses", type=Path, help="responses.jsonl of an evaluation on the unlabelled test split")
    parser.add_argument("output", type=Path, help=".npy file to write")
    parser.add_argument("--style", choices=["strict", "finish"], default="strict")
    options = parser.parse_args(arguments)
    try:
        positions, guessed = predictions(read_samples(options.responses)[1], options.style)
        with options.output.open("wb") as file:  # a path would get .npy appended
            np.save(file, positions)
    except (OSError, ValueError, JournalError) as error:
        print(f"reclor: {error}", file=sys.stderr)
        return 2
    print(f"wrote {len(positions)} predictions to {options.output}; {guessed} had no readable answer and became A")
    return 0


if __name__ == "__main__":
    sys.exit(main())
