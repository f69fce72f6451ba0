"""A stand-in engine for tests of the loop: seconds become milliseconds, everything else is real.

Its "model" is a vector of 8 weights moved by the library's own noise. What it writes depends on the weights, on the
direction and on the request's sampling seed, so ES has something to learn: weight 0 is the log-odds of a usable
reply.
"""

from __future__ import annotations

import hashlib
import math
from random import Random

import numpy as np

from ttc_esopt.engines.base import Reply
from ttc_esopt.es import noise

PROGRAM = """```python
import numpy as np
def select_next_node(current_node, destination_node, unvisited_nodes, distance_matrix):
    near = distance_matrix[current_node][unvisited_nodes]
    home = distance_matrix[destination_node][unvisited_nodes]
    return unvisited_nodes[np.argmin(near - {a:.3f} * home)]
```"""


def noise_of(step):
    """What a step adds to the vector."""
    update = np.zeros(8, np.float32)
    noise.accumulate(update, *step, "w")
    return update.astype(float)


class StandInEngine:
    """Satisfies `ttc_esopt.engines.Engine`."""

    def __init__(self) -> None:
        self.base = np.zeros(8, np.float32)
        self.delta = np.zeros(8, np.float32)
        self.calls = 0
        self.began = None

    def weights(self, direction: int | None = None, sigma: float = 0.0) -> np.ndarray:
        if direction is None:
            return self.base + self.delta
        out = np.empty_like(self.base)
        noise.perturb(self.base, self.delta, direction, "w", sigma, out)
        return out

    def generate(self, requests, sampling, progress=None):
        self.calls += 1
        replies = []
        for request in requests:
            weights = self.weights(request.direction, request.sigma)
            random = Random(request.seed)
            share = 1 / (1 + math.exp(-40 * float(weights[0])))
            # one draw whatever the weights: equal streams differ by the weights alone
            usable, a = random.random(), random.uniform(0.0, 0.5)
            text = PROGRAM.format(a=a) if usable < share else "I would rather not."
            if progress:
                progress(len(text) // 4)
            replies.append(Reply(text, len(request.prompt) // 4, len(text) // 4, "stop"))
        return replies

    def divergence(self, requests, replies, sampling):
        here = self.weights()
        moved = [self.weights(*request.nudge) if request.nudge else here for request in requests]
        return [50 * float(((there - here) ** 2).mean()) for there in moved]

    def step(self, directions, coefficients):
        noise.accumulate(self.delta, directions, coefficients, "w")

    def measure(self, steps, sigma):
        last = noise_of(steps[-1])
        distance = float(np.sqrt(np.mean(self.delta.astype(float) ** 2)))
        return {
            "update_rms": float(np.sqrt(np.mean(last**2))), "distance_rms": distance, "cosine": None,
            "below": {"0.001": 0.0, "0.002": 0.0, "sigma": 0.0},
        }  # fmt: skip

    def drift(self, requests, replies, sampling):
        return 10 * float(np.sqrt(np.mean(self.delta.astype(float) ** 2)))

    def rewind(self, steps):
        self.delta[:] = 0
        for directions, coefficients in steps:
            self.step(directions, coefficients)

    def adopt(self, kind, scope, steps):
        self.began = self.began or self.fingerprint()
        self.rewind(steps)
        self.base, self.delta = self.base + self.delta, np.zeros_like(self.delta)

    def fingerprint(self):
        return f"{noise.tensor_fingerprint(self.weights().view(np.uint32), 'w'):016x}"

    def sha256(self):
        return hashlib.sha256(self.weights().tobytes()).hexdigest()

    def export(self, folder):
        raise NotImplementedError

    def describe(self):
        return {"model": "stand-in", "dtype": "float32", "scope": "all", "base_fingerprint": self.began}

    def peak(self):
        return {"peak_mb": 1.0}

    def close(self):
        pass


class Quiet:
    """A display that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def update(self, **values):
        pass

    def tokens_tick(self, n):
        pass

    def line(self, text):
        self.lines.append(text)
