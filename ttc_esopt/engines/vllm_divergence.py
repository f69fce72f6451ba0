"""KL divergence with vLLM, which tells the likeliest tokens of a law and not the whole of it: a lower bound.

vLLM is given prompt and reply as one prompt, and tells for each token of the reply the `max_logprobs` likeliest tokens
of the law that it was drawn from, and the token itself. Of two laws p and q the tokens K that both lists hold stay as
they are, and all others become one token:

    KL(p || q)  >=  sum_{v in K} p(v) ln(p(v) / q(v))  +  p(rest) ln(p(rest) / q(rest))

for merging outcomes never makes a divergence larger. Of a token that only the list of p holds it is known that q(v) is
at most c, the least of the other list. The bound is the least sum that this allows: while there is a token with
c < p(v) q(rest) / p(rest) it stays as well, with q(v) = c (what was taken from the rest makes its share larger, so
that none is ever put back). With whole lists nothing is merged, and the value is exact. How close it is with real
models stands in docs/vllm.md; `--engine-args '{"max_logprobs": N}'` takes longer lists.

What is asked goes the way of replies: each law under its salt, low-rank directions as adapters, full ones one after
another. The beginning is another version of the weights, and so is what comes after it. vLLM does not look into its
prefix cache for such requests, which would leave positions out; that is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ttc_esopt.engines.base import Request, Sampling
from ttc_esopt.engines.divergence import Text, moved, texts_of
from ttc_esopt.engines.vllm_setup import Job, final_only
from ttc_esopt.errors import EngineError

if TYPE_CHECKING:
    from ttc_esopt.engines.lowrank import Nudge
    from ttc_esopt.engines.vllm_engine import VllmEngine

LIKELIEST = 512  # tokens of each law
LEAST = 1e-6  # mass of the rest: what is left of 1 after sums of float32 has no more digits


@dataclass(frozen=True)
class Law:
    """What is known of the laws of a reply's n tokens.

    Parameters
    ----------
    n, size : tokens of the reply, and of the vocabulary
    keys : int64 array
        Place in the reply times `size` plus the token, of every token that is known; each once, ascending.
    logs : float64 array
        The logarithm of its probability.
    least : float64 array (n,)
        That of the least likely token of each list: all that are not known are at most as likely.
    """

    n: int
    size: int
    keys: np.ndarray
    logs: np.ndarray
    least: np.ndarray

    @classmethod
    def of(cls, told: Any, n: int, size: int) -> Law:
        """From vLLM's `FlatLogprobs` of all tokens of a text, of which the last n are the reply's.

        The list of a token begins with the token itself; the likeliest ones follow in falling order.
        """
        starts = np.array([*told.start_indices[-n:], len(told.token_ids)])
        tokens, logs = (np.array(values[starts[0] :]) for values in (told.token_ids, told.logprobs))
        keys = np.repeat(np.arange(n), np.diff(starts)) * size + tokens
        keys, places = np.unique(keys, return_index=True)  # the reply's own token may come twice
        return cls(n, size, keys, logs[places], logs[starts[1:] - starts[0] - 1])


def lower_bound(base: Law, other: Law) -> float:
    """The least KL(base || other) per token, in nats, that laws of which so much is known can have."""
    _, first, second = np.intersect1d(base.keys, other.keys, assume_unique=True, return_indices=True)
    p, places = base.logs, base.keys // base.size
    q = other.least[places]
    q[first] = other.logs[second]
    alone = np.zeros(len(p), bool)  # not merged
    alone[first] = True
    while True:
        sums = [np.bincount(places[alone], values[alone], base.n) for values in (np.exp(p), np.exp(q))]
        left, right = (np.maximum(1 - one, LEAST) for one in sums)
        ratio = np.log(right / left)
        more = ~alone & (q < p + ratio[places])
        if not more.any():
            break
        alone |= more
    values = np.bincount(places[alone], (np.exp(p) * (p - q))[alone], base.n)
    whole = np.bincount(places[alone], minlength=base.n) == base.size  # there is no rest
    return max(0.0, float((values - np.where(whole, 0, left * ratio)).mean()))


def divergences(
    engine: VllmEngine, requests: Sequence[Request], replies: Sequence[str], sampling: Sampling
) -> list[float]:
    """See `Engine.divergence`."""
    found = [0.0] * len(requests)
    groups = moved(requests, _texts(engine, requests, replies, sampling))
    base = _laws(engine, groups)

    def asked(text: Text, nudge: Nudge, places: list[int]) -> Job:
        def take(law: Law) -> None:  # laws are large: each is made a number of as it comes
            value = lower_bound(base[text], law)
            for i in places:
                found[i] = value

        return _job(engine, text, nudge, take)

    engine.work([asked(text, *one) for text, nudges in groups.items() for one in nudges.items()])
    return found


def drift(engine: VllmEngine, requests: Sequence[Request], replies: Sequence[str], sampling: Sampling) -> float:
    """See `Engine.drift`."""
    texts = _texts(engine, requests, replies, sampling)
    with engine.beginning():
        base = _laws(engine, texts)
    now = _laws(engine, texts)
    return sum(lower_bound(base[text], now[text]) for text in texts) / len(texts)


def _texts(engine: VllmEngine, requests: Sequence[Request], replies: Sequence[str], sampling: Sampling) -> list[Text]:
    """A token fewer than the context has: vLLM goes on for one."""
    return texts_of(engine.texts, requests, replies, sampling, engine.context - 1)


def _laws(engine: VllmEngine, texts: Iterable[Text]) -> dict[Text, Law]:
    """Of the weights as they are."""
    found: dict[Text, Law] = {}
    kept = dict.fromkeys(texts)
    engine.work([_job(engine, text, None, lambda law, text=text: found.update({text: law})) for text in kept])
    return found


def _job(engine: VllmEngine, text: Text, nudge: Nudge | None, take: Callable[[Law], None]) -> Job:
    """`take` is called with the law of a text under a nudge."""
    ids, n = text

    def taken(output: Any) -> None:
        told = output.prompt_logprobs
        if len(told) != len(ids) or output.num_cached_tokens:
            raise EngineError(
                f"vLLM told the laws of {len(told)} tokens of {len(ids)}, {output.num_cached_tokens} of them cached: "
                "this release leaves out what stands in its prefix cache (--engine-args "
                "'{\"enable_prefix_caching\": false}')."
            )
        take(Law.of(told, n, engine.vocabulary))

    asked = engine._vllm.SamplingParams(
        max_tokens=1, temperature=0, detokenize=False, prompt_logprobs=engine.likeliest, flat_logprobs=True,
        output_kind=final_only(),
    )  # fmt: skip
    return Job(list(ids), nudge, asked, taken)
