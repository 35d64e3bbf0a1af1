"""The settings of the `serl` config block: names, ranges, and defaults with the original's name beside each."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from recipes.errors import ConfigError
from recipes.serl.difficulty import check_bounds
from recipes.serl.pool import SCOPES

VARIANTS = ("self_instruct", "majority", "ground_truth")


@dataclass(frozen=True)
class InstructionSettings:
    """How new instructions are written and filtered.

    Attributes:
        prompt_file: few-shot prompt file (`--few_shot_prompt`), null for the one that ships with the recipe.
        few_shot_generation: examples in a few-shot prompt (`--few_shot_generation`).
        few_shot_generated: at most so many of them are the model's own.
        few_shot_generation_batch_size: prompts of one generation call (`--few_shot_generation_batch_size`, 4); null
            for one to each rollout engine, and at least 4.
        max_prompt_tokens: limit of a few-shot prompt (`--prompt_max_len`).
        overlong_prompt: `drop_examples`, or `truncate` as the original.
        temperature, top_p, presence_penalty, max_tokens: sampling of a generation call.
        lowercase_like_reference: lower-case everything but the first letter, as the original.
        rouge_threshold: a candidate above it is dropped.
        similarity_scope: `step`, `history`, or `pool` as the original.
        carry_pending: keep instructions that were not answered for the next step.
        max_generation_calls: calls to fill one round of answers.
        fall_back_to_seeds: answer seeds when the calls did not yield enough instructions.
    """

    prompt_file: str | None = None
    few_shot_generation: int = 8
    few_shot_generated: int = 2
    few_shot_generation_batch_size: int | None = 4
    max_prompt_tokens: int = 1024
    overlong_prompt: str = "drop_examples"
    temperature: float = 0.8
    top_p: float = 0.95
    presence_penalty: float = 2.0
    max_tokens: int = 1024
    lowercase_like_reference: bool = False
    rouge_threshold: float = 0.7
    similarity_scope: str = "step"
    carry_pending: bool = False
    max_generation_calls: int = 8
    fall_back_to_seeds: bool = True


@dataclass(frozen=True)
class VoteSettings:
    """How answers are compared.

    Attributes:
        convention: `default`, or `reference` for the original's pairwise matrix.
        ties: `undecided` drops a group whose vote is tied; `earliest` lets the answer sampled first win.
        question_in_text: vote on question and response together, as the original.
        alarm_window: votes that the collapse alarm looks back on.
        alarm_agreement: their mean agreement from which the model may have collapsed to one answer.
        alarm_same_answer: share of them won by one and the same answer from which it may have.
    """

    convention: str = "default"
    ties: str = "undecided"
    question_in_text: bool = False
    alarm_window: int = 64
    alarm_agreement: float = 0.95
    alarm_same_answer: float = 0.5


@dataclass(frozen=True)
class LimitSettings:
    """What ends a step or a run that does not get on.

    Attributes:
        max_rounds: rounds of answers in one step.
        max_skipped_steps: steps in a row that train nothing before the run ends with the reason.
    """

    max_rounds: int = 8
    max_skipped_steps: int = 5


@dataclass(frozen=True)
class SerlSettings:
    """The whole block.

    Attributes:
        variant: `self_instruct` (SeRL), `majority` (votes on the training data), or `ground_truth` (its labels).
        data_dir: folder of the prepared data, where the default paths point.
        seeds: jsonl or parquet file of seed questions.
        question_key: their column (`--input_key`).
        answer_template: what is asked, with `{question}` in the place of the instruction.
        rng_seed: seed of every draw of this recipe.
        reward_difficulty_bounds: agreement of the groups to train on (`--reward_difficulty_bounds`).
        instructions_num_per_iteration: trained prompts of an iteration (`--instructions_num_per_iteration`).
        iterations: iterations of a run.
        step_slack: a run may take so many times its steps when steps train fewer prompts.
        statistics: take advantage statistics `before` the difficulty filter, as the original, or `after`.
        journal_dir: folder of the journals (`--filtered_data_dir`).
        log_instructions: so many instructions of a step go to the log.
    """

    variant: str = "self_instruct"
    data_dir: str | None = None
    seeds: str | None = None
    question_key: str = "problem"
    answer_template: str = "{question}"
    rng_seed: int = 42
    reward_difficulty_bounds: tuple[float, float] = (0.2, 0.8)
    instructions_num_per_iteration: int = 2000
    iterations: int = 1
    step_slack: float = 1.0
    statistics: str = "before"
    journal_dir: str | None = None
    log_instructions: int = 3
    instructions: InstructionSettings = field(default_factory=InstructionSettings)
    vote: VoteSettings = field(default_factory=VoteSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)

    def __post_init__(self) -> None:
        _one_of("variant", self.variant, VARIANTS)
        _one_of("statistics", self.statistics, ("before", "after"))
        _one_of("instructions.similarity_scope", self.instructions.similarity_scope, SCOPES)
        _one_of("instructions.overlong_prompt", self.instructions.overlong_prompt, ("drop_examples", "truncate"))
        _one_of("vote.ties", self.vote.ties, ("undecided", "earliest"))
        _one_of("vote.convention", self.vote.convention, ("default", "reference"))
        if self.variant == "self_instruct" and not self.seeds:
            raise ConfigError(
                "serl.seeds is not set; give a jsonl or parquet file of seed questions (prepare_seeds writes it)"
            )
        if "{question}" not in self.answer_template:
            raise ConfigError(f"serl.answer_template must contain {{question}}, found {self.answer_template!r}")
        try:
            check_bounds(*self.reward_difficulty_bounds)
        except ValueError as error:
            raise ConfigError(f"serl.reward_difficulty_bounds: {error}") from error
        at_least = {
            "instructions_num_per_iteration": (self.instructions_num_per_iteration, 1),
            "iterations": (self.iterations, 1),
            "step_slack": (self.step_slack, 1),
            "log_instructions": (self.log_instructions, 0),
            "limits.max_rounds": (self.limits.max_rounds, 1),
            "limits.max_skipped_steps": (self.limits.max_skipped_steps, 0),
            "vote.alarm_window": (self.vote.alarm_window, 1),
            "instructions.few_shot_generation": (self.instructions.few_shot_generation, 1),
            "instructions.few_shot_generated": (self.instructions.few_shot_generated, 0),
            "instructions.few_shot_generation_batch_size": (self.instructions.few_shot_generation_batch_size, 1),
            "instructions.max_prompt_tokens": (self.instructions.max_prompt_tokens, 1),
            "instructions.max_tokens": (self.instructions.max_tokens, 1),
            "instructions.max_generation_calls": (self.instructions.max_generation_calls, 1),
            "instructions.temperature": (self.instructions.temperature, 0),
        }
        for name, (value, least) in at_least.items():
            if value is not None and not value >= least:
                raise ConfigError(f"serl.{name} must be at least {least}, found {value}")
        shares = {
            "instructions.top_p": self.instructions.top_p,
            "instructions.rouge_threshold": self.instructions.rouge_threshold,
            "vote.alarm_agreement": self.vote.alarm_agreement,
            "vote.alarm_same_answer": self.vote.alarm_same_answer,
        }
        for name, value in shares.items():
            if not 0 < value <= 1:
                raise ConfigError(f"serl.{name} must lie in (0, 1], found {value}")

    @classmethod
    def from_mapping(cls, block: Mapping[str, Any] | None) -> "SerlSettings":
        """Read the block; raises `ConfigError` on an unknown key, a wrong type or a value out of range."""
        return _read(cls, block or {}, "serl")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"serl.{name} must be one of {', '.join(allowed)}, found {value!r}")


def _read(cls: type, block: Any, name: str) -> Any:
    if not isinstance(block, Mapping):
        raise ConfigError(f"{name} must be a block of settings, found {block!r}")
    known = [entry.name for entry in fields(cls)]
    unknown = sorted(str(key) for key in block if key not in known)
    if unknown:
        raise ConfigError(f"{name} has no setting {', '.join(unknown)}; the settings are {', '.join(known)}")
    types = get_type_hints(cls)
    return cls(**{key: _convert(types[key], value, f"{name}.{key}") for key, value in block.items()})


def _convert(kind: Any, value: Any, name: str) -> Any:
    if is_dataclass(kind):
        return _read(kind, value, name)
    if get_origin(kind) is tuple:
        members = get_args(kind)
        if not isinstance(value, list | tuple) or len(value) != len(members):
            raise ConfigError(f"{name} must hold {len(members)} values, found {value!r}")
        return tuple(_convert(member, item, name) for member, item in zip(members, value, strict=True))
    optional = type(None) in get_args(kind)
    if optional and value is None:
        return None
    kind = next((member for member in get_args(kind) if member is not type(None)), kind)
    # YAML writes 1 for 1.0, but true is no number.
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"{name} must be of type {kind.__name__}, found {value!r}")
    return value
