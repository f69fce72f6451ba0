"""Parents by rank."""

import random


def parent_selection(pop, m):
    size = len(pop)
    return random.choices(pop, weights=[1 / (size + place) for place in range(1, size + 1)], k=m)
