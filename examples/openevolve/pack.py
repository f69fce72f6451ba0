"""Pack items online by the rule of a program and print how many bins it took: python -I pack.py PROGRAM."""

import random
import sys
from pathlib import Path

CAPACITY, ITEMS, LISTS = 100, 300, 4


def bins(priority):
    """Mean number of bins over a few fixed lists of items."""
    total = 0
    for seed in range(LISTS):
        draw = random.Random(seed)
        free = []
        for item in (draw.randint(10, 60) for _ in range(ITEMS)):
            open_bins = [i for i, room in enumerate(free) if room >= item]
            if open_bins:
                best = max(open_bins, key=lambda i: float(priority(item, free[i] - item)))
                free[best] -= item
            else:
                free.append(CAPACITY - item)
        total += len(free)
    return total / LISTS


if __name__ == "__main__":
    names = {}
    exec(compile(Path(sys.argv[1]).read_text(), sys.argv[1], "exec"), names)
    print(bins(names["priority"]))
