"""Seed heuristics and the nearest-neighbour baseline of tsp_construct.

The seeds are short and carry explicit constants: small models change a constant far more readily than a structure.
Their train objectives are in the tests.
"""

from __future__ import annotations

from ttc_esopt.problems.base import Seed

NEAREST_NEIGHBOUR = """import numpy as np

def select_next_node(current_node, destination_node, unvisited_nodes, distance_matrix):
    return unvisited_nodes[np.argmin(distance_matrix[current_node][unvisited_nodes])]
"""

SEEDS = (
    Seed(
        "Prefer nodes that are near, far from the destination and far from the other nodes on average.",
        """import numpy as np

def select_next_node(current_node, destination_node, unvisited_nodes, distance_matrix):
    near = distance_matrix[current_node][unvisited_nodes]
    home = distance_matrix[destination_node][unvisited_nodes]
    mean = distance_matrix[unvisited_nodes].mean(axis=1)
    score = near - 0.2 * home - 0.1 * mean
    return unvisited_nodes[np.argmin(score)]
""",
    ),
    Seed(
        "Take a near node sooner if its own nearest unvisited neighbour is far away.",
        """import numpy as np

def select_next_node(current_node, destination_node, unvisited_nodes, distance_matrix):
    near = distance_matrix[current_node][unvisited_nodes]
    between = distance_matrix[np.ix_(unvisited_nodes, unvisited_nodes)] + 10.0 * np.eye(len(unvisited_nodes))
    score = near - 0.3 * between.min(axis=1)
    return unvisited_nodes[np.argmin(score)]
""",
    ),
    Seed(
        "Visit isolated nodes early by subtracting a fraction of the mean distance to the unvisited nodes.",
        """import numpy as np

def select_next_node(current_node, destination_node, unvisited_nodes, distance_matrix):
    near = distance_matrix[current_node][unvisited_nodes]
    spread = distance_matrix[np.ix_(unvisited_nodes, unvisited_nodes)].mean(axis=1)
    score = near - 0.1 * spread
    return unvisited_nodes[np.argmin(score)]
""",
    ),
    Seed(
        "Among the few nearest nodes take the one farthest from the destination for its distance.",
        """import numpy as np

def select_next_node(current_node, destination_node, unvisited_nodes, distance_matrix):
    nearest = unvisited_nodes[:4]
    near = distance_matrix[current_node][nearest]
    home = distance_matrix[destination_node][nearest]
    score = near / (home + 1.5)
    return nearest[np.argmin(score)]
""",
    ),
)
