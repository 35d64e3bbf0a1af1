"""The settings of `algorithm.tandem`: names, ranges, and the combinations that mean something."""

from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Len

from recipes.core.settings import Count, Positive, Share
from recipes.errors import ConfigError

BLOCK = "algorithm.tandem"


@dataclass(frozen=True)
class TandemSettings:
    """Settings of training and validation; who writes which token is the engine's (`engine_settings`).

    Attributes:
        validation: `solo` lets the senior write alone and selects checkpoints; `joint` validates the pair; `both` does
            one after the other and selects by the solo pass.
        normaliser: what the loss is divided by: the weights of the global mini-batch's tokens, which are its senior
            tokens where the junior's weigh nothing; or all of its response tokens (the published code's later
            generation), where the junior's weigh nothing up to the share that a mini-batch has of its step's tokens.
        junior_token_loss_weight: loss weight of the junior's tokens, from 0 to 1 (`junior_weight.py`).
        plausible_sd: the run stops when the senior's share of a step's redraws is further from `prob_senior` than this
            many standard deviations.
        pass_k: k of the macro-averaged pass@k that selects the best checkpoint; at most the validation's n.
        benchmarks: name -> data sources pooled under it for the macro average; None takes each data source by itself.
        portable: settings of the portable path (`portable/settings.py`); None for a tandem engine.
        keep_best: keep a copy of the checkpoint with the highest macro pass@k as `best` beside the others.

    Raises:
        ConfigError: a data source in two benchmarks.
    """

    validation: Literal["solo", "joint", "both"] = "solo"
    normaliser: Literal["senior", "response"] = "senior"
    junior_token_loss_weight: Share = 0.0
    plausible_sd: Positive = 6.0
    pass_k: Count = 4
    benchmarks: Annotated[dict[str, Annotated[list[str], Len(1)]], Len(1)] | None = None
    keep_best: bool = True
    portable: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        counts = Counter(source for group in (self.benchmarks or {}).values() for source in group)
        if twice := sorted(source for source, count in counts.items() if count > 1):
            raise ConfigError(f"{BLOCK}.benchmarks names {', '.join(twice)} more than once.", f"{BLOCK}.benchmarks")
