"""`python -m recipes.step_ppo.pipeline.collect`: sample trajectories, clean, deduplicate and score them.

Or import published ones, with `--import-file`.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recipes.core.files import read_rows
from recipes.core.sampling import Request, request_seed
from recipes.errors import DataError
from recipes.step_ppo.pipeline import command
from recipes.step_ppo.pipeline.data import Question, load_questions, without_surrogates
from recipes.step_ppo.pipeline.records import Record, open_journal
from recipes.step_ppo.pipeline.stage import (
    Recorder,
    add_arguments,
    add_budget_arguments,
    correct,
    generate_into,
    judge,
    sampling_options,
)
from recipes.step_ppo.steps import FIRST_STEP, CleaningRules, clean_response
from reward_fns.result import Skip


def trajectory_record(
    question: Question,
    responses: Sequence[str],
    *,
    rules: CleaningRules = "1.0",
    min_lines: int = 0,
    keep_duplicates: bool = False,
) -> Record | Skip:
    """Make the record of one question: cleaned responses with whether they are right, and what was dropped.

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
    """Clean a response, None when it is malformed."""
    raw = without_surrogates(raw)
    if question.style == "react":
        # Chat models tend to repeat the label that the prompt ended with.
        if raw.lstrip().startswith(FIRST_STEP):
            raw = raw.lstrip().removeprefix(FIRST_STEP)
        return clean_response(raw, rules=rules, min_lines=min_lines)
    text = raw.strip()
    return text if text and len(text.split("\n")) >= min_lines else None


def published_responses(path: str) -> dict[str, list[str]]:
    """Read responses by question id from a published file: objects with `id` and `response` (a text or a list).

    Raises:
        DataError: an object without them, or an id that stands twice.
    """
    texts_by_key: dict[str, list[str]] = {}
    for number, item in enumerate(read_rows(path)):
        if "id" not in item or "response" not in item:
            raise DataError(f"{path}, item {number}: expected 'id' and 'response'")
        key, response = str(item["id"]), item["response"]
        if key in texts_by_key:
            raise DataError(f"{path}, item {number}: id {key} stands twice")
        texts = [response] if isinstance(response, str) else response
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise DataError(
                f"{path}, item {number}: 'response' must be a text or a list of texts, found {response!r:.80}"
            )
        texts_by_key[key] = texts
    return texts_by_key


def add_cleaning_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of cleaning and of the question file, shared with `teach`."""
    parser.add_argument("--data", nargs="+", required=True, help="prompts made by prepare")
    parser.add_argument("--output", required=True, help="jsonl file")
    parser.add_argument("--rules", choices=("1.0", "1.1"), default="1.0", help="cleaning: LogiQA-v2 1.0, ReClor 1.1")
    parser.add_argument("--min-lines", type=int, default=0, help="drop shorter responses (ReClor: 8)")
    parser.add_argument("--keep-duplicates", action="store_true", help="keep repeated responses of a question")
    parser.add_argument("--max-questions", type=int, help="use the first so many questions only")
    add_budget_arguments(parser)


def selected_questions(args: argparse.Namespace) -> dict[str, Question]:
    """Load the questions that the command works on."""
    return dict(list(load_questions(args.data).items())[: args.max_questions])


def collect_into(
    args: argparse.Namespace, questions: Mapping[str, Question], prompts: Mapping[str, str], **options: Any
) -> None:
    """Sample responses to `prompts`, by question id, and write a record for each question.

    Args:
        options: what the records depend on besides sampling and cleaning.
    """
    cleaning = _cleaning_options(args)
    with open_journal(args.output, sampling_options(args) | cleaning | options) as journal:
        summary, _ = generate_into(
            journal,
            [Request(key, prompt, request_seed(args.seed, key)) for key, prompt in prompts.items()],
            args,
            lambda request, texts: trajectory_record(questions[request.key], texts, **cleaning),
            Path(args.output).stem,
        )
        print(f"{args.output}: {len(journal)} questions ({summary})")


def _cleaning_options(args: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(args, name) for name in ("rules", "min_lines", "keep_duplicates")}


def main(argv: Sequence[str] | None = None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    imports = any(argument.partition("=")[0] == "--import-file" for argument in argv)
    parser = command.parser(__doc__)
    add_cleaning_arguments(parser)
    if imports:
        parser.add_argument("--import-file", required=True, help=".json or .jsonl with 'id' (position) and 'response'")
        _import(parser.parse_args(argv))
        return 0
    add_arguments(parser, n=10, temperature=0.8, top_p=1.0)
    args = parser.parse_args(argv)
    questions = selected_questions(args)
    collect_into(args, questions, {key: question.prompt for key, question in questions.items()})
    return 0


def _import(args: argparse.Namespace) -> None:
    questions, published = selected_questions(args), published_responses(args.import_file)
    unknown = [key for key in published if key not in questions]
    if unknown and not args.max_questions:
        raise DataError(f"{args.import_file}: id {unknown[0]} and {len(unknown) - 1} more are not in {args.data}")
    cleaning = _cleaning_options(args)
    with open_journal(args.output, cleaning | {"imported": True}) as journal:
        recorder = Recorder(journal, (key for key in published if key in questions), args, "import")
        for key in recorder.pending:
            recorder.add(key, trajectory_record(questions[key], published[key], **cleaning))
        print(f"{args.output}: {len(journal)} questions ({recorder.close()})")


if __name__ == "__main__":
    command.run(main)
