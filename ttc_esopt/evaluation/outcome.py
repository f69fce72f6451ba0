"""What became of one program."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Outcome:
    """What became of one program.

    Attributes
    ----------
    valid : whether it has an objective
    objective : minimised (negated mean score for maximisation problems); None if invalid
    failure : one of reply, syntax, name, exception, timeout, memory, crash, output, forbidden, infeasible, nonfinite,
        shape; None if valid
    detail : one line about the failure
    seconds : wall time of the program's processes and of scoring
    true_objective : without the published protocol's distortions, where it has some; else equal to `objective`
    scores : score of each instance (None where it failed: only if lenient); empty if invalid
    compiled : whether the program was compiled; what its own process says
    compile_seconds : spent on that, part of `seconds`
    alarm : whether a score was impossible (detail says which), a sign of fraud or of a wrong bound
    """

    valid: bool
    objective: float | None
    failure: str | None
    detail: str
    seconds: float
    true_objective: float | None = None
    scores: tuple[float | None, ...] = field(default=(), repr=False)
    compiled: bool = False
    compile_seconds: float = 0.0
    alarm: bool = False
