"""What a probe measures: sigmas, directions and replies on one prompt, and what that costs at most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from ttc_esopt import scaffolds
from ttc_esopt.errors import ConfigurationError
from ttc_esopt.instances import own_sets, problem_of
from ttc_esopt.probe import NOT_HERE
from ttc_esopt.runner import settings_of
from ttc_esopt.scaffolds.base import Call, Draft, Individual, distinct_best
from ttc_esopt.scaffolds.eoh import PARENTS
from ttc_esopt.settings import Settings
from ttc_esopt.statistics import detectable_icc

LADDER = (0.25, 0.5, 1.0, 2.0, 4.0)  # times the model's own sigma
DIVERGENCE_REPLIES = 2  # replies of the unperturbed model along which KL is measured

@dataclass(frozen=True)
class Plan:
    """What is measured; `settings` holds directions and replies per direction, `sigmas` begin with 0 and ascend."""

    settings: Settings
    sigmas: tuple[float, ...]
    operator: str

    @property
    def per_sigma(self) -> int:
        """Replies of one sigma."""
        return self.settings.directions * self.settings.replies_per_direction

    @property
    def total(self) -> int:
        """Replies in all."""
        return self.per_sigma * len(self.sigmas)


def planned(
    *, sigmas: str | Sequence[float] | None = None, directions: int = 10, replies: int = 10,
    operator: str | None = None, **given: Any,
) -> Plan:  # fmt: skip
    """The plan of a probe.

    Parameters
    ----------
    sigmas : the ladder, as numbers or as text with commas; 0 is always added. None: `LADDER` times the model's sigma
    directions, replies : per sigma and per direction, >= 2 each
    operator : i1, e1, e2, m1 or m2; None: m1 in scaffold eoh where the problem has a heuristic to begin with, else i1
    given : settings of a run; those in `NOT_HERE` have no effect

    Raises
    ------
    ConfigurationError, DataError
        As `ttc_esopt.runner.settings_of`; or a value of the probe's own is out of range.
    """
    for value, flag in ((directions, "--directions"), (replies, "--replies")):
        if value < 2:
            raise ConfigurationError(f"Expected at least 2, got {value} ({flag}): variances need two values.")
    if operator not in (None, *PARENTS):
        raise ConfigurationError(f"Expected an operator of {', '.join(PARENTS)}, got {operator} (--operator).")
    kept = {name: value for name, value in given.items() if name not in NOT_HERE or name in ("sigma", "sigma_end")}
    settings = settings_of({**kept, "directions": directions, "replies_per_direction": replies})
    problem = problem_of(settings)
    if operator is None:
        operator = "m1" if settings.scaffold == "eoh" and problem.seeds else "i1"
    if PARENTS[operator] > len(problem.seeds):
        raise ConfigurationError(
            f"Operator {operator} needs {PARENTS[operator]} heuristics to begin with, {problem.name} has "
            f"{len(problem.seeds)} (--operator i1)."
        )
    return Plan(settings, _ladder(sigmas, settings.sigma), operator)


def _ladder(sigmas: str | Sequence[float] | None, own: float) -> tuple[float, ...]:
    if sigmas is None:
        values = [float(f"{own * part:.6g}") for part in LADDER]
    else:
        try:
            parts = sigmas.split(",") if isinstance(sigmas, str) else sigmas
            values = [float(part) for part in parts]
        except (TypeError, ValueError):
            raise ConfigurationError(f"Expected numbers with commas between them, got {sigmas} (--sigmas).") from None
    for value in values:
        if not (math.isfinite(value) and value >= 0):
            raise ConfigurationError(f"Expected sigmas >= 0, got {value} (--sigmas).")
    found = tuple(sorted({0.0, *values}))
    if len(found) < 2:
        raise ConfigurationError("Expected a sigma above 0 (--sigmas).")
    return found


def request_of(plan: Plan, seeds: Sequence[Individual]) -> Draft:
    """The one prompt of the probe, with the best of the valid seed heuristics as parents.

    Raises
    ------
    ConfigurationError
        Too few of them are valid.
    """
    problem = problem_of(plan.settings)
    parents = distinct_best(seeds, PARENTS[plan.operator])
    if len(parents) < PARENTS[plan.operator]:
        raise ConfigurationError(
            f"Operator {plan.operator} needs {PARENTS[plan.operator]} different valid heuristics to begin with, got "
            f"{len(parents)} (--operator i1)."
        )
    scaffold = scaffolds.build(problem, plan.settings)
    return scaffold.drafts(Call(0, 1, plan.operator, 1), parents, Random(f"{plan.settings.seed}/probe"))[0]


def announcement(plan: Plan, out: Path) -> list[str]:
    """What is about to be spent, as lines."""
    s = plan.settings
    problem = problem_of(s)
    parent = " with the best seed heuristic as the parent" if PARENTS[plan.operator] == 1 else ""
    icc = detectable_icc(s.directions, s.replies_per_direction)
    lines = [
        f"probe of {s.model} on {s.problem}: one prompt of operator {plan.operator}{parent}, seed {s.seed}",
        f"sigmas: {', '.join(f'{sigma:g}' for sigma in plan.sigmas)} (0 is the control); noise {s.noise}, "
        f"rewards {s.reward}",
        f"at each sigma {s.directions} directions x {s.replies_per_direction} replies: enough to find an intraclass "
        f"correlation of {icc:.2f} in four of five probes",
    ]
    if own := own_sets(problem, s):
        lines.append(f"sets of our own stand in for published ones that are not at hand: {', '.join(own)} (--data)")
    passes = DIVERGENCE_REPLIES * s.directions * (len(plan.sigmas) - 1)
    return [
        *lines,
        f"at most {plan.total} replies, {plan.total * s.max_tokens} tokens, {plan.total + len(problem.seeds)} "
        f"evaluations; {passes} replies read again for KL",
        s.sampling_words(),
        f"results go to {out}",
    ]
