"""pass@k and G-Pass@k: the probability that one, or a share, of k responses to a problem is right."""

from math import ceil, comb


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


def g_pass_at_k(n: int, c: int, k: int, tau: float) -> float:
    """G-Pass@k: the probability that at least ceil(tau k) of k responses, drawn without replacement, are right.

    tau -> 0 is pass@k, tau = 1 asks that all k are right.

    Source: Liu et al. 2024, "Are Your LLMs Capable of Stable Reasoning?", equation 3.

    Raises:
        ValueError: unless 0 <= c <= n, 1 <= k <= n and 0 < tau <= 1.
    """
    if not 0 < tau <= 1:
        raise ValueError(f"found tau={tau}; expected a share above 0, at most 1")
    return _at_least(n, c, k, ceil(round(tau * k, 9)))


def mg_pass_at_k(n: int, c: int, k: int) -> float:
    """mG-Pass@k: the mean of G-Pass@k over the shares above one half, 2/k times the sum from ceil(k/2) + 1 to k.

    Source: Liu et al. 2024, equation 5.

    Raises:
        ValueError: unless 0 <= c <= n and 1 <= k <= n.
    """
    return 2 / k * sum(_at_least(n, c, k, wanted) for wanted in range(ceil(k / 2) + 1, k + 1))


def _at_least(n: int, c: int, k: int, wanted: int) -> float:
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"found n={n}, c={c}, k={k}; expected 0 <= c <= n and 1 <= k <= n")
    return sum(comb(c, right) * comb(n - c, k - right) for right in range(wanted, min(c, k) + 1)) / comb(n, k)
