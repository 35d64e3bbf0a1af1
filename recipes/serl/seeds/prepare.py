"""Write the seed questions of SeRL and the parquet files that verl reads.

    python -m recipes.serl.seeds.prepare --model meta-llama/Llama-3.2-3B-Instruct --output-dir outputs/data/serl

writes `seeds.jsonl` (500 MATH questions, 100 of each level, which the model answers with an agreement of 0.2 to 0.8),
`agreement.jsonl` (the agreement of every question; a later call goes on with it), and `seeds.parquet`,
`train.parquet` and `val.parquet` (seeds, MATH train and MATH-500 in verl's format).

`--source` takes a dataset id, or a jsonl or parquet file with a question column (`--question`). `--agreement` takes the
agreements from a file instead of a model, `--unfiltered` draws seeds without them.
"""

import argparse
import random
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from recipes.core import files
from recipes.core.journal import Journal, read_records
from recipes.core.sampling import Request, Sampling, request_seed
from recipes.errors import LaunchError
from recipes.serl.voting import check_bounds, judge_difficulty
from reward_fns.completions import Answer


def filter_by_agreement(rows: Sequence[dict], agreement: dict[int, float], *, low: float, high: float) -> list[dict]:
    """Keep the rows whose agreement lies in `low`..`high`, each with its `agreement`, which is keyed by row `idx`.

    Raises `ValueError` when a row has no agreement, or on bad bounds.
    """
    check_bounds(low, high)
    moderate = []
    for row in rows:
        if row["idx"] not in agreement:
            raise ValueError(f"no agreement is known for row {row['idx']}; answer all questions first")
        share = agreement[row["idx"]]
        if judge_difficulty(share, low=low, high=high) is None:
            moderate.append({**row, "agreement": share})
    return moderate


def balance_levels(rows: Sequence[dict], n: int, *, level_key: str | None, seed: int = 42) -> list[dict]:
    """Draw `n` rows by `seed` with the values of `level_key` in equal shares, in the order of `rows`.

    Levels that have too few rows give all, and the others share the rest; rows without one are a level. Without
    `level_key` the draw is uniform.
    Raises `ValueError` when there are fewer than `n` rows.
    """
    if n < 1 or len(rows) < n:
        raise ValueError(
            f"{n} seeds are asked for and {len(rows)} questions are left; widen the bounds or ask for fewer"
        )
    rng = random.Random(seed)
    by_level: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        by_level[str(row.get(level_key)) if level_key else ""].append(place)
    for places in by_level.values():
        rng.shuffle(places)
    chosen: list[int] = []
    # Round by round, so that a short level leaves its share to the others; sorted, so that the draw is reproducible.
    levels = sorted(by_level)
    while len(chosen) < n:
        for level in levels:
            if by_level[level] and len(chosen) < n:
                chosen.append(by_level[level].pop())
    return [rows[place] for place in sorted(chosen)]


TRAIN_SOURCE = "DigitalLearningGmbH/MATH-lighteval"
VAL_SOURCE = "HuggingFaceH4/MATH-500"
DATA_SOURCE = "serl/math"
ANSWER_TEMPLATE = "{question}\nPlease reason step by step, and put your final answer within \\boxed{}."
FILES = (".jsonl", ".json", ".parquet")


def load_rows(source: str, split: str, question_key: str) -> list[dict]:
    """Load rows of a dataset id or of a local file, each with its row number as `idx` unless it has one.

    Raises `DataError`, `MissingFileError`, or `ValueError` when the dataset cannot be loaded or lacks the column.
    """
    if source.endswith(FILES):
        rows = files.read_rows(source, question_key)
    else:
        from datasets import load_dataset

        try:
            table = load_dataset(source, split=split)
        except Exception as error:
            # The hub client raises a dozen unrelated types for "not there" and "not reachable".
            raise ValueError(f"dataset {source!r}, split {split!r}, cannot be loaded: {error}") from error
        if question_key not in table.column_names:
            raise ValueError(f"{source} has no column {question_key!r}; it has {', '.join(table.column_names)}")
        rows = [dict(row) for row in table]
    numbered = [{"idx": number, **row} for number, row in enumerate(rows)]
    if odd := next((row for row in numbered if not isinstance(row["idx"], int | str)), None):
        raise ValueError(f"{source}: the idx of a row must be a number or a text, found {odd['idx']!r:.80}")
    return numbered


