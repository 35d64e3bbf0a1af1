"""Kept starts: what a toy model learns follows from sources, texts and seed, and need not be learned on every machine.

`starts/` holds weights as bfloat16. A file is read only where a training would see the same code, texts, vocabulary and
seed. `TOY_TRAIN=1 python examples/toy/make.py --force ...` trains all the same, and keeps what comes out.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from toy_world.formats import Example

KEPT = Path(__file__).parents[1] / "starts"
SOURCES = ("warm_up.py", "model.py", "tokenizer.py")


def train_or_read(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Iterable[Example],
    settings: object,
    train: Callable[[], dict],
    measure: Callable[[], dict],
) -> dict:
    """Give `model` the weights that `train` gives it, and return what it reached.

    Args:
        settings: what else the training depends on, as seed, band, and the weights that it starts from.
        train: trains `model`; returns what is said of it.
        measure: says anew what depends on the weights, which were rounded.
    """
    path = KEPT / f"{_key(model, tokenizer, examples, settings)}.safetensors"
    if path.is_file() and not os.environ.get("TOY_TRAIN"):
        with safe_open(path, "pt") as file:
            model.load_state_dict({name: file.get_tensor(name).float() for name in file.keys()})
            return json.loads(file.metadata()["report"])
    report = train()
    if os.environ.get("TOY_TRAIN"):
        rounded = {name: value.bfloat16() for name, value in model.state_dict().items()}
        model.load_state_dict({name: value.float() for name, value in rounded.items()})
        report |= measure()
        KEPT.mkdir(exist_ok=True)
        save_file(rounded, path, {"report": json.dumps(report)})
    return report


def digest_of(model: PreTrainedModel) -> str:
    """Of a model's weights, for a training that goes on from them."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode() + value.bfloat16().view(torch.int16).numpy().tobytes())
    return found.hexdigest()


def _key(model, tokenizer, examples: Iterable[Example], settings: object) -> str:
    sources = [(Path(__file__).parent / name).read_text("utf-8") for name in SOURCES]
    texts = [[one.prompt, one.response] for one in examples]
    sizes = {name: list(value.shape) for name, value in model.state_dict().items()}
    content = [sources, texts, sizes, tokenizer.get_vocab(), tokenizer.chat_template, repr(settings)]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
