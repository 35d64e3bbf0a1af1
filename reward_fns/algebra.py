r"""What the workers of the pool run: formulas compared by the strict rule, math-verify for the lenient one.

math-verify bounds itself with SIGALRM, which fails outside the main thread and cannot stop a C loop, so its own
time-outs are off: never call it outside a worker.
"""

import functools
import logging
import re
from fractions import Fraction

import mpmath
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

from reward_fns.answer import MARK, is_word, normal_form
from reward_fns.equivalence import Question, Verdict, compare
from reward_fns.evaluation import (
    TooLarge,
    Undefined,
    as_float,
    constant,
    evaluate,
    points_for,
    ratio_of,
    rounds_to,
    same_value,
)
from reward_fns.formula import Tree, Unreadable, read_formula, same_form, symbols_in
from reward_fns.gold import gold_problem
from reward_fns.numerals import read_number
from reward_fns.shapes import depths, is_related, shape_of
from reward_fns.solution_sets import NoSet, read_set, same_set
from reward_fns.units import split_unit

for _name in ("math_verify", "latex2sympy2_extended"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

_DEFAULT = (LatexExtractionConfig(), ExprExtractionConfig())
_REFERENCE = (ExprExtractionConfig(), LatexExtractionConfig())
_RELATION = re.compile(r"\\(?:le|ge|ne)(?![A-Za-z])|(?<!\\)[<>=]")
_FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}
_EMPTY_GROUP = re.compile(r"\{\s*\}")
_CONTENT = re.compile(rf"[A-Za-z0-9{MARK}]")


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
            verdict = compare(gold, pred, decide)
            if verdict.same:
                return "same", ""
    return "different", verdict.reason


@functools.lru_cache(maxsize=4096)
def check_gold(gold: str) -> str:
    """Why a gold answer could not serve; "" when it can."""
    return gold_problem(gold, _can_serve)


def _can_serve(text: str) -> bool:
    """Whether answers can be compared with an expression: it can be worked out, or at least stands written in full."""
    try:
        tree = read_formula(text)
    except Unreadable:
        braces = re.sub(r"\\[{}]", "", text)
        closed = braces.count("{") == braces.count("}") and sum(map(text.count, "([")) == sum(map(text.count, ")]"))
        return closed and _CONTENT.search(text) is not None and not _EMPTY_GROUP.search(text)
    try:
        same_value(tree, tree)
    except TooLarge:
        return False
    return True


def decide(question: Question, gold: str, pred: str) -> bool:
    """Answer what `reward_fns.equivalence` asks of two normal forms; what cannot be read is not equal to anything."""
    try:
        if question == "equal":
            return _equal(gold, pred)
        if question == "relation":
            return _same_relation(gold, pred)
        if question == "rounds":
            decimal = read_number(pred)
            value, _ = constant(read_formula(gold))
            return decimal is not None and rounds_to(value, decimal.value, decimal.decimals or 0)
        return same_set(read_set(gold), read_set(pred))
    except (Unreadable, NoSet, TooLarge, Undefined):
        return False


def _equal(gold: str, pred: str) -> bool:
    left, right = read_formula(gold), read_formula(pred)
    vectors = {f"vec {name}": name for name in "ijk"}
    if vectors.keys() & symbols_in(left):
        # Beside unit vectors of the gold answer, plain i, j and k are unit vectors too.
        right = _renamed(right, {name: vector for vector, name in vectors.items()})
    if _is_rounded(left, pred) or _is_rounded(right, gold) or same_form(left, right):
        return True
    return same_value(left, right)


def _renamed(tree: Tree, names: dict[str, str]) -> Tree:
    if tree == ("imaginary",):
        return ("symbol", names["i"])
    if tree[0] == "symbol":
        return ("symbol", names.get(tree[1], tree[1]))
    return tuple(_renamed(part, names) if isinstance(part, tuple) else part for part in tree)


