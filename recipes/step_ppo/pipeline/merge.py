"""`python -m recipes.step_ppo.pipeline.merge`: the shards of one stage as one file."""

import argparse

from recipes.step_ppo.pipeline import command
from recipes.step_ppo.pipeline.records import expand, open_journal, read


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m recipes.step_ppo.pipeline.merge", description="Merge the shards of one stage into one file."
    )
    parser.add_argument("inputs", nargs="+", help="files or glob patterns")
    parser.add_argument("--output", required=True)
    parser.add_argument("--skip-corrupt", action="store_true", help="leave out lines that do not parse")
    args = parser.parse_args(argv)
    with open_journal(args.output, skip_corrupt=args.skip_corrupt) as journal:
        for record in read(expand(args.inputs), skip_corrupt=args.skip_corrupt):
            if record["key"] not in journal:
                journal.append(record)
        print(f"{args.output}: {len(journal)} records")
    return 0


if __name__ == "__main__":
    command.run(main)
