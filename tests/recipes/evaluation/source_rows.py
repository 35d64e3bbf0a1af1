"""Rows in the shape of every benchmark's public source: the columns and the kinds of values that its loader meets."""

from typing import Any

_TANDEM_SUFFIX = (
    " Solve the following math problem step by step. Put your final answer inside \\boxed{}, like \\boxed{42} or "
    "\\boxed{\\frac{1}{2}}."
)


def _qa(question: str, answer: str, **more: Any):
    return lambda n: {question: f"What is {n} + {n}?", answer: str(2 * n), **more}


def _verl(n: int) -> dict[str, Any]:
    return {
        "data_source": "olympiad",
        "prompt": [{"role": "user", "content": f"What is {n} + {n}?" + _TANDEM_SUFFIX}],
        "ability": "MATH",
        "reward_model": {"ground_truth": str(2 * n), "style": "rule"},
        "extra_info": {"index": n},
    }


def _options(n: int, count: int) -> list[str]:
    return [str(2 * n + k) for k in range(count)]


def _logic(n: int) -> dict[str, Any]:
    return {
        "id": n,
        "answer": n % 4,
        "text": f"There are {n} chairs.",
        "question": "Which follows?",
        "options": _options(n, 4),
        "type": {"Conjunctive Reasoning": True},
    }


def _mmlu_pro(n: int) -> dict[str, Any]:
    return {
        "question_id": n,
        "question": f"What is {n} + {n}?",
        "options": _options(n, 10),
        "answer": "ABCDEFGHIJ"[n % 10],
        "answer_index": n % 10,
        "cot_content": "",
        "category": ("law", "math")[n % 2],
        "src": "x",
    }


def _gpqa(n: int) -> dict[str, Any]:
    row = {"Record ID": f"rec{n}", "Question": f"What is {n} + {n}?", "Correct Answer": f"{2 * n}\n"}
    row |= {f"Incorrect Answer {k}": str(2 * n + k) for k in (1, 2, 3)}
    return row | {"High-level domain": "Physics", "Subdomain": "Mechanics"}


def _supergpqa(n: int) -> dict[str, Any]:
    options = _options(n, 10)
    return {
        "uuid": f"id-{n}",
        "question": f"What is {n} + {n}?",
        "options": options,
        "answer": options[n % 10],
        "answer_letter": "ABCDEFGHIJ"[n % 10],
        "discipline": "Science",
        "field": "Mathematics",
        "subfield": "Arithmetic",
        "difficulty": "easy",
        "is_calculation": True,
    }


SHAPES = {
    "aime24": lambda n: {"ID": f"2024-I-{n}", "Problem": f"What is {n} + {n}?", "Solution": "...", "Answer": 2 * n},
    "aime25": _qa("problem", "answer"),
    "aime26": lambda n: {"problem_idx": n, "problem": f"What is {n} + {n}?", "answer": 2 * n},
    "amc23": lambda n: {"id": n, "question": f"What is {n} + {n}?", "answer": str(2 * n), "url": "https://x"},
    "amc23_25": _verl,
    "asdiv": lambda n: {
        "body": f"There are {n} red and {n} green apples. ",
        "question": "How many apples are there?",
        "solution_type": "Addition",
        "answer": f"{2 * n} (apples)",
        "formula": f"{n}+{n}={2 * n}",
    },
    "carp_en": lambda n: {"idx": n, "content": f"Compute $x={n}+{n}$.", "answer": f"{2 * n}", "steps": "..."},
    "college_math": lambda n: {
        "data_source": "book",
        "question_number": f"1.{n}",
        "question": f"What is ${n} + {n}$?",
        "answer": f"${2 * n}$",
        "license": "CC",
        "data_topic": "algebra",
    },
    "gaokao2023en": _qa("question", "answer"),
    "gpqa_diamond": _gpqa,
    "gsm8k": lambda n: {
        "question": f"What is {n} + {n}?",
        "answer": f"She has <<{n}+{n}={2 * n}>>{2 * n}.\n#### {2 * n}",
    },
    "hmmt_feb_2025": lambda n: {
        "problem_idx": n,
        "problem": f"What is ${n}$ halves?",
        "answer": rf"\frac{{{2 * n + 1}}}{{2}}",
        "problem_type": ["Algebra"],
    },
    "livemathbench_amc": lambda n: {"question": f"What is {n} + {n}?", "answer": f"${2 * n}$", "question_type": "x"},
    "logiqa_v2": _logic,
    "math_500": lambda n: {
        "problem": f"What is {n} + {n}?",
        "solution": "...",
        "answer": str(2 * n),
        "subject": "Algebra",
        "level": n % 5 + 1,
        "unique_id": f"test/algebra/{n}.json",
    },
    "math_hard": lambda n: {
        "problem": f"What is {n} + {n}?",
        "level": "Level 5",
        "type": "Algebra",
        "solution": rf"We add: $\boxed{{{2 * n}}}$.",
    },
    "mawps": lambda n: {"input": f"Ann has {n} and {n} pens. How many?", "target": float(2 * n), "type": "addsub"},
    "minerva_math": lambda n: {
        "problem": f"What is {n} + {n}?",
        "type": "Introduction to Astronomy",
        "solution": rf"Adding gives \boxed{{{2 * n}}}.",
        "idx": n,
    },
    "mmlu_pro": _mmlu_pro,
    "mmlu_stem": lambda n: {"question": f"What is {n}?", "choices": _options(n, 4), "answer": n % 4, "type": "anatomy"},
    "olympiad_581": _verl,
    "olympiadbench": lambda n: {
        "id": 1606 + n,
        "question": f"What is {n} + {n}?",
        "solution": ["..."],
        "final_answer": [f"${2 * n}$"],
        "is_multiple_answer": False,
        "answer_type": "Numerical",
        "subfield": "Algebra",
    },
    "reclor": lambda n: {
        "context": f"There are {n} chairs.",
        "question": "Which follows?",
        "answers": _options(n, 4),
        "label": n % 4,
        "id_string": f"val_{n}",
    },
    "supergpqa": _supergpqa,
    "svamp": lambda n: {
        "ID": f"chal-{n}",
        "Body": f"Ann has {n} pens and {n} pencils",
        "Question": "How many things does she have?",
        "Equation": f"( {n}.0 + {n}.0 )",
        "Answer": f"{2 * n}.0",
        "Type": "Addition",
    },
    "tabmwp": lambda n: {
        "question": "How much does she need?",
        "choices": None if n % 2 else [str(2000 + n), "7"],
        "answer": f"2,{n % 900 + 100}" if n % 2 else str(2000 + n),
        "unit": "$",
        "table_title": "Prices" if n % 3 else None,
        "table": "pen | $1.00\nruler | $2.00",
        "ans_type": "integer_number",
        "solution": "...",
    },
}
SHAPES["hmmt_feb_2026"] = SHAPES["hmmt_feb_2025"]


_NUMBERED = ("ID", "id", "problem_idx", "unique_id", "question_id", "Record ID", "uuid", "id_string", "idx")


def rows(name: str, count: int) -> list[dict[str, Any]]:
    """So many rows of a benchmark's public source; a few answers only, so that checking them takes little time."""
    shape = SHAPES[name]
    found = []
    for n in range(count):
        row, named = shape(n % 24), shape(n)
        found.append(row | {key: named[key] for key in _NUMBERED if key in row})
    return found
