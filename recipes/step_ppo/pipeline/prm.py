"""`python -m recipes.step_ppo.pipeline.prm`: train a process reward model on the values of intermediate states."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Trainer, TrainingArguments, set_seed

from recipes.step_ppo.calibration import value_statistics
from recipes.step_ppo.pipeline import command
from recipes.step_ppo.pipeline.data import load_questions
from recipes.step_ppo.pipeline.prm_model import (
    IGNORED,
    PRMExample,
    collate,
    export_backbone,
    load_prm,
    prm_examples,
    replayed,
)
from recipes.step_ppo.pipeline.records import Trajectories, Value, expand, read
from recipes.step_ppo.pipeline.training_run import (
    add_training_arguments,
    is_finished,
    mark_finished,
    options_of,
    require_weights,
    resumed_checkpoint,
    trainer_arguments,
)
from recipes.step_ppo.tokens import encode_trajectory


def encode_examples(
    tokenizer: PreTrainedTokenizerBase, examples: Sequence[PRMExample], max_length: int
) -> tuple[list[dict], int]:
    """Examples as `input_ids` and `labels`, and how many labels lay beyond `max_length` tokens and are lost."""
    rows, lost = [], 0
    for example in examples:
        encoded = encode_trajectory(tokenizer, example.prompt, example.response, [end for end, _ in example.labels])
        labels = [IGNORED] * len(encoded.ids)
        for position, (_, value) in zip(encoded.ends, example.labels, strict=True):
            labels[position] = value
        lost += sum(label != IGNORED for label in labels[max_length:])
        labels = labels[:max_length]
        if any(label != IGNORED for label in labels):
            rows.append({"input_ids": encoded.ids[:max_length], "labels": labels})
    return rows, lost


def prefix_loss(outputs, labels: torch.Tensor, num_items_in_batch=None) -> torch.Tensor:
    """Cross-entropy per labelled prefix, averaged over the prefixes of the whole update however it is split into
    micro-batches.

    Args:
        outputs: with `logits` (B, T, K + 1). labels: (B, T), IGNORED away from step ends.
        num_items_in_batch: labelled prefixes of the update.
    """
    logits = outputs["logits"].float().flatten(0, 1)
    total = F.cross_entropy(logits, labels.flatten().to(logits.device), ignore_index=IGNORED, reduction="sum")
    count = (labels != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
    return total / torch.as_tensor(count, device=total.device)


def evaluate(trainer: Trainer, rows: list[dict]) -> dict[str, float]:
    """How the PRM's expected value compares with the hits of the labelled prefixes.

    Every process of a training has to call this, and reads all rows: the trainer's own loader would give each process
    its share of them, and a sharded model answers only when all processes ask.
    """
    logits, labels = [], []
    model = trainer.model.eval()
    for batch in DataLoader(rows, batch_size=trainer.args.eval_batch_size, collate_fn=trainer.data_collator):
        inputs = {name: batch[name].to(trainer.args.device) for name in ("input_ids", "attention_mask")}
        with torch.no_grad():
            batch_logits = model(**inputs).logits.cpu()
        is_labelled = batch["labels"] != IGNORED
        logits.append(batch_logits[is_labelled].float())
        labels.append(batch["labels"][is_labelled])
    return value_statistics(torch.cat(logits).softmax(dim=-1), torch.cat(labels))


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(__doc__)
    parser.add_argument("--data", nargs="+", required=True, help="prompts made by prepare")
    parser.add_argument("--trajectories", nargs="+", required=True, help="output of collect")
    parser.add_argument("--values", nargs="+", required=True, help="output of complete, for training")
    parser.add_argument("--dev-values", nargs="+", default=[], help="output of complete, held out; other questions")
    parser.add_argument("--replay-trajectories", nargs="+", default=[], help="an earlier round's trajectories")
    parser.add_argument("--replay-values", nargs="+", default=[], help="an earlier round's values")
    parser.add_argument(
        "--replay-fraction", type=float, default=0.1, help="share of the earlier examples (default 0.1)"
    )
    parser.add_argument("--model", required=True, help="SFT checkpoint, or the PRM of the round before")
    parser.add_argument("--num-completions", type=int, default=3, help="K; the head has K + 1 classes")
    parser.add_argument("--no-whole-trajectories", action="store_true", help="do not label complete trajectories")
    parser.add_argument("--export-backbone", action="store_true", help="also write <output>/backbone for verl's critic")
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--attention", default="sdpa", help="attention implementation")
    add_training_arguments(parser, learning_rate=1e-6, max_length=4096, seed=0, unit="trajectories")
    return parser


def _load_examples(args: argparse.Namespace) -> tuple[list[PRMExample], list[PRMExample]]:
    questions = load_questions(args.data)

    def examples(trajectories: list[str], values: list[str]) -> list[PRMExample]:
        return list(
            prm_examples(
                questions,
                read(expand(trajectories), Trajectories),
                read(expand(values), Value),
                num_completions=args.num_completions,
                whole_trajectories=not args.no_whole_trajectories,
            )
        )

    train = examples(args.trajectories, args.values)
    if args.replay_values:
        train += replayed(examples(args.replay_trajectories, args.replay_values), args.replay_fraction, args.seed)
    dev = examples(args.trajectories, args.dev_values) if args.dev_values else []
    if not train:
        raise SystemExit("no labelled prefix: do the values belong to the trajectories?")
    if shared := {e.id for e in train} & {e.id for e in dev}:
        raise SystemExit(f"{len(shared)} questions are both in --values and --dev-values, such as {min(shared)}")
    return train, dev


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    options = options_of(args)
    if is_finished(args.output, options):
        print(f"{args.output} is already trained with these options")
        return 0
    train, dev = _load_examples(args)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    rows, lost = encode_examples(tokenizer, train, args.max_length)
    dev_rows, _ = encode_examples(tokenizer, dev, args.max_length)
    labels = sum(label != IGNORED for row in rows for label in row["labels"])
    print(f"{labels} labelled prefixes in {len(rows)} trajectories; {lost} lie beyond {args.max_length} tokens")
    # The fresh head is drawn here, so that the same command makes the same model.
    set_seed(args.seed)
    model = load_prm(args.model, args.num_completions + 1, dtype=torch.float32, attn_implementation=args.attention)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            **trainer_arguments(args),
            per_device_eval_batch_size=args.batch_size,
            gradient_checkpointing=args.gradient_checkpointing,
            logging_first_step=True,
            remove_unused_columns=False,
        ),
        train_dataset=rows,
        data_collator=lambda batch: collate(batch, pad),
        compute_loss_func=prefix_loss,
    )
    checkpoint = resumed_checkpoint(args.output, options, notes=trainer.is_world_process_zero())
    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model(args.output)
    statistics = {"train_prefixes": labels, "lost_labels": lost}
    if dev_rows:
        statistics |= {f"dev_{name}": value for name, value in evaluate(trainer, dev_rows).items()}
    if trainer.is_world_process_zero():
        require_weights(args.output)
        tokenizer.save_pretrained(args.output)
        if args.export_backbone:
            export_backbone(args.output, str(Path(args.output) / "backbone"))
        print(json.dumps(statistics))
        mark_finished(args.output, options, statistics)
    return 0


if __name__ == "__main__":
    command.run(main)
