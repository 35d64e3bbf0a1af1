"""`python -m recipes.step_ppo.pipeline.states`: draw intermediate states from collected trajectories."""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from recipes.step_ppo.labels import StateSampling, shard_bounds, state_records
from recipes.step_ppo.pipeline import command
from recipes.step_ppo.pipeline.records import Trajectories, expand, open_journal, read


def shard_path(output: str, shard: int, num_shards: int) -> str:
    """`states.jsonl` becomes `states.3-of-20.jsonl`; a single shard keeps the name."""
    if num_shards == 1:
        return output
    path = Path(output)
    return str(path.with_name(f"{path.stem}.{shard}-of-{num_shards}{path.suffix}"))


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(__doc__)
    parser.add_argument("--trajectories", nargs="+", required=True, help="output of collect: files or glob patterns")
    parser.add_argument(
        "--output", required=True, help="jsonl file; with several shards `.i-of-n` goes before the suffix"
    )
    parser.add_argument("--ratio", type=float, default=0.4, help="probability of each eligible step")
    parser.add_argument("--ratio-s", type=float, default=0.2, help="share of leading steps that are never used")
    parser.add_argument("--ratio-e", type=float, default=1.0, help="share of steps after which none is used")
    parser.add_argument("--remove-action", action="store_true", help="keep no state that ends with an action")
    parser.add_argument("--min-step", type=int, default=0, help="use responses with at least this many lines")
    parser.add_argument("--style", choices=("react", "lines"), default="react", help="how steps are written")
    parser.add_argument(
        "--num-shards", type=int, default=1, help="number of output files, questions spread evenly in order"
    )
    parser.add_argument("--max-questions", type=int, help="use the first so many questions only")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    sampling = StateSampling(
        args.ratio, args.ratio_s, args.ratio_e, ("Action",) if args.remove_action else (), args.style
    )
    questions = list(read(expand(args.trajectories), Trajectories))[: args.max_questions]
    options = {k: v for k, v in vars(args).items() if k not in ("output", "trajectories")}
    counts: Counter[str] = Counter()
    progress = tqdm(total=len(questions), desc="states", unit="question")
    for shard, (start, stop) in enumerate(shard_bounds(len(questions), args.num_shards)):
        path = shard_path(args.output, shard, args.num_shards)
        with open_journal(path, options) as journal:
            for question in questions[start:stop]:
                for record in state_records(_long_enough(question, args.min_step), sampling, args.seed):
                    counts[record["kind"]] += 1
                    if record["key"] not in journal:
                        journal.append(record)
                progress.update()
    progress.close()
    print(f"{args.output}: {counts.total()} states of {len(questions)} questions ({dict(counts)})")
    return 0


def _long_enough(question: dict, min_step: int) -> dict:
    # Short responses keep their place, as empty text, so that indices still name the responses of the trajectory file.
    responses = [r if len(r["text"].split("\n")) >= min_step else {**r, "text": ""} for r in question["responses"]]
    return {**question, "responses": responses}


if __name__ == "__main__":
    command.run(main)