def _is_rounded(tree: Tree, decimal: str) -> bool:
    """Whether a decimal with enough places is the rounded value of a formula that has no end."""
    numeral = read_number(decimal)
    places = numeral.rounded_places() if numeral else None
    if numeral is None or places is None or symbols_in(tree):
        return False
    value, _ = constant(tree)
    return not isinstance(value, Fraction) and rounds_to(value, numeral.value, places)


def _sides(text: str) -> tuple[Tree, str, Tree]:
    depth_at = dict(depths(text))
    relations = [match for match in _RELATION.finditer(text) if depth_at.get(match.start(), 1) == 0]
    if len(relations) != 1:
        raise Unreadable("not one relation")
    (sign,) = relations
    return read_formula(text[: sign.start()].strip()), sign[0], read_formula(text[sign.end() :].strip())


def _same_relation(gold: str, pred: str) -> bool:
    """Whether two equations or inequalities say the same: their differences of sides are multiples of each other.

    An equation without variables, or one that always or never holds, says nothing but what is written: both sides
    must be written alike.
    """
    (a, relation, b), (c, other, d) = _sides(gold), _sides(pred)
    minus = ("number", Fraction(-1))
    sign = ratio_of(("add", a, ("multiply", minus, b)), ("add", c, ("multiply", minus, d)))
    if sign:
        return other == (relation if sign > 0 or relation in ("=", r"\ne") else _FLIPPED[relation])
    if relation == other and same_form(a, c) and same_form(b, d):
        return True
    turned = relation if relation in ("=", r"\ne") else _FLIPPED[relation]
    return other == turned and same_form(a, d) and same_form(b, c)


def judge_leniently(golds: tuple[str, ...], response: str) -> tuple[str, str]:
    """math-verify with its defaults on the whole response, the gold answer boxed: what published evaluations run."""
    parsed = [formulas for gold in golds if (formulas := parse(rf"\boxed{{{gold}}}", _DEFAULT, parsing_timeout=None))]
    if not parsed:
        return "gold", "gold_unparsable"
    formulas = parse(response, _DEFAULT, parsing_timeout=None)
    if not formulas:
        return "different", "no_answer"
    same = any(verify(gold, formulas, timeout_seconds=None) for gold in parsed)
    return ("same", "") if same else ("different", "wrong")


def warm_up() -> None:
    """Compile the grammars before workers are forked."""
    decide("equal", normal_form(r"\sqrt{2}+x"), normal_form(r"x+2^{1/2}"))
    judge_leniently(("42",), "The answer is $42$.")


def values_of(texts: list[str]) -> list[str]:
    """For each text that is one formula and nothing else, its values at two points: formulas that are equal have equal
    ones. "" for any other text: a number with a unit or a name, a decimal that may be a rounded value, a list."""
    trees = [_formula_alone(normal_form(text)) for text in texts]
    points = points_for(set().union(*(symbols_in(tree) for tree in trees if tree is not None)) or {"x"})[:2]
    values = []
    for tree in trees:
        try:
            rows = [] if tree is None else [evaluate([tree], point)[0][0] for point in points]
        except (TooLarge, Undefined):
            rows = []
        values.append(" ".join(mpmath.nstr(as_float(value), 15) for value in rows))
    return values


def _formula_alone(text: str) -> Tree | None:
    numeral = read_number(text)
    if numeral is not None:
        return None if numeral.rounded_places() is not None else ("number", numeral.value)
    if MARK in text or len(shape_of(text).items) != 1 or is_related(text) or is_word(text) or split_unit(text).unit:
        return None
    try:
        return read_formula(text)
    except Unreadable:
        return None


def partition(texts: list[str], pairs: list[tuple[str, str]]) -> tuple[list[int], list[bool]]:
    """For a vote: the indices of the texts that cannot be used, and which pairs are equal in either direction."""
    bad = [index for index, text in enumerate(texts) if check_gold(text)]
    unusable = {texts[index] for index in bad}
    return bad, [not unusable & {a, b} and (compare(a, b, decide).same or compare(b, a, decide).same) for a, b in pairs]


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
