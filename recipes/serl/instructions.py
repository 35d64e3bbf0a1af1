"""Build generation prompts from few-shot examples, and clean instructions from generated text."""

import json
import random
import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

from recipes.core.settings import read
from recipes.errors import ConfigError, MissingFileError
from reward_fns.text import after_thinking

WORDS_MIN = 4
WORDS_MAX = 150

KEYWORDS = (
    *("image", "images", "graph", "graphs", "picture", "pictures", "file", "files", "map", "maps"),
    *("draw", "plot", "go to"),
)

_ITEM = re.compile(r"(?<!\d)\d++\.\s+(.*?)(?=\n\d++\.\s|$)", re.DOTALL)
_MARKER = re.compile(r"(?:^|\n|(?<=\s)#{1,6})[ \t#>*_-]*(\d{1,4})[.)](?:\*\*|__)?[ \t]+(?=\S)")
_BEHIND_A_QUESTION = re.compile(
    r"\n[ \t#>*_-]*(?:\d{1,3}[.)]|\(?[A-Ea-e][.)])\s"
    r"|(?:^|\n)[ \t#*_-]*(?:solution|answer|explanation|hint|options?|steps?)\b\s*[:.\d]",
    re.IGNORECASE,
)
_ENDINGS = (".", "?", "!", ":", ")", "]", "}", "$", '"', "。", "？")
_TASK = re.compile(
    r"\b(?:find|determine|calculate|compute|evaluate|solve|simplify|express|prove|show that|how|what|which|who|when"
    r"|where|write|convert|factor|expand|estimate|give|count|state|list|draw|let|suppose|name)\b",
    re.IGNORECASE,
)
_STEP = re.compile(
    r"(?:first|second|then|next|finally|step|now|so|thus|therefore|hence|subtract|add|multiply|divide|substitute"
    r"|let's|we|to|using|use|set up|check|verify|apply|rewrite|combine|isolate"
    r"|recall|note|plan|the answer|answer|i|sure|here)\b",
    re.IGNORECASE,
)
_KEYWORD = re.compile(rf"\b(?:{'|'.join(KEYWORDS)})\b", re.IGNORECASE)
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class PromptTemplate:
    """The two messages around the few-shot examples: `system` (may be empty) and the header line `user`."""

    system: str
    user: str


def load_template(path: str | Path | None = None) -> PromptTemplate:
    """Read a few-shot prompt file, a JSON object with the texts `system` and `user`; None reads the recipe's own.

    Raises:
        MissingFileError: no such file.
        ConfigError: it is no such object, or `user` is blank or does not end with a line break.
    """
    source = Path(path) if path else resources.files("recipes.serl").joinpath("prompts/question_generation.json")
    name = f"few-shot prompt file {source}"
    if not source.is_file():
        raise MissingFileError(f"{name} does not exist: give an existing JSON file or leave it unset")
    try:
        content = json.loads(source.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name} is not UTF-8 JSON: {error}") from error
    template = read(PromptTemplate, content, name)
    if not template.user.strip() or not template.user.endswith("\n"):
        raise ConfigError(f"{name}: user must end with a line break, because the numbered examples follow it")
    return template


def draw_examples(
    rng: random.Random, generated: Sequence[str], seeds: Sequence[str], *, k: int = 8, max_generated: int = 2
) -> list[str]:
    """Draw the `k` examples of one few-shot prompt, in shuffled order (SeRL code, `ppo_trainer.fit`).

    Up to `max_generated` come without replacement from `generated` (instructions kept so far), the rest from `seeds`.
    Raises `ValueError` when there are too few seeds to fill the prompt.
    """
    examples = rng.sample(generated, min(max_generated, k, len(generated)))
    missing = k - len(examples)
    if missing > len(seeds):
        raise ValueError(
            f"a few-shot prompt of {k} examples needs {missing} seeds, found {len(seeds)}; add seeds or lower it"
        )
    examples += rng.sample(seeds, missing)
    rng.shuffle(examples)
    return examples


def compose_messages(examples: Sequence[str], template: PromptTemplate) -> list[dict[str, str]]:
    """Compose the chat messages of one few-shot prompt: header, numbered examples, and the bare next number.

    White space inside an example collapses to single spaces and a trailing ":" goes (SeRL code, `encode_prompt`).
    """
    lines = [f"{i}. {_SPACE.sub(' ', text).strip().rstrip(':')}\n" for i, text in enumerate(examples, start=1)]
    messages = [{"role": "user", "content": f"{template.user}{''.join(lines)}{len(examples) + 1}."}]
    if template.system:
        messages.insert(0, {"role": "system", "content": template.system})
    return messages


