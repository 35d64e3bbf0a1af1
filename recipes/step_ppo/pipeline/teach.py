"""`python -m recipes.step_ppo.pipeline.teach`: a teacher writes one-shot trajectories.

The right ones become SFT data.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from recipes.common.files import write_parquet
from recipes.step_ppo.pipeline import command
from recipes.step_ppo.pipeline.collect import (
    add_cleaning_arguments,
    cleaning_options,
    selected_questions,
    trajectory_record,
)
from recipes.step_ppo.pipeline.data import Question
from recipes.step_ppo.pipeline.generation import Request, add_arguments, generator_from, request_seed, sampling_options
from recipes.step_ppo.pipeline.records import expand, open_journal, read
from recipes.step_ppo.pipeline.stage import budget_from, generate_into
from recipes.step_ppo.prompts import REACT_EXAMPLE, with_example


def sft_rows(questions: dict[str, Question], records: Sequence[dict]) -> list[dict]:
    """Prompt (zero-shot) and response of every correct trajectory, exact repetitions once.

    The response starts with a space: it continues the prompt's tail.
    """
    rows = {}
    for record in records:
        question = questions[record["id"]]
        for response in record["responses"]:
            if response["correct"]:
                rows.setdefault((question.prompt, response["text"]), question.id)
    return [{"prompt": prompt, "response": f" {text}", "id": key} for (prompt, text), key in rows.items()]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m recipes.step_ppo.pipeline.teach",
        description="Let a teacher write one-shot trajectories and keep the right ones as SFT data.",
    )
    add_cleaning_arguments(parser)
    parser.add_argument("--sft-output", required=True, help="parquet file with the correct trajectories")
    parser.add_argument("--example", help="text file with another worked example; '' for none")
    parser.add_argument(
        "--trajectories", nargs="+", help="make the SFT data from these records of collect instead of asking a teacher"
    )
    add_arguments(parser, n=10, temperature=0.7, top_p=0.8, max_tokens=3072)
    parser.set_defaults(model=None)
    next(a for a in parser._actions if a.dest == "model").required = False
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    questions = selected_questions(args)
    if args.trajectories:
        records = list(read(expand(args.trajectories), skip_corrupt=args.skip_corrupt))
    else:
        _ask_teacher(args, questions)
        records = list(read([args.output], skip_corrupt=args.skip_corrupt))
    rows = sft_rows(questions, [record for record in records if record["id"] in questions])
    if not rows:
        raise SystemExit(f"no correct trajectory among {len(records)} questions: nothing to train on")
    write_parquet(args.sft_output, rows)
    print(f"{args.sft_output}: {len(rows)} correct trajectories of {len(records)} questions")
    return 0


def _ask_teacher(args: argparse.Namespace, questions: dict[str, Question]) -> None:
    example = REACT_EXAMPLE if args.example is None else args.example and Path(args.example).read_text(encoding="utf-8")
    options = sampling_options(args) | cleaning_options(args) | {"example": example}
    with open_journal(args.output, options, skip_corrupt=args.skip_corrupt) as journal:
        requests = [
            Request(q.id, with_example(q.prompt, example) if example else q.prompt, request_seed(args.seed, q.id))
            for q in questions.values()
        ]
        tally, _ = generate_into(
            journal,
            lambda: generator_from(args),
            requests,
            lambda request, texts: trajectory_record(questions[request.key], texts, **cleaning_options(args)),
            budget=budget_from(args),
            description="teach",
        )
        print(f"{args.output}: {len(journal)} questions ({tally.summary()})")


if __name__ == "__main__":
    command.run(main)
