"""BIG-Bench Extra Hard: its reading of an answer, its comparison with the gold answer, and its mean over tasks.

The rules are those of the benchmark's own evaluation (Kazemi et al. 2025, google-deepmind/bbeh, `evaluate.py`): texts
are compared, apart from case, bold, LaTeX wrappers, brackets, quotes and the way a number is written. The thinking of a
model is left out first, which that script does not know.

    python -m recipes.evaluation.bbeh outputs/evaluation/summary.json
"""

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import harmonic_mean
from typing import Any

from reward_fns.result import Score, Skip
from reward_fns.text import after_thinking

_PHRASE = re.compile(r"The (?:final )?answer is(?::| )")
_WRAPPED = re.compile(r".*?\\?(?:boxed|text|texttt)\{(.*)\}", re.DOTALL)


def read_answer(response: str) -> tuple[str, str]:
    """The answer in a form that can be compared, and `no_phrase` where the response announces none.

    The text after the last "The answer is:" counts, its first line alone; without one, the response itself.
    """
    found = _PHRASE.split(after_thinking(response).strip())
    answer = found[-1].strip().removesuffix(".")
    if len(answer) > 1 and answer.startswith("$") and answer.endswith("$"):
        answer = answer[1:-1]
    # without the closing brace at the end the expression would try every opening one, up to the square of the length
    while answer.endswith("}") and (wrapped := _WRAPPED.fullmatch(answer)):
        answer = wrapped[1]
    return _plain(answer), "" if len(found) > 1 else "no_phrase"


def same(answer: str, gold: str) -> bool:
    """Whether an answer that was read equals a gold answer."""
    gold = _plain(gold)
    if answer == gold:
        return True
    for one, other in ((answer, gold), (gold, answer)):
        if len(one) == 3 and one[0] == "(" and one[-1] == ")":
            return one[1] == other
    if _number(answer) is not None and _number(answer) == _number(gold):
        return True
    pairs = ((answer.replace("'", ""), gold.replace("'", "")), (answer, f"[{gold}]"), (f"[{answer}]", gold))
    return any(one == other for one, other in (*pairs, (answer.removesuffix("?"), gold)))


def _plain(text: str) -> str:
    line = text.strip().lower().replace(", ", ",").replace("**", "").partition("\n")[0]
    return line.strip().rstrip(".")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def score(response: str, gold: Any) -> Score | Skip:
    """1.0 for the gold answer, else 0.0; a Skip where there is no gold answer."""
    if gold is None or not str(gold).strip():
        return Skip("empty_gold")
    answer, reason = read_answer(response)
    if same(answer, str(gold)):
        return Score(1.0, "", answer)
    return Score(0.0, reason or "wrong", "" if reason else answer)


def mean_over_tasks(accuracies: Sequence[float]) -> float:
    """Harmonic mean of the tasks' accuracies in percent, each plus 1, as the benchmark reports itself.

    Args:
        accuracies: of each task, between 0 and 1.
    """
    return harmonic_mean([100 * accuracy + 1 for accuracy in accuracies])


def regroup(summary: Mapping[str, Any]) -> dict[str, tuple[float, float, int]]:
    """For every model in a summary its accuracy over all problems (percent), the mean over tasks, and their number.

    Raises:
        ValueError: it holds no result on BBEH.
    """
    results = {
        model: benchmarks["bbeh"] for model, benchmarks in summary.get("models", {}).items() if "bbeh" in benchmarks
    }
    if not results:
        raise ValueError("the summary holds no result on bbeh")
    found = {}
    for model, result in results.items():
        tasks = [task["pass@1"] for task in result["groups"].values()]
        found[model] = (100 * result["metrics"]["pass@1"]["mean"], mean_over_tasks(tasks), len(tasks))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m recipes.evaluation.bbeh", description=__doc__.splitlines()[0])
    parser.add_argument("summary", type=Path)
    path = parser.parse_args(arguments).summary
    try:
        found = regroup(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        print(f"bbeh: {error}", file=sys.stderr)
        return 2
    except (KeyError, TypeError, AttributeError) as error:
        print(f"bbeh: {path} is no summary.json of an evaluation: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print("| model | all problems | harmonic mean over tasks | tasks |\n|---|---|---|---|")
    for model, (micro, harmonic, tasks) in found.items():
        print(f"| {model} | {micro:.1f} | {harmonic:.1f} | {tasks} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
