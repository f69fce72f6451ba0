"""Seed heuristics and the plain inverse-distance baseline of tsp_aco.

The seeds are short and carry explicit constants: small models change a constant far more readily than a structure.
Their train objectives are in the tests.
"""

from __future__ import annotations

from ttc_esopt.problems.base import Seed

INVERSE_DISTANCE = """import numpy as np

def heuristics_v2(distance_matrix):
    return 1.0 / distance_matrix
"""

SEEDS = (
    Seed(
        "Rate an edge by a power of its inverse length.",
        """import numpy as np

def heuristics_v2(distance_matrix):
    return 1.0 / (distance_matrix + 0.01) ** 1.5
""",
    ),
    Seed(
        "Let ratings fall exponentially with an edge's length relative to the mean length at its node.",
        """import numpy as np

def heuristics_v2(distance_matrix):
    mean = distance_matrix.mean(axis=1, keepdims=True)
    return np.exp(-5.0 * distance_matrix / mean)
""",
    ),
    Seed(
        "Rate an edge by its inverse length and weaken all but the few shortest ones at each node.",
        """import numpy as np

def heuristics_v2(distance_matrix):
    cut = np.sort(distance_matrix, axis=1)[:, 15:16]
    near = 1.0 / (distance_matrix + 0.01)
    return np.where(distance_matrix <= cut, near, 0.1 * near)
""",
    ),
    Seed(
        "Compare an edge's length with the mean lengths at both of its nodes.",
        """import numpy as np

def heuristics_v2(distance_matrix):
    mean = distance_matrix.mean(axis=1)
    scale = 0.5 * (mean[:, None] + mean[None, :])
    return (scale / (distance_matrix + 0.02)) ** 2.0
""",
    ),
)
