"""Answers that are a letter: exactly one must be named, so that hedging between options never pays.

`finish_letter` is the rule of LPR (Jiao et al. 2024, data/general.py after its "fix_hack"); `mmlu_pro_letter` the
three-stage extraction of MMLU-Pro (evaluate_from_local.py), without its random guess.
"""

import re
from collections import deque
from typing import Any, Literal

from reward_fns.errors import OptionError
from reward_fns.extract import MAX_RESPONSE_CHARS, AnswerScope, extract_boxed, scoped
from reward_fns.result import Score, Skip, to_verl

Style = Literal["strict", "finish", "mmlu_pro"]

_FINISH = re.compile(r"Finish\s*\[([^\]\n]{0,200})\]")
_ANSWER_IS = re.compile(
    r"(?i:\banswer)\s*(?:\*\*|__)?\s*(?:(?i:is)\b\s*:?|:)\s*(?:\*\*|__)?\s*(?=(?P<rest>[^\n]{0,200}))"
)
_OPTION = re.compile(r"(?<![A-Za-z'])([A-Z])(?![A-Za-z'])")
# An option that begins a statement; what follows is its text, or a reason. "A" and "I" before a word may be words.
_CHOICE = re.compile(
    r"[\s*_]*(?:(?i:option|choice)\s+)?(?:\(([A-Z])\)|\[([A-Z])\]|([A-Z])(?=[.):,*_]|\s*$|\s+(?:because|since|as|so|for|which|[-—])\b|\s+[^a-zA-Z])"
    r"|([B-HJ-Z])(?![A-Za-z']))"
)
_OTHER_CHOICE = re.compile(
    r"(?:\b(?:or|and|and/or|nor|vs)\b|[,/;&|+])\s*(?:(?i:option|choice)\s+)?[(\[]?([A-Z])[)\]]?(?![A-Za-z'])"
)
_REASON = re.compile(r"\b(?:because|since|as|so|while|whereas)\b")
_BRACKETED = re.compile(r"[(\[]([A-Z])[)\]]")
_DENIAL = re.compile(r"\W*(?:[A-Za-z]{2,}\s+)?(?:not|neither|never)\b", re.IGNORECASE)
_MMLU_ANSWER_IS = re.compile(r"answer is \(?([A-J])\)?")
_MMLU_ANSWER = re.compile(r"[aA]nswer:(?=\s*([A-J]))")  # the letter may be the A of another "Answer:"
_MMLU_LAST = re.compile(r"\b[A-J]\b")


def finish_letter(response: str, letters: str = "ABCD") -> tuple[str, str]:
    """The option letter after the first "Finish", up to a second one.

    Every capital option letter there counts, also inside a word, as in the original.

    Returns:
        `(letter, "")`, or `("", reason)` with reason `no_finish`, `missing` or `multiple`.
    """
    parts = response.split("Finish", 2)
    if len(parts) < 2:
        return "", "no_finish"
    answers = [character for character in parts[1] if character in letters]
    return (answers[0], "") if len(answers) == 1 else ("", "multiple" if answers else "missing")


def mmlu_pro_letter(response: str) -> tuple[str, str]:
    """The letter A to J that MMLU-Pro's evaluation reads.

    First "answer is (X)"; else, on the first line that has one, the last "Answer: X"; else the last letter that
    stands alone.
    """
    if match := _MMLU_ANSWER_IS.search(response):
        return match[1], ""
    if match := _MMLU_ANSWER.search(response):
        line_end = response.find("\n", match.start())
        on_line = _MMLU_ANSWER.finditer(response, match.start())
        for later in on_line:
            if line_end != -1 and later.start() > line_end:
                break
            match = later
        return match[1], ""
    alone = deque(_MMLU_LAST.finditer(response), maxlen=1)
    return (alone[0][0], "") if alone else ("", "missing")


def strict_letter(response: str, letters: str = "ABCDEFGHIJ", answer_scope: AnswerScope = "final") -> tuple[str, str]:
    r"""The one letter of the last answer given, as `Finish[...]`, `\boxed{}` or "the answer is (X)"; a box comes
    before phrases.

    Only what stands inside the brackets, in the box, or in the first sentence after the phrase counts, and it must name
    exactly one option (the same one twice is one).

    Returns:
        `(letter, "")`, or `("", reason)` with reason `missing`, `multiple` or what `extract_boxed` says.
    """
    if len(response) > MAX_RESPONSE_CHARS:
        return "", "too_long"
    boxed = extract_boxed(response, answer_scope)
    if boxed.text:
        return _only_letter(re.sub(r"\\[A-Za-z]+", " ", boxed.text), letters)
    if boxed.reason != "no_box":
        return "", boxed.reason
    text = scoped(response, answer_scope)
    stated = [(match.start(), match[1]) for match in _FINISH.finditer(text)]
    stated += [(match.start(), re.split(r"\.(?:\s|$)", match["rest"])[0]) for match in _ANSWER_IS.finditer(text)]
    # A phrase inside Finish[...] starts later than the bracket and says the same.
    return _only_letter(max(stated)[1], letters) if stated else ("", "missing")


