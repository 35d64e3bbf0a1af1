"""`python -m recipes.step_ppo.pipeline.prepare`: a data set as verl parquet."""

import argparse
from collections.abc import Sequence

from tqdm import tqdm

from recipes.core.files import write_parquet
from recipes.step_ppo.pipeline import command
from recipes.step_ppo.pipeline.data import DATASETS, load_items


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(__doc__)
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


if __name__ == "__main__":
    command.run(main)
