"""Write DeepScaleR and the benchmarks that select checkpoints as verl parquet.

    python -m recipes.evaluation.prepare amc23_25
    python examples/data_preparation/deepscaler.py --amc-file outputs/benchmarks/amc23_25.jsonl

train.parquet (39,309 rows) and heldout.parquet (1,000) come from DeepScaleR; amc.parquet, aime.parquet (2024 to 2026)
and minerva.parquet are for validation. The first command fetches the published 121 problems of AMC 12 2023 to 2025; any
jsonl file with `question` and `answer` does as well, and without `--amc-file` it is the 40 problems of 2023. `--source
NAME=ID` replaces a dataset by another id, or by a local folder that `datasets` can load, with the same columns.
"""

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from datasets import Dataset, load_dataset
from datasets.exceptions import DatasetsError

INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
HELD_OUT, SPLIT_SEED = 1000, 0


class Source(NamedTuple):
    """Where problems come from: dataset id, split, and the columns of the question and of the answer."""

    dataset: str
    split: str
    question: str
    answer: str


SOURCES = {
    "deepscaler": Source("agentica-org/DeepScaleR-Preview-Dataset", "train", "problem", "answer"),
    "amc": Source("math-ai/amc23", "test", "question", "answer"),
    "aime24": Source("Maxwell-Jia/AIME_2024", "train", "Problem", "Answer"),
    "aime25": Source("math-ai/aime25", "test", "problem", "answer"),
    "aime26": Source("math-ai/aime26", "test", "problem", "answer"),
    "minerva": Source("math-ai/minervamath", "test", "question", "answer"),
}
VALIDATION = {"amc": ("amc",), "aime": ("aime24", "aime25", "aime26"), "minerva": ("minerva",)}


def verl_row(question: str, answer: object, *, data_source: str, split: str, index: int) -> dict:
    """One row of a verl dataset."""
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": f"{question.strip()}\n\n{INSTRUCTION}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(answer).strip()},
        "extra_info": {"split": split, "index": index},
    }


def read_rows(name: str, source: Source, split: str) -> list[dict]:
    """The rows of a source, numbered as there; rows without an answer are left out.

    Raises:
        ValueError: a missing column, or no row with an answer.
    """
    if Path(source.dataset).suffix in (".json", ".jsonl"):
        table = load_dataset("json", data_files=source.dataset, split="train")
    else:
        table = load_dataset(source.dataset, split=source.split)
    missing = [column for column in (source.question, source.answer) if column not in table.column_names]
    if missing:
        raise ValueError(f"{source.dataset} has no column {', '.join(missing)}; found {table.column_names}")
    rows = [
        verl_row(row[source.question], row[source.answer], data_source=name, split=split, index=index)
        for index, row in enumerate(table)
        if row[source.answer] is not None and str(row[source.answer]).strip()
    ]
    if not rows:
        raise ValueError(f"{source.dataset} has no row with an answer")
    return rows


def hold_out(rows: list[dict], count: int, seed: int) -> tuple[list[dict], list[dict]]:
    """Split rows at random into training rows and `count` held-out rows.

    Raises:
        ValueError: fewer rows than that, or none left to train on.
    """
    if len(rows) <= count:
        raise ValueError(f"{len(rows)} rows cannot give {count} held-out ones and a training set")
    parts = Dataset.from_list(rows).train_test_split(test_size=count, seed=seed)
    held = [row | {"extra_info": row["extra_info"] | {"split": "heldout"}} for row in parts["test"]]
    return parts["train"].to_list(), held


def write(rows: Iterable[dict], target: Path) -> int:
    """Write a parquet file that is either whole or absent; returns its number of rows."""
    partial = target.with_suffix(".parquet.partial")
    table = Dataset.from_list(list(rows))
    table.to_parquet(str(partial))
    os.replace(partial, target)
    return len(table)


def prepare(sources: dict[str, Source], output_dir: Path, held_out: int = HELD_OUT) -> dict[str, int]:
    """Write all five files and return their numbers of rows."""
    output_dir.mkdir(parents=True, exist_ok=True)
    train, held = hold_out(read_rows("deepscaler", sources["deepscaler"], "train"), held_out, SPLIT_SEED)
    files = {"train": train, "heldout": held}
    for file, names in VALIDATION.items():
        rows = [row for name in names for row in read_rows(name, sources[name], "test")]
        # One number per row of a file: what a recipe keys by it stays apart.
        files[file] = [row | {"extra_info": {"split": "test", "index": i}} for i, row in enumerate(rows)]
    return {name: write(rows, output_dir / f"{name}.parquet") for name, rows in files.items()}


def chosen_sources(replacements: Iterable[str], amc_file: Path | None) -> dict[str, Source]:
    """`SOURCES` with `NAME=ID` replacements and, when given, the AMC file.

    Raises:
        ValueError: not of that form, or an unknown name.
    """
    sources = dict(SOURCES)
    for item in replacements:
        name, separator, dataset = item.partition("=")
        if not (separator and dataset and name in sources):
            raise ValueError(f"--source {item}: expected NAME=ID with NAME one of {', '.join(sources)}")
        sources[name] = sources[name]._replace(dataset=dataset)
    if amc_file is not None:
        if not amc_file.is_file():
            raise ValueError(f"--amc-file {amc_file} does not exist")
        with amc_file.open(encoding="utf-8") as lines:
            prepared = '"gold"' in lines.readline()
        sources["amc"] = Source(str(amc_file), "train", "question", "gold" if prepared else "answer")
    return sources


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output-dir", type=Path, default=Path("outputs/data/deepscaler"))
    parser.add_argument("--amc-file", type=Path, help="AMC 12 of 2023 to 2025, as prepare writes them")
    parser.add_argument("--source", action="append", default=[], metavar="NAME=ID")
    parser.add_argument("--held-out", type=int, default=HELD_OUT, help="held-out rows (default: %(default)s)")
    options = parser.parse_args()
    try:
        counts = prepare(
            chosen_sources(options.source, options.amc_file), options.output_dir, held_out=options.held_out
        )
    except (ValueError, OSError, DatasetsError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for name, count in counts.items():
        print(f"{options.output_dir / name}.parquet: {count} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
