"""Write `cases/mutated.jsonl`: each gold answer below against twenty edited copies of itself, none of them right.

`python tests/reward_fns/mutate_golds.py` writes the table anew; the edits are a function of the gold answer alone. An
edit changes one digit, sign, letter, command, bracket or part, so that each copy is as close to the gold answer as a
slip of the pen.
"""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

PER_GOLD = 20
CASES = Path(__file__).parent / "cases"
VALUES = r"""
128
-2187
0.0625
31.25
46{,}080
\frac{17}{52}
-\frac{35}{9}
\dfrac{243}{625}
3\frac{5}{8}
2^{15}-7
6\sqrt{14}
\frac{3\sqrt{5}}{10}
\sqrt{13}-\sqrt{7}
\sqrt[3]{29}
5+2\sqrt{6}
\frac{7\pi}{12}
36\pi-54
27\pi\sqrt{3}
\frac{1+\sqrt{17}}{4}
\log_2 13
\ln 12-\ln 5
e^{3}-2
\binom{12}{5}
\frac{9!}{4!}
1-\left(\frac{5}{6}\right)^{12}
1-\frac{4821}{2^{90}}
\frac{1}{150!}
3^{200}-2^{100}
7.25\times10^{-8}
0.\overline{27}
\sin 25^\circ
\cos\frac{\pi}{7}
\arctan\frac{3}{4}
3-8i
\frac{2}{5}+\frac{7}{5}i
x^2-7x+12
3x^3y-5xy^2
(2a-3b)(a+4b)
\frac{x+5}{x^2-9}
\frac{3}{2}x^{4/3}
\sqrt{x^2+16}
\frac{1}{2}n(n+3)
6x^2\cos(x^3)
e^{2x}(2x+5)
\frac{\ln x-2}{x^2}
a_1+3d
4\mathbf{i}-7\mathbf{j}
2\pi r^2+6rh
84\text{ cm}^2
\$27.35
47\%
135^\circ
""".split("\n")[1:-1]
OTHERS = r"""
x=-\frac{7}{3}
f(x)=5x-11
y=-\frac{2}{3}x+4
x^2+y^2-6x+8y=11
\frac{x^2}{49}+\frac{y^2}{16}=1
3x-5y+14=0
x^2+144=0
\log_3 81=4
3^4-17=64
x=3,y=-8
p=7,q=4
-3,\frac{5}{2}
12, 35, 37
\{2,3,5,7\}
(4,-9)
\left(\frac{3}{2},-5,8\right)
(1,6),(3,2)
3\pm 2\sqrt{11}
[-4,7)
(-\infty,-2]\cup(5,\infty)
x<-3\text{ or }x\ge 8
-1\le x<6
x>\frac{9}{4}
y\le 3x-7
\begin{pmatrix} 3 & -1 \\ 2 & 5 \end{pmatrix}
\left[\begin{array}{cc} 4 & 7 \\ -6 & 2 \end{array}\right]
\begin{pmatrix} 1 \\ -4 \\ 9 \end{pmatrix}
3:7
2:5:9
7:45\text{ p.m.}
1302_5
\text{June }17
15\text{ miles per hour}
\frac{\sqrt3}{3}\approx0.577
$x=4$ and $x=-9$
""".split("\n")[1:-1]
_SWAPS = (
    (r"\sin", r"\cos"),
    (r"\cos", r"\sin"),
    (r"\ln", r"\log_2"),
    (r"\pi", "e"),
    (r"\le", ">"),
    (r"\ge", "<"),
    ("<", ">"),
    (">", "<"),
    (r"\le ", "<"),
    (r"\ge ", ">"),
    (r"\cup", r"\cap"),
    ("or", "and"),
    ("[", "("),
    (")", "]"),
    (r"\pm", "+"),
    (r"\infty", "0"),
    (r"\sqrt", ""),
    (r"\sqrt{", r"\sqrt[5]{"),
    ("=", "<"),
    (r"\binom", r"\frac"),
    ("!", ""),
    ("^", "_"),
    (r"\text{ cm}", r"\text{ m}"),
    ("cm}^2", "cm}^3"),
    (r"\$", "€"),
    (r"\%", r"^\circ"),
    (r"^\circ", r"\text{ radians}"),
    ("p.m.", "a.m."),
    ("miles", "feet"),
    ("hour", "minute"),
    ("June", "July"),
    (r"\mathbf{j}", r"\mathbf{k}"),
    (r"\mathbf{i}", r"\mathbf{j}"),
    ("i", "j"),
    (r"\overline", ""),
    (r"\arctan", r"\tan"),
    (r"\cdot", "+"),
    (r"\times", "+"),
    (r"\left[", r"\left|"),
    ("pmatrix", "vmatrix"),
    (" & ", r" \\ "),
)


