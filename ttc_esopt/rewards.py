"""Rewards: what ES maximises, from what became of the candidates of one batch. Objectives are minimised.

`paper` renders the published rules (arXiv 2608.17310 and its code). They are in the objective's units, so where
objectives are large a valid but poor child can fall far below invalid code, whose floor is -1, and a copy of the
parent (reward 0) beats every honest attempt that is worse. `default` therefore uses order alone: every invalid reply
lies strictly below every valid one at any scale, and a valid reply whose objective is already known (a copy) lies
strictly below every new one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ttc_esopt.es.shaping import centred_ranks

INVALID, KNOWN, NEW_WORST, NEW_BEST = -1.0, 0.0, 0.5, 1.0


@dataclass(frozen=True)
class Scored:
    """One candidate as the reward rules see it.

    Attributes
    ----------
    objective : float or None
        Minimised; None for an invalid candidate.
    parent : float or None
        Objective of the (best) parent; None without parents.
    known : bool
        The objective equals that of a candidate before this batch, to 5 decimals.
    """

    objective: float | None
    parent: float | None = None
    known: bool = False


def default_rewards(batch: Sequence[Scored]) -> list[float]:
    """Rewards by order: invalid -1, known objective 0, new ones 0.5 (worst) to 1 (best), ties averaged.

    New candidates are ordered by their improvement on the parent (parent - child), or by the objective where there is
    no parent. One new candidate alone gets 1 if it improves on its parent or has none, else 0.5.
    """
    new = [i for i, c in enumerate(batch) if c.objective is not None and not c.known]
    gains = [(batch[i].parent if batch[i].parent is not None else 0.0) - batch[i].objective for i in new]
    rewards = [INVALID if c.objective is None else KNOWN for c in batch]
    if len(new) == 1:
        alone = batch[new[0]]
        rewards[new[0]] = NEW_BEST if alone.parent is None or gains[0] > 0 else NEW_WORST
    elif new:
        for i, rank in zip(new, centred_ranks(gains), strict=True):  # -0.5 to 0.5, all 0 if all are equal
            rewards[i] = NEW_WORST + (NEW_BEST - NEW_WORST) * (float(rank) + 0.5)
    return rewards


def paper_mutation_rewards(batch: Sequence[Scored], worst: float) -> list[float]:
    """Published rule of EoH with ES: parent - child if valid and no worse than `worst`, else max(parent - worst, -1).

    `worst` is the worst finite objective of the population before the operator.
    """
    rewards = []
    for c in batch:
        parent = c.parent if c.parent is not None else worst
        if c.objective is not None and c.objective <= worst:
            rewards.append(parent - c.objective)
        else:
            rewards.append(max(parent - worst, -1.0))
    return rewards


def paper_sample_rewards(batch: Sequence[Scored]) -> list[float]:
    """Published rule of independent sampling with ES: -objective; invalid ones get min - std of the valid.

    When that spread is at most 1e-8 it is replaced by max(0.01 * |mean|, 1). A batch without a valid one is all zero.
    """
    valid = [-c.objective for c in batch if c.objective is not None]
    if not valid:
        return [0.0] * len(batch)
    spread = statistics.pstdev(valid)
    if spread <= 1e-8:
        spread = max(0.01 * abs(math.fsum(valid) / len(valid)), 1.0)
    floor = min(valid) - spread
    return [floor if c.objective is None else -c.objective for c in batch]


def rewards(rule: str, batch: Sequence[Scored], worst: float | None) -> list[float]:
    """Rewards of one batch under a rule, `default` or `paper`; `worst` is None where nobody has a parent."""
    if rule == "default":
        return default_rewards(batch)
    return paper_sample_rewards(batch) if worst is None else paper_mutation_rewards(batch, worst)
