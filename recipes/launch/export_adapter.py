"""Write the model of a checkpoint with adapters as one model folder, the adapter added to its base.

    python -m recipes.launch.export_adapter outputs/checkpoints/.../global_step_20/actor outputs/export

Base model and ``lora_adapter/`` side by side, for peft and vLLM, are what verl's own command leaves, which does not add
them up: ``python -m verl.model_merger merge --backend fsdp --local_dir .../actor --target_dir outputs/export``.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from recipes.errors import LaunchError, MissingFileError

ADAPTER = "lora_adapter"
META = "lora_train_meta.json"


def export(folder: Path, output: Path) -> None:
    """Let verl gather the shards, then add the adapter to the base in float32; ``output`` must be new or empty.

    Raises:
        MissingFileError: the folder is no FSDP checkpoint of a model with adapters, or the output is not empty.
    """
    for name, hint in (("fsdp_config.json", "give the actor's folder"), (META, "it was trained without adapters")):
        if not (folder / name).is_file():
            raise MissingFileError(f"{folder} holds no {name}: {hint}")
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise MissingFileError(f"{output} is not an empty folder: give a new one")
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM
    from verl.model_merger.base_model_merger import ModelMergerConfig
    from verl.model_merger.fsdp_model_merger import FSDPModelMerger

    settings = {
        "local_dir": str(folder),
        "target_dir": str(output),
        "hf_model_config_path": str(folder / "huggingface"),
    }
    FSDPModelMerger(ModelMergerConfig(operation="merge", backend="fsdp", **settings)).merge_and_save()
    model = AutoModelForCausalLM.from_pretrained(output, dtype=torch.float32)
    stored = getattr(torch, json.loads((output / "config.json").read_text(encoding="utf-8")).get("dtype", "bfloat16"))
    merged = PeftModel.from_pretrained(model, output / ADAPTER).merge_and_unload()
    for weights in output.glob("*.safetensors*"):
        weights.unlink()
    merged.to(stored).save_pretrained(output)
    shutil.rmtree(output / ADAPTER)


def main(argv: Sequence[str] | None = None) -> int:
    """Export from the command line; the return value is the exit code: 0, or 2 for a refusal."""
    parser = argparse.ArgumentParser(prog="python -m recipes.launch.export_adapter", description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", type=Path, help="a policy's folder of a global_step_N, as actor")
    parser.add_argument("output", type=Path)
    options = parser.parse_args(argv)
    try:
        export(options.checkpoint, options.output)
    except LaunchError as error:
        print(f"export: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
