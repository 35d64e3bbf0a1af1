"""Write MATH (12,500 competition problems) as verl parquet: train.parquet with 7,500 rows, test.parquet with 5,000.

    python examples/data_preparation/math_dataset.py --output-dir outputs/data/math

`--source` takes another dataset id, or a local folder that `datasets` can load, with the same columns.
"""

import argparse
import os
import sys
from pathlib import Path

from datasets import Dataset, load_dataset
from datasets.exceptions import DatasetsError
from verl.utils.reward_score.math_reward import last_boxed_only_string, remove_boxed

DATASET = "DigitalLearningGmbH/MATH-lighteval"
# the wording of verl's own preparation, so that published numbers on this data stay comparable
INSTRUCTION = "Let's think step by step and output the final answer within \\boxed{}."
COLUMNS = ("problem", "solution")


def verl_row(problem: str, solution: str, *, data_source: str, split: str, index: int) -> dict:
    """One row of a verl dataset; the gold answer is the content of the solution's last `\\boxed{...}`.

    Raises:
        ValueError: a solution without a boxed answer, which no reward could be computed against.
    """
    boxed = last_boxed_only_string(solution)
    if boxed is None:
        raise ValueError(f"{split} row {index}: the solution has no \\boxed answer: {solution[-80:]!r}")
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": f"{problem} {INSTRUCTION}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": remove_boxed(boxed)},
        "extra_info": {"split": split, "index": index},
    }


def prepare(source: str, output_dir: Path) -> dict[str, int]:
    """Write one parquet file per split and return their numbers of rows; a file is either whole or absent.

    Raises:
        ValueError: a missing column, or a solution without a boxed answer.
    """
    output_dir.mkdir(parents=True, exist_ok=True)
    counts = {}
    for split in ("train", "test"):
        problems = load_dataset(source, split=split)
        missing = [column for column in COLUMNS if column not in problems.column_names]
        if missing:
            raise ValueError(
                f"{source} split {split} has no column {', '.join(missing)}; found {problems.column_names}"
            )
        rows = [
            verl_row(row["problem"], row["solution"], data_source=DATASET, split=split, index=index)
            for index, row in enumerate(problems)
        ]
        target = output_dir / f"{split}.parquet"
        partial = target.with_suffix(".parquet.partial")
        Dataset.from_list(rows).to_parquet(str(partial))
        os.replace(partial, target)
        counts[split] = len(rows)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output-dir", type=Path, default=Path("outputs/data/math"))
    parser.add_argument("--source", default=DATASET, help="dataset id or local folder (default: %(default)s)")
    options = parser.parse_args()
    try:
        counts = prepare(options.source, options.output_dir)
    except (ValueError, OSError, DatasetsError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for split, count in counts.items():
        print(f"{options.output_dir / split}.parquet: {count} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
