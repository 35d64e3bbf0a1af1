"""Every constant of the game, with the original's value, and a flag for each of its quirks.

Source of the values: PasoDoble, ``train_{online,offline}_{4,8}_cards.sh``, ``proposergrpo_trainer.py``,
``jaccorbsimilarity.py``, ``pasodoble_offline.py``.
"""

from dataclasses import dataclass
from typing import Any, Literal

from recipes.core.settings import Count, CountOrZero, Finite, Share, read
from recipes.errors import ConfigError
from recipes.pasodoble.parsing import LeakCheck
from recipes.pasodoble.prompts import Prompts


@dataclass(frozen=True)
class RoundSettings:
    """How one round is scored and who learns from it."""

    reward: Literal["pasodoble", "learnability"] = "pasodoble"
    """The Proposer's reward: PasoDoble's, or ``p (1 - p)``, which is highest where half of the answers agree."""
    tau_low: Share = 0.2
    """A question counts as solvable above this pass rate; the bound itself is too low."""
    tau_high: Finite = 1.0
    """The Solver learns from questions below this pass rate; the bound itself is too easy."""
    tau_div: Share = 0.3
    """A question counts as new above this diversity; the bound itself is too repetitive."""
    w: Finite = 0.2
    """Weight of diversity in the Proposer's reward."""
    history_size: Count = 100
    history_threshold: Share = 0.8
    """Jaccard similarity above which two questions are alike."""
    history_admit: Literal["parsed", "all", "valid"] = "parsed"
    """Which questions enter the diversity history; the original admits ``all``, even empty ones."""
    leak_check: LeakCheck = "substring"
    filter_by: Literal["checked", "raw"] = "checked"
    """Pass rate that decides what the Solver learns from: after the sanity check, or before it as in the original."""

    def __post_init__(self) -> None:
        if not 0 <= self.tau_low < self.tau_high:
            bounds = f"got {self.tau_low} and {self.tau_high}"
            raise ConfigError(f"need 0 <= tau_low < tau_high, {bounds}", "pasodoble.round.tau_low")


@dataclass(frozen=True)
class OfflineSettings:
    """One iteration of the offline variant: updates of the Proposer, then updates of the Solver."""

    proposer_updates: CountOrZero = 10
    solver_updates: CountOrZero = 5
    questions_per_update: Count = 6
    max_proposer_tries: int | None = None
    """Bound on Proposer steps, skipped ones included, in one iteration; 20 per update if not set."""
    max_solver_tries: int | None = None
    """Bound on Solver batches, fruitless ones included, in one iteration; 4 per update if not set."""

    def __post_init__(self) -> None:
        for name, updates, factor in (
            ("max_proposer_tries", self.proposer_updates, 20),
            ("max_solver_tries", self.solver_updates, 4),
        ):
            if getattr(self, name) is None:
                object.__setattr__(self, name, factor * updates)
            elif getattr(self, name) < updates:
                key = f"pasodoble.offline.{name}"
                raise ConfigError(f"{key} must allow at least the {updates} updates, got {getattr(self, name)}", key)


@dataclass(frozen=True)
class KnowledgeSettings:
    """Where the Proposer's texts come from."""

    path: str | None = "YouAreSpecialToMe/filtered_MegaMath"
    """A parquet, json or jsonl file, a folder of them, or a Hugging Face dataset id; None plays without knowledge."""
    split: str = "train"
    text_column: str = "text"
    max_tokens: Count | None = 1024
    """Longest document in tokens of the Proposer's tokenizer; None keeps all."""
    seed: int = 42


@dataclass(frozen=True)
class GameSettings:
    """How the two policies live in one job, and the settings of the parts."""

    layout: Literal["colocate", "separate"] = "colocate"
    """``separate`` gives the Proposer a resource pool of its own, ``proposer_nodes`` x ``proposer_gpus_per_node``."""
    proposer_nodes: Count = 1
    proposer_gpus_per_node: Count = 1
    rounds_per_step: Count = 1
    """Rounds generated and learnt from together; 1 is the original."""
    use_knowledge: bool = True
    request_box: bool = True
    """Ask the Solver to box its answer; the original leaves that to the supervised start."""
    parser: Literal["default", "reference"] = "default"
    """A proposal's answer: the box behind its problem, or the last one of all, thoughts included (the original)."""
    train_proposer: bool = True
    train_solver: bool = True
    proposer_mini_batch_size: Count | None = None
    """Proposals in one optimizer step; None takes all of them in one."""
    solver_mini_batch_size: Count | None = None
    """Responses in one optimizer step; None takes all of them in one."""
    log_problems_every: CountOrZero = 10
    """Steps between two entries of problems.jsonl; 0 for none."""
    log_digests: bool = False
    """Print a digest of each policy's parameters after each step."""
    round: RoundSettings = RoundSettings()
    offline: OfflineSettings = OfflineSettings()
    knowledge: KnowledgeSettings = KnowledgeSettings()
    prompts: Prompts = Prompts()

    def __post_init__(self) -> None:
        if not (self.train_proposer or self.train_solver):
            raise ConfigError(
                "pasodoble.train_proposer and pasodoble.train_solver are both false: nothing would be trained",
                "pasodoble.train_solver",
            )
        if self.use_knowledge and not self.knowledge.path:
            raise ConfigError(
                "pasodoble.knowledge.path is not set: name a file or dataset, or set pasodoble.use_knowledge=false",
                "pasodoble.knowledge.path",
            )

    @classmethod
    def from_config(cls, block: Any) -> "GameSettings":
        """Read the block; raises `ConfigError` for a key that does not exist or a value out of range."""
        return read(cls, block, "pasodoble")
