r"""Read a formula into a tree, or refuse it: nothing that is written is ever dropped.

A lenient parser that skips what it does not know reads `42\mathrm{x}` as 42. This one raises Unreadable instead, and
the caller compares the texts. Works on `reward_fns.answer.normal_form`. A tree is a tuple: `("number", Fraction)`,
`("symbol", name)`, `("imaginary",)`, `("pi",)`, or an operation with its arguments (`add`, `multiply`, `divide`,
`power`, `root`, `factorial`, `abs`, `floor`, `ceiling`, `binomial`, `log`, and the functions of FUNCTIONS).
"""

import functools
import re
from collections.abc import Callable
from fractions import Fraction

from reward_fns.answer import MARK
from reward_fns.numerals import read_repeating

Tree = tuple

MAX_NODES = 600
_TRIGONOMETRIC = ("sin", "cos", "tan", "cot", "sec", "csc")
FUNCTIONS = frozenset(
    [*_TRIGONOMETRIC, *("arc" + name for name in _TRIGONOMETRIC), "sinh", "cosh", "tanh", "coth", "ln", "exp"]
)
"""Functions of one argument. `log` has a base, 10 where none is written."""
_GREEK = frozenset(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau phi "
    "varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega ell hbar".split()
)
_ACCENTS = frozenset("vec hat bar tilde dot".split())
_OPAQUE = frozenset("fghFGHP")
"""Letters that name a function when a bracket follows, so that `f(x)` is not f times x."""
_REPEATING = r"\d*\.\d*(?:\\overline|\\bar|\\dot)\{?\d+\}?(?:\\dot\{?\d\}?)?"
_TOKEN = re.compile(
    rf"(?P<repeating>{_REPEATING})|(?P<number>\d{{1,3}}(?:,\d{{3}})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
    rf"|(?P<command>\\(?:[A-Za-z]+|[{{}}|]))|(?P<letter>[A-Za-z])|{MARK}\s*(?P<mark>[^{MARK}]*?)\s*{MARK}"
    r"|(?P<sign>[-+*/^_!()\[\]{}|,=])|(?P<other>\S)"
)


_END = ("end", "")
_NO_FACTOR = frozenset(r"\cdot \times \ast \div \rfloor \rceil \choose \over \}".split())
"""Commands that end a factor and start none."""
_DEGREE = ("symbol", r"^\circ")
"""A unit that is no number, but for the argument of a trigonometric function."""


class Unreadable(ValueError):
    """The text is no formula that can be read whole."""


@functools.lru_cache(maxsize=4096)
def read_formula(text: str) -> Tree:
    """The tree of a formula.

    Raises:
        Unreadable: some part of the text has no meaning here.
    """
    parser = _Parser(text)
    tree = parser.expression()
    if parser.token != _END:
        raise Unreadable(f"{parser.token[1]!r} is left over")
    return tree


def symbols_in(tree: Tree) -> set[str]:
    """The names of the variables of a tree."""
    if tree[0] == "symbol":
        return {tree[1]}
    names = set().union(*(symbols_in(part) for part in tree[1:] if isinstance(part, tuple)))
    return names - {tree[4]} if tree[0] in ("sum", "prod") else names


def contains(tree: Tree, kind: str) -> bool:
    """Whether a node of this kind stands anywhere in the tree."""
    return tree[0] == kind or any(contains(part, kind) for part in tree[1:] if isinstance(part, tuple))


def same_form(a: Tree, b: Tree) -> bool:
    """Whether two trees are written alike, up to the order of sums and products: nothing is worked out."""
    return _ordered(a) == _ordered(b)


def _ordered(tree: Tree) -> str:
    kind = tree[0]
    if kind in ("add", "multiply"):
        parts: list[str] = []
        for part in tree[1:]:
            parts += [_ordered(inner) for inner in part[1:]] if part[0] == kind else [_ordered(part)]
        return f"({kind} {' '.join(sorted(parts))})"
    return f"({kind} {' '.join(_ordered(part) if isinstance(part, tuple) else str(part) for part in tree[1:])})"


