"""Rewards to weights: what a step multiplies the noise of each direction with.

All in float64 with `math.fsum`, so that the weight of a direction does not depend on the order of the batch. A batch
whose rewards are all equal says nothing about where to go and gives weights of exactly zero: in plain arithmetic its
mean may be off by one rounding error, which the tiny standard deviation would blow up into a full-size step in a
random direction.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ttc_esopt.errors import RewardError

EPSILON = 1e-8  # added to the standard deviation, as published


def checked(rewards: ArrayLike, names: Sequence[str] | None = None) -> NDArray[np.float64]:
    """The rewards as a 1-D float64 array.

    Raises
    ------
    RewardError
        If a reward is NaN or infinite; the message gives its name (`names[i]`, else `direction i`).
    ValueError
        If `rewards` is not 1-D, or `names` has another length.
    """
    values = np.asarray(rewards, np.float64)
    if values.ndim != 1:
        raise ValueError(f"Expected a 1-D array of rewards, got shape {values.shape}.")
    if names is not None and len(names) != values.size:
        raise ValueError(f"Expected one name per reward, got {len(names)} names and {values.size} rewards.")
    for i in np.flatnonzero(~np.isfinite(values)):
        name = names[i] if names is not None else f"direction {i}"
        raise RewardError(f"Expected a finite reward, got {values[i]} for {name}.")
    return values


def zscore(rewards: ArrayLike, names: Sequence[str] | None = None) -> NDArray[np.float64]:
    """z_i = (r_i - mean) / (std + 1e-8), population standard deviation; exactly zero where all rewards are equal.

    Parameters and errors as in `checked`; the result has the shape (n,) of `rewards`.
    """
    values = checked(rewards, names)
    if _all_equal(values):
        return np.zeros(values.size)
    scale = float(np.max(np.abs(values)))
    if scale > 1e100:  # squares would overflow; the weights of such rewards do not feel the 1e-8
        return _standardised(values / scale, EPSILON / scale)
    return _standardised(values, EPSILON)


def centred_ranks(rewards: ArrayLike, names: Sequence[str] | None = None) -> NDArray[np.float64]:
    """Ranks moved and scaled to [-0.5, 0.5] (worst to best); equal rewards share the mean of their ranks.

    Only the order of the rewards matters. All equal gives exactly zeros. Parameters and errors as in `checked`.
    """
    values = checked(rewards, names)
    if _all_equal(values):
        return np.zeros(values.size)
    ordered = np.sort(values)
    below = np.searchsorted(ordered, values, side="left")
    up_to = np.searchsorted(ordered, values, side="right")
    return (below + up_to - values.size) / (2 * (values.size - 1))


def mean(values: Sequence[float]) -> float:
    """The mean, rounded once from the exact sum whatever the order."""
    try:
        return math.fsum(values) / len(values)
    except OverflowError:  # finite rewards near 1e308
        return math.fsum(value / len(values) for value in values)


def _all_equal(values: NDArray[np.float64]) -> bool:
    return values.size < 2 or bool(np.all(values == values[0]))


def _standardised(values: NDArray[np.float64], epsilon: float) -> NDArray[np.float64]:
    deviations = values - mean(values)
    std = math.sqrt(mean(deviations * deviations))
    return deviations / (std + epsilon)


SHAPINGS = {"zscore": zscore, "ranks": centred_ranks}
