"""Seed heuristics and the baseline of bpp_aco.

The seeds are short and carry explicit constants: small models change a constant far more readily than a structure.
Their train objectives are in the tests.
"""

from __future__ import annotations

from ttc_esopt.problems.base import Seed

LARGE_WITH_LARGE = """import numpy as np

def heuristics_v2(demand, capacity):
    return np.tile(demand / demand.max(), (len(demand), 1))
"""

SEEDS = (
    Seed(
        "Prefer pairs of items that together fill a bin.",
        """import numpy as np

def heuristics_v2(demand, capacity):
    gap = np.abs(capacity - demand[:, None] - demand[None, :])
    return 1.0 / (1.0 + 0.5 * gap)
""",
    ),
    Seed(
        "Prefer large items, but pay for a gap that is too small for any other item.",
        """import numpy as np

def heuristics_v2(demand, capacity):
    room = capacity - demand[:, None] - demand[None, :]
    waste = np.where(room < 20, room, 0)
    return np.maximum(demand[None, :] - 0.5 * waste, 0.01)
""",
    ),
    Seed(
        "Prefer pairs that fill a bin and, less so, pairs that leave room for a third item of medium size.",
        """import numpy as np

def heuristics_v2(demand, capacity):
    room = (capacity - demand[:, None] - demand[None, :]) / capacity
    third = np.abs(room - 0.4)
    return np.exp(-8.0 * np.abs(room)) + 0.2 * np.exp(-8.0 * third)
""",
    ),
    Seed(
        "Prefer pairs that leave either hardly any room or a lot of it.",
        """import numpy as np

def heuristics_v2(demand, capacity):
    room = (capacity - demand[:, None] - demand[None, :]) / capacity
    return np.where(room < 0, 0.0, 1.0 - 2.0 * room * (0.6 - room))
""",
    ),
)
