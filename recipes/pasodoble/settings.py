"""Every constant of the game, with the original's value, and a flag for each of its quirks.

Source of the values: PasoDoble, ``train_{online,offline}_{4,8}_cards.sh``, ``proposergrpo_trainer.py``,
``jaccorbsimilarity.py``, ``pasodoble_offline.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

from recipes.pasodoble.sanity import LeakCheck

T = TypeVar("T")


def _from_config(cls: type[T], config: Mapping[str, Any] | None, where: str) -> T:
    config = dict(config or {})
    unknown = sorted(set(config) - {f.name for f in fields(cls)})
    if unknown:
        raise ValueError(f"unknown key {unknown} in {where}; known are {[f.name for f in fields(cls)]}")
    return cls(**config)


def _one_of(where: str, value: Any, allowed: tuple) -> None:
    if value not in allowed:
        raise ValueError(f"{where} must be one of {allowed}, got {value!r}")


@dataclass(frozen=True)
class RoundSettings:
    """How one round is scored and who learns from it."""

    tau_low: float = 0.2
    """A question counts as solvable above this pass rate; the bound itself is too low."""
    tau_high: float = 1.0
    """The Solver learns from questions below this pass rate; the bound itself is too easy."""
    tau_div: float = 0.3
    """A question counts as new above this diversity; the bound itself is too repetitive."""
    w: float = 0.2
    """Weight of diversity in the Proposer's reward."""
    history_size: int = 100
    history_threshold: float = 0.8
    """Jaccard similarity above which two questions are alike."""
    history_admit: Literal["parsed", "all", "valid"] = "parsed"
    """Which questions enter the diversity history; the original admits ``all``, even empty ones."""
    leak_check: LeakCheck = "substring"
    filter_by: Literal["checked", "raw"] = "checked"
    """Pass rate that decides what the Solver learns from: after the sanity check, or before it as in the original."""

    def __post_init__(self):
        if not 0 <= self.tau_low < self.tau_high:
            raise ValueError(f"need 0 <= tau_low < tau_high, got {self.tau_low} and {self.tau_high}")
        _one_of("history_admit", self.history_admit, ("parsed", "all", "valid"))
        _one_of("leak_check", self.leak_check, ("substring", "token"))
        _one_of("filter_by", self.filter_by, ("checked", "raw"))

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None) -> "RoundSettings":
        """Raises ValueError for a key that does not exist or a value out of range."""
        return _from_config(cls, config, "pasodoble.round")


@dataclass(frozen=True)
class OfflineSettings:
    """One iteration of the offline variant: updates of the Proposer, then updates of the Solver."""

    proposer_updates: int = 10
    solver_updates: int = 5
    questions_per_update: int = 6
    max_proposer_tries: int | None = None
    """Bound on Proposer steps, skipped ones included, in one iteration; 20 per update if not set."""
    max_solver_tries: int | None = None
    """Bound on Solver batches, fruitless ones included, in one iteration; 4 per update if not set."""

    def __post_init__(self):
        for name in ("proposer_updates", "solver_updates"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.questions_per_update < 1:
            raise ValueError(f"questions_per_update must be at least 1, got {self.questions_per_update}")
        for name, updates, factor in (
            ("max_proposer_tries", self.proposer_updates, 20),
            ("max_solver_tries", self.solver_updates, 4),
        ):
            if getattr(self, name) is None:
                object.__setattr__(self, name, factor * updates)
            elif getattr(self, name) < updates:
                raise ValueError(f"{name} must allow at least the {updates} updates wanted, got {getattr(self, name)}")

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None) -> "OfflineSettings":
        """Raises ValueError for a key that does not exist or a value out of range."""
        return _from_config(cls, config, "pasodoble.offline")


@dataclass(frozen=True)
class KnowledgeSettings:
    """Where the Proposer's texts come from."""

    path: str | None = "YouAreSpecialToMe/filtered_MegaMath"
    """A parquet, json or jsonl file, a folder of them, or a Hugging Face dataset id; None plays without knowledge."""
    split: str = "train"
    text_column: str = "text"
    max_tokens: int | None = 1024
    """Longest document in tokens of the Proposer's tokenizer; None keeps all."""
    seed: int = 42

    def __post_init__(self):
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1 or null, got {self.max_tokens}")

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None) -> "KnowledgeSettings":
        """Raises ValueError for a key that does not exist or a value out of range."""
        return _from_config(cls, config, "pasodoble.knowledge")
