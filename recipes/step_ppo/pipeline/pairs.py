"""`python -m recipes.step_ppo.pipeline.pairs`: make preference pairs from collected (and scored) trajectories."""

import argparse
import random
from collections import Counter
from collections.abc import Sequence

from tqdm import tqdm

from recipes.step_ppo.pairs import candidates_of, one_pair_per_question, outcome_pairs, pair_record, process_pairs
from recipes.step_ppo.pipeline import command
from recipes.step_ppo.pipeline.records import OfQuestion, Scores, Trajectories, expand, open_journal, read


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(__doc__)
    parser.add_argument("--trajectories", nargs="+", required=True, help="output of collect: files or glob patterns")
    parser.add_argument(
        "--scores", nargs="+", help="output of score; without it, every correct against every incorrect response"
    )
    parser.add_argument("--output", required=True, help="jsonl file")
    parser.add_argument("--margin", type=float, default=0.5, help="positive-positive pairs differ by more than this")
    parser.add_argument("--best-of", type=int, default=10, help="correct responses per question that are chosen")
    parser.add_argument("--max-negatives", type=int, default=10, help="incorrect responses per chosen one")
    parser.add_argument("--reduction", choices=("product", "min", "sum"), default="product")
    parser.add_argument("--remove-action", action="store_true", help="leave the scores of Action steps out")
    parser.add_argument("--skip-last", type=int, default=0, help="leave the last so many steps out of the score")
    parser.add_argument(
        "--max-finish-lines",
        type=int,
        help="without --scores: a response with more lines with Finish[ than this (1) is not chosen; -1: no bound",
    )
    parser.add_argument("--min-chosen-lines", type=int, default=0)
    parser.add_argument("--min-reject-lines", type=int, default=0)
    parser.add_argument(
        "--prm-train",
        nargs="+",
        default=[],
        help="record files the PRM was trained on: no positive-positive pairs for their questions",
    )
    parser.add_argument("--one-per-question", action="store_true", help="keep one random pair of each question")
    parser.add_argument("--seed", type=int, default=0, help="for --one-per-question")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(argv)
    if args.scores and args.max_finish_lines is not None:
        parser.error("--max-finish-lines is for pairs without --scores")
    if not args.scores and args.max_finish_lines is None:
        args.max_finish_lines = 1
    trajectories = list(read(expand(args.trajectories), Trajectories))
    scores = {record["id"]: record for record in read(expand(args.scores), Scores)} if args.scores else {}
    prm_train = {record["id"] for record in read(expand(args.prm_train), OfQuestion)}
    options = {k: v for k, v in vars(args).items() if k not in ("output", "trajectories")}
    counts: Counter[str] = Counter()
    with open_journal(args.output, options) as journal:
        for trajectory in tqdm(trajectories, desc="pairs", unit="question"):
            for record in _records(
                trajectory, scores.get(trajectory["id"]), args, positive=trajectory["id"] not in prm_train
            ):
                counts[record["kind"]] += 1
                if record["key"] not in journal:
                    journal.append(record)
    print(
        f"{args.output}: {counts['contrastive']} contrastive + {counts['positive']} positive-positive "
        f"= {counts.total()} pairs"
    )
    return 0


def _records(trajectory: dict, scores: dict | None, args: argparse.Namespace, *, positive: bool) -> list[dict]:
    drop_kinds = ("Action",) if args.remove_action else ()
    candidates = candidates_of(
        trajectory, scores, reduction=args.reduction, drop_kinds=drop_kinds, skip_last=args.skip_last
    )
    if args.scores:
        pairs = process_pairs(
            candidates,
            margin=args.margin,
            best_of=args.best_of,
            max_negatives=args.max_negatives,
            min_chosen_lines=args.min_chosen_lines,
            min_reject_lines=args.min_reject_lines,
            positive=positive,
        )
    else:
        most = args.max_finish_lines
        pairs = outcome_pairs(candidates, max_finish_lines=None if most < 0 else most)
    if args.one_per_question:
        pairs = one_pair_per_question(pairs, random.Random(f"{args.seed}/{trajectory['id']}"))
    return [pair_record(trajectory["id"], pair) for pair in pairs]


if __name__ == "__main__":
    command.run(main)
