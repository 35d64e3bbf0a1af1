"""`python -m recipes.step_ppo.pipeline.iterate`: the next round from the process-DPO model, down to its pairs.

Runs collect, states, complete, prm (from the PRM of the round before, with a share of that round's data replayed),
score and pairs. Each is a command of its own in a process of its own, so that memory is returned; run this again
after a kill and the stages that are done pass at once.
"""

import argparse
import ctypes
import importlib
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from recipes.launch.memory import GIB, shape_of
from recipes.step_ppo.pipeline import command
from recipes.step_ppo.pipeline.records import Trajectories, open_journal, read
from recipes.step_ppo.pipeline.training_run import FINISHED
from recipes.step_ppo.tokens import load_tokenizer


def plan(args: argparse.Namespace) -> list[list[str]]:
    """List the commands of a round, in order: name of the stage, then its arguments."""
    new = Path(args.output)
    data, seed = ["--data", *args.data], ["--seed", str(args.seed)]
    generator = ["--model", args.model, *(["--endpoint", args.endpoint] if args.endpoint else []), *seed]
    trajectories = ["--trajectories", str(new / "trajectories.jsonl")]
    completions = str(args.num_completions)

    def stage(name: str, output: str, *arguments: str) -> list[str]:
        return [name, *arguments, "--output", str(new / output), *shlex.split(getattr(args, f"{name}_options"))]

    def values_of(part: str) -> list[list[str]]:
        """States of the questions in `{part}trajectories.jsonl`, and their values."""
        states = f"{part.removeprefix('prm_')}states.jsonl"
        values = f"{part.removeprefix('prm_')}values.jsonl"
        return [
            stage("states", states, "--trajectories", str(new / f"{part}trajectories.jsonl"), *seed),
            stage("complete", values, *data, *generator, "--states", str(new / states), "--n", completions),
        ]

    stages = [stage("collect", "trajectories.jsonl", *data, *generator), *values_of("prm_")]
    training = ["--values", str(new / "values.jsonl"), "--model", args.prm_model, "--num-completions", completions]
    if args.dev_questions:
        stages += values_of("dev_")
        training += ["--dev-values", str(new / "dev_values.jsonl")]
    if args.previous:
        old = Path(args.previous)
        training += ["--replay-trajectories", str(old / "trajectories.jsonl")]
        training += ["--replay-values", str(old / "values.jsonl"), "--replay-fraction", str(args.replay_fraction)]
    return [
        *stages,
        stage("prm", "prm", *data, *trajectories, *training, "--export-backbone"),
        stage("score", "scores.jsonl", *data, *trajectories, "--prm", str(new / "prm")),
        stage(
            "pairs", "pairs.jsonl", *trajectories, "--scores", str(new / "scores.jsonl"),
            "--prm-train", str(new / "values.jsonl"),
        ),
    ]  # fmt: skip


PR_SET_PDEATHSIG = 1


