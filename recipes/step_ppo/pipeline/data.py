"""Data sets as rows of verl's parquet format: LogiQA-v2, ReClor, GSM8K, MATH, and files of the same shape.

A row keeps the position of the question in its file as `extra_info.index`; it identifies the question in every later
stage, as in the published trajectory files.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from recipes.core.files import Row, read_rows
from recipes.errors import DataError
from recipes.step_ppo.prompts import LETTERS, math_prompt, ordered_options, react_prompt
from recipes.step_ppo.steps import StepStyle
from recipes.step_ppo.tokens import Prompt, prompt_of


@dataclass(frozen=True)
class Dataset:
    """Where a data set lives and how one of its items becomes a row.

    path, config: Hugging Face data set id (or builder) and configuration. style: how steps are written.
    files: pattern with `{split}` for a data set that is read by file.
    """

    path: str
    style: StepStyle
    row: Callable[[Row, int, str, str | None], Row]
    config: str | None = None
    files: str | None = None


@dataclass(frozen=True)
class Question:
    """One prompt as the pipeline's stages need it. `gold` is a letter or a maths answer."""

    id: str
    prompt: Prompt
    gold: str
    data_source: str
    style: StepStyle


def choice_row(
    item: Row, index: int, split: str, order: str | None, *, data_source: str, keys: tuple[str, str, str, str]
) -> Row:
    """Make one multiple-choice row; `keys` name context, question, options and label in the item."""
    context_key, question_key, options_key, label_key = keys
    for key in (context_key, question_key, options_key):
        if item.get(key) is None:
            raise DataError(f"item {index} of {split} has no {key!r}: found {sorted(item)}")
    if not isinstance(item[options_key], list | tuple):
        raise DataError(f"item {index} of {split}: {options_key!r} must be a list, found {item[options_key]!r:.80}")
    options = [str(option) for option in item[options_key]]
    try:
        label = _position(item.get(label_key))
        options, label = ordered_options(options, label, order)
        prompt = react_prompt(str(item[context_key]), str(item[question_key]), options)
    except ValueError as error:
        raise DataError(f"item {index} of {split}: {error}") from error
    return make_row(
        prompt, "" if label is None else LETTERS[label], index, split, data_source=data_source, style="react"
    )


def _position(label: Any) -> int | None:
    # The ReClor test split is unlabelled; the Hub's copy writes that as an empty string or -1.
    if label in (None, "", -1):
        return None
    try:
        position = int(label)
    except (TypeError, ValueError, OverflowError):
        position = None
    if position is None or (isinstance(label, float) and position != label):
        raise ValueError(f"label {label!r} is no position, counted from 0")
    return position


def gsm8k_row(item: Row, index: int, split: str, order: str | None) -> Row:
    """GSM8K: the gold answer stands behind `####`."""
    _, marks, result = str(item.get("answer")).rpartition("####")
    if not isinstance(item.get("question"), str) or not marks or not result.strip():
        raise DataError(f"item {index} of {split}: expected a text 'question' and an 'answer' with '####' and a result")
    gold = result.strip().replace(",", "")
    return make_row(math_prompt(item["question"]), gold, index, split, data_source="openai/gsm8k", style="lines")