def fit_prompt(
    examples: Sequence[str],
    template: PromptTemplate,
    tokenize: Callable[[list[dict[str, str]]], list[int]],
    *,
    max_tokens: int = 1024,
    overlong: str = "drop_examples",
) -> tuple[list[int], int]:
    """Tokenise a few-shot prompt of at most `max_tokens`; return its ids and the number of examples shown.

    `tokenize` renders chat messages, generation prompt included. `overlong="drop_examples"` leaves out the longest
    examples until the prompt fits, so that the closing number and the assistant header survive; `"truncate"` cuts the
    right end off as the original code does. Raises `ValueError` when not even one example fits.
    """
    shown = list(examples)
    while shown:
        ids = list(tokenize(compose_messages(shown, template)))
        if len(ids) <= max_tokens:
            return ids, len(shown)
        if overlong == "truncate":
            return ids[:max_tokens], len(shown)
        shown.remove(max(shown, key=len))
    raise ValueError(
        f"no few-shot prompt of at most {max_tokens} tokens can be built from {len(examples)} examples; "
        "raise the prompt limit or shorten the seeds"
    )


def parse_instructions(text: str, convention: Literal["default", "reference"] = "default") -> list[str]:
    """The numbered questions of a generated text, in order, outer white space stripped.

    `default`: each item is a whole question or task, or nothing. Items begin on a line of their own ("9.", "9)",
    "**9.**", "### 9."), each with the next number; numbered lines inside an item (steps of a solution, options), and
    what follows them or a heading such as "Solution:", are no part of the question. Thoughts, preambles, and a last
    item that the token limit cut are left out.

    `reference`: an item runs from "digits, dot, white space", wherever it stands, to the line break before the next
    such marker, or to the end; the last one is kept even when it was cut (SeRL code, `extract_questions`).

    Linear in the length of the text.
    """
    if convention == "reference":
        return [item.strip() for item in _ITEM.findall(text)]
    text = after_thinking(text)
    markers = list(_MARKER.finditer(text))
    items: list[tuple[str, bool]] = []
    expected, start = None, 0
    for marker in markers:
        number = int(marker[1])
        if expected is not None and number != expected:
            continue
        if expected is not None:
            items.append((text[start : marker.start()], True))
        expected, start = number + 1, marker.end()
    if expected is not None:
        items.append((text[start:], False))
    return [question for item, ended in items if (question := _whole_question(item, ended))]


def _whole_question(item: str, ended: bool) -> str | None:
    """The question of an item, without a solution or options behind it; None where there is none, or it was cut."""
    question = _BEHIND_A_QUESTION.split(item, maxsplit=1)[0]
    if not question.strip():
        return None
    if question == item and not ended and not item.rstrip().endswith(_ENDINGS):
        return None
    question = question.strip().strip("*_").strip()
    is_task = "?" in question or (_TASK.search(question) and not _STEP.match(question))
    return question if is_task else None


def filter_instruction(text: str, *, lowercase_like_reference: bool = False) -> tuple[str | None, str | None]:
    """Clean an instruction: the text and `None`, or `None` and the reason why it is dropped.

    The rules are those of the original code (`post_process_response`), in its order; the first that applies names the
    reason: `empty`, `too_short` (under 4 words), `too_long` (over 150), `keyword` (it needs a picture or a file),
    `write_a_program`, `leading_punctuation`, `leading_non_ascii`. Decisions do not depend on the flag:
    `lowercase_like_reference` only returns the text with everything but its first letter lower-cased, as the original
    does, which turns `$ABC$` into `$abc$` and `\\Delta` into `\\delta`.
    """
    spaced = _SPACE.sub(" ", text).strip()
    judged = spaced.capitalize()
    if not judged:
        return None, "empty"
    n_words = len(judged.split())
    if n_words < WORDS_MIN:
        return None, "too_short"
    if n_words > WORDS_MAX:
        return None, "too_long"
    if _KEYWORD.search(judged):
        return None, "keyword"
    if judged.startswith("Write a program"):
        return None, "write_a_program"
    if judged[0] in string.punctuation:
        return None, "leading_punctuation"
    if not judged[0].isascii():
        return None, "leading_non_ascii"
    return (judged if lowercase_like_reference else spaced), None
