"""Pass@k and Mean@k of replies: how often at least one of k is valid, and how often one is.

Chen et al., "Evaluating Large Language Models Trained on Code" (arXiv 2107.03374), equation 1: of n replies c are
valid; the share of all sets of k replies that hold a valid one is 1 - C(n - c, k) / C(n, k), which is unbiased where
1 - (1 - c / n)^k is not.
"""

from __future__ import annotations

from ttc_esopt.errors import ConfigurationError


def pass_at_k(n: int, c: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k), as a running product: nothing overflows.

    Raises
    ------
    ConfigurationError
        Not 0 <= c <= n, or not 1 <= k <= n.
    """
    _check(n, c)
    if not 1 <= k <= n:
        raise ConfigurationError(f"Expected k from 1 to {n} replies, got {k} (--k).")
    none = 1.0
    for i in range(k):
        none *= max(0, n - c - i) / (n - i)
    return 1 - none


def mean_at_k(n: int, c: int) -> float:
    """Mean validity of k replies: c / n whatever k is, estimated from all n.

    Raises
    ------
    ConfigurationError
        Not 0 <= c <= n, or n < 1.
    """
    _check(n, c)
    return c / n


def _check(n: int, c: int) -> None:
    if n < 1 or not 0 <= c <= n:
        raise ConfigurationError(f"Expected n >= 1 replies and 0 to n valid ones, got n {n} and {c} valid.")
