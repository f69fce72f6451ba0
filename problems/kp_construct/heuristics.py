"""Seed heuristics and the best-ratio baseline of kp_construct.

The seeds are short and carry explicit constants: small models change a constant far more readily than a structure.
Their train objectives are in the tests.
"""

from __future__ import annotations

from ttc_esopt.problems.base import Seed

BEST_RATIO = """import numpy as np

def select_next_item(remaining_capacity, weights, values):
    ratio = np.where(weights <= remaining_capacity, values / weights, -1.0)
    return int(np.argmax(ratio))
"""

SEEDS = (
    Seed(
        "Prefer items that are worth much, less so if they are heavy.",
        """import numpy as np

def select_next_item(remaining_capacity, weights, values):
    score = values - 0.8 * weights
    score[weights > remaining_capacity] = -np.inf
    return int(np.argmax(score))
""",
    ),
    Seed(
        "Take the item with the best value for its weight after adding a constant to the weight.",
        """import numpy as np

def select_next_item(remaining_capacity, weights, values):
    score = values / (weights + 0.15)
    score[weights > remaining_capacity] = -np.inf
    return int(np.argmax(score))
""",
    ),
    Seed(
        "Weigh value against a power of the weight.",
        """import numpy as np

def select_next_item(remaining_capacity, weights, values):
    score = values / weights ** 0.7
    score[weights > remaining_capacity] = -np.inf
    return int(np.argmax(score))
""",
    ),
    Seed(
        "Take the best value for its weight, and near the end rather an item that fills what is left.",
        """import numpy as np

def select_next_item(remaining_capacity, weights, values):
    score = values / weights
    if remaining_capacity < 2.0:
        score = values - 0.5 * (remaining_capacity - weights)
    score[weights > remaining_capacity] = -np.inf
    return int(np.argmax(score))
""",
    ),
)
