"""What the offline trainings (`prm`, `dpo`) share: options, the trainer's arguments, and how their folders end."""

import argparse
import json
from pathlib import Path
from typing import Any

from recipes.core import files
from recipes.launch.cpu import bfloat16_is_faster
from recipes.step_ppo.pipeline.command import own_device

STARTED = "started.json"
FINISHED = "finished.json"
# As transformers and PEFT name them, whole or in parts.
WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "adapter_model*.bin")
NOT_ABOUT_THE_RESULT = ("output", "report_to")


def add_training_arguments(
    parser: argparse.ArgumentParser, *, learning_rate: float, max_length: int, seed: int, unit: str
) -> None:
    """Add the options of an offline training, with this command's defaults; `unit` is what a batch counts."""
    parser.add_argument(
        "--output", required=True, help="folder; a run that was killed continues from its last checkpoint"
    )
    training = parser.add_argument_group("training")
    training.add_argument("--epochs", type=float, default=2.0)
    training.add_argument("--max-steps", type=int, default=-1)
    training.add_argument("--learning-rate", type=float, default=learning_rate)
    training.add_argument("--batch-size", type=int, default=4, help=f"{unit} per device and micro-batch")
    training.add_argument("--accumulation", type=int, default=4)
    training.add_argument("--warmup-steps", type=int, default=200)
    training.add_argument("--weight-decay", type=float, default=0.01)
    training.add_argument("--max-length", type=int, default=max_length, help="tokens of prompt and response")
    training.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="weights are float32")
    training.add_argument("--save-steps", type=int, default=200)
    training.add_argument("--deepspeed", help="DeepSpeed configuration, or set FSDP through accelerate's own launcher")
    training.add_argument("--report-to", nargs="*", default=["none"])
    training.add_argument("--seed", type=int, default=seed)


def trainer_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Turn the options of `add_training_arguments` into arguments of `transformers.Trainer` and TRL's trainers.

    Adam (0.9, 0.95), linear decay and clipping at 1 are those of the LPR code (conf/deepspeed).

    Raises:
        EnvironmentProblem: there is a GPU that torch cannot use.
    """
    cpu = own_device() == "cpu"
    return dict(
        output_dir=args.output,
        num_train_epochs=args.epochs,
        max_steps=args.max_steps,
        learning_rate=args.learning_rate,
        per_device_train_batch_size=args.batch_size,
        gradient_accumulation_steps=args.accumulation,
        warmup_steps=args.warmup_steps,
        weight_decay=args.weight_decay,
        adam_beta1=0.9,
        adam_beta2=0.95,
        adam_epsilon=1e-6,
        max_grad_norm=1.0,
        lr_scheduler_type="linear",
        bf16=args.dtype == "bfloat16" and (not cpu or bfloat16_is_faster()),
        use_cpu=cpu,
        deepspeed=args.deepspeed,
        save_steps=args.save_steps,
        save_total_limit=2,
        logging_steps=10,
        report_to=args.report_to,
        seed=args.seed,
    )


def options_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options on which the trained weights depend."""
    return {name: value for name, value in vars(args).items() if name not in NOT_ABOUT_THE_RESULT}


def last_complete_checkpoint(output: str) -> str | None:
    """Find the newest whole checkpoint of `transformers.Trainer`, whose state is the last file it writes."""
    checkpoints = [path for path in Path(output).glob("checkpoint-*") if (path / "trainer_state.json").is_file()]
    return str(max(checkpoints, key=lambda path: int(path.name.partition("-")[2]))) if checkpoints else None


def resumed_checkpoint(output: str, options: dict, *, notes: bool) -> str | None:
    """Find the checkpoint that a killed run of the same command goes on from.

    Args:
        options: what the weights depend on. notes: whether this process writes them down for the next run.

    Raises:
        SystemExit: the checkpoint was made with other options.
    """
    checkpoint, path = last_complete_checkpoint(output), Path(output) / STARTED
    if checkpoint:
        _require_same(output, json.loads(path.read_text(encoding="utf-8"))["options"], options)
    if notes:
        files.write_json(path, {"options": options})
    return checkpoint


def _require_same(output: str, written: dict, options: dict) -> None:
    if written != json.loads(json.dumps(options)):
        differing = sorted(name for name in written.keys() | options.keys() if written.get(name) != options.get(name))
        raise SystemExit(f"{output} was trained with other options ({', '.join(differing)}): choose another output")


def is_finished(output: str, options: dict) -> bool:
    """Whether an earlier run of the same command got to its end.

    Raises:
        SystemExit: it did, with other options.
    """
    path = Path(output) / FINISHED
    if not path.is_file():
        return False
    _require_same(output, json.loads(path.read_text(encoding="utf-8"))["options"], options)
    return True


def require_weights(output: str) -> None:
    """Refuse a folder into which `save_model` wrote no weights, as it does without a word under sharded state dicts.

    Raises:
        SystemExit: with the option that makes it write them.
    """
    if not any(file for pattern in WEIGHTS for file in Path(output).glob(pattern)):
        raise SystemExit(
            f"{output} holds no weights: on several devices the training must be started with 'accelerate launch "
            "--use_fsdp --fsdp_state_dict_type FULL_STATE_DICT', or with stage3_gather_16bit_weights_on_model_save "
            "under DeepSpeed; give it a new output"
        )


def mark_finished(output: str, options: dict, statistics: dict) -> None:
    """Mark the folder as complete; nothing may be written to it afterwards.

    Raises:
        SystemExit: it holds no weights.
    """
    require_weights(output)
    files.write_json(Path(output) / FINISHED, {"statistics": statistics, "options": options})