def gold_answer(row: dict) -> str:
    """Return the row's `answer`, or the content of the last box of its `solution`, or nothing."""
    if row.get("answer") is not None:
        return str(row["answer"])
    if row.get("solution"):
        from verl.utils.reward_score.math_reward import last_boxed_only_string, remove_boxed

        boxed = last_boxed_only_string(str(row["solution"]))
        return remove_boxed(boxed) if boxed else ""
    return ""


def verl_row(row: dict, *, question_key: str, level_key: str | None, answer_template: str, split: str) -> dict:
    """Build one row of verl's format; `data_source` contains the level, so that verl reports each level by itself."""
    level = str(row.get(level_key, "")).strip().lower().replace(" ", "_") if level_key else ""
    answer = gold_answer(row)
    return {
        "data_source": f"{DATA_SOURCE}/{level}" if split == "val" and level else DATA_SOURCE,
        "prompt": [{"role": "user", "content": answer_template.replace("{question}", row[question_key])}],
        "ability": "math",
        # Bare LaTeX parses as something else than the same LaTeX in a box.
        "reward_model": {"style": "rule", "ground_truth": f"\\boxed{{{answer}}}" if answer else ""},
        "extra_info": {"split": split, "index": row["idx"]},
    }


def read_agreement(records: Iterable[dict], path: Path, rows: Sequence[dict], question_key: str) -> dict[int, float]:
    """Agreement by `idx`; raises `ValueError` on a record that has none, or that belongs to another question."""
    questions, agreement = {row["idx"]: row[question_key] for row in rows}, {}
    for record in records:
        idx, share = record.get("idx"), record.get("agreement")
        if not isinstance(share, int | float) or not isinstance(idx, int | str):
            raise ValueError(f"{path} must hold lines with idx, question and agreement, found {record!r:.120}")
        if idx in questions and questions[idx] != record.get("question"):
            raise ValueError(f"{path} belongs to other questions: row {idx} differs; remove it or give the right one")
        agreement[idx] = share
    return agreement


def measure_agreement(options: argparse.Namespace, rows: Sequence[dict], journal: Journal) -> None:
    """Answer each question `options.answers` times with vLLM and vote: a record of `idx`, `question`, `agreement` each.

    Rows that the journal holds are passed over. With `--raw-prompt` the questions go without chat template, and
    question and answer are voted on together by the original's rule.
    """
    from recipes.core.vllm_engine import VllmEngine
    from reward_fns.majority import majority_vote

    raw, n = options.raw_prompt, options.answers
    done = read_agreement(journal.records(), journal.path, rows, options.question)
    todo = {str(place): row for place, row in enumerate(rows) if row["idx"] not in done}
    if not todo:
        return

    def vote(request: Request, answer: Answer) -> None:
        answers = [f"{request.prompt}{text}" if raw else text for text in answer.texts]
        share = sum(majority_vote(answers, convention="reference" if raw else "default").rewards) / n
        row = todo[request.key]
        journal.append({"idx": row["idx"], "question": row[options.question], "agreement": share})

    texts = {place: options.answer_template.replace("{question}", row[options.question]) for place, row in todo.items()}
    requests = (
        Request(place, text if raw else [{"role": "user", "content": text}], request_seed(options.seed, place))
        for place, text in texts.items()
    )
    template = {"enable_thinking": False} if options.no_thinking else {}
    VllmEngine(options.model, template_kwargs=template).generate(
        requests, Sampling(n, max_tokens=options.max_tokens), vote
    )


