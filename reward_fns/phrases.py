r"""Find the answer of a response without a box: what follows "the answer is", where that states a value."""

import re

from reward_fns.extract import MAX_RESPONSE_CHARS, AnswerScope, Extraction, bounded, scoped

_PHRASE = re.compile(
    r"\b(?:final\s+)?answer\s*(?:\*\*|__)?\s*(?:is\b|:|=)\s*:?\s*(?:\*\*|__)?\s*(?=(?P<answer>[^\n]{1,1000}))"
    r"|####\s*(?P<hash>[^\n]{1,1000})",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"\.\s|,?\s(?:because|since|so|which|as|for|when|where|if|by|after)\s")
_FILLER = re.compile(
    r"(?:(?:the|a|an|simply|just|indeed|therefore|thus|then|now|also|exactly|approximately|about|roughly|equal to"
    r"|equals?|number|value|integer|final|=)\s+)+(?=\S)",
    re.IGNORECASE,
)
_VALUE = re.compile(r"[-+($\[{|\\.]|\d")
_WORDS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}(?:[ '-]+[A-Za-z]+)*")
_ANSWER_WORDS = frozenset(
    "yes no true false even odd both neither never always increasing decreasing divergent convergent diverges "
    "converges undefined infinite infinity zero one two three four five six seven eight nine ten dne impossible "
    "north south east west".split()
)
"""Words that a question can have for an answer."""
_FUNCTIONS = frozenset("sin cos tan sec csc cot log ln exp sqrt pi max min gcd lcm and or mod".split())
_PLACEHOLDER = re.compile(
    r"none|null|nil|nan|n/?a|tbd|unknown|not (?:sure|available|known)|unsure|i (?:do not|don't|cannot|can't) \w+"
    r"|(?:your |the |my |final |an? )*(?:answer|result|value|number|expression|solution)(?: here)?"
    r"|\\[lc]?dots|\\(?:square|Box|star|ast|cdot|bullet|blacksquare)|[?_.*…-]+|\\underline\s*\{.*\}"
    r"|[<\[{]\s*[a-z ]+\s*[>\]}]",
    re.IGNORECASE,
)
MAX_UNIT_WORDS = 4


def is_placeholder(answer: str) -> bool:
    r"""Whether an answer only holds a place: None, N/A, "I don't know", `\ldots`, `\square`, "your answer"."""
    plain = re.sub(r"\\(?:text\w*|mathrm|mathbf)\s*\{([^{}]*)\}", r"\1", answer).strip("$ \n")
    return _PLACEHOLDER.fullmatch(plain) is not None or _PLACEHOLDER.fullmatch(plain.rstrip(".")) is not None


def states_value(answer: str) -> bool:
    """Whether what follows "the answer is" states an answer, and is no prose about it ("correct", "given by ...")."""
    runs = [run for run in _WORDS.findall(answer) if run.lower() not in _FUNCTIONS]
    if not runs:
        return True
    if _VALUE.match(answer):
        return sum(len(run.split()) for run in runs) <= MAX_UNIT_WORDS
    words = answer.split()
    is_name = len(words) <= 3 and all(word[:1].isupper() for word in words)
    return is_name or answer.strip("()$ *").lower() in _ANSWER_WORDS


def extract_phrase(response: str, answer_scope: AnswerScope = "final") -> Extraction:
    """What follows the last "the answer is", "Answer:" or "####" that states an answer, without a closing full stop."""
    if len(response) > MAX_RESPONSE_CHARS:
        return Extraction("", "too_long")
    answer, seen = "", False
    for match in _PHRASE.finditer(scoped(response, answer_scope)):
        seen = True
        text = (
            _SENTENCE_END.split((match["answer"] or match["hash"]).strip(), maxsplit=1)[0].strip().strip("*_").strip()
        )
        text = _FILLER.sub("", text.removesuffix(".").rstrip(), count=1)
        if text and states_value(text):
            answer = text
    return bounded(answer, "empty_phrase") if seen else Extraction("", "no_phrase")
