"""A stand-in model for hosts: replies are programs `def choose(x)`, drawn from the request's seed and the weights.

`Scripted` answers by a function of (prompt, number of the call) instead, the same whoever asks, so that a host's own
loop and an attached one can be compared. `told_by` keeps the replies of a script that runs without us.
"""

from __future__ import annotations

import hashlib
import math
from random import Random

from stand_in import StandInEngine

from ttc_esopt.engines.base import Reply

GOOD = """{{Choose near {a:.3f} times x.}}
```python
import numpy as np

def choose(x):
    return {a:.3f} * x + {b}
```"""


def scripted(prompt: str, call: int) -> str:
    """A reply: mostly good, sometimes without a program, without braces, or the very one that was given before."""
    text = f"{call}/{prompt}".encode()
    random = Random(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big"))
    kind = random.random()
    if kind < 0.15:
        return "I would rather not."
    if kind < 0.25:
        return GOOD.format(a=1, b=0).partition("}\n")[2]  # a program without its description
    if kind < 0.5:
        return GOOD.format(a=random.randrange(3), b=0)  # these few come again and again
    if kind < 0.6:
        return GOOD.format(a=random.random(), b="(1 / 0)")
    return GOOD.format(a=random.uniform(0, 5), b=0)


class Scripted(StandInEngine):
    """Answers by `scripted`, counting calls from 0."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def generate(self, requests, sampling, progress=None):
        replies = []
        for request in requests:
            text = scripted(request.prompt, self.asked)
            self.asked += 1
            replies.append(Reply(text, len(request.prompt) // 4, len(text) // 4, "stop"))
        return replies


class Chooser(StandInEngine):
    """A model that ES can move: weight 0 is the log-odds of a program, weight 1 what it chooses.

    `fail_at` : number of the request at which the engine dies, as a killed process would
    """

    def __init__(self, fail_at: int | None = None) -> None:
        super().__init__()
        self.asked, self.fail_at, self.prompts = 0, fail_at, []

    def generate(self, requests, sampling, progress=None):
        replies = []
        for request in requests:
            if self.asked == self.fail_at:
                raise RuntimeError("the engine was killed")
            self.asked += 1
            self.prompts.append(request.prompt)
            weights = self.weights(request.direction, request.sigma)
            random = Random(request.seed)
            share = 1 / (1 + math.exp(-1 - 40 * float(weights[0])))
            usable, a = random.random(), random.uniform(0, 4) + 20 * float(weights[1])
            text = GOOD.format(a=a, b=0) if usable < share else "No."
            replies.append(Reply(text, len(request.prompt) // 4, len(text) // 4, "stop"))
        return replies