def find_agreement(options: argparse.Namespace, rows: list[dict], path: Path) -> dict[int, float]:
    """Agreement by `idx`: from `--agreement`, or from the journal `path`, which `--model` makes or goes on with."""
    if options.model is not None:
        settings = {name: getattr(options, name) for name in ("model", "answers", "max_tokens", "answer_template")}
        settings |= {"seed": options.seed, "raw_prompt": options.raw_prompt, "no_thinking": options.no_thinking}
        with Journal(path, {**settings, "weights": files.model_digest(options.model)}) as journal:
            measure_agreement(options, rows, journal)
    elif not options.agreement and not path.is_file():
        raise ValueError("the agreement of a base model is needed: give --model, --agreement, or --unfiltered")
    if options.agreement:
        return read_agreement(files.read_rows(options.agreement, "question"), options.agreement, rows, options.question)
    return read_agreement(read_records([path], torn_end=True), path, rows, options.question)


def prepare(options: argparse.Namespace) -> dict[str, int]:
    """Write the files and return the number of rows of each; raises `ValueError` with one sentence on bad input."""
    if "{question}" not in options.answer_template:
        raise ValueError(f"--answer-template must contain {{question}}, found {options.answer_template!r}")
    output = options.output_dir
    output.mkdir(parents=True, exist_ok=True)
    rows = load_rows(options.source, options.split, options.question)
    level = options.level if options.level in rows[0] else None
    candidates = rows
    if not options.unfiltered:
        agreement = find_agreement(options, rows, output / "agreement.jsonl")
        candidates = filter_by_agreement(rows, agreement, low=options.low, high=options.high)
    seeds = balance_levels(candidates, options.num, level_key=level, seed=options.seed)
    counts = {"seeds.jsonl": files.write_json_lines(output / "seeds.jsonl", seeds)}
    splits = {"seeds": seeds, "train": rows}
    if options.val_source:
        splits["val"] = load_rows(options.val_source, options.val_split, options.question)
    for name, split_rows in splits.items():
        converted = [
            verl_row(
                row,
                question_key=options.question,
                level_key=options.level,
                answer_template=options.answer_template,
                split=name,
            )
            for row in split_rows
        ]
        files.write_parquet(output / f"{name}.parquet", converted)
        counts[f"{name}.parquet"] = len(converted)
    return counts


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m recipes.serl.seeds.prepare", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--source", default=TRAIN_SOURCE, help="dataset id or file (default: %(default)s)")
    parser.add_argument("--split", default="train")
    parser.add_argument(
        "--val-source", default=VAL_SOURCE, help="dataset id or file, '' for none (default: %(default)s)"
    )
    parser.add_argument("--val-split", default="test")
    parser.add_argument("--question", default="problem", help="column of the question (default: %(default)s)")
    parser.add_argument("--level", default="level", help="column to balance by, if there is one (default: %(default)s)")
    parser.add_argument("--num", type=int, default=500, help="number of seeds (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--low", type=float, default=0.2, help="least agreement (default: %(default)s)")
    parser.add_argument("--high", type=float, default=0.8, help="largest agreement (default: %(default)s)")
    parser.add_argument("--output-dir", type=Path, default=Path("outputs/data/serl"))
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--model", help="base model that answers every question (needs vLLM)")
    which.add_argument("--agreement", type=Path, help="jsonl with idx, question and agreement")
    which.add_argument("--unfiltered", action="store_true", help="draw seeds whatever their agreement")
    parser.add_argument("--answers", type=int, default=16, help="answers to each question (default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=1024)
    parser.add_argument(
        "--answer-template", help="what is asked, with {question} in it (default: of convention=default)"
    )
    parser.add_argument("--no-thinking", action="store_true", help="enable_thinking=false for the chat template")
    parser.add_argument("--raw-prompt", action="store_true", help="the bare question, as convention=reference")
    options = parser.parse_args(arguments)
    if options.answer_template is None:
        options.answer_template = "{question}" if options.raw_prompt else ANSWER_TEMPLATE
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    try:
        counts = prepare(options)
    except (LaunchError, ValueError, OSError) as error:
        print(f"prepare_seeds: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    for name, n in counts.items():
        print(f"{options.output_dir / name}: {n} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
