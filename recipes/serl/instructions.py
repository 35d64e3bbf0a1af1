"""From few-shot examples to a generation prompt, and from generated text to clean instructions."""

import json
import random
import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

WORDS_MIN = 4
WORDS_MAX = 150

KEYWORDS = (
    *("image", "images", "graph", "graphs", "picture", "pictures", "file", "files", "map", "maps"),
    *("draw", "plot", "go to"),
)

_ITEM = re.compile(r"(?<!\d)\d++\.\s+(.*?)(?=\n\d++\.\s|$)", re.DOTALL)
_KEYWORD = re.compile(rf"\b(?:{'|'.join(KEYWORDS)})\b", re.IGNORECASE)
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class PromptTemplate:
    """The two messages around the few-shot examples: `system` (may be empty) and the header line `user`."""

    system: str
    user: str


def load_template(path: str | Path | None = None) -> PromptTemplate:
    """Read a few-shot prompt file, a JSON object with the string keys `system` and `user`.

    `None` reads the file that ships with the recipe. Raises `FileNotFoundError` when the file is missing, and
    `ValueError` when it is not such an object, has other keys, or `user` is blank or does not end with a newline.
    """
    if path is None:
        source = resources.files("recipes.serl").joinpath("prompts/question_generation.json")
    else:
        source = Path(path)
        if not source.is_file():
            raise FileNotFoundError(
                f"few-shot prompt file {source} does not exist; give an existing JSON file or leave it unset"
            )
    try:
        content = json.loads(source.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"few-shot prompt file {source} is not UTF-8 JSON: {error}") from error
    if not isinstance(content, dict) or set(content) != {"system", "user"}:
        found = sorted(content) if isinstance(content, dict) else type(content).__name__
        raise ValueError(f"few-shot prompt file {source} must hold exactly the keys 'system' and 'user', found {found}")
    for key, value in content.items():
        if not isinstance(value, str):
            raise ValueError(f"few-shot prompt file {source}: {key!r} must be a string, found {type(value).__name__}")
    if not content["user"].strip() or not content["user"].endswith("\n"):
        raise ValueError(
            f"few-shot prompt file {source}: 'user' must be a header that ends with a newline, because the numbered "
            "examples follow it; add the newline"
        )
    return PromptTemplate(system=content["system"], user=content["user"])


def draw_examples(
    rng: random.Random, generated: Sequence[str], seeds: Sequence[str], *, k: int = 8, max_generated: int = 2
) -> list[str]:
    """Draw the `k` examples of one few-shot prompt, in shuffled order (SeRL code, `ppo_trainer.fit`).

    Up to `max_generated` come without replacement from `generated` (instructions kept so far), the rest from `seeds`.
    Raises `ValueError` when there are too few seeds to fill the prompt.
    """
    if k < 1 or max_generated < 0:
        raise ValueError(f"need k >= 1 and max_generated >= 0, got k={k}, max_generated={max_generated}")
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
    """The chat messages of one few-shot prompt: header, numbered examples, and the bare next number.

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
    """Token ids of a few-shot prompt of at most `max_tokens`, and how many examples it shows.

    `tokenize` renders chat messages, generation prompt included. `overlong="drop_examples"` leaves out the longest
    examples until the prompt fits, so that the closing number and the assistant header survive; `"truncate"` cuts the
    right end off as the original code does. Raises `ValueError` when not even one example fits.
    """
    if overlong not in ("drop_examples", "truncate"):
        raise ValueError(f"overlong must be 'drop_examples' or 'truncate', got {overlong!r}")
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


def parse_instructions(text: str) -> list[str]:
    """Split generated text into its numbered items, in order, outer white space stripped.

    An item runs from "digits, dot, white space" to the line break before the next such marker, or to the end; text
    before the first marker is dropped, and a text without a marker yields nothing (SeRL code, `extract_questions`).
    The last item is kept even when the token limit cut it. Linear in the length of the text.
    """
    return [item.strip() for item in _ITEM.findall(text)]


def filter_instruction(text: str, *, lowercase_like_reference: bool = False) -> tuple[str | None, str | None]:
    """The cleaned instruction and `None`, or `None` and the reason why it is dropped.

    The rules are those of the original code (`post_process_response`), in its order; the first that applies names the
    reason: `empty`, `too_short` (under 4 words), `too_long` (over 150), `keyword` (it needs a picture or a file),
    `write_a_program`, `leading_punctuation`, `leading_non_ascii`. Decisions do not depend on the flag:
    `lowercase_like_reference` only returns the text with everything but its first letter lower-cased, as the original
    does, which turns `$ABC$` into `$abc$` and `\\Delta` into `\\delta`.
    """
    kept = _SPACE.sub(" ", text).strip()
    judged = kept.capitalize()
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
    return (judged if lowercase_like_reference else kept), None