def math_row(item: Row, index: int, split: str, order: str | None) -> Row:
    """MATH: the gold answer is the content of the last `\\boxed{}` of the solution."""
    gold = last_boxed(str(item.get("solution", "")))
    if not isinstance(item.get("problem"), str) or gold is None:
        raise DataError(f"item {index} of {split}: expected a text 'problem' and a 'solution' with \\boxed{{}}")
    source = "DigitalLearningGmbH/MATH-lighteval"
    return make_row(math_prompt(item["problem"]), gold, index, split, data_source=source, style="lines")


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}` or `\fbox{...}` whose braces close, None without one.

    `\boxed 9` without braces goes up to the next dollar sign, as in the reader of the data set's authors.
    """
    for match in reversed(list(re.finditer(r"\\(?:boxed|fbox)(?![A-Za-z])", text))):
        rest = text[match.end() :]
        inside = rest.lstrip()
        if not inside.startswith("{"):
            if rest.startswith(" "):
                return rest.partition("$")[0].strip()
            continue
        depth = 0
        for token in re.finditer(r"\\.|[{}]", inside, re.DOTALL):
            depth += {"{": 1, "}": -1}.get(token[0], 0)
            if depth == 0:
                return inside[1 : token.start()].strip()
    return None


def make_row(prompt: str, gold: str, index: int, split: str, *, data_source: str, style: StepStyle) -> Row:
    """Make a row of verl's RL format; around a ReAct prompt belongs no chat template."""
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": without_surrogates(prompt)}],
        "ability": "logic" if style == "react" else "math",
        "reward_model": {"style": "rule", "ground_truth": without_surrogates(gold)},
        "extra_info": {"index": index, "split": split, "step_style": style},
    }


def without_surrogates(text: str) -> str:
    """Replace lone halves of surrogate pairs, which JSON can spell and no tokenizer takes, by question marks."""
    return text.encode("utf-8", "replace").decode()


# The Hub's copies of LogiQA 2.0 are loading scripts or mix the tasks, so its own repository is read, as the LPR code
# did.
LOGIQA2_FILES = "https://raw.githubusercontent.com/csitfun/LogiQA2.0/main/logiqa/DATA/LOGIQA/{split}.txt"

DATASETS = {
    "logiqa2": Dataset(
        "json",
        "react",
        partial(choice_row, data_source="csitfun/LogiQA2.0", keys=("text", "question", "options", "answer")),
        files=LOGIQA2_FILES,
    ),
    "reclor": Dataset(
        "metaeval/reclor",
        "react",
        partial(choice_row, data_source="metaeval/reclor", keys=("context", "question", "answers", "label")),
    ),
    "gsm8k": Dataset("openai/gsm8k", "lines", gsm8k_row, config="main"),
    "math": Dataset("DigitalLearningGmbH/MATH-lighteval", "lines", math_row),
}


def load_items(dataset: Dataset, split: str, files: Iterable[str] | None) -> Iterator[Row]:
    """Load items from local files, or from the Hub when none are given."""
    if files:
        for path in files:
            yield from read_rows(path)
        return
    import datasets

    if dataset.files:
        yield from datasets.load_dataset(dataset.path, data_files=dataset.files.format(split=split), split="train")
    else:
        yield from datasets.load_dataset(dataset.path, dataset.config, split=split)


def load_questions(paths: Iterable[str | Path]) -> dict[str, Question]:
    """Load the questions of prepared parquet (or jsonl) files by id, in file order.

    Raises:
        DataError: a row that lacks a field, or an index that occurs twice.
    """
    questions: dict[str, Question] = {}
    for path in paths:
        for number, row in enumerate(read_rows(path)):
            try:
                style = row["extra_info"].get("step_style") or "react"
                question = Question(
                    id=str(row["extra_info"]["index"]),
                    prompt=prompt_of(list(row["prompt"]), style),
                    gold=row["reward_model"]["ground_truth"],
                    data_source=row["data_source"],
                    style=style,
                )
            except ValueError as error:
                raise DataError(f"{path}, row {number}: {error}") from error
            except (KeyError, IndexError, TypeError) as error:
                raise DataError(
                    f"{path}, row {number} is no prepared prompt ({error!r}): run recipes.step_ppo.pipeline.prepare"
                ) from error
            if question.id in questions:
                raise DataError(
                    f"{path}, row {number}: index {question.id} occurs twice; pass the files of one split only"
                )
            questions[question.id] = question
    return questions


def require_questions(
    questions: Mapping[str, Question], records: Iterable[Mapping[str, Any]], data: Iterable[str | Path]
) -> None:
    """Raises DataError if a record belongs to a question that `data` does not hold."""
    if missing := next((record["id"] for record in records if record["id"] not in questions), None):
        raise DataError(f"the records name question {missing}, which {', '.join(map(str, data))} does not hold")
