"""The difficulty filter: instructions whose answers agree neither too little nor too much are worth training on."""


def check_bounds(low: float, high: float) -> None:
    """Raise `ValueError` unless 0 <= low <= high <= 1."""
    if not 0.0 <= low <= high <= 1.0:
        raise ValueError(f"agreement bounds must satisfy 0 <= low <= high <= 1, got ({low}, {high})")


def judge_difficulty(agreement: float, *, low: float = 0.2, high: float = 0.8) -> str | None:
    """Return `None` when the instruction stays, else `too_hard` or `too_easy` (SeRL code, `online_filter`).

    `agreement` is the mean reward of the group in 0..1, the share of responses that equal the winner. Both bounds are
    inclusive: of 16 responses, winners of 4 to 12 stay. Raises `ValueError` on a value outside 0..1.
    """
    if not 0.0 <= agreement <= 1.0:
        raise ValueError(f"agreement must lie in 0..1, got {agreement}")
    return "too_hard" if agreement < low else "too_easy" if agreement > high else None
