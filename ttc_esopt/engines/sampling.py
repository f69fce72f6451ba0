"""Choosing the next token: a counter-based random stream per request, and filters over a batch of logits.

Token k of a request is chosen by one uniform number that is a pure function of (request seed, k): what else is in the
batch, and when a reply ends, cannot shift the stream. The number goes through the inverse of the cumulative
distribution over the kept tokens in falling order of probability (ties by token id), so directions that are sampled
with a common seed stay on the same ranks as long as their distributions agree.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttc_esopt.engines.base import Sampling
from ttc_esopt.es.noise import mix, tensor_key

GOLDEN = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1
WINDOW = 256  # likeliest tokens looked at before the whole vocabulary is sorted


def stream_key(seed: int) -> int:
    """Key of the sampling stream of a request seed (64-bit)."""
    return tensor_key(seed, "sampling")


def uniforms(keys: Sequence[int], position: int) -> list[float]:
    """One number in [0, 1) with 53 random bits for each stream key, for the token at `position` (from 0)."""
    return [(mix((key + (position + 1) * GOLDEN) & MASK) >> 11) * 2.0**-53 for key in keys]


def penalise(logits: torch.Tensor, generated: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Apply the repetition and presence penalties.

    Parameters
    ----------
    logits : float32[b, vocabulary]
    generated : int64[b, t]
        What each reply holds so far; a token counts once however often it occurs.

    Returns
    -------
    float32[b, vocabulary]
        `logits` itself where there is nothing to do.
    """
    if generated.shape[1] == 0 or (sampling.repetition_penalty == 1 and sampling.presence_penalty == 0):
        return logits
    seen = logits.gather(1, generated)
    seen = torch.where(seen > 0, seen / sampling.repetition_penalty, seen * sampling.repetition_penalty)
    return logits.scatter(1, generated, seen - sampling.presence_penalty)


def choose(logits: torch.Tensor, numbers: Sequence[float], sampling: Sampling, generated: torch.Tensor) -> torch.Tensor:
    """Choose the next token of every row.

    Parameters
    ----------
    logits : float[b, vocabulary]
    numbers : b floats in [0, 1)
        See `uniforms`.
    generated : int64[b, t]
        Tokens of the replies so far, for the penalties.

    Returns
    -------
    int64[b]
    """
    logits = penalise(logits.float(), generated, sampling)
    if sampling.temperature == 0:
        return logits.argmax(-1)
    logits = logits / sampling.temperature
    vocabulary = logits.shape[-1]
    limit = min(sampling.top_k or vocabulary, vocabulary)
    number = torch.tensor(numbers, dtype=torch.float64, device=logits.device)
    # A top-k beyond the window needs the ranks beyond it too.
    window = vocabulary if WINDOW < limit < vocabulary else min(WINDOW, vocabulary)
    tokens, settled = _invert(logits, number, sampling, window, limit)
    if not bool(settled.all()):
        rows = (~settled).nonzero()[:, 0]
        tokens[rows] = _invert(logits[rows], number[rows], sampling, vocabulary, limit)[0]
    return tokens


def _invert(
    logits: torch.Tensor, number: torch.Tensor, sampling: Sampling, window: int, limit: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Inverse of the cumulative distribution, seen through the `window` likeliest tokens.

    Returns the tokens, int64[b], and whether each row was settled inside the window, bool[b].
    """
    values, ids = _ranked(logits, window)
    border = values[:, -1]
    values, ids = values[:, :limit], ids[:, :limit]
    width, complete = values.shape[1], values.shape[1] == limit
    mass = torch.logsumexp(values if complete else logits, -1, keepdim=True)
    p = (values.double() - mass.double()).exp()
    cumulative = p.cumsum(-1)
    keep = p >= sampling.min_p * p[:, :1]
    if sampling.top_p < 1:
        keep &= cumulative - p < sampling.top_p
    kept = keep.sum(-1).clamp_min(1)  # a prefix: p falls
    inside = (kept < width) | complete
    # Where the kept set is cut by the window, only the unfiltered distribution has a known total (1).
    unfiltered = sampling.top_p == 1 and sampling.min_p == 0
    total = torch.where(inside, cumulative.gather(1, (kept - 1)[:, None])[:, 0], 1.0)
    target = number * total
    settled = inside | (target < cumulative[:, -1]) if unfiltered else inside
    rank = (cumulative <= target[:, None]).sum(-1).minimum(kept - 1)[:, None]
    if window < logits.shape[-1]:  # among equals on the border, which are inside is arbitrary
        settled = settled & (values.gather(1, rank)[:, 0] > border)
    return ids.gather(1, rank)[:, 0], settled


def _ranked(logits: torch.Tensor, window: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `window` largest logits in falling order and their token ids; equal logits in the order of the ids."""
    if window == logits.shape[-1]:
        return logits.sort(dim=-1, descending=True, stable=True)
    values, ids = logits.topk(window, -1, sorted=False)
    ids, order = ids.sort(-1)
    values, order = values.gather(1, order).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)
