"""The settings of the `serl` config block: names, ranges, and defaults with the original's name beside each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from recipes.core.settings import Count, CountOrZero, Finite, NonNegative, PositiveShare, read
from recipes.errors import ConfigError
from recipes.serl.voting import check_bounds


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
        parser: `default` takes whole questions alone, `reference` whatever follows a number and a full stop.
        similarity: `default` sees all scripts and signs, `reference` a-z and 0-9 alone, as rouge-score.
        lowercase_like_reference: lower-case everything but the first letter, as the original.
        rouge_threshold: a candidate above it is dropped.
        similarity_scope: `step`, `history`, or `pool` as the original.
        carry_pending: keep instructions that were not answered for the next step.
        max_generation_calls: calls to fill one round of answers.
        fall_back_to_seeds: answer seeds when the calls did not yield enough instructions.
    """

    prompt_file: str | None = None
    few_shot_generation: Count = 8
    few_shot_generated: CountOrZero = 2
    few_shot_generation_batch_size: Count | None = 4
    max_prompt_tokens: Count = 1024
    overlong_prompt: Literal["drop_examples", "truncate"] = "drop_examples"
    temperature: NonNegative = 0.8
    top_p: PositiveShare = 0.95
    presence_penalty: Finite = 2.0
    max_tokens: Count = 1024
    parser: Literal["default", "reference"] = "default"
    similarity: Literal["default", "reference"] = "default"
    lowercase_like_reference: bool = False
    rouge_threshold: PositiveShare = 0.7
    similarity_scope: Literal["pool", "step", "history"] = "step"
    carry_pending: bool = False
    max_generation_calls: Count = 8
    fall_back_to_seeds: bool = True


@dataclass(frozen=True)
class VoteSettings:
    """How answers are compared.

    Attributes:
        convention: `default`, or `reference` for the original's pairwise matrix.
        ties: `undecided` drops a group whose vote is tied; `earliest` lets the answer sampled first win.
        question_in_text: vote on question and response together, as the original.
        trained_share: share of a group's answers that train, the first ones; all of them vote. TTRL: 0.5.
        alarm_window: votes that the collapse alarm looks back on.
        alarm_agreement: their mean agreement from which the model may have collapsed to one answer.
        alarm_same_answer: share of them won by one and the same answer from which it may have.
        alarm_stops_after: the run ends when the alarm stood for so many steps in a row; null: it is only reported.
    """

    convention: Literal["default", "reference"] = "default"
    ties: Literal["undecided", "earliest"] = "undecided"
    question_in_text: bool = False
    trained_share: PositiveShare = 1.0
    alarm_window: Count = 64
    alarm_agreement: PositiveShare = 0.95
    alarm_same_answer: PositiveShare = 0.5
    alarm_stops_after: Count | None = None

    def trained_of(self, n: int) -> int:
        """How many of `n` answers train.

        Raises:
            ConfigError: that is no whole number, or fewer than two.
        """
        trained = round(n * self.trained_share)
        if trained < 2 or abs(trained - n * self.trained_share) > 1e-9:
            raise ConfigError(
                f"serl.vote.trained_share={self.trained_share:g} of {n} answers is {n * self.trained_share:g}: "
                "choose a share that makes it a whole number of at least 2",
                "serl.vote.trained_share",
            )
        return trained


@dataclass(frozen=True)
class LimitSettings:
    """Limits of a step, and of a run whose steps train nothing.

    Attributes:
        max_rounds: rounds of answers in one step.
        max_skipped_steps: steps in a row that train nothing before the run ends with the reason.
    """

    max_rounds: Count = 8
    max_skipped_steps: CountOrZero = 5


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
        instructions_num_per_iteration: trained prompts of an iteration (`--instructions_num_per_iteration`); null for
            as many as the training data has rows.
        iterations: iterations of a run.
        step_slack: a run may take so many times its steps when steps train fewer prompts.
        statistics: take advantage statistics `before` the difficulty filter, as the original, or `after`.
        journal_dir: folder of the journals (`--filtered_data_root_dir`).
        log_instructions: so many instructions of a step go to the log.
    """

    variant: Literal["self_instruct", "majority", "ground_truth"] = "self_instruct"
    data_dir: str | None = None
    seeds: str | None = None
    question_key: str = "problem"
    answer_template: str = "{question}"
    rng_seed: int = 42
    reward_difficulty_bounds: tuple[float, float] = (0.2, 0.8)
    instructions_num_per_iteration: Count | None = 2000
    iterations: Count = 1
    step_slack: Annotated[float, Field(ge=1)] = 1.0
    statistics: Literal["before", "after"] = "before"
    journal_dir: str | None = None
    log_instructions: CountOrZero = 3
    instructions: InstructionSettings = field(default_factory=InstructionSettings)
    vote: VoteSettings = field(default_factory=VoteSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)

    def __post_init__(self) -> None:
        if self.variant == "self_instruct" and not self.seeds:
            raise ConfigError(
                "serl.seeds is not set; give a jsonl or parquet file of seed questions (recipes.serl.seeds.prepare "
                "writes it)",
                "serl.seeds",
            )
        if self.variant == "self_instruct" and self.instructions_num_per_iteration is None:
            raise ConfigError(
                "serl.instructions_num_per_iteration=null takes the rows of a dataset; set a number with "
                "variant=self_instruct, which writes its prompts",
                "serl.instructions_num_per_iteration",
            )
        if "{question}" not in self.answer_template:
            key = "serl.answer_template"
            raise ConfigError(f"{key} must contain {{question}}, found {self.answer_template!r}", key)
        try:
            check_bounds(*self.reward_difficulty_bounds)
        except ValueError as error:
            key = "serl.reward_difficulty_bounds"
            raise ConfigError(f"{key}: {error}", key) from error

    def trained_of(self, n: int) -> int:
        """How many of the `n` answers to a prompt train; with labels all of them."""
        return n if self.variant == "ground_truth" else self.vote.trained_of(n)

    @classmethod
    def from_mapping(cls, block: Mapping[str, Any] | None) -> "SerlSettings":
        """Read the block; raises `ConfigError` on an unknown key, a wrong type or a value out of range."""
        return read(cls, block, "serl")
