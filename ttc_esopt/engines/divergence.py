"""How far a direction moves what a model says: KL divergence of the next token's law, along replies of the base model.

For a reply of n tokens behind its prompt, with p and q the laws of the unperturbed and of the nudged model over the
whole vocabulary (temperature 1, no truncation),

    KL(base || nudged) = 1/n sum_j sum_v p(v | tokens before j) (ln p(v | ...) - ln q(v | ...))        nats per token

Replies that the base model wrote at temperature 1 make this an estimate of the divergence of whole replies per token.
The replies are cut into tokens anew from their text. Logits are taken in the model's precision, the rest is float64
sums of float32 logarithms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from ttc_esopt.engines.base import Request, Sampling
from ttc_esopt.engines.lowrank import Nudge
from ttc_esopt.errors import EngineError

if TYPE_CHECKING:
    from ttc_esopt.engines.transformers_engine import TransformersEngine

MOST_LOGITS = 1 << 26  # of all rows of one forward pass: 256 MiB in float32

Text = tuple[tuple[int, ...], int]  # all tokens, and how many of them are the reply's


def divergences(
    engine: TransformersEngine, requests: Sequence[Request], replies: Sequence[str], sampling: Sampling
) -> list[float]:
    """See `Engine.divergence`."""
    torch.set_num_threads(engine.threads)  # global to the process: another engine may have changed it
    texts = [text_of(engine, *one, sampling) for one in zip(requests, replies, strict=True)]
    found = [0.0] * len(texts)
    moved: dict[Text, list[int]] = {}
    for i, request in enumerate(requests):
        if request.nudge is not None:  # an unperturbed model does not differ from itself, by no rounding error either
            moved.setdefault(texts[i], []).append(i)
    with torch.inference_mode():
        for text, places in moved.items():
            base = logarithms(engine, text, 1)[0]
            share = base.exp()
            nudges = list(dict.fromkeys(requests[i].nudge for i in places))
            values = {}
            for nudge, law in _nudged(engine, text, nudges):
                values[nudge] = max(0.0, float((share * (base - law)).sum(-1, dtype=torch.float64).mean()))
            for i in places:
                found[i] = values[requests[i].nudge]
    return found


def _nudged(
    engine: TransformersEngine, text: Text, nudges: Sequence[Nudge]
) -> Iterator[tuple[Nudge, torch.Tensor]]:
    """Each nudge with the logarithms of its law, (n, vocabulary)."""
    if not engine.batched:
        try:
            for nudge in nudges:
                engine.weights.perturb(*nudge)
                yield nudge, logarithms(engine, text, 1)[0]
        finally:
            engine.weights.restore()
        return
    size = engine.model.config.get_text_config().vocab_size
    rows = max(1, min(engine.batch_size, MOST_LOGITS // ((text[1] + 1) * size)))
    for start in range(0, len(nudges), rows):
        part = nudges[start : start + rows]
        lowrank = engine.rows(part)
        lowrank.columns = len(text[0])
        with lowrank:
            laws = logarithms(engine, text, len(part))
        yield from zip(part, laws, strict=True)


def logarithms(engine: TransformersEngine, text: Text, rows: int) -> torch.Tensor:
    """Logarithms of the law of every token of the reply, float32 (rows, n, vocabulary)."""
    ids, n = text
    given = {"logits_to_keep": n + 1} if "logits_to_keep" in engine._accepts else {}
    tokens = torch.tensor([ids] * rows, device=engine.device)
    logits = engine.model(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False, **given).logits
    return logits[:, -n - 1 : -1].float().log_softmax(-1)


def text_of(engine: TransformersEngine, request: Request, reply: str, sampling: Sampling) -> Text:
    prompt = engine._row(0, request, sampling).ids
    own = engine.tokenizer(reply, add_special_tokens=False)["input_ids"][: max(0, engine._context - len(prompt))]
    if not own:
        raise EngineError("Expected a reply of at least one token behind a prompt that leaves room for it.")
    return (*prompt, *own), len(own)
