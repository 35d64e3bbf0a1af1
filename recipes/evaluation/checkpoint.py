"""Find the model a user names: an HF folder, a hub id, or a verl checkpoint, which verl's own merger exports."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recipes.errors import CheckpointError, EnvironmentProblem, MissingFileError

_SHARD = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")


def model_folder(path: str, merged_root: Path) -> str:
    """The HF folder or hub id to load.

    Args:
        path: an HF model folder; a run's checkpoint folder (its last step is taken), a `global_step_N` or its `actor`
            folder; or a hub id, returned as it is.
        merged_root: folder under which exports of verl checkpoints are kept; an export is made once.

    Raises:
        MissingFileError: a local path that does not exist.
        CheckpointError: a folder that holds no model, a checkpoint that cannot be merged, or one with adapters.
    """
    folder = Path(path).expanduser()
    if not folder.exists():
        if path.startswith(("/", ".", "~")) or path.count("/") != 1:
            raise MissingFileError(f"no model folder {path}")
        return path
    if _is_hf_model(folder):
        return str(folder)
    actor = _actor_folder(folder)
    if (actor / "lora_train_meta.json").is_file():
        # verl's merger writes base and adapter beside each other; loaded as one model, that is the base alone.
        raise CheckpointError(
            f"{actor} holds adapters: evaluate what python -m recipes.launch.export_adapter {actor} FOLDER writes"
        )
    exported = actor / "huggingface"
    return str(exported) if _is_hf_model(exported) else str(_merge(actor, merged_root))


def _is_hf_model(folder: Path) -> bool:
    weights = ("*.safetensors", "pytorch_model*.bin")
    return (folder / "config.json").is_file() and any(next(folder.glob(pattern), None) for pattern in weights)


def _actor_folder(folder: Path) -> Path:
    tracker = folder / "latest_checkpointed_iteration.txt"
    if tracker.is_file():
        folder = folder / f"global_step_{tracker.read_text().strip()}"
    actor = folder if folder.name == "actor" or any(folder.glob("model_world_size_*.pt")) else folder / "actor"
    if not actor.is_dir():
        raise CheckpointError(
            f"{folder} is neither an HF model folder (config.json and weights) nor a verl checkpoint "
            "(with an actor folder)"
        )
    return actor


def _merge(actor: Path, merged_root: Path) -> Path:
    shards = [match for entry in actor.iterdir() if (match := _SHARD.fullmatch(entry.name))]
    if shards:
        missing = set(range(int(shards[0][1]))) - {int(shard[2]) for shard in shards}
        if missing:
            raise CheckpointError(f"{actor} lacks the shards of ranks {sorted(missing)}; the checkpoint is incomplete")
    target = merged_root / re.sub(r"[^\w.-]+", "_", str(actor.resolve()).strip("/"))
    if _is_hf_model(target):
        return target
    unfinished = target.with_name(target.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", "fsdp" if shards else "megatron"]
    command += ["--local_dir", str(actor), "--target_dir", str(unfinished)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0 or not _is_hf_model(unfinished):
        last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
        raise CheckpointError(f"verl's model_merger cannot export {actor}: {last[0] if last else done.returncode}")
    unfinished.rename(target)
    return target


class WeightsReader:
    """A causal language model that reads one text at a time on the processor.

    Args:
        model: folder or hub id.

    Raises:
        EnvironmentProblem: the weights or their tokenizer cannot be loaded.
    """

    def __init__(self, model: str):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(model)
            self._model = AutoModelForCausalLM.from_pretrained(model, dtype="auto").eval()
        except (OSError, ValueError) as error:
            raise EnvironmentProblem(
                f"the weights of {model}, which are to read texts, cannot be loaded: {error}"
            ) from error

    @property
    def model_length(self) -> int:
        """Tokens of the context window."""
        return int(self._model.config.max_position_embeddings)

    def prompt_log_probs(self, token_ids: Sequence[Sequence[int]]) -> list[list[dict[int, float] | None]]:
        """For each sequence the log-probability of every token of it in nats, None for the first."""
        import torch

        threads = torch.get_num_threads()
        # Ray gives an actor one thread; the engines wait meanwhile.
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        try:
            with torch.inference_mode():
                return [self._read(list(ids)) for ids in token_ids]
        finally:
            torch.set_num_threads(threads)

    def _read(self, ids: list[int]) -> list[dict[int, float] | None]:
        import torch

        rows = self._model(torch.tensor([ids])).logits[0, :-1]
        # Row by row: the whole table in float32 is larger than the model for long texts.
        pairs = zip(ids[1:], rows, strict=True)
        return [None, *({token: float(row.float().log_softmax(-1)[token])} for token, row in pairs)]
