"""The formats a toy world can be made in, by name; a new one is a module here and a line in FORMATS."""

import importlib
from dataclasses import dataclass, field
from types import ModuleType

FORMATS = {
    "arithmetic": "toy_world.formats.arithmetic",
    "step_ppo": "toy_world.formats.step_ppo",
    "serl": "toy_world.formats.serl",
    "pasodoble": "toy_world.formats.pasodoble",
    "letters": "toy_world.formats.letters",
    "letters_pasodoble": "toy_world.formats.letters_pasodoble",
    "letters_serl": "toy_world.formats.letters_serl",
    "letters_serl_weak": "toy_world.formats.letters_serl_weak",
    "letters_step_ppo": "toy_world.formats.letters_step_ppo",
    "letters_two_styles": "toy_world.formats.letters_two_styles",
}


@dataclass(frozen=True)
class Example:
    """One problem: chat messages, the response a warm-up imitates ("" for none), and the answer the reward knows."""

    prompt: list[dict[str, str]]
    response: str
    ground_truth: str
    extra_info: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Split:
    """Training and held-out examples that share no problem, and lessons that only the warm-up sees."""

    train: list[Example]
    test: list[Example]
    lessons: list[Example] = field(default_factory=list)


def load_format(name: str) -> ModuleType:
    """Return the module of a format.

    It defines ``DATA_SOURCE`` and ``ABILITY`` (columns of the data files), ``BAND`` (lowest and highest greedy accuracy
    the warm-up may end with), ``MAX_RESPONSE_TOKENS``, ``split(seed) -> Split`` and
    ``grade(response, ground_truth) -> bool``. ``CHAT_TEMPLATE``, where it is there, replaces the tokenizer's own. With
    ``write_more(folder, split, tokenizer, seed) -> dict`` it may add files and models to the world; what that returns
    goes into world.json. ``base_model() -> str`` names a pretrained model to start from in place of a new one, and
    ``SCHEDULE`` how it is trained.

    Raises:
        ValueError: no format of that name.
    """
    if name not in FORMATS:
        raise ValueError(f"unknown toy format {name!r}; there are: {', '.join(sorted(FORMATS))}")
    return importlib.import_module(FORMATS[name])
