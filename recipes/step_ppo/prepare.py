"""`python -m recipes.step_ppo.prepare`: a data set as verl parquet."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet
from tqdm import tqdm

from recipes.step_ppo import command
from recipes.step_ppo.data import DATASETS, load_items


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m recipes.step_ppo.prepare", description="Write a data set as prompts in verl's parquet format."
    )
    parser.add_argument(
        "--dataset", choices=sorted(DATASETS), required=True, help="which data set, or whose shape --files has"
    )
    parser.add_argument("--split", default="train", help="split on the Hub, and the name kept in every row")
    parser.add_argument("--files", nargs="+", help="local .txt, .json, .jsonl or .parquet files instead of the Hub")
    parser.add_argument("--output", required=True, help="parquet file")
    parser.add_argument("--option-order", help="new order of the options, such as BCAD (multiple choice only)")
    parser.add_argument("--max-questions", type=int, help="keep the first so many")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    dataset = DATASETS[args.dataset]
    if args.option_order and dataset.style != "react":
        raise SystemExit(f"--option-order permutes options; {args.dataset} has none")
    rows = []
    for index, item in enumerate(tqdm(load_items(dataset, args.split, args.files), desc="prepare", unit="question")):
        if args.max_questions is not None and index >= args.max_questions:
            break
        rows.append(dataset.row(item, index, args.split, args.option_order))
    if not rows:
        raise SystemExit("no items: nothing was written")
    write_parquet(args.output, rows)
    print(f"{args.output}: {len(rows)} prompts")
    return 0


def write_parquet(path: str | Path, rows: Sequence[dict]) -> None:
    """Write rows as one parquet file, whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), scratch)
    os.replace(scratch, path)


if __name__ == "__main__":
    command.run(main)
