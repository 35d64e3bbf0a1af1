r"""math-verify, as the workers of the pool use it. Nothing here is bounded in time or memory: never call it
outside a worker.

math-verify bounds itself with SIGALRM, which fails outside the main thread and cannot stop a C loop, so its own
time-outs are off. No parsed object is ever turned into a string: for some that takes longer than the age of the
universe.
"""

import functools
import logging
import re

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from sympy import Basic, Float, MatrixBase, Rational
from sympy.core.expr import Expr

from reward_fns.answer import MARK, normal_form
from reward_fns.equivalence import Verdict, compare, gold_problem
from reward_fns.shapes import shape_of

for _name in ("math_verify", "latex2sympy2_extended"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

_LATEX = (LatexExtractionConfig(boxed_match_priority=0),)
_DEFAULT = (LatexExtractionConfig(), ExprExtractionConfig())
_REFERENCE = (ExprExtractionConfig(), LatexExtractionConfig())
_DECIMAL = re.compile(r"(?<![\d.])(\d*)\.(\d{1,5})(?![\d.])")
_SAMPLE_POINTS = (Rational(1307, 997), Rational(2281, 1009))
_PROBE = "7919"
_EXACT_TOLERANCE = 1e-9
_FLOAT_TOLERANCE = 5e-6


def judge(golds: tuple[str, ...], pred: str) -> tuple[str, str]:
    """Compare an answer with each accepted gold answer by the strict rule.

    Returns:
        `("gold", problem)` when no gold answer can be used, else `("same" | "different", reason)`.
    """
    problems = [check_gold(gold) for gold in golds]
    if all(problems):
        return "gold", problems[0]
    verdict = Verdict(False, "wrong")
    for gold, problem in zip(golds, problems, strict=True):
        if not problem:
            verdict = compare(gold, pred, algebra)
            if verdict.same:
                return "same", ""
    return "different", verdict.reason


@functools.lru_cache(maxsize=4096)
def check_gold(gold: str) -> str:
    """The problem of a gold answer, or ""."""
    return gold_problem(gold, lambda text: bool(_parsed(text)))


def algebra(gold: str, pred: str) -> bool:
    """Whether two expressions are equal to math-verify, and numerically so to many digits."""
    left, right = _parsed(gold), _parsed(pred)
    if not left or not right:
        return False
    if not verify(list(left), list(right), allow_set_relation_comp=True, timeout_seconds=None):
        return False
    return _agree_numerically(left[0], right[0])


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> tuple[Basic | MatrixBase, ...]:
    latex = re.sub(rf"{MARK}([^{MARK}]*){MARK}", r"\\text{\1}", text)
    latex = _DECIMAL.sub(_as_fraction, latex)
    found = parse(rf"\boxed{{{latex}}}", _LATEX, fallback_mode="no_fallback", parsing_timeout=None)
    return tuple(item for item in found if isinstance(item, Basic | MatrixBase))


def _as_fraction(match: re.Match) -> str:
    """Exact decimals: as floats, 0.1 and 0.1000001 would be equal."""
    digits = match[1] + match[2]
    return rf"\frac{{{int(digits)}}}{{{10 ** len(match[2])}}}"


def _agree_numerically(left: Basic, right: Basic) -> bool:
    """Refuse what math-verify takes for equal because a difference rounds to nothing: 1/2^99 and 1/2^98.

    Expressions are evaluated at two points; where they have no value there, math-verify's word stands.
    """
    if not isinstance(left, Expr) or not isinstance(right, Expr):
        return True
    symbols = sorted(left.free_symbols | right.free_symbols, key=lambda symbol: symbol.name)
    if len(symbols) > 8 or left.free_symbols != right.free_symbols:
        return True
    tolerance = _FLOAT_TOLERANCE if left.has(Float) or right.has(Float) else _EXACT_TOLERANCE
    for point in _SAMPLE_POINTS:
        values = {symbol: point + Rational(index, 7) for index, symbol in enumerate(symbols)}
        try:
            a, b = (complex(side.subs(values).doit().evalf(30)) for side in (left, right))
        except Exception:
            # sympy raises anything at all on odd expressions; without values there is nothing to object to.
            return True
        if a != a or b != b or abs(a) == float("inf") or abs(b) == float("inf"):
            return True
        if abs(a - b) > tolerance * max(abs(a), abs(b)):
            return False
        if not symbols:
            return True
    return True


def self_check(gold: str) -> str:
    """Why a gold answer could not serve: it does not parse, or does not equal itself; "" when it can.

    Comparing it with a number it is not shows whether the comparison ends at all.
    """
    problem = check_gold(gold)
    if problem:
        return problem
    for item in shape_of(normal_form(gold)).items:
        if _parsed(item) and not verify(list(_parsed(item)), list(_parsed(item + " ")), timeout_seconds=None):
            return "gold_not_equal_to_itself"
        algebra(item, _PROBE)
    return ""


def judge_leniently(golds: tuple[str, ...], response: str) -> tuple[str, str]:
    """math-verify with its defaults on the whole response, the gold answer boxed: what published evaluations run."""
    parsed = [found for gold in golds if (found := parse(rf"\boxed{{{gold}}}", _DEFAULT, parsing_timeout=None))]
    if not parsed:
        return "gold", "gold_unparsable"
    found = parse(response, _DEFAULT, parsing_timeout=None)
    if not found:
        return "different", "no_answer"
    same = any(verify(gold, found, timeout_seconds=None) for gold in parsed)
    return ("same", "") if same else ("different", "wrong")


def warm_up() -> None:
    """Compile the grammars before workers are forked."""
    for text in (r"\frac{1}{2}+x", r"\sqrt{2}"):
        algebra(text, text + " ")
    judge_leniently(("42",), "The answer is $42$.")


def partition(texts: list[str], pairs: list[tuple[str, str]]) -> tuple[list[int], list[bool]]:
    """For a vote: the indices of the texts that cannot be used, and which pairs are equal in either direction."""
    bad = [index for index, text in enumerate(texts) if check_gold(text)]
    unusable = {texts[index] for index in bad}
    return bad, [
        not unusable & {a, b} and (compare(a, b, algebra).same or compare(b, a, algebra).same) for a, b in pairs
    ]


def reference_matrix(texts: list[str]) -> list[list[bool]]:
    """SeRL's equality of every pair of texts, each text parsed once where the original parses it for every pair.

    The diagonal says whether a text equals another copy of itself: one in which nothing parses raises in the original,
    which takes that for unequal. `verify` with the other as gold is tried when the first direction fails. The
    original's time-outs of 5 seconds are kept: a worker has a main thread for them.
    """
    parsed = [parse(text, _REFERENCE) for text in texts]
    size = len(texts)
    matrix = [[False] * size for _ in range(size)]
    for i in range(size):
        for j in range(i, size):
            if parsed[i] and parsed[j]:
                same = verify(parsed[i], parsed[j], 6) or verify(parsed[j], parsed[i], 6)
                matrix[i][j] = matrix[j][i] = bool(same)
    return matrix