def _end_with_parent() -> None:
    """Linux: a stage must not go on writing when this command is killed and started again."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


STAGES = ("collect", "states", "complete", "prm", "score", "pairs")


def check_plan(args: argparse.Namespace, stages: Sequence[Sequence[str]]) -> None:
    """Refuse, before anything is sampled, what a later stage would refuse after all the sampling.

    Raises:
        ValueError: a number out of range, a file of the round before or the policy's tokenizer that is not there.
        SystemExit: from a stage's own parser, an option that it does not have. `collect`, the first, says so itself.
    """
    if not 0 <= args.replay_fraction <= 1:
        raise ValueError(f"--replay-fraction must lie in [0, 1], found {args.replay_fraction}")
    if args.num_completions < 1 or args.prm_questions < 1 or args.dev_questions < 0:
        raise ValueError(
            "--num-completions and --prm-questions must be at least 1 and --dev-questions at least 0, found "
            f"{args.num_completions}, {args.prm_questions} and {args.dev_questions}"
        )
    for name in ("trajectories.jsonl", "values.jsonl") if args.previous and not args.dry_run else ():
        if not (Path(args.previous) / name).is_file():
            raise ValueError(f"--previous {args.previous} holds no {name}: is it the folder of a finished round?")
    parsed = {
        name: importlib.import_module(f"recipes.step_ppo.pipeline.{name}")._parser().parse_args(arguments)
        for name, *arguments in stages
        if name != "collect"
    }
    if not args.dry_run:
        load_tokenizer(parsed["complete"].tokenizer or args.model)


TRAINED_BYTES = 16  # of a parameter in float32: weight, gradient and AdamW's two moments


def check_prm_memory(args: argparse.Namespace) -> None:
    """Refuse to train, in one process, a PRM that only several devices together can hold.

    Raises:
        ValueError: with the option that starts `prm` on all of them.
    """
    import torch

    if args.prm_launcher or "--deepspeed" in args.prm_options or torch.cuda.device_count() < 2:
        return
    shape = shape_of(args.prm_model)
    if shape is None or (Path(args.output) / "prm" / FINISHED).is_file():
        return
    needed, there = TRAINED_BYTES * shape.parameters, torch.cuda.get_device_properties(0).total_memory
    if needed > there:
        raise ValueError(
            f"the PRM {args.prm_model} trained in one process takes {needed / GIB:.0f} GB before any activation, and a "
            f"device has {there / GIB:.0f} GB: share it out with --prm-launcher 'accelerate launch --num_processes "
            f"{torch.cuda.device_count()} --use_fsdp --fsdp_version 2 --fsdp_state_dict_type FULL_STATE_DICT "
            "--fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP'"
        )


def split_questions(folder: Path, dev_questions: int, prm_questions: int) -> None:
    """Choose the questions of the PRM by position: the first `dev_questions` are held out, the next `prm_questions`
    train it.

    A question stays where it was put. Those that `collect` skipped and filled in later come first by position, and
    would move others from one part into the other.
    """
    records = list(read([folder / "trajectories.jsonl"], Trajectories))
    # Sampling finishes in any order; the choice must not depend on it.
    records.sort(key=lambda record: (len(record["id"]), record["id"]))
    settings = {"questions": [dev_questions, prm_questions]}
    with (
        open_journal(folder / "dev_trajectories.jsonl", settings) as held_out,
        open_journal(folder / "prm_trajectories.jsonl", settings) as training,
    ):
        for journal, count in ((held_out, dev_questions), (training, prm_questions)):
            free = [record for record in records if record["key"] not in held_out and record["key"] not in training]
            journal.extend(free[: max(0, count - len(journal))])


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(__doc__)
    parser.add_argument("--data", nargs="+", required=True, help="prompts made by prepare")
    parser.add_argument("--output", required=True, help="folder of the new round")
    parser.add_argument("--previous", help="folder of the round before, whose PRM data is replayed")
    parser.add_argument("--model", required=True, help="policy that samples: SFT, later the process-DPO model")
    parser.add_argument("--prm-model", required=True, help="what the PRM starts from: SFT, later the PRM before")
    parser.add_argument("--endpoint", help="root of an OpenAI-compatible server of the policy")
    parser.add_argument("--num-completions", type=int, default=3, help="K")
    parser.add_argument("--prm-questions", type=int, default=1000, help="questions whose states train the PRM")
    parser.add_argument("--dev-questions", type=int, default=200, help="questions held out to evaluate it; 0 for none")
    parser.add_argument("--replay-fraction", type=float, default=0.1, help="share of the earlier PRM data")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    parser.add_argument(
        "--prm-launcher", default="", help="what starts prm on several devices, such as 'accelerate launch ...'"
    )
    for name in STAGES:
        parser.add_argument(f"--{name}-options", default="", help=f"further options of {name}, as one string")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    stages = plan(args)
    check_plan(args, stages)
    check_prm_memory(args)
    for name, *arguments in stages:
        program = shlex.split(args.prm_launcher) if name == "prm" and args.prm_launcher else [sys.executable]
        stage = [*program, "-m", f"recipes.step_ppo.pipeline.{name}", *arguments]
        print("+ " + shlex.join(stage), flush=True)
        if args.dry_run:
            continue
        code = subprocess.run(stage, check=False, preexec_fn=_end_with_parent).returncode
        if code:
            print(f"{name} ended with code {code}; fix the cause and run the same command again", file=sys.stderr)
            return code
        if name == "collect":
            split_questions(Path(args.output), args.dev_questions, args.prm_questions)
    return 0


if __name__ == "__main__":
    command.run(main)
