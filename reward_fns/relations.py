r"""Equations and inequalities in an answer: what merely names the value that was asked for, and what says more.

`x = 42` names 42, `2x = 42` is an equation, `x = 41 = 42` a chain. Works on `reward_fns.answer.normal_form`.
"""

import re

from reward_fns.answer import MARK, squeeze
from reward_fns.shapes import depths, split_top

_RELATION = re.compile(
    r"(?<![\\])[<>=]|\\(?:le|ge|ne|lt|gt|approx|equiv|sim|in|subset|cong|mid|Rightarrow|implies|iff|to)(?![A-Za-z])"
)
ORDER = re.compile(r"(?<![\\])[<>]|\\(?:le|ge|ne)(?![A-Za-z])")
_EQUALS = re.compile(r"(?<![<>!:\\])=(?!=)|\\(?:approx|equiv)(?![A-Za-z])|==")
_SUBSCRIPT = re.compile(r"_\s*(?:\{[^{}]*\}|\\?[A-Za-z]+|\d)")
_PRIME = re.compile(r"'+|\^\s*\{?\s*\\prime\s*\}?|\^\s*\{?\s*-1\s*\}?(?=\s*\()")
_DENIAL = re.compile(r"\b(?:not|no|never|false|wrong|except|cannot|isn't)\b", re.IGNORECASE)
_NAME_COMMANDS = re.compile(
    r"\\(?:angle|measuredangle|triangle|overline|overrightarrow|vec|hat|bar|tilde|widehat|mathcal|mathbb|max|min|log|ln|sin|cos|"
    r"tan|cot|sec|csc|det|dim|gcd|lcm|deg|arg|Re|Im|Pr|alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|vartheta|iota|kappa|"
    r"lambda|mu|nu|xi|rho|sigma|tau|phi|varphi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Sigma|Phi|Psi|Omega|ell)(?![A-Za-z])"
)
_DERIVATIVE = re.compile(r"\\frac\s*\{\s*d\s*\^?2?\s*[A-Za-z]?\s*\}\s*\{\s*d\s*[A-Za-z]\s*(?:\^2)?\s*\}")
QUOTIENT = re.compile(
    r"\\frac\{\s*[A-Za-z]{1,2}\s*\}\{\s*[A-Za-z]{1,2}\s*\}|[A-Za-z]{1,2}\s*[:/]\s*[A-Za-z]{1,2}(?:\s*:\s*[A-Za-z]{1,2})*"
)
_LIMIT = re.compile(r"\\lim(?:\s*_\s*\{[^{}]*\})?")
_ARGUMENTS = re.compile(r"(?<=[A-Za-z])\s*\([^()]*\)|(?<=\x02)\s*\([^()]*\)")
_TUPLE_OF_NAMES = re.compile(r"\(\s*[A-Za-z](?:\s*,\s*[A-Za-z])+\s*\)")


def is_chain(item: str) -> bool:
    """`x=41=42`: more than one equality sign outside subscripts and arguments. Which link counts nobody can say."""
    return len(_EQUALS.findall(_ARGUMENTS.sub("", _SUBSCRIPT.sub("", item)))) > 1


def value_side(text: str) -> str | None:
    """`42` of `x = 42`: the right side, where the left side merely names what was asked for; else None."""
    parts = split_top(text, "=")
    if len(parts) != 2 or not all(parts) or text[text.index("=") - 1] in "<>!:\\":
        return None
    return parts[1] if is_name(parts[0]) else None


def is_name(side: str) -> bool:
    """A name, a function of something, or a sum of names such as `m + n`; a digit makes it an equation to be solved."""
    side = side.strip()
    if _DENIAL.search(side.replace(MARK, " ")):
        return False
    if _TUPLE_OF_NAMES.fullmatch(side) or QUOTIENT.fullmatch(side):
        return True
    plain = re.sub(rf"{MARK}[^{MARK}]*{MARK}", " w\x02", side)
    plain = _DERIVATIVE.sub(" w ", _PRIME.sub("", _SUBSCRIPT.sub("", plain)))
    plain = _NAME_COMMANDS.sub(" w", _LIMIT.sub(" ", plain))
    plain = re.sub(r"[{}|\x02]", " ", _ARGUMENTS.sub("", plain))
    return re.fullmatch(r"\s*[A-Za-z][A-Za-z\s+\-]{0,60}", plain) is not None


def is_related(text: str) -> bool:
    """Whether a sign of equality, order or the like stands outside all brackets."""
    return any(depth == 0 and _RELATION.match(text, place) for place, depth in depths(text))


def shared_name(items: tuple[str, ...]) -> str:
    """The name of which values are listed, as in `x=2, 5` and `x=2, x=5`: roots have no order and are no point."""
    sides = [split_top(item, "=") for item in items]
    names = {squeeze(side[0]) for side in sides if len(side) == 2}
    if len(names) != 1 or any(len(side) > 2 for side in sides) or value_side(items[0]) is None:
        return ""
    return names.pop()


def without_shared_name(items: tuple[str, ...]) -> tuple[str, ...]:
    """The values alone."""
    return tuple(split_top(item, "=")[-1] for item in items) if shared_name(items) else items


def as_ratio(side: str) -> str:
    r"""`\frac{a}{b}` and `a/b` as `a:b`."""
    match = re.fullmatch(r"\\frac\{([^{}]*)\}\{([^{}]*)\}|([^:/]+)[:/]([^:/]+)", side.strip())
    return side if match is None else f"{match[1] or match[3]}:{match[2] or match[4]}"
