"""The divergence of a direction from the model, against a plain computation on weights that were really moved."""

import numpy as np
import pytest
import torch
from tiny_model import make_tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from ttc_esopt.engines import Request, Sampling, divergence, load_engine
from ttc_esopt.errors import EngineError
from ttc_esopt.es import noise
from ttc_esopt.es.noise import NoiseKind

KINDS = [NoiseKind("full"), NoiseKind(), NoiseKind("lowrank", 3)]
WARM = Sampling(temperature=1.0, max_tokens=30)
REPLIES = ["a quick import of numpy", "def f(x): return 0.25"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


def engine_of(folder, kind, **given):
    return load_engine(str(folder), device="cpu", noise=kind, threads=1, **given)


def plain(folder, kind, prompt, reply, direction, sigma, before=()):
    """Mean over the reply's tokens of sum p (ln p - ln q), float64, with the weights themselves moved."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    head = tokenizer(f"<|user|>{prompt}<|assistant|>def", add_special_tokens=False)["input_ids"]
    tail = tokenizer(reply, add_special_tokens=False)["input_ids"]
    laws = []
    for steps in (before, [*before, (direction, sigma)]):
        model = AutoModelForCausalLM.from_pretrained(folder).requires_grad_(False)
        for name in engine_of(folder, kind).weights.names:
            for seed, length in steps:
                weight = model.get_parameter(name)
                eps = np.zeros(weight.shape, np.float32)
                if kind.kind == "full":
                    noise.fill(eps, seed, name)
                else:
                    noise.fill_lowrank(eps, seed, name, kind.rank)
                weight += length * torch.from_numpy(eps)
        logits = model(torch.tensor([head + tail])).logits[0, len(head) - 1 : -1]
        laws.append(logits.double().log_softmax(-1))
    p, q = laws
    return float((p.exp() * (p - q)).sum(-1).mean())


def asked(direction=5, sigma=0.02, prompt="the dog"):
    return Request(prompt, 0, "def", direction, sigma)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_it_is_the_plain_computation(folder, kind):
    engine = engine_of(folder, kind)
    requests = [asked(), asked(6, 0.03), asked(6, 0.03, "a b c"), asked(2**63 + 1, 0.01)]
    replies = [REPLIES[0], REPLIES[0], REPLIES[1], REPLIES[0]]
    found = engine.divergence(requests, replies, WARM)
    expected = [
        plain(folder, kind, request.prompt, reply, request.direction, request.sigma)
        for request, reply in zip(requests, replies, strict=True)
    ]
    assert found == pytest.approx(expected, rel=1e-3)
    assert min(found) > 1e-3 and len(set(found)) == 4


@pytest.mark.parametrize("kind", KINDS[:2], ids=str)
def test_it_starts_from_the_weights_as_they_are_and_leaves_them(folder, kind):
    engine = engine_of(folder, kind)
    engine.step([9], [0.02])
    before = engine.sha256()
    found = engine.divergence([asked()], REPLIES[:1], WARM)
    assert found == pytest.approx([plain(folder, kind, "the dog", REPLIES[0], 5, 0.02, [(9, 0.02)])], rel=1e-3)
    assert engine.sha256() == before


@pytest.mark.parametrize("kind", KINDS[:2], ids=str)
def test_it_is_exactly_zero_at_sigma_zero_and_grows_with_sigma(folder, kind):
    engine = engine_of(folder, kind)
    requests = [asked(sigma=sigma) for sigma in (0.0, 0.005, 0.02, 0.08)] + [Request("the dog", 0, "def")]
    found = engine.divergence(requests, [REPLIES[0]] * 5, WARM)
    assert found[0] == 0.0 and found[4] == 0.0
    assert 0 < found[1] < found[2] < found[3]


def test_it_does_not_depend_on_how_many_rows_go_together(folder, monkeypatch):
    requests = [asked(direction) for direction in range(7)]
    together = engine_of(folder, NoiseKind()).divergence(requests, [REPLIES[0]] * 7, WARM)
    assert engine_of(folder, NoiseKind(), batch_size=2).divergence(
        requests, [REPLIES[0]] * 7, WARM
    ) == pytest.approx(together, rel=1e-4)
    monkeypatch.setattr(divergence, "MOST_LOGITS", 1)
    assert engine_of(folder, NoiseKind()).divergence(requests, [REPLIES[0]] * 7, WARM) == pytest.approx(
        together, rel=1e-4
    )


def test_a_reply_beyond_the_context_is_cut_and_an_empty_one_refused(tmp_path):
    engine = engine_of(make_tiny_model(tmp_path, context=40), NoiseKind())
    whole = "the quick brown fox " * 30
    assert engine.divergence([asked()], [whole], WARM)[0] > 0
    with pytest.raises(EngineError, match="at least one token"):
        engine.divergence([asked()], [""], WARM)
