"""Random responses of the kinds that break graders: a deterministic stream, the same on every machine."""

import random

FRAGMENTS = [
    r"\boxed{", r"\boxed", r"\boxed{}", r"\fbox{", "}", "{", "}}", r"\{", r"\}", "\\", r"\\", "$", "$$", r"\(", r"\)", r"\[", r"\]",
    r"\frac{", r"\frac", r"\dfrac12", r"\sqrt{", r"\sqrt[3]{", r"\left(", r"\right)", r"\left.", r"\text{", r"\text{(A)}", r"\mathrm{cm}",
    r"\pm", r"\cup", r"\cap", r"\in", r"\infty", r"\pi", r"\begin{pmatrix}", r"\end{pmatrix}", r"\begin{cases}", "&", r"\\ ", r"\cdot",
    r"\times", r"\le", r"\ge", r"\ne", r"\circ", r"^\circ", r"\%", "%", "^", "_", "^{", "_{", "!", "=", "<", ">", "|", ",", ";", ":", "/",
    "+", "-", "*", "(", ")", "[", "]", "<think>", "</think>", "<think", "the answer is ", "Answer:", "####", "Finish[", " and ", " or ",
    "0", "1", "42", "3.14", "1,234", "0,5", "1e6", "9" * 50, "x", "y", "e", "i", "abc", "east", "\n", "\t", " ", "\x00", "\x02", "\x1b",
    "\ud800", "\udfff", "\ufeff", "\u200b", "\u202e", "\u0661\u0662", "４２", "½", "²", "₂", "√", "π", "∞", "−", "°", "é", "漢", "😀",
    "\U0001d7ce", "\u0301", "\ufdfa", "nan", "inf", "None", "__import__('os')", "%s", "{0}", "\r\n", "'", '"', "`", "~", "#", "@",
]  # fmt: skip

GOLDS = [
    "42",
    r"\frac{1}{2}",
    r"2\sqrt{3}",
    "x=3",
    "(1,2)",
    "1,2",
    r"\{1,2\}",
    "10 cm",
    r"12\pi",
    "x>3",
    r"\text{east}",
    "A",
    "1,234",
    "0.5",
]


def nasty_rows(count: int, seed: int):
    """`count` pairs of a response and a gold answer."""
    rng = random.Random(seed)
    for _ in range(count):
        body = "".join(rng.choices(FRAGMENTS, k=rng.randint(0, 12)))
        shape = rng.random()
        if shape < 0.45:
            response = rf"\boxed{{{body}}}"
        elif shape < 0.6:
            response = body + rf"\boxed{{{rng.choice(GOLDS)}}}" + "".join(rng.choices(FRAGMENTS, k=rng.randint(0, 3)))
        elif shape < 0.7:
            response = "".join(chr(rng.randrange(0x110000)) for _ in range(rng.randint(0, 40)))
        else:
            response = body
        gold = rng.choice(GOLDS) if rng.random() < 0.9 else "".join(rng.choices(FRAGMENTS, k=rng.randint(0, 5)))
        yield response, gold
