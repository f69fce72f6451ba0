"""Quantized bases: full noise is refused, low-rank noise works beside the packed values; derived copies are refused."""

import numpy as np
import pytest
import torch
from tiny_model import make_tiny_model
from torch import nn

from ttc_esopt.engines import Request, Sampling, load_engine, transformers_engine
from ttc_esopt.engines.scopes import linear_modules
from ttc_esopt.errors import EngineError
from ttc_esopt.es.noise import NoiseKind

FULL, LOW, LOW2 = NoiseKind("full"), NoiseKind(), NoiseKind("lowrank", 2)
STEPS = [([11, 12], (0.02, -0.01)), ([13, 2**64 - 1], (0.005, 0.03))]
WARM = Sampling(max_tokens=12)


class Packed(nn.Module):
    """A linear layer as 8-bit integers with a scale per row."""

    def __init__(self, linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        scales = linear.weight.abs().amax(1, keepdim=True) / 127
        self.register_buffer("qweight", (linear.weight / scales).round().to(torch.int8))
        self.register_buffer("scales", scales)

    def weight_values(self):
        return self.qweight * self.scales

    def forward(self, x):
        return x @ self.weight_values().T


def packed_load(load, keep=()):
    """`_load` with the linear layers of the body quantized, but for those with one of the words in their name."""

    def loaded(*arguments):
        found = load(*arguments)
        for name, module in linear_modules(found[0]).items():
            if not any(word in name for word in keep):
                parent, _, word = name.removesuffix(".weight").rpartition(".")
                setattr(found[0].get_submodule(parent), word, Packed(module))
        return found

    return loaded


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(params=[(), ("q_proj",)], ids=["all", "some"])
def packed(request, monkeypatch):
    monkeypatch.setattr(transformers_engine, "_load", packed_load(transformers_engine._load, request.param))


def engine_of(folder, kind=LOW2, **given):
    return load_engine(str(folder), noise=kind, device="cpu", threads=1, **given)


def plain_of(engine, folder, monkeypatch, kind=LOW2):
    """An engine on ordinary weights with the values that `engine` unpacks."""
    with monkeypatch.context() as context:
        context.setattr(transformers_engine, "_load", ORIGINAL)
        plain = engine_of(folder, kind)
    for name, module in linear_modules(plain.model).items():
        there = engine.model.get_submodule(name.removesuffix(".weight"))
        module.weight.copy_(there.weight_values() if isinstance(there, Packed) else there.weight)
    return plain


ORIGINAL = transformers_engine._load


def logits(engine, nudges):
    ids = torch.randint(3, 300, (len(nudges), 9), generator=torch.Generator().manual_seed(0))
    rows = engine.rows(nudges)
    rows.columns = 9
    with torch.inference_mode(), rows:
        return engine.model(ids).logits


@pytest.mark.parametrize("scope", ["auto", "linear"])
def test_full_noise_is_refused_and_low_rank_noise_recommended(folder, packed, scope):
    with pytest.raises(EngineError, match=r"quantized \(model\.layers\.0\..*full noise cannot .*--noise lowrank:1"):
        engine_of(folder, FULL, scope=scope)


def test_directions_and_steps_do_what_they_do_on_ordinary_weights(folder, packed, monkeypatch):
    engine = engine_of(folder)
    plain = plain_of(engine, folder, monkeypatch)
    nudges = [None, (5, 0.05), (6, 0.02)]
    torch.testing.assert_close(logits(engine, nudges), logits(plain, nudges), rtol=1e-3, atol=1e-3)
    before = logits(engine, nudges)
    for directions, coefficients in STEPS:
        engine.step(directions, coefficients)
        plain.step(directions, coefficients)
    torch.testing.assert_close(logits(engine, nudges), logits(plain, nudges), rtol=1e-3, atol=2e-3)
    assert (logits(engine, nudges) - before).abs().max() > 0.1
    ours, theirs = engine.measure(STEPS, 0.02), plain.measure(STEPS, 0.02)
    assert ours["update_rms"] == pytest.approx(theirs["update_rms"], rel=1e-9)
    assert ours["distance_rms"] == pytest.approx(theirs["distance_rms"], rel=1e-9)
    assert ours["below"] == theirs["below"]
    assert engine.describe()["moving_parameters"] == plain.describe()["moving_parameters"]
    ours, theirs = (one.drift([Request("def f(x):", 1)], ["return x"], WARM) for one in (engine, plain))
    assert ours == pytest.approx(theirs, rel=1e-2)


def test_replies_come_from_every_direction_and_do_not_depend_on_the_batch(folder, packed):
    engine = engine_of(folder)
    engine.step(*STEPS[0])
    asked = [Request("def f(x):", i, direction=i if i % 3 else None, sigma=0.05) for i in range(6)]
    together = engine.generate(asked, WARM)
    assert len({reply.text for reply in together}) > 3
    assert [engine.generate([request], WARM)[0] for request in asked] == together


def test_the_same_steps_give_the_same_fingerprint_and_rewinding_goes_back(folder, packed):
    first, second = engine_of(folder), engine_of(folder)
    start, sha = first.fingerprint(), first.sha256()
    prints = [start]
    for step in STEPS:
        first.step(*step)
        prints.append(first.fingerprint())
    assert len(set(prints)) == 3
    second.rewind(STEPS)
    assert second.fingerprint() == prints[-1] and second.sha256() == first.sha256()
    first.rewind(STEPS[:1])
    assert first.fingerprint() == prints[1]
    first.rewind([])
    assert first.fingerprint() == start and first.sha256() == sha


def test_steps_of_another_run_become_the_beginning(folder, packed):
    donor, engine = engine_of(folder), engine_of(folder, LOW)
    donor.rewind(STEPS)
    engine.adopt(LOW2, "auto", STEPS)
    assert engine.fingerprint() == donor.fingerprint()
    engine.step([15], (0.01,))
    assert engine.fingerprint() != donor.fingerprint()
    request = [Request("def f(x):", 1)]
    assert engine.drift(request, ["return x"], WARM) > 0
    engine.rewind([])
    assert engine.fingerprint() == donor.fingerprint()
    assert engine.drift(request, ["return x"], WARM) == 0


def test_a_quantized_model_is_not_exported_but_for_a_patch(folder, packed, tmp_path):
    with pytest.raises(EngineError, match="export DIR --patch FILE"):
        engine_of(folder).export(tmp_path / "out")


def test_factors_of_scope_lora_move_beside_packed_values_too(folder, packed):
    engine = engine_of(folder, FULL, scope="lora:2")
    start, before = engine.fingerprint(), logits(engine, [None, (5, 0.05)])
    assert (before[0] - before[1]).abs().max() > 0.1
    engine.rewind(STEPS)
    assert engine.fingerprint() != start and (logits(engine, [None]) - before[:1]).abs().max() > 0.1
    engine.rewind([])
    assert engine.fingerprint() == start and torch.equal(logits(engine, [None, (5, 0.05)]), before)


def test_what_does_not_move_is_counted(folder, packed):
    facts = engine_of(folder).describe()
    assert facts["frozen_tensors"] >= 6 and facts["frozen_first"].startswith("model.embed_tokens.weight, ")


@pytest.mark.parametrize("word", ["W_UK_T", "W_UV"])
def test_a_module_with_a_copy_made_of_a_weight_is_refused_by_name(folder, monkeypatch, word):
    def loaded(*arguments):
        found = ORIGINAL(*arguments)
        setattr(found[0].model.layers[1].self_attn, word, torch.zeros(3))
        return found

    monkeypatch.setattr(transformers_engine, "_load", loaded)
    with pytest.raises(EngineError, match=rf"model\.layers\.1\.self_attn keeps {word}"):
        engine_of(folder)


def test_columns_of_a_step_are_two_thin_matrices_per_layer(folder, packed):
    engine = engine_of(folder, dtype="bfloat16")
    held = engine.weights.held()["live"]["cpu"]
    engine.step(*STEPS[0])
    grown = engine.weights.held()["live"]["cpu"] - held
    edges = sum(sum(engine.adapters.shape(name)) for name in engine.adapters.modules)
    assert grown == 2 * 2 * 2 * edges  # bytes, rank, directions
    assert np.isfinite(engine.measure(STEPS[:1], 0.1)["update_rms"])
