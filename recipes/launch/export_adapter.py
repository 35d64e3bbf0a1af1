"""Write the adapter of a checkpoint as a folder for peft and vLLM, or merged into its base model.

    python -m recipes.launch.export_adapter outputs/checkpoints/.../global_step_20/actor outputs/export [--merge]

Without ``--merge`` the output holds the base model and ``lora_adapter/`` beside it; with it, one model folder. verl's
own merger gathers the shards.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from recipes.errors import DataError, LaunchError, MissingFileError

ADAPTER = "lora_adapter"
META = "lora_train_meta.json"


def check_checkpoint(folder: Path) -> dict:
    """Rank and alpha that the checkpoint was trained with.

    Raises:
        MissingFileError: it is no FSDP checkpoint of a model with adapters. DataError: its settings are damaged.
    """
    if not (folder / "fsdp_config.json").is_file():
        raise MissingFileError(f"{folder} holds no fsdp_config.json: give the actor's folder of a global_step_N")
    if not (folder / META).is_file():
        raise MissingFileError(f"{folder} holds no {META}: it was trained without adapters; use verl.model_merger")
    try:
        return json.loads((folder / META).read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{folder / META} is damaged ({error}): take another checkpoint") from error


def export(folder: Path, output: Path, *, merge: bool) -> None:
    """Write the model and its adapter, or the two in one; ``output`` must be new or empty.

    Raises:
        LaunchError: the checkpoint or the output folder is not fit.
    """
    check_checkpoint(folder)
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise MissingFileError(f"{output} is not an empty folder: give a new one")
    from verl.model_merger.base_model_merger import ModelMergerConfig
    from verl.model_merger.fsdp_model_merger import FSDPModelMerger

    hugging_face = str(folder / "huggingface")
    merger = FSDPModelMerger(
        ModelMergerConfig(
            operation="merge",
            backend="fsdp",
            local_dir=str(folder),
            target_dir=str(output),
            hf_model_config_path=hugging_face,
        )
    )
    merger.merge_and_save()
    merger.cleanup()
    if merge:
        merge_adapter(output)


def merge_adapter(folder: Path) -> None:
    """Add the adapter in ``folder`` to the model beside it, in float32, and keep the sum alone."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    stored = getattr(torch, json.loads((folder / "config.json").read_text(encoding="utf-8")).get("dtype", "bfloat16"))
    merged = PeftModel.from_pretrained(model, folder / ADAPTER).merge_and_unload()
    for weights in folder.glob("*.safetensors*"):
        weights.unlink()
    merged.to(stored).save_pretrained(folder)
    shutil.rmtree(folder / ADAPTER)


def main(argv: Sequence[str] | None = None) -> int:
    """Export from the command line; the return value is the exit code: 0, or 2 for a refusal."""
    parser = argparse.ArgumentParser(prog="python -m recipes.launch.export_adapter", description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", type=Path, help="the actor's (or proposer's) folder of a global_step_N")
    parser.add_argument("output", type=Path)
    parser.add_argument("--merge", action="store_true", help="one model, in place of a base model and an adapter")
    options = parser.parse_args(argv)
    try:
        export(options.checkpoint, options.output, merge=options.merge)
    except LaunchError as error:
        print(f"export: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
