"""Verify which model wrote each token; count tokens, turns and coins per author."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from vllm_patches.tandem.outputs import AuthorshipError, check_authors, check_shape
from vllm_patches.tandem.schedule import AuthorSchedule, ScheduleParams, request_key

TRAINING, VALIDATION = 0, 1


def response_identity(index: int, step: int, sample: int, validation: bool) -> int:
    """Derive the key of a response's author coins from its place in the run, never from a random uid.

    Args:
        index: `extra_info.index` of the prompt's dataset row.
        step: global step; 0 for the validation before training.
        sample: position among the responses to the prompt.
        validation: validation prompts may have the indices of training prompts.
    """
    return request_key(index, step, sample, VALIDATION if validation else TRAINING)


@dataclass(frozen=True)
class Authorship:
    """Counts of one response, or of several added up.

    Attributes:
        responses: responses.
        tokens: tokens emitted by either model.
        senior_tokens: tokens emitted by the senior.
        turns: maximal runs of one author.
        redraws: coins that decided the author of at least one token; 0 for strategies without coins.
        senior_redraws: of those, the ones that fell on the senior.
    """

    responses: int = 0
    tokens: int = 0
    senior_tokens: int = 0
    turns: int = 0
    redraws: int = 0
    senior_redraws: int = 0

    def __add__(self, other: "Authorship") -> "Authorship":
        return Authorship(*(a + b for a, b in zip(_counts(self), _counts(other), strict=True)))

    def metrics(self) -> dict[str, float]:
        """`tandem/...`: shares, and means per response and per turn; NaN where there is nothing to divide by."""
        return {
            "tandem/senior_token_share": _ratio(self.senior_tokens, self.tokens),
            "tandem/switches_per_response": _ratio(self.turns - self.responses, self.responses),
            "tandem/tokens_per_turn": _ratio(self.tokens, self.turns),
            "tandem/redraws_per_response": _ratio(self.redraws, self.responses),
            "tandem/senior_redraw_share": _ratio(self.senior_redraws, self.redraws),
        }

    def deviation(self, prob_senior: float) -> float:
        """Distance of the senior's share of redraws from `prob_senior`, in standard deviations; 0 without redraws.

        Over redraws and not over tokens, whose share also depends on how long the words of either model are.
        """
        expected, variance = prob_senior * self.redraws, prob_senior * (1 - prob_senior) * self.redraws
        distance = abs(self.senior_redraws - expected)
        if distance == 0:
            return 0.0
        return distance / math.sqrt(variance) if variance > 0 else math.inf


def _counts(authorship: Authorship) -> tuple[int, ...]:
    return tuple(getattr(authorship, name) for name in Authorship.__dataclass_fields__)


def _ratio(numerator: int, denominator: int) -> float:
    return numerator / denominator if denominator else math.nan


def count_authorship(mask: Sequence[int], redraws: Iterable[int] = ()) -> Authorship:
    """Count tokens, turns and coins of one response, given its mask and the author that each coin chose."""
    drawn = list(redraws)
    turns = sum(1 for i, author in enumerate(mask) if i == 0 or author != mask[i - 1])
    return Authorship(1, len(mask), sum(mask), turns, len(drawn), sum(drawn))


def replay(
    token_ids: Sequence[int], params: ScheduleParams, boundary_ids: Collection[int]
) -> tuple[list[int], list[int]]:
    """Recompute from a response's tokens alone its mask, `(T,)`, and the author that each coin in use chose."""
    schedule = AuthorSchedule(params, boundary_ids)
    mask, drawn, coins = [], [], 0
    for token_id in token_ids:
        if schedule.redraws > coins:
            coins = schedule.redraws
            drawn.append(schedule.author)
        mask.append(schedule.author)
        schedule.advance(token_id)
    return mask, drawn


def verified(
    mask: object, token_ids: Sequence[int], params: ScheduleParams, boundary_ids: Collection[int]
) -> Authorship:
    """Verify which model wrote each token of a response, and count per author.

    Args:
        mask: what the engine returned, one int per emitted token, 1 = senior, 0 = junior.
        token_ids: the emitted tokens.
        params: the schedule the response was decoded with.
        boundary_ids: the strategy's boundary set.

    Raises:
        AuthorshipError: no mask, another length than the response, values other than 0 and 1, or authors that the
            schedule does not give. Under `word_align='before'` the authors depend on samples that were not emitted, so
            that only length and values are checked.
    """
    if mask is not None and not isinstance(mask, list | tuple):
        raise AuthorshipError(f"the authorship mask is {type(mask).__name__}; expected a list of 0 and 1")
    checked = check_shape(token_ids, mask)
    if params.word_align == "before":
        return count_authorship(checked)
    expected, drawn = replay(token_ids, params, boundary_ids)
    check_authors(checked, expected)
    return count_authorship(checked, drawn)
