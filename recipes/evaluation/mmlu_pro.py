"""MMLU-Pro: subject groups weighted by their number of questions, and the few-shot prompt that fits a window.

    python -m recipes.evaluation.mmlu_pro outputs/evaluation/summary.json

prints the groups of every model in a summary of ours, or of a JSON file {subject: accuracy} from elsewhere.
"""

import argparse
import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# Questions of each subject in the test split of TIGER-Lab/MMLU-Pro.
SUBJECT_QUESTIONS = {
    "biology": 717,
    "business": 789,
    "chemistry": 1132,
    "computer science": 410,
    "economics": 844,
    "engineering": 969,
    "health": 818,
    "history": 381,
    "law": 1101,
    "math": 1351,
    "other": 924,
    "philosophy": 499,
    "physics": 1299,
    "psychology": 798,
}
GROUPS = {
    "STEM": ("biology", "chemistry", "computer science", "engineering", "math", "physics"),
    "Humanities": ("history", "law", "philosophy"),
    "Social": ("business", "economics", "health", "psychology"),
    "Other": ("other",),
}
LETTERS = "ABCDEFGHIJ"
SHOT_BUDGET_TOKENS = 2048
_OPENING = "Let's think step by step."
_INSTRUCTION = (
    "The following are multiple choice questions (with answers) about {subject}. Think step by step and then finish "
    'your answer with "the answer is (X)" where X is the correct letter choice.\n\n'
)


def group_accuracies(accuracies: Mapping[str, float], questions: Mapping[str, int] | None = None) -> dict[str, float]:
    """Accuracy of each group and "Avg" over all subjects, weighted by questions; also regroups an existing summary.

    Args:
        accuracies: accuracy per subject, names as in SUBJECT_QUESTIONS (case and underscores do not matter).
        questions: how many questions of each subject were asked; the whole test split when None.

    Raises:
        ValueError: a subject is unknown, or missing.
    """
    by_subject = {_subject(name): value for name, value in accuracies.items()}
    weights = {_subject(name): count for name, count in (questions or SUBJECT_QUESTIONS).items()}
    unknown = sorted(by_subject.keys() - SUBJECT_QUESTIONS.keys())
    if unknown or by_subject.keys() != weights.keys():
        raise ValueError(
            f"expected the 14 subjects of MMLU-Pro; unknown: {unknown}, without accuracy: "
            f"{sorted(weights.keys() - by_subject.keys())}, without number of questions: "
            f"{sorted(by_subject.keys() - weights.keys())}"
        )
    result = {}
    for group, members in {**GROUPS, "Avg": tuple(SUBJECT_QUESTIONS)}.items():
        subjects = [subject for subject in members if weights.get(subject)]
        if subjects:
            total = sum(weights[subject] for subject in subjects)
            result[group] = sum(by_subject[subject] * weights[subject] for subject in subjects) / total
    return result


def _subject(name: str) -> str:
    return name.strip().lower().replace("_", " ")


def guess_is_right(options: int, gold: int) -> bool:
    """Whether the official script's guess for an unreadable response hits; it seeds anew for each response."""
    return random.Random(12345).randint(0, options - 1) == gold


def format_question(question: str, options: Sequence[str], reasoning: str = "") -> str:
    """One question block; with `reasoning` (the dataset's `cot_content`) a worked example, else up to where to go on.

    Options that are the filler "N/A" are left out, as in the official script.

    Raises:
        ValueError: more than ten options.
    """
    real = [option for option in options if option != "N/A"]
    if len(real) > len(LETTERS):
        raise ValueError(f"found {len(real)} options; MMLU-Pro has at most {len(LETTERS)}")
    lines = "".join(f"{letter}. {option}\n" for letter, option in zip(LETTERS, real, strict=False))
    worked = reasoning.removeprefix(f"A: {_OPENING}").removeprefix(_OPENING).strip()
    answer = f"Answer: {_OPENING} {worked}\n\n" if worked else f"Answer: {_OPENING}"
    return f"Question:\n{question}\nOptions:\n{lines}{answer}"


def few_shot_prompt(
    subject: str,
    shots: Sequence[str],
    question: str,
    count_tokens: Callable[[str], int],
    budget: int = SHOT_BUDGET_TOKENS,
) -> tuple[str, int]:
    """The prompt with as many leading shots as leave it under `budget` tokens, and how many that are.

    Without any shot the prompt is returned whatever its length.
    """
    for count in range(len(shots), 0, -1):
        prompt = _INSTRUCTION.format(subject=subject) + "".join(shots[:count]) + question
        if count_tokens(prompt) < budget:
            return prompt, count
    return _INSTRUCTION.format(subject=subject) + question, 0


def regroup(summary: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Group accuracies of every model in a summary of ours, or of {subject: accuracy}, as {"": groups}.

    Raises:
        ValueError: it holds no result on MMLU-Pro.
    """
    if "models" not in summary:
        return {"": group_accuracies(summary)}
    result = {}
    for model, benchmarks in summary["models"].items():
        if groups := benchmarks.get("mmlu_pro", {}).get("groups"):
            accuracies = {subject: group["pass@1"] for subject, group in groups.items()}
            counts = {subject: int(group["problems"]) for subject, group in groups.items()}
            result[model] = group_accuracies(accuracies, counts)
    if not result:
        raise ValueError("the summary holds no result on mmlu_pro")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m recipes.evaluation.mmlu_pro", description=__doc__.splitlines()[0])
    parser.add_argument("summary", type=Path)
    path = parser.parse_args(arguments).summary
    try:
        models = regroup(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        print(f"mmlu_pro: {error}", file=sys.stderr)
        return 2
    except (KeyError, TypeError, AttributeError) as error:
        expected = "neither a summary.json of an evaluation nor {subject: accuracy}"
        print(f"mmlu_pro: {path} is {expected}: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    names = [*GROUPS, "Avg"]
    print("| model | " + " | ".join(names) + " |\n|" + "---|" * (len(names) + 1))
    for model, groups in models.items():
        cells = (f"{100 * groups[name]:.2f}" if name in groups else "" for name in names)
        print(f"| {model} | " + " | ".join(cells) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