def _only_letter(text: str, letters: str) -> tuple[str, str]:
    # An option that is ruled out is not chosen: "not B", "certainly not (B)".
    denied = _DENIAL.match(text) is not None
    choice = None if denied else _CHOICE.match(text)
    if choice is not None and (letter := next(filter(None, choice.groups()))) in letters:
        # Capitals in the option's text are no second choice, but for another option that is offered beside it.
        rest = _REASON.split(text[choice.end() :], maxsplit=1)[0]
        others = {*_OTHER_CHOICE.findall(rest), *_BRACKETED.findall(rest)} & set(letters) - {letter}
        return ("", "multiple") if others else (letter, "")
    options = [letter for letter in dict.fromkeys(_OPTION.findall(text)) if letter in letters]
    # "A" as the article of a sentence and "I" are words: a bare lower-case text after them is prose, not a choice.
    if len(options) == 1 and (denied or re.match(r"\s*(?:A|I)\s+[a-z]", text)):
        return "", "missing"
    if len(options) == 1:
        return options[0], ""
    return "", "multiple" if options else "missing"


def gold_letter(ground_truth: Any, letters: str) -> str:
    """The gold option: a letter, `(B)`, or its position counted from 0; "" when it is none of them."""
    if hasattr(ground_truth, "item") and not isinstance(ground_truth, str):
        try:
            ground_truth = ground_truth.item()
        except (TypeError, ValueError):
            return ""
    if isinstance(ground_truth, int) and not isinstance(ground_truth, bool):
        return letters[ground_truth] if 0 <= ground_truth < len(letters) else ""
    if isinstance(ground_truth, str):
        letter = ground_truth.strip().strip("().").strip().upper()
        if len(letter) == 1 and letter in letters:
            return letter
    return ""


def score(
    response: Any,
    ground_truth: Any,
    *,
    style: Style = "strict",
    letters: str = "ABCDEFGHIJ",
    answer_scope: AnswerScope = "final",
) -> Score | Skip:
    """Judge a multiple-choice response: 1.0 for exactly the gold letter, else 0.0 with a reason.

    Args:
        ground_truth: a letter, or the option's position counted from 0.
        style: `strict`, `finish` (A to D unless `letters` is given as less) or `mmlu_pro`.

    Raises:
        OptionError: an unknown style, or letters that are not distinct capitals.
    """
    if style not in ("strict", "finish", "mmlu_pro"):
        raise OptionError(f"style is {style!r}, expected strict, finish or mmlu_pro")
    if not re.fullmatch("[A-Z]+", letters) or len(set(letters)) != len(letters):
        raise OptionError(f"letters is {letters!r}, expected distinct capital letters")
    gold = gold_letter(ground_truth, letters)
    if not gold:
        return Skip("gold_missing" if ground_truth in (None, "") else "gold_unparsable")
    if not isinstance(response, str):
        return Score(0.0, "not_text")
    if style == "strict":
        letter, reason = strict_letter(response, letters, answer_scope)
    elif style == "finish":
        letter, reason = finish_letter(response, letters[:4])
    else:
        letter, reason = mmlu_pro_letter(response)
    if not letter:
        return Score(0.0, reason)
    return Score(float(letter == gold), "" if letter == gold else "wrong", letter)


def compute_score(
    data_source: Any, solution_str: Any, ground_truth: Any, extra_info: Any = None, **kwargs: Any
) -> dict[str, float | str]:
    """`score` in the signature of a verl reward function; `style`, `letters` and `answer_scope` come as
    reward_kwargs.
    """
    options = {key: kwargs[key] for key in ("style", "letters", "answer_scope") if key in kwargs}
    unknown = set(kwargs) - set(options) - {"reward_router_address", "reward_model_tokenizer", "reward_model_name"}
    if unknown:
        raise OptionError(f"unknown option {sorted(unknown)}; known: style, letters, answer_scope")
    return to_verl(score(solution_str, ground_truth, **options))
