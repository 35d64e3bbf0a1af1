"""Write a task of reasoning-gym as verl parquet, and score responses by the task's own scorer; no hub is needed.

    pip install -e ".[tasks]"
    python examples/data_preparation/reasoning_gym_tasks.py letter_counting --set max_words=5
    python -m recipes.sppo.main scale=smollm2_135m data.train_files=outputs/data/letter_counting/train.parquet \\
        data.val_files=outputs/data/letter_counting/test.parquet \\
        reward.custom_reward_function.path=examples/data_preparation/reasoning_gym_tasks.py

The answer stands between <answer> and </answer>. A row's `ground_truth` is the whole entry as JSON, which a scorer may
need; a task whose scorer reads what JSON cannot hold (arc_agi, rearc) is refused.
"""

import argparse
import ast
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

INSTRUCTION = "Put your final answer between <answer> and </answer>."


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info=None, **_) -> float:
    """What the task's scorer gives the response's last <answer>, from 0 to 1; 0 without one."""
    from reasoning_gym import get_score_answer_fn
    from reasoning_gym.utils import extract_answer

    answer = extract_answer(solution_str)
    if answer is None:
        return 0.0
    return float(get_score_answer_fn(data_source.partition("/")[2])(answer, json.loads(ground_truth)))


def verl_row(task: str, entry: dict, *, split: str, index: int) -> dict:
    """One row of a verl dataset."""
    return {
        "data_source": f"reasoning_gym/{task}",
        "prompt": [{"role": "user", "content": f"{entry['question'].strip()}\n\n{INSTRUCTION}"}],
        "ability": "reasoning",
        "reward_model": {"style": "rule", "ground_truth": json.dumps(entry, default=str)},
        "extra_info": {"split": split, "index": index},
    }


def prepare(task: str, output_dir: Path, sizes: dict[str, int], seed: int, options: dict) -> None:
    """Write a parquet file for each split; the entries of one split are not those of another.

    Raises:
        ValueError: a task or an option that reasoning-gym does not have, or a scorer that JSON does not serve.
    """
    import reasoning_gym
    from datasets import Dataset

    try:
        entries = list(reasoning_gym.create_dataset(task, size=sum(sizes.values()), seed=seed, **options))
    except (TypeError, AssertionError) as error:
        raise ValueError(f"{task}: {error}") from error
    score = reasoning_gym.get_score_answer_fn(task)
    for entry in entries[:20]:
        told, read = (score(entry["answer"], found) for found in (entry, json.loads(json.dumps(entry, default=str))))
        if told != read:
            raise ValueError(f"{task}: its scorer gives the same answer {told} before JSON and {read} after")
    output_dir.mkdir(parents=True, exist_ok=True)
    for split, size in sizes.items():
        rows = [verl_row(task, entries.pop(0), split=split, index=index) for index in range(size)]
        partial, target = output_dir / f"{split}.parquet.partial", output_dir / f"{split}.parquet"
        Dataset.from_list(rows).to_parquet(str(partial))
        os.replace(partial, target)
        print(f"{target}: {size} rows")


def _option(text: str) -> tuple[str, object]:
    name, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, found {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", help="a name from reasoning-gym's gallery, such as letter_counting")
    parser.add_argument("--output-dir", type=Path, help="default: outputs/data/TASK")
    parser.add_argument("--train", type=int, default=2000)
    parser.add_argument("--test", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", type=_option, action="append", default=[], metavar="NAME=VALUE", help="of the task")
    given = parser.parse_args(arguments)
    folder = given.output_dir or Path("outputs/data") / given.task
    try:
        prepare(given.task, folder, {"train": given.train, "test": given.test}, given.seed, dict(given.set))
    except ImportError as error:
        print(f"error: {error}; pip install -e '.[tasks]' in the checkout", file=sys.stderr)
        return 1
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
