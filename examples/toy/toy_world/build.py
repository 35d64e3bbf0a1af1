"""Build a toy world folder: model/, train.parquet, test.parquet and world.json, whole or not at all."""

import hashlib
import json
import os
import random
import shutil
import tempfile
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pandas as pd
import torch
from smollm2 import ModelError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from toy_world.formats import Example, Split, load_format
from toy_world.model import SHAPES, new_model
from toy_world.tokenizer import train_tokenizer
from toy_world.warm_up import Schedule, WarmUpError, greedy_accuracy, warm_up

RECORD = "world.json"
VOCABULARY = 512


class ToyWorldError(RuntimeError):
    """The toy world could not be made."""


def build(
    out: Path,
    *,
    format_name: str = "arithmetic",
    seed: int = 0,
    shapes: tuple[str, ...] = ("base",),
    force: bool = False,
) -> dict:
    """Make the world in ``out`` unless the same one stands there; return the content of its world.json.

    Two builds with the same sources, libraries, arguments and machine write the same weights.

    Raises:
        ToyWorldError: unknown shape, ``out`` holds something else, or a warm-up missed its accuracy band.
    """
    if unknown := [name for name in shapes if name not in SHAPES]:
        raise ToyWorldError(f"unknown shape {', '.join(unknown)}; there are: {', '.join(SHAPES)}")
    key = content_key(format_name, seed, shapes)
    if not force and (standing := _standing(out, key)) is not None:
        return standing
    if out.exists() and any(out.iterdir()) and not (out / RECORD).is_file():
        raise ToyWorldError(f"{out} holds files that are no toy world; choose another --out or empty it")
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.partial-", dir=out.parent))
    try:
        world = _build_into(partial, load_format(format_name), seed, shapes)
        world = {"key": key, "format": format_name, "seed": seed} | world
        (partial / RECORD).write_text(json.dumps(world, indent=2) + "\n", encoding="utf-8")
        partial.chmod(0o755)
        if out.exists():
            shutil.rmtree(out)
        partial.rename(out)
    except (WarmUpError, ModelError) as error:
        raise ToyWorldError(str(error)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return world


def content_key(format_name: str, seed: int, shapes: tuple[str, ...]) -> str:
    """Digest of everything a world depends on: its sources, the libraries that train it, and the arguments."""
    digest = hashlib.sha256()
    # A format may be built upon another one, hence all of them.
    for source in [*sorted(Path(__file__).parent.rglob("*.py")), Path(load_format(format_name).__file__)]:
        digest.update(source.read_bytes())
    if hasattr(load_format(format_name), "base_model"):
        digest.update(os.environ.get("MODEL_PATH", "").encode())
    libraries = {name: version(name) for name in ("torch", "transformers", "tokenizers")}
    digest.update(json.dumps([libraries, format_name, seed, shapes]).encode())
    return digest.hexdigest()


def _standing(out: Path, key: str) -> dict | None:
    try:
        world = json.loads((out / RECORD).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return None
    return world if world.get("key") == key else None


def _build_into(folder: Path, toy_format: ModuleType, seed: int, shapes: tuple[str, ...]) -> dict:
    split = toy_format.split(seed)
    # Labels that belong to other questions: what a run gains on them is not due to the labels.
    labels = [one.ground_truth for one in split.train]
    random.Random(seed).shuffle(labels)
    shuffled = [replace(one, ground_truth=label) for one, label in zip(split.train, labels, strict=True)]
    for name, examples in (("train", split.train), ("train_shuffled", shuffled), ("test", split.test)):
        _write_rows(folder / f"{name}.parquet", toy_format, name, examples)
    models = {}
    if hasattr(toy_format, "base_model"):
        tokenizer, model = pretrained(toy_format.base_model())
        models["base"] = train_and_save(folder / "model", toy_format, split, tokenizer, model, seed)
    else:
        tokenizer = train_tokenizer(_texts(split), VOCABULARY)
        tokenizer.chat_template = getattr(toy_format, "CHAT_TEMPLATE", tokenizer.chat_template)
        for position, shape in enumerate(shapes):
            target = folder / ("model" if position == 0 else f"model_{shape}")
            models[shape] = warmed_up_model(target, toy_format, split, tokenizer, shape, seed)
    world = {"train": len(split.train), "test": len(split.test), "vocabulary": len(tokenizer), "models": models}
    if hasattr(toy_format, "write_more"):
        world |= toy_format.write_more(folder, split, tokenizer, seed)
        # SeRL's lessons go on with the model.
        models["base"]["accuracy"] = world.get("instructions", models["base"])["accuracy"]
    return world


def warmed_up_model(
    target: Path, toy_format: ModuleType, split: Split, tokenizer: PreTrainedTokenizerBase, shape: str, seed: int
) -> dict:
    """`train_and_save` of a new model, on one thread: then sums do not depend on the number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = new_model(SHAPES[shape], tokenizer, seed)
        return train_and_save(target, toy_format, split, tokenizer, model, seed, shape)
    finally:
        torch.set_num_threads(threads)


def pretrained(path: str) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """Tokenizer and float32 model of a folder or a hub's name.

    Raises:
        ModelError: there is none, or the tokenizer has no chat template.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot load the model {path}: {str(error).splitlines()[0]}") from error
    if not tokenizer.chat_template or tokenizer.pad_token is None:
        raise ModelError(f"the tokenizer of {path} has no chat template or no pad token; take an instruct model")
    return tokenizer, model


def train_and_save(
    target: Path,
    toy_format: ModuleType,
    split: Split,
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel,
    seed: int,
    name: str = "base",
) -> dict:
    """Warm a model up on ``split`` and save it with its tokenizer in ``target``; what the warm-up reached.

    ``toy_format`` needs ``BAND``, ``MAX_RESPONSE_TOKENS`` and ``grade``, and may have a ``SCHEDULE``.

    Raises:
        WarmUpError: accuracy missed the band.
    """
    started = time.monotonic()
    updates, accuracy = warm_up(
        model,
        tokenizer,
        split.train + split.lessons,
        lambda limit: greedy_accuracy(
            model, tokenizer, split.test[:limit], toy_format.grade, toy_format.MAX_RESPONSE_TOKENS
        ),
        toy_format.BAND,
        seed,
        lambda update, accuracy: print(
            f"warm-up {name}: {update} updates, greedy accuracy {accuracy.graded:.1%}, "
            f"finished {accuracy.finished:.1%}, {time.monotonic() - started:.0f} s",
            flush=True,
        ),
        getattr(toy_format, "SCHEDULE", Schedule()),
    )
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return {
        "accuracy": accuracy.graded,
        "finished": accuracy.finished,
        "updates": updates,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def _texts(split: Split) -> list[str]:
    texts = ["system\n", "user\n", "assistant\n"]
    for example in split.train + split.lessons:
        texts += [message["content"] for message in example.prompt]
        texts.append(example.response)
    return texts


def _write_rows(path: Path, toy_format: ModuleType, split_name: str, examples: list[Example]) -> None:
    pd.DataFrame(
        {
            "data_source": toy_format.DATA_SOURCE,
            "prompt": example.prompt,
            "ability": toy_format.ABILITY,
            "reward_model": {"style": "rule", "ground_truth": example.ground_truth},
            "extra_info": {"split": split_name, "index": index, **example.extra_info},
        }
        for index, example in enumerate(examples)
    ).to_parquet(path)
