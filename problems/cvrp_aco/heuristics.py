"""Seed heuristics and the plain inverse-distance baseline of cvrp_aco.

The seeds are short and carry explicit constants: small models change a constant far more readily than a structure.
Their train objectives are in the tests.
"""

from __future__ import annotations

from ttc_esopt.problems.base import Seed

INVERSE_DISTANCE = """import numpy as np

def heuristics_v2(distance_matrix, coordinates, demands, capacity):
    return 1.0 / distance_matrix
"""

SEEDS = (
    Seed(
        "Rate an edge by a power of its inverse length.",
        """import numpy as np

def heuristics_v2(distance_matrix, coordinates, demands, capacity):
    return 1.0 / (distance_matrix + 0.01) ** 2.0
""",
    ),
    Seed(
        "Rate an edge by its inverse length and prefer customers with a large demand.",
        """import numpy as np

def heuristics_v2(distance_matrix, coordinates, demands, capacity):
    share = demands[None, :] / capacity
    return (1.0 + 2.0 * share) / (distance_matrix + 0.01) ** 1.5
""",
    ),
    Seed(
        "Rate an edge by what it saves over two trips to the depot, relative to its length.",
        """import numpy as np

def heuristics_v2(distance_matrix, coordinates, demands, capacity):
    depot = distance_matrix[0]
    saving = depot[:, None] + depot[None, :] - distance_matrix
    return (0.1 + np.maximum(saving, 0.0)) / (distance_matrix + 0.01) ** 2.0
""",
    ),
    Seed(
        "Prefer short edges between customers that lie in the same direction from the depot.",
        """import numpy as np

def heuristics_v2(distance_matrix, coordinates, demands, capacity):
    offset = coordinates - coordinates[0]
    angle = np.arctan2(offset[:, 1], offset[:, 0])
    turn = 1.0 - np.cos(angle[:, None] - angle[None, :])
    return np.exp(-0.5 * turn) / (distance_matrix + 0.02) ** 2.0
""",
    ),
)
