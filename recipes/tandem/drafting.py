"""What the speculative mode's drafts were worth in a step of training."""

from collections.abc import Iterable, Mapping
from typing import Any

from vllm_patches.tandem.speculative.round import Outcome
from vllm_patches.tandem.speculative.stats import SpeculativeStats


def drafting_metrics(engines: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """`tandem/...`: acceptance, tokens and drafts per round and request, cost per token; nothing in the other modes.

    Args:
        engines: of each engine what its worker's `tandem_stats` counted since the last step.
    """
    total = SpeculativeStats()
    for counts in engines:
        if "outcome" in counts:
            total.add(Outcome(**counts["outcome"]), counts["cost_ratio"])
    if not total.outcome.rounds:
        return {}
    return {
        "tandem/draft_acceptance": total.acceptance,
        "tandem/tokens_per_round": total.emitted_per_round,
        "tandem/drafts_per_round": total.outcome.drafted / total.outcome.rounds,
        "tandem/cost_per_token": total.cost_per_token,
    }
