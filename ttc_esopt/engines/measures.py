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
from ttc_esopt.engines.divergence import logarithms, per_token, texts_of
from ttc_esopt.engines.weights import Weights

if TYPE_CHECKING:
    from ttc_esopt.engines.transformers_engine import TransformersEngine

CHUNK = 1 << 22  # values at a time, in float64
THRESHOLDS = (1e-3, 2e-3)

Steps = Sequence[tuple[Sequence[int], Sequence[float]]]


def measured(weights: Weights, steps: Steps, sigma: float) -> dict[str, Any]:
    """`figures` of a model that one process holds, after the last of `steps`; sigma is that of the last."""
    return figures([sums(weights, steps, sigma)])


def figures(parts: Sequence[dict[str, float]]) -> dict[str, Any]:
    """What the `sums` of all processes that share a model come to.

    Returns
    -------
    dict
        ``update_rms``, ``distance_rms``: root mean squares over the weights that move, of the last step and of all.
        ``cosine``: of the last two steps; None if there is one. ``below``: share of weights whose distance is below
        1e-3, 2e-3 and sigma.
    """
    total = {key: sum(part[key] for part in parts) for key in parts[0]}
    count, norm = total["count"], math.sqrt(total["update"] * total["before"])
    return {
        "update_rms": math.sqrt(total["update"] / count), "distance_rms": math.sqrt(total["distance"] / count),
        "cosine": total["product"] / norm if norm else None,
        "below": {word: total[f"below {word}"] / count for word in _limits(0)},
    }  # fmt: skip


def sums(weights: Weights, steps: Steps, sigma: float) -> dict[str, float]:
    """Counts and sums over the weights held here, replicas left out; the two latest of `steps` are enough."""
    total = dict.fromkeys(("count", "update", "distance", "product", "before"), 0.0)
    limits = _limits(sigma)
    total |= {f"below {word}": 0.0 for word in limits}
    for name in (*weights.names, *weights.packed):
        for part, shard in weights.blocks(name):
            if not shard.counted:
                continue
            delta = weights.moved(name, part, shard)
            last = weights.made(name, shard, steps[-1:])
            previous = weights.made(name, shard, steps[-2:-1]) if len(steps) > 1 else None
            for start in range(0, delta.numel(), CHUNK):
                chunk = slice(start, start + CHUNK)
                moved, new = delta[chunk], last[chunk].double()
                total["count"] += moved.numel()
                total["distance"] += _square(moved.double())
                total["update"] += _square(new)
                if previous is not None:
                    old = previous[chunk].double()
                    total["product"] += float((new * old).sum())
                    total["before"] += _square(old)
                size = moved.abs()
                for word, limit in limits.items():
                    total[f"below {word}"] += int((size < limit).sum())
    return total


def _limits(sigma: float) -> dict[str, float]:
    return {**{f"{limit:g}": limit for limit in THRESHOLDS}, "sigma": sigma}


def drift(
    engine: TransformersEngine, requests: Sequence[Request], replies: Sequence[str], sampling: Sampling
) -> float:
    """See `Engine.drift`."""
    values = []
    texts = texts_of(engine.texts, requests, replies, sampling, engine._context)
    with torch.inference_mode():
        for text in texts:
            now = logarithms(engine, text, 1)[0]
            try:
                engine.weights.to_base()
                base = logarithms(engine, text, 1)[0]
            finally:
                engine.weights.restore()
            values.append(per_token(base, now))
    return sum(values) / len(values)


def _square(values: torch.Tensor) -> float:
    return float((values * values).sum())
