"""`python -m recipes.step_ppo.pipeline.collect`: sample trajectories, clean, deduplicate and score them.

Or import published ones, with `--import-file`.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence

from tqdm import tqdm

from recipes.step_ppo.pipeline import command
from recipes.step_ppo.pipeline.data import MalformedData, Question, load_questions, read_items
from recipes.step_ppo.pipeline.generation import Request, add_arguments, generator_from, request_seed, sampling_options
from recipes.step_ppo.pipeline.outcome import correct, judge
from recipes.step_ppo.pipeline.records import Record, open_journal
from recipes.step_ppo.pipeline.stage import Tally, add_budget_arguments, budget_from, generate_into
from recipes.step_ppo.react import FIRST_STEP, CleaningRules, clean_response
from reward_fns.result import Skip


def trajectory_record(
    question: Question,
    responses: Sequence[str],
    *,
    rules: CleaningRules = "1.0",
    min_lines: int = 0,
    keep_duplicates: bool = False,
) -> Record | Skip:
    """The record of one question: cleaned responses with whether they are right, and how many were dropped for what.

    Returns:
        A Skip when one response cannot be judged by no fault of its own; a partial group would bias pairs and values.
    """
    texts: dict[int, str] = {}
    dropped: Counter[str] = Counter()
    for sample, raw in enumerate(responses):
        text = cleaned(question, raw, rules=rules, min_lines=min_lines)
        if text is None:
            dropped["malformed"] += 1
        elif not keep_duplicates and text in texts.values():
            dropped["duplicate"] += 1
        else:
            texts[sample] = text
    results = judge(question, list(texts.values()))
    if skip := next((result for result in results if isinstance(result, Skip)), None):
        return skip
    kept = [
        {"sample": sample, "text": text, "correct": correct(result), "reason": result.reason}
        for (sample, text), result in zip(texts.items(), results, strict=True)
    ]
    return {"key": question.id, "id": question.id, "responses": kept, "dropped": dict(dropped)}


def cleaned(question: Question, raw: str, *, rules: CleaningRules, min_lines: int) -> str | None:
    """The response as it is kept, None when it is malformed."""
    if question.style == "react":
        # Chat models tend to repeat the label that the prompt ended with.
        if raw.lstrip().startswith(FIRST_STEP):
            raw = raw.lstrip().removeprefix(FIRST_STEP)
        return clean_response(raw, rules=rules, min_lines=min_lines)
    text = raw.strip()
    return text if text and len(text.split("\n")) >= min_lines else None


def published_responses(path: str) -> dict[str, list[str]]:
    """Responses by question id from a published trajectory file: objects with `id` and `response` (a text or a list).

    Raises:
        MalformedData: an object without them, or an id that stands twice.
    """
    found: dict[str, list[str]] = {}
    for number, item in enumerate(read_items(path)):
        if not isinstance(item, dict) or "id" not in item or "response" not in item:
            raise MalformedData(f"{path}, item {number}: expected 'id' and 'response'")
        key, response = str(item["id"]), item["response"]
        if key in found:
            raise MalformedData(f"{path}, item {number}: id {key} stands twice")
        found[key] = [response] if isinstance(response, str) else list(response)
    return found


def add_cleaning_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of cleaning and of the question file, shared with `teach`."""
    parser.add_argument("--data", nargs="+", required=True, help="prompts made by prepare")
    parser.add_argument("--output", required=True, help="jsonl file")
    parser.add_argument("--rules", choices=("1.0", "1.1"), default="1.0", help="cleaning: LogiQA-v2 1.0, ReClor 1.1")
    parser.add_argument("--min-lines", type=int, default=0, help="drop shorter responses (ReClor: 8)")
    parser.add_argument("--keep-duplicates", action="store_true", help="keep repeated responses of a question")
    parser.add_argument("--max-questions", type=int, help="use the first so many questions only")
    parser.add_argument("--skip-corrupt", action="store_true", help="leave out lines that do not parse")
    add_budget_arguments(parser)


def cleaning_options(args: argparse.Namespace) -> dict:
    """What the records depend on besides sampling."""
    return {name: getattr(args, name) for name in ("rules", "min_lines", "keep_duplicates")}


def selected_questions(args: argparse.Namespace) -> dict[str, Question]:
    """The questions the command works on."""
    questions = load_questions(args.data)
    return dict(list(questions.items())[: args.max_questions])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m recipes.step_ppo.pipeline.collect",
        description="Sample trajectories for every prompt, clean, deduplicate and score them.",
    )
    add_cleaning_arguments(parser)
    add_arguments(parser, n=10, temperature=0.8, top_p=1.0)
    return parser


def _import_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m recipes.step_ppo.pipeline.collect --import-file",
        description="Clean, deduplicate and score the responses of a published trajectory file.",
    )
    parser.add_argument("--import-file", required=True, help=".json or .jsonl with 'id' (position) and 'response'")
    add_cleaning_arguments(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    if any(argument.partition("=")[0] == "--import-file" for argument in argv):
        return _import(_import_parser().parse_args(argv))
    args = _parser().parse_args(argv)
    questions = selected_questions(args)
    options = sampling_options(args) | cleaning_options(args)
    with open_journal(args.output, options, skip_corrupt=args.skip_corrupt) as journal:
        requests = [Request(q.id, q.prompt, request_seed(args.seed, q.id)) for q in questions.values()]
        tally, _ = generate_into(
            journal,
            lambda: generator_from(args),
            requests,
            lambda request, texts: trajectory_record(questions[request.key], texts, **cleaning_options(args)),
            budget=budget_from(args),
            description="collect",
        )
        print(f"{args.output}: {len(journal)} questions ({tally.summary()})")
    return 0


def _import(args: argparse.Namespace) -> int:
    questions, published = selected_questions(args), published_responses(args.import_file)
    if unknown := [key for key in published if key not in questions]:
        if not args.max_questions:
            raise MalformedData(
                f"{args.import_file}: id {unknown[0]} and {len(unknown) - 1} more are not in {args.data}"
            )
        published = {key: value for key, value in published.items() if key in questions}
    tally = Tally(budget_from(args))
    options = cleaning_options(args) | {"imported": True}
    with open_journal(args.output, options, skip_corrupt=args.skip_corrupt) as journal:
        for key, responses in tqdm(published.items(), desc="import", unit="question"):
            if key in journal:
                continue
            record = trajectory_record(questions[key], responses, **cleaning_options(args))
            if isinstance(record, Skip):
                tally.skip(key, record)
            else:
                journal.append(record)
                tally.done += 1
        print(f"{args.output}: {len(journal)} questions ({tally.summary()})")
    return 0


if __name__ == "__main__":
    command.run(main)
