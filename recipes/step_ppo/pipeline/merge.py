"""`python -m recipes.step_ppo.pipeline.merge`: the shards of one stage as one file."""

from recipes.step_ppo.pipeline import command
from recipes.step_ppo.pipeline.records import expand, open_journal, read


def main(argv: list[str] | None = None) -> int:
    parser = command.parser(__doc__)
    parser.add_argument("inputs", nargs="+", help="files or glob patterns")
    parser.add_argument("--output", required=True)
    args = parser.parse_args(argv)
    with open_journal(args.output, skip_corrupt=args.skip_corrupt) as journal:
        for record in read(expand(args.inputs), skip_corrupt=args.skip_corrupt):
            if record["key"] not in journal:
                journal.append(record)
        print(f"{args.output}: {len(journal)} records")
    return 0


if __name__ == "__main__":
    command.run(main)
