"""What the history alone says of the updates: how large they were expected to be, and what they rested on.

An update is sum_i c_i eps(seed_i) with independent noise of unit variance, so its mean square over the weights is
expected to be sum_i c_i^2, and mean squares of different steps add up. No model is needed for this. The figures are
expectations: a tensor of P weights with full noise deviates from them by about 1 / sqrt(P).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from ttc_esopt.es.optimizer import coefficients
from ttc_esopt.rundata import all_numbers, as_number


@dataclass(frozen=True)
class Update:
    """One line of the history; what is missing or odd there is None or empty here.

    Attributes
    ----------
    t : float
        Number of the step.
    operator : str
        Whose batch it was.
    sigma, alpha : float or None
        Radius and step size.
    rewards : list of float
        One per reply.
    spread : float or None
        Population standard deviation of the rewards between directions.
    largest : float or None
        max |z|.
    effective : float or None
        (sum z^2)^2 / sum z^4: how many directions carry the update, 1 .. G; None where all z are 0.
    rms : float
        Expected root mean square of the update over the perturbed weights, sqrt(sum c_i^2); 0 where not taken.
    distance : float
        Expected root mean square distance from the weights the run began with, after this step.
    back_to : float or None
        The step after which the weights were taken up again, where that is not the previous one (a rollback).
    taken : bool
        Whether the weights moved.
    skipped : str or None
        Why not.
    """

    t: float
    operator: str
    sigma: float | None
    alpha: float | None
    rewards: list[float]
    spread: float | None
    largest: float | None
    effective: float | None
    rms: float
    distance: float
    back_to: float | None
    taken: bool
    skipped: str | None

    @property
    def ratio(self) -> float | None:
        """Expected RMS of the update in units of sigma."""
        return self.rms / self.sigma if self.sigma else None


def updates(steps: Sequence[dict]) -> list[Update]:
    """The lines of history.jsonl, in order.

    A line with a whole number `from` took its step from the weights after step `from`; the distance then counts only
    the steps on the path that led there. A `from` of which no step is known means the weights that the run began with.
    """
    found: list[Update] = []
    after: dict[float, float] = {}  # t -> expected mean square distance
    here = 0.0
    for place, step in enumerate(steps):
        t = as_number(step.get("t"))
        t = float(place) if t is None else t
        start = as_number(step.get("from"))
        if start is not None:
            here = after.get(start, 0.0)
        weights, alpha, sigma = all_numbers(step.get("weights")), as_number(step.get("alpha")), _of(step, "sigma")
        taken = bool(step.get("taken"))
        square = _square(coefficients(alpha or 0.0, weights), step.get("seeds")) if taken and weights else 0.0
        here += square
        after[t] = here
        previous = found[-1].t if found else None
        rewards = step.get("rewards")
        means = [fmean(row) for item in (rewards if isinstance(rewards, list) else []) if (row := all_numbers([item]))]
        energy = [z * z for z in weights]
        skipped = step.get("skipped")
        found.append(
            Update(
                t, str(step.get("operator") or "–"), sigma, alpha, all_numbers(rewards),
                pstdev(means) if means else None, max(map(abs, weights), default=None),
                sum(energy) ** 2 / sum(e * e for e in energy) if any(e * e for e in energy) else None,
                math.sqrt(square), math.sqrt(here), start if start != previous else None,
                taken, str(skipped) if skipped else None,
            )
        )  # fmt: skip
    return found


def _of(step: dict, name: str) -> float | None:
    return as_number(step.get(name))


def _square(given: Sequence[float], seeds: object) -> float:
    """Expected mean square of the sum of c_i eps_i: directions are independent, but for a mirror, which takes off."""
    if not (isinstance(seeds, list) and len(seeds) == len(given) and all(isinstance(seed, int) for seed in seeds)):
        seeds = list(range(len(given)))
    net: dict[int, float] = {}
    for seed, c in zip(seeds, given, strict=True):
        one = max(seed, ~seed)
        net[one] = net.get(one, 0.0) + (c if seed >= 0 else -c)
    return math.fsum(c * c for c in net.values())
