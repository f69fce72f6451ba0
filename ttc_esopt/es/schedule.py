"""How the perturbation radius sigma falls over the steps of a run.

    cosine:    sigma_t = end + (start - end) * (1 + cos(pi t / (T - 1))) / 2
    linear:    sigma_t = start + (end - start) * t / (T - 1)
    constant:  sigma_t = start

for t = 0 .. T - 1, in float64. Both ends are exact, not just close: t = 0 gives `start` and t = T - 1 gives `end`, bit
for bit. With T = 1 the only step uses `start`.
"""

import math
from dataclasses import dataclass

from ttc_esopt.errors import ConfigurationError

KINDS = ("cosine", "linear", "constant")


@dataclass(frozen=True)
class SigmaSchedule:
    """Sigma at every step.

    Parameters
    ----------
    kind : one of `KINDS`
    start, end : sigma of the first and of the last step, >= 0, in units of the weights
    steps : T, the number of steps, >= 1

    Raises
    ------
    ConfigurationError
        If a value is out of range, or `constant` is given two different ends.
    """

    kind: str
    start: float
    end: float
    steps: int

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ConfigurationError(f"Expected {', '.join(KINDS)}, got {self.kind} (--sigma-schedule).")
        for value in (self.start, self.end):
            if not (math.isfinite(value) and value >= 0):
                raise ConfigurationError(f"Expected sigma >= 0, got {value} (--sigma).")
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 1:
            raise ConfigurationError(f"Expected at least 1 ES step, got {self.steps} (--budget, --directions).")
        if self.kind == "constant" and self.start != self.end:
            raise ConfigurationError(
                f"Expected one sigma for a constant schedule, got {self.start}:{self.end} (--sigma, --sigma-schedule)."
            )

    def at(self, t: int) -> float:
        """Sigma of step t; raises ValueError unless 0 <= t < steps."""
        if not 0 <= t < self.steps:
            raise ValueError(f"Expected a step in 0 .. {self.steps - 1}, got {t}.")
        if t == 0 or self.kind == "constant":
            return self.start
        if t == self.steps - 1:  # the formulas would miss `end` by a rounding error
            return self.end
        fraction = t / (self.steps - 1)
        if self.kind == "linear":
            return self.start + (self.end - self.start) * fraction
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * fraction)) / 2
