"""Where a model has gone: size and direction of the last step, distance from the beginning, and what it now says.

The paper reports such figures at the end of training: the share of |delta| below 1e-3, sigma and 2e-3 (arXiv
2608.17310). Sums are float64, tensor by tensor; a step's own values are made again from its seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ttc_esopt.engines.base import Request, Sampling
from ttc_esopt.engines.divergence import logarithms, text_of
from ttc_esopt.engines.weights import Weights

if TYPE_CHECKING:
    from ttc_esopt.engines.transformers_engine import TransformersEngine

CHUNK = 1 << 22  # values at a time, in float64
THRESHOLDS = (1e-3, 2e-3)

Steps = Sequence[tuple[Sequence[int], Sequence[float]]]


def measured(weights: Weights, steps: Steps, sigma: float) -> dict[str, Any]:
    """Figures after the last of `steps` (the two latest are enough); sigma is that of the last.

    Returns
    -------
    dict
        ``update_rms``, ``distance_rms``: root mean squares over the weights that move, of the last step and of all.
        ``cosine``: of the last two steps; None if there is one. ``below``: share of weights whose distance is below
        1e-3, 2e-3 and sigma.
    """
    count = update = distance = product = before = 0.0
    limits = {**{f"{limit:g}": limit for limit in THRESHOLDS}, "sigma": sigma}
    below = dict.fromkeys(limits, 0)
    for name in weights.names:
        delta = weights.delta[name]
        last = _made(weights, name, *steps[-1])
        previous = _made(weights, name, *steps[-2]) if len(steps) > 1 else None
        for start in range(0, delta.numel(), CHUNK):
            part = slice(start, start + CHUNK)
            moved, new = delta.view(-1)[part], last.view(-1)[part].double()
            count += moved.numel()
            distance += _square(moved.double())
            update += _square(new)
            if previous is not None:
                old = previous.view(-1)[part].double()
                product += float((new * old).sum())
                before += _square(old)
            size = moved.abs()
            for word, limit in limits.items():
                below[word] += int((size < limit).sum())
    norm = math.sqrt(update * before)
    return {
        "update_rms": math.sqrt(update / count), "distance_rms": math.sqrt(distance / count),
        "cosine": product / norm if norm else None, "below": {word: n / count for word, n in below.items()},
    }  # fmt: skip


def drift(
    engine: TransformersEngine, requests: Sequence[Request], replies: Sequence[str], sampling: Sampling
) -> float:
    """See `Engine.drift`."""
    values = []
    with torch.inference_mode():
        for request, reply in zip(requests, replies, strict=True):
            text = text_of(engine, request, reply, sampling)
            now = logarithms(engine, text, 1)[0]
            try:
                engine.weights.to_base()
                base = logarithms(engine, text, 1)[0]
            finally:
                engine.weights.restore()
            values.append(max(0.0, float((base.exp() * (base - now)).sum(-1, dtype=torch.float64).mean())))
    return sum(values) / len(values)


def _square(values: torch.Tensor) -> float:
    return float((values * values).sum())


def _made(weights: Weights, name: str, directions: Sequence[int], coefficients: Sequence[float]) -> torch.Tensor:
    """What a step adds to a tensor."""
    update = torch.zeros_like(weights.delta[name])
    weights.accumulate(name, update, directions, coefficients)
    return update