def _in_radians(tree: Tree) -> Tree:
    if tree == _DEGREE:
        return ("divide", ("pi",), ("number", Fraction(180)))
    return tuple(_in_radians(part) if isinstance(part, tuple) else part for part in tree)


class _Parser:
    def __init__(self, text: str):
        self._tokens = [(kind, match[kind]) for match in _TOKEN.finditer(text) if (kind := match.lastgroup)]
        if any(kind == "other" for kind, _ in self._tokens) or len(self._tokens) > MAX_NODES:
            raise Unreadable("a sign that stands in no formula, or too long")
        self._place = 0
        self._bars = 0
        self._indices: list[str] = []

    @property
    def token(self) -> tuple[str, str]:
        """The kind and text of the next token."""
        return self._tokens[self._place] if self._place < len(self._tokens) else _END

    def _is(self, *texts: str) -> bool:
        return self.token[0] in ("sign", "command") and self.token[1] in texts

    def _accept(self, *texts: str) -> bool:
        present = self._is(*texts)
        self._place += present
        return present

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            raise Unreadable(f"{text} is missing")

    def expression(self) -> Tree:
        """A sum of terms, or TeX's `n \\choose k` and `a \\over b`."""
        tree = self._sum()
        if self._accept(r"\choose"):
            return ("binomial", tree, self._sum())
        return ("divide", tree, self._sum()) if self._accept(r"\over") else tree

    def _sum(self) -> Tree:
        terms = [self._signed(self._term)]
        while self._is("+", "-"):
            terms.append(self._signed(self._term))
        return terms[0] if len(terms) == 1 else ("add", *terms)

    def _signed(self, read: Callable[[], Tree]) -> Tree:
        """What `read` finds, with the signs that stand before it."""
        signs = 0
        negative = False
        while self._is("+", "-"):
            negative ^= self.token[1] == "-"
            self._place += 1
            signs += 1
        if signs > 2:
            raise Unreadable("a row of signs")
        tree = read()
        if not negative:
            return tree
        return ("number", -tree[1]) if tree[0] == "number" else ("multiply", ("number", Fraction(-1)), tree)

    def _term(self) -> Tree:
        tree = self._factor()
        while True:
            if self._accept("*", r"\cdot", r"\times", r"\ast"):
                tree = ("multiply", tree, self._signed(self._factor))
            elif self._accept("/", r"\div"):
                tree = ("divide", tree, self._signed(self._factor))
            elif self._starts_factor():
                tree = ("multiply", tree, self._factor())
            else:
                return tree

    def _starts_factor(self) -> bool:
        kind, text = self.token
        if kind in ("letter", "mark"):
            return True
        if kind == "number":
            before = [token[1] for token in self._tokens[max(0, self._place - 2) : self._place]]
            after = self._tokens[self._place + 1][1] if self._place + 1 < len(self._tokens) else ""
            # `2^6 3^5`: a power, and another one beside it.
            return before[-1:] == ["!"] or (after == "^" and (before[-1:] == ["}"] or before[:1] == ["^"]))
        if kind == "command":
            return text not in _NO_FACTOR
        return text in ("(", "{", "[") or (text == "|" and not self._bars)

    def _factor(self) -> Tree:
        """A base with its powers and factorials."""
        tree = self._base()
        if tree[0] == "symbol":
            tree = self._value_at(tree)
        while True:
            if self._accept("^"):
                tree = ("power", tree, self._exponent())
            elif self._accept("!"):
                if self._is("!"):
                    raise Unreadable("a double factorial")
                tree = ("factorial", tree)
            elif self.token == ("mark", "degree"):
                self._place += 1
                tree = ("multiply", tree, _DEGREE)
            else:
                return tree

    def _value_at(self, name: Tree) -> Tree:
        """`I(0)` is the value of I at 0, and no product: as such it would be 0 and hide what it is multiplied with."""
        window = self._tokens[self._place : self._place + 3]
        if [kind for kind, _ in window] != ["sign", "number", "sign"] or (window[0][1], window[2][1]) != ("(", ")"):
            return name
        self._place += 3
        return ("symbol", f"{name[1]}({window[1][1]})")

    def _exponent(self) -> Tree:
        if self._is("-", "+"):
            raise Unreadable("a sign in an exponent without braces")
        return self._group_or_single()

    def _single(self) -> Tree:
        """One token, as TeX takes it where no braces stand; of a number its first digit would be ambiguous."""
        kind, text = self.token
        if kind == "number" and len(text) > 1:
            raise Unreadable("a number of several digits where TeX takes one")
        if kind == "number":
            self._place += 1
            return ("number", Fraction(text))
        return self._base()

    def _group(self, opening: str = "{", closing: str = "}") -> Tree:
        self._expect(opening)
        bars, self._bars = self._bars, 0
        tree = self.expression()
        self._expect(closing)
        self._bars = bars
        return tree

    def _base(self) -> Tree:
        kind, text = self.token
        if kind == "repeating":
            self._place += 1
            return ("number", read_repeating(text))
        if kind == "number":
            self._place += 1
            return self._mixed(Fraction(text.replace(",", "")))
        if kind == "letter":
            self._place += 1
            return self._letter(text)
        if kind == "mark":
            self._place += 1
            return self._marked(text)
        if kind == "command":
            self._place += 1
            return self._command(text[1:])
        if text in ("(", "["):
            return self._group(text, ")" if text == "(" else "]")
        if text == "{":
            return self._group()
        if text == "|":
            self._place += 1
            self._bars += 1
            tree = self.expression()
            self._bars -= 1
            self._expect("|")
            return ("abs", tree)
        raise Unreadable("the text ends too early" if self.token == _END else f"{text!r} starts nothing")

    def _mixed(self, whole: Fraction) -> Tree:
        """`2\\frac12` is two and a half; a number next to a number is nothing."""
        if self.token[0] in ("number", "repeating"):
            raise Unreadable("two numbers side by side")
        window = self._tokens[self._place : self._place + 7]
        if whole.denominator == 1 and [text for _, text in window[:2]] == [r"\frac", "{"] and len(window) == 7:
            kinds = [kind for kind, _ in window]
            texts = [text for _, text in window]
            if kinds[2] == kinds[5] == "number" and texts[3:5] == ["}", "{"] and texts[6] == "}":
                top, bottom = Fraction(texts[2].replace(",", "")), Fraction(texts[5].replace(",", ""))
                if top.denominator == bottom.denominator == 1 and 0 < top < bottom:
                    self._place += 7
                    return ("number", whole + top / bottom)
        return ("number", whole)

    def _letter(self, letter: str) -> Tree:
        if self._accept("_"):
            return ("symbol", f"{letter}_{self._subscript()}")
        if letter in self._indices:
            return ("symbol", f"#{self._indices.index(letter)}")
        if letter == "i":
            return ("imaginary",)
        if letter == "e":
            return ("e",)
        if letter in _OPAQUE and self._is("("):
            raise Unreadable(f"{letter}(...) is an unknown function")
        return ("symbol", letter)

    def _subscript(self) -> str:
        if not self._accept("{"):
            kind, text = self.token
            if kind not in ("letter", "number", "command", "mark"):
                raise Unreadable("an empty subscript")
            if kind == "number" and len(text) > 1:
                raise Unreadable("a subscript of several digits without braces")
            self._place += 1
            return text
        parts: list[str] = []
        while not self._accept("}"):
            if self.token == _END or self.token[1] == "{" or len(parts) > 8:
                raise Unreadable("a subscript that is no name")
            parts.append(self.token[1])
            self._place += 1
        if not parts:
            raise Unreadable("an empty subscript")
        return "".join(parts)

    def _marked(self, text: str) -> Tree:
        """A text command: a letter, or the name of a function."""
        if text in FUNCTIONS or text in ("log", "gcd", "lcm"):
            return self._command(text)
        if re.fullmatch(r"[A-Za-z]", text):
            return ("symbol", text)
        raise Unreadable(f"{text!r} is a word")

    def _command(self, name: str) -> Tree:
        if name == "frac":
            return self._fraction()
        if name == "sqrt":
            index: Tree = ("number", Fraction(2))
            if self._is("["):
                index = self._group("[", "]")
            return ("root", self._group_or_single(), index)
        if name == "binom":
            return ("binomial", self._group(), self._group())
        if name == "pi":
            return ("pi",)
        if name in _GREEK:
            return ("symbol", f"\\{name}_{self._subscript()}" if self._accept("_") else f"\\{name}")
        if name in _ACCENTS:
            return self._accented(name)
        if name in ("lfloor", "lceil"):
            tree = self.expression()
            self._expect("\\r" + name[1:])
            return ("floor" if name == "lfloor" else "ceiling", tree)
        if name in ("log", "lg"):
            return self._applied("log", self._group_or_single() if self._accept("_") else ("number", Fraction(10)))
        if name in FUNCTIONS:
            return self._applied(name)
        if name in ("gcd", "lcm"):
            return (name, *self._arguments())
        if name in ("sum", "prod"):
            return self._series(name)
        raise Unreadable(f"\\{name} is not known")

    def _arguments(self) -> list[Tree]:
        """Expressions in brackets, parted by commas."""
        self._expect("(")
        arguments = [self.expression()]
        while self._accept(","):
            arguments.append(self.expression())
        self._expect(")")
        return arguments

    def _series(self, name: str) -> Tree:
        """A finite sum or product `\\sum_{i=1}^{n} term`; the index is renamed, so that its letter does not matter."""
        self._expect("_")
        self._expect("{")
        kind, index = self.token
        if kind != "letter":
            raise Unreadable("a sum without an index")
        self._place += 1
        self._expect("=")
        low = self.expression()
        self._expect("}")
        self._expect("^")
        high = self._group_or_single()
        self._indices.append(index)
        term = self._term()
        self._indices.pop()
        return (name, low, high, term, f"#{len(self._indices)}")

    def _accented(self, name: str) -> Tree:
        braces = self._accept("{")
        kind, text = self.token
        if kind != "letter" and not (kind == "mark" and len(text) == 1):
            raise Unreadable("an accent on more than a letter")
        self._place += 1
        if braces:
            self._expect("}")
        # A unit vector is written with a hat, an arrow or in bold.
        accent = "vec" if name == "hat" and text in "ijk" else name
        return ("symbol", f"{accent} {text}" + (f"_{self._subscript()}" if self._accept("_") else ""))

    def _group_or_single(self) -> Tree:
        return self._group() if self._is("{") else self._single()

    def _fraction(self) -> Tree:
        start = self._place
        top, bottom = self._group_or_single(), self._group_or_single()
        texts = [text for _, text in self._tokens[start : self._place]]
        if texts[:2] == ["{", "d"] and texts[texts.index("}") :][:3] == ["}", "{", "d"]:
            raise Unreadable("a derivative")
        return ("divide", top, bottom)

    def _applied(self, name: str, *more: Tree) -> Tree:
        """A function with what it is applied to: a bracket, or the factors that follow."""
        exponent = self._exponent() if self._accept("^") else None
        if exponent == ("number", Fraction(-1)) and name in _TRIGONOMETRIC:
            name, exponent = "arc" + name, None
        argument = self._argument()
        tree = (name, _in_radians(argument) if name in _TRIGONOMETRIC else argument, *more)
        return tree if exponent is None else ("power", tree, exponent)

    def _argument(self) -> Tree:
        if self._is("(", "{", "["):
            opening = self.token[1]
            return self._group(opening, {"(": ")", "{": "}", "[": "]"}[opening])
        return self._signed(self._bare_argument)

    def _bare_argument(self) -> Tree:
        tree = self._factor()
        while self._starts_factor() and not self._is("(", "[", "|", "{") and not self._starts_function():
            tree = ("multiply", tree, self._factor())
        if tree[0] == "number" and self._is("("):
            tree = ("multiply", tree, self._factor())
        if self._is("/"):
            raise Unreadable("a slash after the bare argument of a function")
        return tree

    def _starts_function(self) -> bool:
        kind, text = self.token
        name = text.removeprefix("\\")
        return (kind in ("command", "mark")) and (name in FUNCTIONS or name in ("log", "lg"))
