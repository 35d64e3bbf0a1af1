"""Choose seed questions as the original did: moderate agreement of the base model, then the levels in equal shares."""

import random
from collections import defaultdict
from collections.abc import Sequence

from recipes.serl.voting import check_bounds, judge_difficulty


def filter_by_agreement(rows: Sequence[dict], agreement: dict[int, float], *, low: float, high: float) -> list[dict]:
    """Keep the rows whose agreement lies in `low`..`high`, each with its `agreement`, which is keyed by row `idx`.

    Raises `ValueError` when a row has no agreement, or on bad bounds.
    """
    check_bounds(low, high)
    kept = []
    for row in rows:
        if row["idx"] not in agreement:
            raise ValueError(f"no agreement is known for row {row['idx']}; answer all questions first")
        share = agreement[row["idx"]]
        if judge_difficulty(share, low=low, high=high) is None:
            kept.append({**row, "agreement": share})
    return kept


def balance_levels(rows: Sequence[dict], n: int, *, level_key: str | None, seed: int = 42) -> list[dict]:
    """Draw `n` rows by `seed` with the values of `level_key` in equal shares, in the order of `rows`.

    Levels that have too few rows give all, and the others share the rest; rows without one are a level. Without
    `level_key` the draw is uniform.
    Raises `ValueError` when there are fewer than `n` rows.
    """
    if n < 1 or len(rows) < n:
        raise ValueError(
            f"{n} seeds are asked for and {len(rows)} questions are left; widen the bounds or ask for fewer"
        )
    rng = random.Random(seed)
    by_level: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        by_level[str(row.get(level_key)) if level_key else ""].append(place)
    for places in by_level.values():
        rng.shuffle(places)
    chosen: list[int] = []
    # Round by round, so that a short level leaves its share to the others; sorted, so that the draw is reproducible.
    levels = sorted(by_level)
    while len(chosen) < n:
        for level in levels:
            if by_level[level] and len(chosen) < n:
                chosen.append(by_level[level].pop())
    return [rows[place] for place in sorted(chosen)]
