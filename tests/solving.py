"""What the tests of `solve` share: a stand-in for the model, a small search, instance files."""

import stand_in
from benchmark_files import written

from ttc_esopt.solve import solve

ANTS = """```python
import numpy as np
def heuristics_v2(distance_matrix):
    return 1.0 / (distance_matrix + 0.01) ** (1 + {a:.3f})
```"""
FAR = ["0 0", "3 0", "3 4"]


class Calls:
    """Engines that are made, and what they are asked."""

    def __init__(self):
        self.engines = []

    def __call__(self, folder, model=None):
        self.engines.append(stand_in.StandInEngine())
        return self.engines[-1]


def stand_in_engines(monkeypatch):
    """Let runs open stand-ins that write ant heuristics; the `Calls`."""
    calls = Calls()
    monkeypatch.setattr("ttc_esopt.runner.open_engine", calls)
    monkeypatch.setattr("stand_in.PROGRAM", ANTS)
    return calls


def go(file, **given):
    """A search among the seeds and four replies."""
    return solve(file, **{"budget": 8, "strong_seconds": 0, "report": False, "say": lambda _: None, **given})


def gap(solved, name):
    return next(one for one in solved.gaps if name in one.name)


def tsp_file(folder, points, metric="EUC_2D", name="t.tsp"):
    rows = "\n".join(f"{k} {point}" for k, point in enumerate(points, 1))
    head = f"NAME: t\nTYPE: TSP\nDIMENSION: {len(points)}\nEDGE_WEIGHT_TYPE: {metric}\n"
    return written(folder, name, f"{head}NODE_COORD_SECTION\n{rows}\nEOF\n")


def vrp_file(folder, points, demands, capacity=10):
    rows = "".join(f"{k} {point}\n" for k, point in enumerate(points, 1))
    loads = "".join(f"{k} {demand}\n" for k, demand in enumerate(demands, 1))
    head = f"NAME: v\nTYPE: CVRP\nDIMENSION: {len(points)}\nEDGE_WEIGHT_TYPE: EUC_2D\nCAPACITY: {capacity}\n"
    tail = f"NODE_COORD_SECTION\n{rows}DEMAND_SECTION\n{loads}DEPOT_SECTION\n1\n-1\nEOF\n"
    return written(folder, "v.vrp", head + tail)
