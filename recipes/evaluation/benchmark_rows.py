"""Rows of benchmarks whose columns are not simply question and answer, as rows with `question` and `answer`.

`rows: NAME` in `config/benchmarks.yaml` names a reader here. The question texts of asdiv, svamp, tabmwp, carp_en,
mawps, mmlu_stem, gaokao2023en and college_math are those of the evaluation in QwenLM/Qwen2.5-Math, which SeRL uses.
"""

import random
import re
from collections.abc import Callable, Mapping
from typing import Any

from recipes.errors import DataError

Row = dict[str, Any]
_CLOSED = {"true": "True or False", "false": "True or False", "yes": "Yes or No", "no": "Yes or No"}
# The instruction that the evaluation files of CSSLab/Tandem-RLVR carry behind each problem.
_TANDEM_INSTRUCTION = (
    " Solve the following math problem step by step. Put your final answer inside \\boxed{}, like \\boxed{42} or "
    "\\boxed{\\frac{1}{2}}."
)


def _row(row: Mapping[str, Any], question: str, answer: Any) -> Row:
    """The row with its question and answer; a true-or-false question says so, and 36.0 is 36 as written by hand."""
    text = str(int(answer) if isinstance(answer, float) and answer.is_integer() else answer).strip()
    closed = _CLOSED.get(text.lower())
    return {**row, "question": question.strip() + (f" ({closed})" if closed else ""), "answer": text}


def asdiv(row: Mapping[str, Any]) -> Row:
    """Body and question; the answer without its unit in parentheses, as in "9 (apples)"."""
    return _row(row, f"{row['body'].strip()} {row['question'].strip()}", re.sub(r"\(.*?\)", "", row["answer"]))


def svamp(row: Mapping[str, Any]) -> Row:
    """Body, closed by a full stop, and question."""
    return _row(row, f"{row['Body'].strip().removesuffix('.')}. {row['Question'].strip()}", row["Answer"])


def tabmwp(row: Mapping[str, Any]) -> Row:
    """Table, question and options; numbers without separators of thousands."""
    about = f'regarding "{row["table_title"]}" ' if row.get("table_title") else ""
    text = f"Read the following table {about}and answer a question:\n{row['table']}\n{row['question']}"
    if row.get("choices"):
        text += f" Please select from the following options: {row['choices']}"
    answer = str(row["answer"])
    if row.get("ans_type") in ("integer_number", "decimal_number"):
        answer = answer.replace(",", "")
    return _row(row, text, answer)


def mmlu_stem(row: Mapping[str, Any]) -> Row:
    """Four choices written behind the question; the answer as a letter."""
    choices = [str(choice).strip() for choice in row["choices"]]
    if len(choices) != 4:
        raise DataError(f"mmlu_stem: expected four choices, found {len(choices)} to {row['question'][:60]!r}")
    listed = " ".join(f"({letter}) {choice}" for letter, choice in zip("ABCD", choices, strict=True))
    question = f"{row['question'].strip()}\nAnswer Choices: {listed}"
    return {**row, "question": question, "answer": "ABCD"[int(row["answer"])], "options": choices}


def tandem(row: Mapping[str, Any]) -> Row:
    """A row in verl's format; the instruction behind its question belongs to a prompt, not to the problem."""
    question = row["prompt"][-1]["content"]
    if not question.endswith(_TANDEM_INSTRUCTION):
        raise DataError(f"expected each prompt to end in {_TANDEM_INSTRUCTION.strip()!r}, found {question[-80:]!r}")
    columns = {key: value for key, value in row.items() if key not in ("prompt", "reward_model")}
    answer = row["reward_model"]["ground_truth"]
    return {**columns, "question": question.removesuffix(_TANDEM_INSTRUCTION), "answer": answer}


def gpqa(row: Mapping[str, Any]) -> Row:
    """One right and three wrong answers, in an order drawn from the record's id alone."""
    right = str(row["Correct Answer"]).strip()
    options = [right] + [str(row[f"Incorrect Answer {number}"]).strip() for number in (1, 2, 3)]
    random.Random(str(row["Record ID"])).shuffle(options)
    return {
        "id": row["Record ID"],
        "question": str(row["Question"]).strip(),
        "options": options,
        "answer": "ABCD"[options.index(right)],
        "domain": row["High-level domain"],
    }


READERS: dict[str, Callable[[Mapping[str, Any]], Row]] = {
    "asdiv": asdiv,
    "carp_en": lambda row: _row(row, row["content"], row["answer"]),
    "gpqa": gpqa,
    "mawps": lambda row: _row(row, row["input"], row["target"]),
    "mmlu_stem": mmlu_stem,
    "svamp": svamp,
    "tabmwp": tabmwp,
    "tandem": tandem,
    "without_dollars": lambda row: _row(row, row["question"], str(row["answer"]).replace("$", "")),
}


def read(row: Mapping[str, Any], reader: str | None, name: str) -> Mapping[str, Any]:
    """A row as its benchmark's reader has it; as it is without one.

    Raises:
        DataError: a row without the columns of the benchmark's source.
    """
    if reader is None:
        return row
    try:
        return READERS[reader](row)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise DataError(
            f"{name}: a row has not the columns of its public source ({type(error).__name__}: {error}); "
            f"found {', '.join(sorted(row))}"
        ) from error
