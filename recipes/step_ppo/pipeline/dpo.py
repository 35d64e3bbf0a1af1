"""`python -m recipes.step_ppo.pipeline.dpo`: DPO and process-DPO on the pairs, through TRL (extra `dpo`).

The loss is ordinary trajectory-level DPO in both cases; process-DPO differs in its pairs.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recipes.core.files import read_rows
from recipes.errors import DataError
from recipes.step_ppo.pipeline import command
from recipes.step_ppo.pipeline.data import Question, load_questions
from recipes.step_ppo.pipeline.records import PairRecord, expand, read
from recipes.step_ppo.pipeline.training_run import (
    add_training_arguments,
    is_finished,
    mark_finished,
    options_of,
    resumed_checkpoint,
    trainer_arguments,
)
from recipes.step_ppo.tokens import render

_HELPER_SMOOTHING = 0.25


def loss_settings(loss: str, *, beta: float = 0.1, label_smoothing: float = 0.0) -> dict[str, Any]:
    """TRL's settings for a loss of the LPR code (models/llama.py), with x = beta times the difference of log-ratios.

    `sigmoid` -log sigmoid(x), with label smoothing e (cDPO) -(1 - e) log sigmoid(x) - e log sigmoid(-x); `hinge`
    max(0, 1 - x);
    `ipo` (difference - 1 / (2 beta))^2, where TRL divides each log-ratio by the length of its response and the LPR
    code does not.

    Raises:
        ValueError: an unknown loss, or smoothing where the loss has none.
    """
    if loss not in ("sigmoid", "hinge", "ipo"):
        raise ValueError(f"unknown loss {loss!r}: expected sigmoid, hinge or ipo")
    if not 0 <= label_smoothing < 0.5:
        raise ValueError(f"label smoothing must lie in [0, 0.5), found {label_smoothing}")
    if not label_smoothing:
        return {"loss_type": [loss], "beta": beta}
    if loss != "sigmoid":
        raise ValueError(f"the loss {loss!r} has no label smoothing")
    # TRL has no cDPO. Its `robust` loss is ((1 - h) S - h F) / (1 - 2h) with S = -log sigmoid(x), F = -log sigmoid(-x);
    # so (1 - e) S + e F = (1 + e (1 - 2h) / h) S - (e (1 - 2h) / h) robust, for any h.
    weight = label_smoothing * (1 - 2 * _HELPER_SMOOTHING) / _HELPER_SMOOTHING
    return {
        "loss_type": ["sigmoid", "robust"],
        "loss_weights": [1 + weight, -weight],
        "label_smoothing": _HELPER_SMOOTHING,
        "beta": beta,
    }


def published_pairs(path: Path) -> list[dict[str, str]]:
    """Read the pairs of a file that the LPR code wrote: a list of objects with `id`, `chosen` and `reject`.

    Raises:
        DataError: an object without them.
    """
    pairs = []
    for number, item in enumerate(read_rows(path)):
        texts = {name: item.get(name) for name in ("chosen", "reject")}
        if "id" not in item or not all(isinstance(text, str) and text.strip() for text in texts.values()):
            raise DataError(f"{path}, item {number}: expected 'id', and texts 'chosen' and 'reject'")
        pairs.append({"id": str(item["id"]), **{name: text.strip() for name, text in texts.items()}})
    return pairs


def preference_rows(questions: dict[str, Question], pairs: Sequence[dict], tokenizer: Any) -> list[dict[str, str]]:
    """Rows of TRL's format, a new dict each: the prompt's text, and responses that continue it.

    Raises:
        ValueError: no pair, or one whose question is unknown.
    """
    if not pairs:
        raise ValueError("the pair files hold no pair, so there is nothing to train on")
    if missing := next((pair["id"] for pair in pairs if pair["id"] not in questions), None):
        raise ValueError(f"the pairs name question {missing}, which the data does not hold")
    rows = []
    for pair in pairs:
        prompt, space = render(tokenizer, questions[pair["id"]].prompt)
        rows.append({"prompt": prompt, "chosen": space + pair["chosen"], "rejected": space + pair["reject"]})
    return rows


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(__doc__)
    parser.add_argument("--data", nargs="+", required=True, help="prompts made by prepare")
    parser.add_argument("--pairs", nargs="+", required=True, help="output of pairs, or .json files of the LPR code")
    parser.add_argument("--model", required=True, help="initial policy, and frozen reference")
    parser.add_argument("--loss", choices=("sigmoid", "hinge", "ipo"), default="sigmoid")
    parser.add_argument("--beta", type=float, default=0.1)
    parser.add_argument("--label-smoothing", type=float, default=0.0, help="cDPO, for the sigmoid loss")
    parser.add_argument("--no-gradient-checkpointing", action="store_true")
    add_training_arguments(parser, learning_rate=2e-6, max_length=2048, seed=42, unit="pairs")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        from trl import DPOConfig, DPOTrainer
    except ImportError as error:
        raise SystemExit(f"DPO needs TRL ({error}): pip install -e '.[dpo]' in the checkout") from error
    from datasets import Dataset
    from transformers import AutoTokenizer

    options = options_of(args)
    if is_finished(args.output, options):
        print(f"{args.output} is already trained with these options")
        return 0
    paths = expand(args.pairs)
    published = [path for path in paths if path.suffix == ".json"]
    own = [path for path in paths if path not in published]
    pairs = list(read(own, PairRecord))
    pairs += [pair for path in published for pair in published_pairs(path)]
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    rows = preference_rows(load_questions(args.data), pairs, tokenizer)
    config = DPOConfig(
        **trainer_arguments(args),
        **loss_settings(args.loss, beta=args.beta, label_smoothing=args.label_smoothing),
        max_length=args.max_length,
        gradient_checkpointing=not args.no_gradient_checkpointing,
    )
    trainer = DPOTrainer(args.model, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
    checkpoint = resumed_checkpoint(args.output, options, notes=trainer.is_world_process_zero())
    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model(args.output)
    if trainer.is_world_process_zero():
        mark_finished(args.output, options, {"updates": trainer.state.global_step, "pairs": len(rows)})
    print(f"{args.output}: {trainer.state.global_step} updates on {len(rows)} pairs")
    return 0


if __name__ == "__main__":
    command.run(main)
