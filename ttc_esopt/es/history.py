"""The history of a run: one JSON object per ES step, append-only, on the disk before `append` returns.

It holds all that rebuilds the weights from the model that the run began with: the directions and their weights z,
alpha, and the kind and version of the noise; and what they came from: raw rewards and sigma. Torn lines and full
disks: see `ttc_esopt.jsonlines`. Keys are sorted, so that the same records are the same bytes.

A record normally adds to the weights after the record before it. After a rollback it has the key `from`: the number of
the step after whose weights it was measured and to which it adds (-1: the weights that the run began with).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ttc_esopt.errors import DataError
from ttc_esopt.es.noise import VERSION
from ttc_esopt.es.optimizer import Step
from ttc_esopt.jsonlines import JsonLines


class History(JsonLines):
    """`history.jsonl`."""

    def append(self, *records: dict) -> None:
        """Write records with sorted keys; raises as `JsonLines.append`."""
        super().append(*(dict(sorted(record.items())) for record in records))


def record_of(step: Step, *, generation: int, operator: str, orders: tuple[int, int], noise: str) -> dict[str, Any]:
    """One line of the history but for the fingerprint of the weights after the step.

    Parameters
    ----------
    step : what the optimizer decided
    generation, operator : the call whose batch it was
    orders : first and last line of the batch in samples.jsonl
    noise : kind of the noise, as `NoiseKind` prints it
    """
    return {
        "t": step.t, "generation": generation, "operator": operator, "orders": list(orders),
        "seeds": list(step.seeds), "rewards": step.rewards, "weights": step.weights, "sigma": step.sigma,
        "alpha": step.alpha, "taken": step.taken, "skipped": step.skipped, "noise": noise, "noise_version": VERSION,
    }  # fmt: skip


def path(records: Sequence[dict], last: int) -> list[int]:
    """Numbers of the steps that lead to the weights after step `last` (-1: none), in order; rollbacks are cut out.

    Raises DataError where a `from` does not lead back.
    """
    steps = []
    while last >= 0:
        steps.append(last)
        before = records[last].get("from", last - 1)
        if not isinstance(before, int) or not -1 <= before < last:
            raise DataError(f"Step {last} of the history: expected `from` in -1 .. {last - 1}, got {before!r}.")
        last = before
    return steps[::-1]
