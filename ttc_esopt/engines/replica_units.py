"""Work units: parts of a call that are written as a whole, whoever writes them.

The last bits of a logit depend on which rows share its batch. If what is written together depended on the number of
replicas, a run could not be resumed with another number to the same bytes. So the parts are a function of the requests
and of one number alone, `work_unit`, which belongs to the arithmetic of a run as its seeds do, and is kept with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ttc_esopt.engines.base import Engine, Reply, Request, Sampling, expect
from ttc_esopt.es.noise import NoiseKind

UNDIRECTED = 4  # at least so many requests without a direction go together: alone they would waste the device


def default_work_unit(noise: NoiseKind) -> int:
    """Directions of a unit where nobody says: 1 for full noise, which writes them one by one anyway, else 4."""
    return 1 if noise.kind == "full" else 4


def units(requests: Sequence[Request], work_unit: int) -> list[list[int]]:
    """Places of the requests of each unit, in the order of the requests.

    Requests of one direction and radius stay together; a unit holds `work_unit` directions. Requests without a
    direction count as one direction each, and at least `UNDIRECTED` go together.

    Parameters
    ----------
    requests : of one call
    work_unit : >= 1
    """
    expect(work_unit >= 1, "work_unit >= 1", work_unit, "--work-unit")
    slots: dict[tuple[int, float], list[int]] = {}
    plain: list[int] = []
    for i, request in enumerate(requests):
        if request.direction is None:
            plain.append(i)
        else:
            slots.setdefault((request.direction, request.sigma), []).append(i)
    size, groups = max(work_unit, UNDIRECTED), list(slots.values())
    found = [plain[start : start + size] for start in range(0, len(plain), size)]
    for start in range(0, len(groups), work_unit):
        found.append([i for group in groups[start : start + work_unit] for i in group])
    return found


def texts(requests: Sequence[Request], replies: Sequence[str]) -> list[list[int]]:
    """Places of the requests that an engine measures along one and the same text."""
    groups: dict[tuple, list[int]] = {}
    for i, (request, reply) in enumerate(zip(requests, replies, strict=True)):
        prompt = tuple((message["role"], message["content"]) for message in request.messages)
        groups.setdefault((prompt, request.prefill, reply), []).append(i)
    return list(groups.values())


class InUnits:
    """An engine in this process that writes in the units that replicas would write in; all else is the engine's own.

    Parameters
    ----------
    engine : does the work
    work_unit : see `units`
    """

    def __init__(self, engine: Engine, work_unit: int) -> None:
        self._engine, self.work_unit = engine, work_unit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, progress: Callable[[int], None] | None = None
    ) -> list[Reply]:
        """See `Engine.generate`."""
        found: dict[int, Reply] = {}
        for part in units(requests, self.work_unit):
            found |= zip(part, self._engine.generate([requests[i] for i in part], sampling, progress), strict=True)
        return [found[i] for i in range(len(requests))]

    def describe(self) -> dict:
        """See `Engine.describe`."""
        return {**self._engine.describe(), "work_unit": self.work_unit}
