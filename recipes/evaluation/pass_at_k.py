"""pass@k: the probability that one of k responses to a problem is right."""

from math import comb


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate of pass@k from n responses of which c are right: 1 - C(n-c, k) / C(n, k).

    The probability that k of the n responses, drawn without replacement, hold a right one. Exact: integer binomials,
    one division.

    Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1.

    Raises:
        ValueError: unless 0 <= c <= n and 1 <= k <= n.
    """
    if not 0 <= c <= n:
        raise ValueError(f"found c={c} right responses of n={n}; expected 0 <= c <= n")
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs at least {k} responses per problem and k >= 1, found n={n}; sample more")
    return 1.0 - comb(n - c, k) / comb(n, k)
