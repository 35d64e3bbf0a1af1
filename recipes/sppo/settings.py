"""The settings of `algorithm.sppo`: names, ranges, and the combinations that mean something."""

from dataclasses import dataclass
from typing import Literal

from recipes.core.settings import Positive
from recipes.errors import ConfigError

SECTION = "algorithm.sppo"
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

    Raises:
        ConfigError: a combination that has no meaning.
    """

    eta: Positive = 1.0
    scope: Literal["batch", "prompt"] = "batch"
    baseline: Literal["softmean", "mean", "half"] = "softmean"
    score: Literal["reward", "winrate"] = "reward"
    preference: Literal["binary", "bradley_terry"] = "binary"
    tau: Positive = 1.0
    pairs: Literal["all", "best_worst"] = "all"
    reference: str = "step"

    def __post_init__(self) -> None:
        if self.reference != "step":
            raise ConfigError(
                f"algorithm.sppo.reference must be 'step', found {self.reference!r}: for one reference over a whole "
                "iteration of data.train_batch_size prompts, take preset=iterative.",
                "algorithm.sppo.reference",
            )
        for name, value in (("score", "winrate"), ("pairs", "best_worst")):
            if getattr(self, name) == value and self.scope != "prompt":
                raise ConfigError(
                    f"algorithm.sppo.{name}={value} compares responses to the same prompt; "
                    f"set algorithm.sppo.scope=prompt, found {self.scope!r}.",
                    "algorithm.sppo.scope",
                )
        if self.score != "winrate" and (self.preference, self.tau) != ("binary", 1.0):
            raise ConfigError(
                "algorithm.sppo.preference and algorithm.sppo.tau act only with algorithm.sppo.score=winrate; "
                "set that or leave both at their defaults.",
                "algorithm.sppo.score",
            )
        if self.preference == "binary" and self.tau != 1.0:
            raise ConfigError(
                "algorithm.sppo.tau acts only with algorithm.sppo.preference=bradley_terry; set that or leave it at 1.",
                "algorithm.sppo.preference",
            )