def edits(gold: str, value: bool) -> Iterator[str]:
    """Every edit of one gold answer, in a fixed order."""
    for match in re.finditer(r"\d", gold):
        place, digit = match.start(), int(match[0])
        for other in ((digit + 1) % 10, (digit + 3) % 10):
            yield gold[:place] + str(other) + gold[place + 1 :]
        yield gold[:place] + "1" + gold[place:]
    for match in re.finditer(r"(?=(\d)(\d))", gold):
        if match[1] != match[2]:
            yield gold[: match.start()] + match[2] + match[1] + gold[match.start() + 2 :]
        yield gold[: match.start()] + gold[match.start() + 1 :]
    for match in re.finditer(r"[+-](?!\\infty)", gold):
        yield gold[: match.start()] + ("-" if match[0] == "+" else "+") + gold[match.end() :]
    for match in re.finditer(r"(?<![\\A-Za-z{])[a-hk-zA-Z](?![A-Za-z}])", gold):
        yield gold[: match.start()] + ("w" if match[0] != "w" else "v") + gold[match.end() :]
    for before, after in _SWAPS:
        if before in gold:
            yield gold.replace(before, after, 1)
    for match in re.finditer(r"\\d?frac\{([^{}]*)\}\{([^{}]*)\}", gold):
        yield gold[: match.start()] + rf"\frac{{{match[2]}}}{{{match[1]}}}" + gold[match.end() :]
        yield gold[: match.start()] + f"{{{match[1]}}}" + gold[match.end() :]
    if value:
        yield from (f"{gold}+1", f"2\\cdot({gold})", f"-({gold})", f"{gold}, 1", f"{gold}w", f"x>{gold}", f"w+1={gold}")
        yield from (f"({gold})^3", f"{gold}\\pm 1", rf"\text{{not }}{gold}", f"[0,{gold}]", f"{gold}...")
    else:
        yield from ("0=1", "1=1", "5=7", f"{gold}, 1", rf"\text{{not }}{gold}", f"{gold}+1", rf"{gold}\text{{ or }}0")


def is_other(gold: str, edit: str) -> bool:
    """Whether an edit can stand as another answer: it differs by more than signs of layout, and its braces close."""
    bare = [re.sub(r"\s|\\left|\\right", "", text) for text in (gold, edit)]
    return bare[0] != bare[1] and edit.count("{") == edit.count("}") and edit.count(r"\left") == gold.count(r"\left")


def copies(gold: str, value: bool) -> list[str]:
    """The edited copies of one gold answer that stand in the table."""
    found = [edit for edit in dict.fromkeys(edits(gold, value)) if is_other(gold, edit)]
    return random.Random(gold).sample(found, min(PER_GOLD, len(found)))


def main() -> None:
    rows = []
    for value, golds in ((True, VALUES), (False, OTHERS)):
        for gold in golds:
            for copy in copies(gold, value):
                response = copy if r"\boxed" in copy else rf"Hence \boxed{{{copy}}}."
                number = len(rows) + 1
                rows.append(
                    dict(id=f"mutated-{number:04d}", gold=gold, response=response, expected=0.0, reason="wrong")
                    | dict(why="an edited copy of the gold answer", kind="edited gold")
                )
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (CASES / "mutated.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
