"""Seed heuristics and the baseline of asp_construct.

The seeds are short and carry explicit constants: small models change a constant far more readily than a structure.
Their train objectives are in the tests.
"""

from __future__ import annotations

from ttc_esopt.problems.base import Seed

CONSTANT = """import numpy as np

def priority(el, n, w):
    return 0.0
"""

SEEDS = (
    Seed(
        "Prefer words in which many letters differ from the one before and some equal the third before.",
        """import numpy as np

def priority(el, n, w):
    score = 0.0
    for i in range(n):
        score += 1.0 * (el[i] != el[i - 1]) + 0.4 * (el[i] == el[i - 3])
    return score
""",
    ),
    Seed(
        "Prefer words in which a letter is often smaller than the one before and seldom larger than the third before.",
        """import numpy as np

def priority(el, n, w):
    falls = sum(1.0 for i in range(n) if el[i] < el[i - 1])
    steps = sum(0.3 for i in range(n) if el[i] > el[i - 3])
    return falls - steps
""",
    ),
    Seed(
        "Prefer words with many groups of three letters that hold no zero and with few that hold nothing else.",
        """import numpy as np

def priority(el, n, w):
    full = sum(1 for i in range(0, n, 3) if 0 not in el[i : i + 3])
    bare = sum(1 for i in range(0, n, 3) if el[i : i + 3] == (0, 0, 0))
    return 1.0 * full - 2.5 * bare
""",
    ),
    Seed(
        "Prefer words with twos at the beginning and ones at the end of the groups of three letters.",
        """import numpy as np

def priority(el, n, w):
    score = 0.0
    for i in range(n):
        score += (0.9 ** i) * (el[i] == 2) + 0.5 * (el[i] == 1) * (i % 3)
    return score
""",
    ),
)
