"""The settings of `algorithm.tandem`: names, ranges, and the combinations that mean something."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from recipes.errors import ConfigError

VALIDATIONS = ("solo", "joint", "both")
NORMALISERS = ("senior", "response")


@dataclass(frozen=True)
class TandemSettings:
    """Settings of training and validation; who writes which token is the engine's (`engine_settings`).

    Attributes:
        validation: `solo` lets the senior write alone and selects checkpoints; `joint` validates the pair; `both` does
            one after the other and selects by the solo pass.
        normaliser: what the loss is divided by: the senior's tokens of the global mini-batch, or, up to the share a
            mini-batch has of its step's tokens, all of its response tokens (the published code's later generation).
        junior_token_loss_weight: loss weight of the junior's tokens; only 0 can be had.
        plausible_sd: the run stops when the senior's share of a step's redraws is further from `prob_senior` than this
            many standard deviations.
        pass_k: k of the macro-averaged pass@k that selects the best checkpoint; at most the validation's n.
        benchmarks: name -> data sources pooled under it for the macro average; None takes each data source by itself.
        portable: settings of the portable path (`portable.PortableSettings`); None for a tandem engine.
        keep_best: keep a copy of the checkpoint with the highest macro pass@k as `best` beside the others.
    """

    validation: str = "solo"
    normaliser: str = "senior"
    junior_token_loss_weight: float = 0.0
    plausible_sd: float = 6.0
    pass_k: int = 4
    benchmarks: Mapping[str, list[str]] | None = None
    keep_best: bool = True
    portable: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name, allowed in (("validation", VALIDATIONS), ("normaliser", NORMALISERS)):
            if getattr(self, name) not in allowed:
                raise ConfigError(
                    f"algorithm.tandem.{name} must be one of {', '.join(allowed)}, found {getattr(self, name)!r}."
                )
        check_junior_weight(self.junior_token_loss_weight, "algorithm.tandem.junior_token_loss_weight")
        sd = self.plausible_sd
        if isinstance(sd, bool) or not isinstance(sd, int | float) or not (math.isfinite(sd) and sd > 0):
            raise ConfigError(f"algorithm.tandem.plausible_sd must be a finite number above 0, found {sd!r}.")
        if isinstance(self.pass_k, bool) or not isinstance(self.pass_k, int) or self.pass_k < 1:
            raise ConfigError(f"algorithm.tandem.pass_k must be a whole number, at least 1, found {self.pass_k!r}.")
        if not isinstance(self.keep_best, bool):
            raise ConfigError(f"algorithm.tandem.keep_best must be true or false, found {self.keep_best!r}.")
        self._check_benchmarks()

    def _check_benchmarks(self) -> None:
        if self.benchmarks is None:
            return
        pooled = self.benchmarks
        if not isinstance(pooled, Mapping) or not pooled or not all(isinstance(v, list) and v for v in pooled.values()):
            raise ConfigError(
                "algorithm.tandem.benchmarks must name lists of data sources, such as {AIME: [aime24, aime25]}, "
                f"found {pooled!r}."
            )
        sources = [source for group in pooled.values() for source in group]
        if twice := sorted({str(source) for source in sources if sources.count(source) > 1}):
            raise ConfigError(f"algorithm.tandem.benchmarks names {', '.join(twice)} more than once.")

    @classmethod
    def from_mapping(cls, block: Mapping[str, Any] | None) -> "TandemSettings":
        """Read the block `algorithm.tandem`; an absent block gives the defaults.

        Raises:
            ConfigError: an unknown key, or a value out of range.
        """
        if block is None:
            return cls()
        if not isinstance(block, Mapping):
            raise ConfigError(f"algorithm.tandem must be a block of settings, found {block!r}.")
        known = [field.name for field in fields(cls)]
        unknown = sorted(str(key) for key in block if key not in known)
        if unknown:
            raise ConfigError(
                f"algorithm.tandem has no option {', '.join(unknown)}; the options are {', '.join(known)}."
            )
        return cls(**{str(key): value for key, value in block.items()})


def check_junior_weight(weight: object, key: str) -> None:
    """Refuse any loss weight of the junior's tokens but 0.

    Raises:
        ConfigError: with the reason.
    """
    if isinstance(weight, bool) or not isinstance(weight, int | float) or weight != 0:
        raise ConfigError(
            f"{key}={weight!r} would train on the junior's tokens, for which the probability ratio's old policy is not "
            "the one that sampled them, and verl's loss takes a mask of zeros and ones only; set it to 0."
        )
