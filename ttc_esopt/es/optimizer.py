"""The evolution-strategies optimizer, ask/tell: it decides directions and coefficients and never sees a weight.

    es = ESOptimizer(ESParams(sigma=6e-3, alpha=3e-3, directions=10, steps=50))
    while not es.done:
        directions = es.ask()                         # seeds: theta_i = theta + es.sigma * eps(seed_i)
        step = es.tell(directions, rewards)           # z = shaped rewards, coefficients c_i = alpha_t * z_i / G
        if step.taken:
            engine.step(step.seeds, step.coefficients)    # theta <- theta + sum_i c_i * eps(seed_i)

Directions are a pure function of (run seed, t, i): an optimizer made with `t=17` goes on as one that came there by
itself, and no generator state has to be saved. With `antithetic` they come as pairs (s, ~s): ~s is the mirror of s,
whose noise is exactly the negative. alpha_t = alpha * (sigma_t / sigma_0) under alpha schedule `sigma`:
when the radius falls, the estimate of the gradient gets noisier and the step shrinks with it.

Arms are the experiment's controls, equal in everything else: `esopt` learns; `shuffled` takes the same steps with the
rewards of a batch dealt to the wrong directions; `noise` perturbs and takes no step; `frozen` does not perturb either.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ttc_esopt.errors import ConfigurationError
from ttc_esopt.es.noise import mix, name_hash
from ttc_esopt.es.schedule import SigmaSchedule
from ttc_esopt.es.shaping import SHAPINGS, checked, mean

ARMS = ("frozen", "noise", "shuffled", "esopt")
ALPHA_SCHEDULES = ("sigma", "constant")
_GOLDEN = 0x9E3779B97F4A7C15
_HALF = 26  # bits of t and of i in a direction seed
_LIMIT = 1 << _HALF


@dataclass(frozen=True, kw_only=True)
class ESParams:
    """Settings of one run's evolution strategy.

    Parameters
    ----------
    sigma : radius of the first step, in units of the weights, >= 0
    sigma_end : radius of the last step; None means `sigma` for a constant schedule, else 0
    sigma_schedule : `cosine`, `linear` or `constant`
    alpha : learning rate, >= 0 (no division by sigma anywhere)
    alpha_schedule : `sigma` (alpha falls with sigma, no step at sigma = 0) or `constant` (as published)
    directions : G, the size of a whole batch, >= 1
    replies_per_direction : K, the replies whose mean is the reward of a direction, >= 1
    steps : T, >= 1
    shaping : `zscore` or `ranks`
    antithetic : whether directions come in mirrored pairs; G is even then
    arm : `frozen`, `noise`, `shuffled` or `esopt`
    seed : the run's seed, 0 <= seed < 2^64

    Raises
    ------
    ConfigurationError
        If a value is out of range; the message names the option.
    """

    sigma: float
    alpha: float
    directions: int
    steps: int
    sigma_end: float | None = None
    sigma_schedule: str = "cosine"
    alpha_schedule: str = "sigma"
    replies_per_direction: int = 1
    shaping: str = "zscore"
    arm: str = "esopt"
    seed: int = 0
    antithetic: bool = False

    def __post_init__(self):
        if self.sigma_end is None:
            object.__setattr__(self, "sigma_end", self.sigma if self.sigma_schedule == "constant" else 0.0)
        if not (math.isfinite(self.alpha) and self.alpha >= 0):
            raise ConfigurationError(f"Expected alpha >= 0, got {self.alpha} (--alpha).")
        _expect_choice("alpha schedule", self.alpha_schedule, ALPHA_SCHEDULES, "--alpha-schedule")
        _expect_choice("shaping", self.shaping, SHAPINGS, "--shaping")
        _expect_choice("arm", self.arm, ARMS, "--arm")
        _expect_integer("directions", self.directions, 1, _LIMIT, "--directions")
        _expect_integer("replies per direction", self.replies_per_direction, 1, _LIMIT, "--replies-per-direction")
        _expect_integer("ES steps", self.steps, 1, _LIMIT, "--budget, --directions")
        _expect_integer("seed", self.seed, 0, 1 << 64, "--seed")
        if self.antithetic and self.directions % 2:
            raise ConfigurationError(
                f"Expected an even number of directions for mirrored pairs, got {self.directions} "
                "(--directions, --antithetic)."
            )
        self.schedule()

    def schedule(self) -> SigmaSchedule:
        """The sigma schedule; it checks the sigmas itself."""
        return SigmaSchedule(self.sigma_schedule, self.sigma, self.sigma_end, self.steps)


@dataclass(frozen=True)
class Step:
    """What one `tell` decided, and all that is needed to repeat it.

    Attributes
    ----------
    t : number of the step, from 0
    sigma, alpha : their values at this step (alpha is 0 in the arms that take no steps)
    seeds : the directions, in order; a mirror of seed s is ~s = -s - 1
    rewards : as told: one float per direction, or a tuple of K floats
    weights : z, float64, one per direction (arm `shuffled`: after shuffling)
    coefficients : c_i = alpha * z_i / G, float64 rounded to float32; zeros if the step is not taken
    taken : whether the weights of the model move
    skipped : why not, or None
    """

    t: int
    sigma: float
    alpha: float
    seeds: tuple[int, ...]
    rewards: tuple[float, ...] | tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]
    coefficients: tuple[float, ...]
    taken: bool
    skipped: str | None


class ESOptimizer:
    """Ask for directions, tell their rewards.

    Parameters
    ----------
    params : the settings
    t : the step to begin with, 0 <= t <= steps (resume: the number of steps in the history)
    """

    def __init__(self, params: ESParams, t: int = 0):
        if not 0 <= t <= params.steps:
            raise ValueError(f"Expected a step in 0 .. {params.steps}, got {t}.")
        self.params = params
        self.t = t
        self._schedule = params.schedule()

    @property
    def done(self) -> bool:
        """Whether all steps have been told."""
        return self.t >= self.params.steps

    @property
    def sigma(self) -> float:
        """The radius of the current step (after the last one: of the last); 0 in arm `frozen`."""
        if self.params.arm == "frozen":
            return 0.0
        return self._schedule.at(min(self.t, self.params.steps - 1))

    @property
    def alpha(self) -> float:
        """The learning rate of the current step (after the last one: of the last); 0 in arms `frozen` and `noise`."""
        if self.params.arm in ("frozen", "noise"):
            return 0.0
        if self.params.alpha_schedule == "constant":
            return self.params.alpha
        return self.params.alpha * (self.sigma / self.params.sigma) if self.params.sigma else 0.0

    def ask(self, n: int | None = None) -> tuple[int, ...]:
        """The directions of the current step: all, or the first `n` for a smaller batch.

        Asking again gives the same. Seeds of a run are distinct and below 2^52, so that every JSON reader keeps them
        exact. Mirrored pairs follow one another: s, ~s, s', ~s' ...; the last of an odd number is without its mirror.

        Raises
        ------
        ConfigurationError
            If all steps have been taken.
        ValueError
            Unless 1 <= n <= directions.
        """
        if self.done:
            raise ConfigurationError(
                f"Expected at most {self.params.steps} ES steps, got a request for one more (--budget, --directions)."
            )
        n = self.params.directions if n is None else n
        if not 1 <= n <= self.params.directions:
            raise ValueError(f"Expected 1 .. {self.params.directions} directions, got {n}.")
        seed = self.params.seed
        if not self.params.antithetic:
            return tuple(direction_seed(seed, self.t, i) for i in range(n))
        pairs = (direction_seed(seed, self.t, i // 2) for i in range(n))
        return tuple(~one if i % 2 else one for i, one in enumerate(pairs))

    def tell(self, directions: Sequence[int], rewards: ArrayLike, names: Sequence[str] | None = None) -> Step:
        """Turn the rewards of the current step's directions into a `Step`, and go on to the next step.

        Parameters
        ----------
        directions : n seeds that `ask` gave (all or some, each once)
        rewards : shape (n,), or (n, K) with one reward per reply; larger is better
        names : one name per reward (row by row), for messages

        Raises
        ------
        RewardError
            If a reward is NaN or infinite. The step is then not advanced.
        ValueError
            If shapes do not match or a direction is not one of this step.
        """
        seeds = tuple(int(seed) for seed in directions)
        known = set(self.ask())
        if not seeds or len(set(seeds)) != len(seeds) or not known.issuperset(seeds):
            raise ValueError(f"Expected directions that ask() gave for step {self.t}, each once, got {seeds}.")
        raw, means = self._mean_rewards(len(seeds), rewards, names)
        if self.params.arm == "shuffled":
            means = [means[i] for i in shuffled(self.params.seed, self.t, len(means))]
        weights = tuple(SHAPINGS[self.params.shaping](means).tolist())
        skipped = self._reason_to_skip(means)
        alpha = 0.0 if skipped else self.alpha
        step = Step(
            self.t, self.sigma, self.alpha, seeds, raw, weights, coefficients(alpha, weights), skipped is None, skipped
        )  # fmt: skip
        self.t += 1
        return step

    def _mean_rewards(self, n: int, rewards: ArrayLike, names: Sequence[str] | None) -> tuple[tuple, list[float]]:
        """The rewards as plain values, and their means over the replies of each direction."""
        values = np.asarray(rewards, np.float64)
        replies = self.params.replies_per_direction
        if values.shape not in ((n,), (n, replies)):
            raise ValueError(f"Expected rewards of shape ({n},) or ({n}, {replies}), got {values.shape}.")
        if values.ndim == 1:
            raw = tuple(checked(values, names).tolist())
            return raw, list(raw)
        if names is None:
            names = [f"direction {i}, reply {k}" for i in range(n) for k in range(replies)]
        checked(values.reshape(-1), names)
        raw = tuple(tuple(row) for row in values.tolist())
        return raw, [mean(row) for row in raw]

    def _reason_to_skip(self, rewards: Sequence[float]) -> str | None:
        if self.params.arm in ("frozen", "noise"):
            return f"arm {self.params.arm}"
        if len(rewards) < 2:
            return "fewer than 2 directions"
        if self.sigma == 0 and self.params.alpha_schedule == "sigma":
            return "sigma is 0"  # all directions were the same model: their rewards differ by chance alone
        if min(rewards) == max(rewards):
            return "all rewards equal"
        return None


def coefficients(alpha: float, weights: Sequence[float]) -> tuple[float, ...]:
    """c_i = alpha * z_i / G, computed in float64 and rounded to float32."""
    return tuple(float(np.float32(alpha * z / len(weights))) for z in weights)


def direction_seed(seed: int, t: int, i: int) -> int:
    """The seed of direction i of step t: a keyed permutation (four Feistel rounds) of the 52-bit integers t * 2^26 + i.

    A permutation, so that no two directions of a run can be equal.
    """
    key = mix(seed ^ name_hash("direction"))
    left, right = t, i
    for k in range(4):
        left, right = right, left ^ mix(key + ((k << _HALF | right) + 1) * _GOLDEN) & (_LIMIT - 1)
    return left << _HALF | right


def shuffled(seed: int, t: int, n: int) -> list[int]:
    """The permutation of 0 .. n - 1 by which arm `shuffled` deals the rewards of step t."""
    key = mix(mix(seed ^ name_hash("shuffle")) + t)
    return sorted(range(n), key=lambda i: mix(key + (i + 1) * _GOLDEN))


def _expect_integer(what: str, value: int, low: int, limit: int, option: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ConfigurationError(f"Expected {what} >= {low}, a whole number, got {value} ({option}).")
    if value >= limit:
        raise ConfigurationError(f"Expected {what} < {limit}, got {value} ({option}).")


def _expect_choice(what: str, value: str, choices: Sequence[str], option: str) -> None:
    if value not in choices:
        raise ConfigurationError(f"Expected {what} {', '.join(choices)}, got {value} ({option}).")
