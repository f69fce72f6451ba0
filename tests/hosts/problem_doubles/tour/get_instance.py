"""Instances, in a module of its own beside the problem, as in the examples of EoH."""

import numpy as np


def instances(count, size):
    draw = np.random.RandomState(7)
    return [draw.rand(size, 2) for _ in range(count)]
