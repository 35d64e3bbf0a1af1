"""The settings of `algorithm.sppo`: names, ranges, and the combinations that mean something."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from recipes.errors import ConfigError

CHOICES = {
    "scope": ("batch", "prompt"),
    "baseline": ("softmean", "mean", "half"),
    "score": ("reward", "winrate"),
    "preference": ("binary", "bradley_terry"),
    "pairs": ("all", "best_worst"),
}

# verl's default, which reaches only the reported entropy, and the name of what the loss does under either
AGGREGATIONS = ("token-mean", "seq-mean-token-sum")


@dataclass(frozen=True)
class SppoSettings:
    """Settings of the estimator; the defaults are those of verl's SPPO recipe.

    Attributes:
        eta: step size of the multiplicative-weights update, in nats per unit of score (SPPO paper, eq. 4.1). One value
            serves the baseline and the target, where verl's recipe had two that could disagree.
        scope: rows over which the baseline is taken: the whole batch, or the responses to one prompt.
        baseline: `softmean` is (1/eta) log mean exp(eta score) (paper, section 4.3), `mean` its limit at eta 0,
            `half` the constant 1/2 (eq. 4.7).
        score: `reward` takes the sequence reward as it is, `winrate` the estimated win rate against the responses to
            the same prompt (section 4).
        preference: how two rewards become a preference when `score` is `winrate`.
        tau: temperature of the Bradley-Terry preference, in units of reward.
        pairs: train on all responses, or on the best and the worst of each prompt as the original code does. With
            `score=reward` they are chosen by the reward, into which `judged_gains` writes a judge's win rates.
        reference: the policy in the denominator of the log-ratio; `step` is the policy that generated the batch.
    """

    eta: float = 1.0
    scope: str = "batch"
    baseline: str = "softmean"
    score: str = "reward"
    preference: str = "binary"
    tau: float = 1.0
    pairs: str = "all"
    reference: str = "step"

    def __post_init__(self) -> None:
        for name in ("eta", "tau"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(f"algorithm.sppo.{name} must be a number, found {value!r}.")
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"algorithm.sppo.{name} must be finite and greater than 0, found {value!r}.")
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ConfigError(f"algorithm.sppo.{name} must be one of {', '.join(allowed)}, found {value!r}.")
        if self.reference != "step":
            raise ConfigError(
                f"algorithm.sppo.reference must be 'step', found {self.reference!r}: for one reference over a whole "
                "iteration of data.train_batch_size prompts, take preset=iterative."
            )
        if self.score == "winrate" and self.scope != "prompt":
            raise ConfigError(
                "algorithm.sppo.score=winrate compares responses to the same prompt; "
                f"set algorithm.sppo.scope=prompt, found {self.scope!r}."
            )
        if self.pairs == "best_worst" and self.scope != "prompt":
            raise ConfigError(
                "algorithm.sppo.pairs=best_worst takes the best and the worst response to each prompt; "
                f"set algorithm.sppo.scope=prompt, found {self.scope!r}."
            )
        if self.score != "winrate" and (self.preference, self.tau) != ("binary", 1.0):
            raise ConfigError(
                "algorithm.sppo.preference and algorithm.sppo.tau act only with algorithm.sppo.score=winrate; "
                "set that or leave both at their defaults."
            )
        if self.preference == "binary" and self.tau != 1.0:
            raise ConfigError(
                "algorithm.sppo.tau acts only with algorithm.sppo.preference=bradley_terry; set that or leave tau at 1."
            )

    @classmethod
    def from_mapping(cls, block: Mapping[str, Any] | None) -> "SppoSettings":
        """Read the block `algorithm.sppo`; an absent block gives the defaults.

        Raises:
            ConfigError: an unknown key, a value out of range, or a combination that has no meaning.
        """
        if block is None:
            return cls()
        if not isinstance(block, Mapping):
            raise ConfigError(f"algorithm.sppo must be a block of settings, found {block!r}.")
        if "length_norm" in block:
            raise ConfigError(
                "algorithm.sppo.length_norm is not available: SPPO squares the summed log-ratio of a response, and a "
                "length-normalised sum is another method; remove the key."
            )
        known = [field.name for field in fields(cls)]
        unknown = sorted(str(key) for key in block if key not in known)
        if unknown:
            raise ConfigError(f"algorithm.sppo has no option {', '.join(unknown)}; the options are {', '.join(known)}.")
        return cls(**{str(key): value for key, value in block.items()})
