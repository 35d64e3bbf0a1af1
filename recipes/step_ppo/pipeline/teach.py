"""`python -m recipes.step_ppo.pipeline.teach`: let a teacher write trajectories, keep the right ones as SFT data."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from recipes.core.files import write_parquet
from recipes.step_ppo.pipeline import command
from recipes.step_ppo.pipeline.collect import add_cleaning_arguments, collect_into, selected_questions
from recipes.step_ppo.pipeline.data import Question
from recipes.step_ppo.pipeline.records import Trajectories, expand, read
from recipes.step_ppo.pipeline.stage import add_arguments
from recipes.step_ppo.prompts import REACT_EXAMPLE, with_example


def sft_rows(questions: dict[str, Question], records: Sequence[dict]) -> list[dict]:
    """Make SFT rows of every correct trajectory, exact repetitions once: prompt (zero-shot) and response.

    The response starts with a space, which `ContinuationDataset` drops behind a chat template.
    """
    rows = {}
    for record in records:
        question = questions[record["id"]]
        for response in record["responses"]:
            if response["correct"]:
                row = {"prompt": question.prompt, "response": f" {response['text']}", "id": question.id}
                rows.setdefault((str(question.prompt), response["text"]), row)
    return list(rows.values())


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(__doc__)
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
    if not args.trajectories and not args.model:
        raise SystemExit("teach: name the teacher with --model, or give --trajectories")
    questions = selected_questions(args)
    if args.trajectories:
        records = list(read(expand(args.trajectories), Trajectories))
    else:
        _ask_teacher(args, questions)
        records = list(read([args.output], Trajectories))
    rows = sft_rows(questions, [record for record in records if record["id"] in questions])
    if not rows:
        raise SystemExit(f"no correct trajectory among {len(records)} questions: nothing to train on")
    write_parquet(args.sft_output, rows)
    print(f"{args.sft_output}: {len(rows)} correct trajectories of {len(records)} questions")
    return 0


def _ask_teacher(args: argparse.Namespace, questions: dict[str, Question]) -> None:
    example = REACT_EXAMPLE if args.example is None else args.example and Path(args.example).read_text(encoding="utf-8")
    prompts = {key: with_example(q.prompt, example) if example else q.prompt for key, q in questions.items()}
    collect_into(args, questions, prompts, example=example)


if __name__ == "__main__":
    command.run(main)
