"""What one ES step holds, from how much rewards differ between directions; derived in docs/probe.md.

A direction's reward is the mean of K replies, r_i = mu + b_i + chance; b has variance s_b^2, chance s_w^2 / K. Of a
step along the z-scores of G of them,

    gain = (alpha / sigma) s_b (1/G) sum_i z_i n_i,      n_i = b_i / s_b

is the change of the expected reward to first order, if all of b is first order (b_i = sigma g . eps_i): an upper
bound, since b holds the even orders too. With rho = s_b^2 / (s_b^2 + s_w^2 / K) and normal b and chance it has

    mean       (alpha / sigma) s_b sqrt(rho) c_G
    variance   (alpha / sigma)^2 s_b^2 (rho ((G - 1) / G - c_G^2) + (1 - rho) / G)

where c_G = sqrt(2 / G) Gamma(G / 2) / Gamma((G - 1) / 2) is the mean of the population standard deviation of G
standard normal values. Their quotient, the signal-to-noise of a step, depends on rho and G alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MOST_DIRECTIONS = 4096  # looked at when a number of directions is asked for
SHARES_OF_A_BATCH = (1, 2, 4, 8, 16)  # replies per direction that are looked at
RANK_SPREAD = 1 / math.sqrt(12)  # standard deviation of centred ranks of many rewards; z-scores have 1


def reliability(icc: float, replies: int) -> float:
    """rho: share of the variance of a direction's mean reward that belongs to the direction (Spearman and Brown)."""
    return replies * icc / (1 + (replies - 1) * icc)


def mean_spread(directions: int) -> float:
    """c_G, for G >= 2."""
    logs = math.lgamma(directions / 2) - math.lgamma((directions - 1) / 2)
    return math.sqrt(2 / directions) * math.exp(logs)


def step_gain(icc: float, directions: int, replies: int) -> tuple[float, float]:
    """Mean and standard deviation of the gain of a step, in units of (alpha / sigma) s_b."""
    rho, c = reliability(icc, replies), mean_spread(directions)
    variance = rho * ((directions - 1) / directions - c * c) + (1 - rho) / directions
    return math.sqrt(rho) * c, math.sqrt(max(0.0, variance))


def step_snr(icc: float, directions: int, replies: int) -> float:
    """Signal-to-noise of a step: mean of the gain over its standard deviation."""
    mean, deviation = step_gain(icc, directions, replies)
    return mean / deviation


def directions_needed(icc: float, replies: int, target: float) -> int | None:
    """The fewest directions whose step reaches the signal-to-noise; None: more than `MOST_DIRECTIONS`."""
    if icc <= 0 or step_snr(icc, MOST_DIRECTIONS, replies) < target:
        return None
    low, high = 1, MOST_DIRECTIONS  # the quotient grows with G
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if step_snr(icc, middle, replies) >= target else (middle, high)
    return high


@dataclass(frozen=True)
class Advice:
    """Settings for a step, and what is expected of it; rewards in the units of the reward rule.

    Attributes
    ----------
    sigma, alpha : float
        In units of the weights.
    directions, replies : int
        G and K; a step costs G x K replies.
    snr : float
        Signal-to-noise of the step; `uphill` is the chance that its gain is positive (normal law).
    gain, deviation : float
        Expected first-order gain in reward of one step, an upper bound, and the spread of it over steps.
    gain_low, gain_high : float
        The gain at the ends of the interval of the intraclass correlation, total variance as measured.
    loss : float
        What the random part of the step is expected to cost: the drop of the mean reward at sigma (and one standard
        error), scaled by the squared length of that part.
    steps : int
        Steps that the budget holds at most; over them the random parts walk sigma at most.
    alpha_from : str
        What set alpha: "loss" or "walk".
    """

    sigma: float
    alpha: float
    directions: int
    replies: int
    snr: float
    uphill: float
    gain: float
    deviation: float
    gain_low: float
    gain_high: float
    loss: float
    steps: int
    alpha_from: str


def advise(
    *, sigma: float, icc: float, interval: tuple[float, float], variance: float, drop: float, directions: int,
    replies: int, budget: int, shaping: str = "zscore",
) -> Advice:  # fmt: skip
    """The step size for G x K, and what the step is worth.

    The random part of a step is noise of radius alpha / sqrt(G) per weight. If noise of radius sigma lowers the mean
    reward by `drop`, a smooth reward loses drop (alpha / (sigma sqrt G))^2, so that gain a alpha - loss b alpha^2 is
    largest at alpha = a / 2 b. It is also kept so small that the random parts of all steps together walk no further
    than sigma, where the reward was measured.

    Parameters
    ----------
    sigma : the radius that was measured
    icc, interval : intraclass correlation of the rewards and its interval
    variance : of single rewards, s_b^2 + s_w^2
    drop : how much noise of this radius is taken to lower the mean reward, >= 0
    directions, replies, budget : G, K, and replies to spend in all
    shaping : `zscore`, or `ranks`, whose weights are shorter
    """
    unit = 1.0 if shaping == "zscore" else RANK_SPREAD
    mean, deviation = step_gain(icc, directions, replies)
    slope = unit / sigma * math.sqrt(icc * variance)
    steps = max(1, budget // (directions * replies))
    walk = sigma * math.sqrt(directions / steps) / unit
    curvature = drop * unit**2 / (directions * sigma**2)
    best = slope * mean / (2 * curvature) if curvature > 0 else math.inf
    alpha = _two_digits(min(best, walk))
    ends = [
        alpha * unit / sigma * math.sqrt(end * variance) * step_gain(end, directions, replies)[0] for end in interval
    ]
    snr = mean / deviation
    return Advice(
        sigma=sigma, alpha=alpha, directions=directions, replies=replies, snr=snr,
        uphill=0.5 * math.erfc(-snr / math.sqrt(2)), gain=alpha * slope * mean, deviation=alpha * slope * deviation,
        gain_low=ends[0], gain_high=ends[1], loss=curvature * alpha**2, steps=steps,
        alpha_from="loss" if best < walk else "walk",
    )  # fmt: skip


def _two_digits(value: float) -> float:
    """Rounded down to two significant digits."""
    scale = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.floor(value / scale + 1e-9) * scale:.1e}")
