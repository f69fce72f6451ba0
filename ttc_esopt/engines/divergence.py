"""How far a direction moves what a model says: KL divergence of the next token's law, along replies of the base model.

For a reply of n tokens behind its prompt, with p and q the laws of the unperturbed and of the nudged model over the
whole vocabulary (temperature 1, no truncation),

    KL(base || nudged) = 1/n sum_j sum_v p(v | tokens before j) (ln p(v | ...) - ln q(v | ...))        nats per token

Replies that the base model wrote at temperature 1 make this an estimate of the divergence of whole replies per token.
The replies are cut into tokens anew from their text. Logits are taken in the model's precision, the rest is float64
sums of float32 logarithms. Here are the transformers engine's exact values, and what every engine shares;
`vllm_divergence` has the bounds that vLLM can give.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from ttc_esopt.engines.base import Request, Sampling
from ttc_esopt.engines.lowrank import Nudge
from ttc_esopt.engines.texts import Texts
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
    found = [0.0] * len(requests)
    texts = texts_of(engine.texts, requests, replies, sampling, engine._context)
    with torch.inference_mode():
        for text, places in moved(requests, texts).items():
            base = logarithms(engine, text, 1)[0]
            for nudge, law in _nudged(engine, text, list(places)):
                value = per_token(base, law)
                for i in places[nudge]:
                    found[i] = value
    return found


def moved(requests: Sequence[Request], texts: Sequence[Text]) -> dict[Text, dict[Nudge, list[int]]]:
    """Places of the requests under each nudge along each text, those without one left out.

    An unperturbed model does not differ from itself, by no rounding error either.
    """
    found: dict[Text, dict[Nudge, list[int]]] = {}
    for i, (request, text) in enumerate(zip(requests, texts, strict=True)):
        if request.nudge is not None:
            found.setdefault(text, {}).setdefault(request.nudge, []).append(i)
    return found


def per_token(base: torch.Tensor, other: torch.Tensor) -> float:
    """KL(base || other), nats per token, of laws whose logarithms are the rows of two float32 (n, vocabulary)."""
    return max(0.0, float((base.exp() * (base - other)).sum(-1, dtype=torch.float64).mean()))


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


def texts_of(
    texts: Texts, requests: Sequence[Request], replies: Sequence[str], sampling: Sampling, room: int
) -> list[Text]:
    """The tokens of each prompt and reply, at most `room` of them; raises EngineError for a reply without a token."""
    found: list[Text] = []
    for i, (request, reply) in enumerate(zip(requests, replies, strict=True)):
        prompt = texts.ids(i, request, sampling)
        own = texts.tokenizer(reply, add_special_tokens=False)["input_ids"][: max(0, room - len(prompt))]
        if not own:
            raise EngineError("Expected a reply of at least one token behind a prompt that leaves room for it.")
        found.append(((*prompt, *own), len(own)))
    return found
