"""The ReAct trajectory format: step labels, and the two cleaning rules of the original code.

A trajectory is written as lines `Thought i: ...`, `Action i: ...`, `Observation i: ...` and ends with
`Action n: Finish[The answer is X.]`. The label of the first thought stands at the end of the prompt, so a response
starts in the middle of `Thought 1:`.

Source: construct_dpo_data_from_react_response.py (rule 1.0) and _v1.1.py (rule 1.1) of the dpo-trajectory-reasoning
repository, the code of "Learning Planning-based Reasoning by Trajectories Collection and Process Reward Synthesizing"
(arXiv 2402.00658), called "the LPR code" in this recipe.
"""

from typing import Literal

STEP_KINDS = ("Thought", "Action", "Observation")
FIRST_STEP = "Thought 1:"
FINISH = "Finish[The answer is"
NEXT_QUESTION = "Context:\n"
MIN_CONTENT = 5

CleaningRules = Literal["1.0", "1.1"]


def step_kind(line: str) -> str | None:
    """Return `Thought`, `Action` or `Observation` when `line` opens a step, else None."""
    return next((kind for kind in STEP_KINDS if line.startswith(f"{kind} ")), None)


def is_finish(line: str) -> bool:
    """Whether `line` is the action that gives the answer."""
    return line.startswith("Action ") and FINISH in line


def clean_response(response: str, *, rules: CleaningRules = "1.0", min_lines: int = 0) -> str | None:
    """Cut a response after its final action, or refuse it.

    Anything from a hallucinated next question (`Context:`) on is dropped first. A response is refused (None) unless
    exactly one line is a finishing action, and when the cleaned text has fewer than `min_lines` lines. Rule 1.1 also
    joins continuation lines to their step and drops blank lines and steps with fewer than 5 characters after their
    label.

    Args:
        response: text as sampled, from behind `Thought 1:`.
        rules: `"1.0"` (LogiQA-v2 in the LPR code) or `"1.1"` (ReClor).
        min_lines: smallest number of lines kept (`min_step` in the LPR code).

    Raises:
        ValueError: unknown `rules`.
    """
    if rules not in ("1.0", "1.1"):
        raise ValueError(f"unknown cleaning rules {rules!r}: expected '1.0' or '1.1'")
    lines = response.split(NEXT_QUESTION)[0].split("\n")
    if sum(map(is_finish, lines)) != 1:
        return None
    lines = lines[: next(i for i, line in enumerate(lines) if is_finish(line)) + 1]
    if rules == "1.1":
        lines = _joined_steps(lines)
        if not lines or not is_finish(lines[-1]):
            return None
    cleaned = "\n".join(lines).strip()
    return cleaned if len(cleaned.split("\n")) >= min_lines else None


def _joined_steps(lines: list[str]) -> list[str]:
    steps: list[str] = []
    for line in lines:
        kind = step_kind(line)
        if kind is None:
            if not line.strip():
                continue
            if steps:
                steps[-1] += " " + line
                continue
        # The LPR code takes the text up to a second occurrence of the label, so a step that only repeats it is empty.
        elif len(line.split(f"{kind} ")[1]) < MIN_CONTENT:
            continue
        steps.append(line)
    return steps
