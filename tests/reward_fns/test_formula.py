"""Formulas: nothing written is dropped, rational values are exact, and equality does not depend on tolerance."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward_fns.answer import normal_form
from reward_fns.evaluation import TooLarge, constant, ratio_of, same_value
from reward_fns.formula import Unreadable, read_formula, symbols_in
from reward_fns.solution_sets import read_set, same_set


def tree(text):
    return read_formula(normal_form(text))


@pytest.mark.parametrize(
    "text",
    [
        "42 43",
        r"42\text{something}",
        "f(x)+1",
        "x'",
        r"\int x",
        r"\frac{dy}{dx}",
        "4$2",
        "(1",
        "1)",
        "",
        "+",
        r"\sin x/2",
        "2^-1",
        "5!!",
        "x=1",
        "a,b",
    ],
)
def test_what_has_no_meaning_is_refused(text):
    with pytest.raises(Unreadable):
        tree(text)


@settings(deadline=None)
@given(st.integers(0, 10**30), st.integers(1, 10**30), st.integers(0, 10**30))
def test_rational_values_are_exact(a, b, c):
    value, _ = constant(tree(rf"\frac{{{a}}}{{{b}}}-{c}"))
    assert value == Fraction(a, b) - c


@settings(deadline=None)
@given(st.integers(2, 50), st.integers(1, 300))
def test_a_difference_is_seen_however_small(n, exponent):
    root = rf"\sqrt{{{n * n + 1}}}"
    assert not same_value(tree(root), tree(rf"{root}+10^{{-{exponent}}}"))
    assert same_value(tree(root), tree(rf"{root}+10^{{-{exponent}}}-10^{{-{exponent}}}"))


@settings(deadline=None)
@given(st.lists(st.integers(-9, 9), min_size=1, max_size=5), st.integers(-9, 9).filter(bool))
def test_polynomials_equal_their_factored_form_and_nothing_near_it(coefficients, slip):
    text = "+".join(f"({c})x^{{{place}}}" for place, c in enumerate(coefficients))
    horner = "0"
    for c in reversed(coefficients):
        horner = f"({horner})x+({c})"
    assert same_value(tree(text), tree(horner))
    assert not same_value(tree(text), tree(f"{horner}+({slip})x^7"))


def test_what_is_too_large_is_said_to_be():
    for text in ("5^{5^{5^{5}}}", "(10^9)!", "2^{10^9}", r"\binom{10^7}{10^6}"):
        with pytest.raises(TooLarge):
            constant(tree(text))


@pytest.mark.parametrize(
    ("gold", "pred", "wrong"),
    [
        ("2^{n(n-1)/2}", r"2^{\frac{n^2-n}{2}}", "2^{n(n+1)/2}"),
        ("2^{mn}-1", "-1+2^{nm}", "2^{m+n}-1"),
        ("x^{a+b}", "x^ax^b", "x^a+x^b"),
        (r"\sqrt[n]{x}", r"x^{\frac{1}{n}}", r"x^{-\frac{1}{n}}"),
        (r"a^{\frac{n}{m}}", r"\sqrt[m]{a^n}", r"\sqrt[n]{a^m}"),
    ],
)
def test_exponents_with_several_variables_can_be_compared(gold, pred, wrong):
    """At a rational point such an exponent is a fraction of large integers and no large number."""
    assert same_value(tree(gold), tree(pred))
    assert not same_value(tree(gold), tree(wrong))


@pytest.mark.parametrize("name", ["binom", "dbinom", "tbinom"])
def test_a_binomial_has_a_value_in_every_size(name):
    assert constant(tree(rf"\{name}{{10}}{{3}}"))[0] == 120


@pytest.mark.parametrize("name", [*"abcdjklmnopqrstuvwxyzABCDEGIJKLMNOQRSTUVWXYZ", r"\theta", "x_1"])
def test_no_name_of_a_variable_hides_a_sign(name):
    """The points where formulas are compared depend on the names; whatever they are, signs must be seen to change."""
    for formula, value in (
        ("(-1)^{%s}", "1"),
        ("(-1)^{%s}", "-1"),
        ("|%s|", "%s"),
        ("|%s+5|", "%s+5"),
        ("|%s-2|", "%s-2"),
    ):
        assert not same_value(tree(formula.replace("%s", name)), tree(value.replace("%s", name))), formula
    assert same_value(tree("(-1)^{%s+1}".replace("%s", name)), tree("-(-1)^{%s}".replace("%s", name)))
    assert same_value(tree(r"\sqrt{1-%s^2}".replace("%s", name)), tree("(1-%s^2)^{1/2}".replace("%s", name)))


@pytest.mark.parametrize(("text", "value"), [("{1 \\over 4}+1", "5/4"), (r"2\sin 30^\circ", "1"), (r"x(0)-x(0)", "0")])
def test_values_in_notations(text, value):
    assert same_value(tree(text), tree(value))


def test_a_value_at_a_point_is_a_name():
    assert symbols_in(tree(r"I(0)e^{-t}+\dot{x}_{0}(2)")) == {"I(0)", "t", "dot x_0(2)"}


def test_multiples_of_an_equation_and_nothing_else():
    assert ratio_of(tree("x^2-4"), tree("8-2x^2")) == -1
    assert ratio_of(tree("x^2-4"), tree("(x-2)(x+2)(x^2+1)")) == 0
    assert ratio_of(tree("3-3"), tree("1-2")) == 0, "constants say nothing"


ENDS = st.integers(-6, 6)


@settings(deadline=None)
@given(ENDS, ENDS, st.booleans(), st.booleans())
def test_a_complement_taken_twice_is_the_set(low, width, left, right):
    high = low + abs(width) + 1
    interval = f"{'[' if left else '('}{low},{high}{']' if right else ')'}"
    above, below = r"\ge" if left else ">", r"\le" if right else "<"
    under, over = "<" if left else r"\le", ">" if right else r"\ge"
    condition = rf"x {above} {low}\text{{ and }}x {below} {high}"
    outside = rf"x {under} {low}\text{{ or }}x {over} {high}"
    inner, outer = read_set(normal_form(interval)), read_set(normal_form(outside))
    assert same_set(inner, read_set(normal_form(condition)))
    assert not same_set(inner, outer)
    assert same_set(outer, read_set(normal_form(rf"\mathbb{{R}}\setminus {interval}")))
