"""Scope `lora`: full noise on factors beside linear layers. The base stays, directions decode in one batch."""

import json

import numpy as np
import pytest
import torch
from tiny_model import make_tiny_model

from ttc_esopt import runner
from ttc_esopt.engines import Request, Sampling, load_engine
from ttc_esopt.engines.scopes import resolve_scope
from ttc_esopt.errors import ConfigurationError, EngineError
from ttc_esopt.es import noise
from ttc_esopt.es.history import record_of
from ttc_esopt.es.noise import NoiseKind
from ttc_esopt.es.optimizer import ESOptimizer
from ttc_esopt.runfolder import RunFolder
from ttc_esopt.settings import resolve

FULL = NoiseKind("full")
STEPS = [([11, 12], (0.02, -0.01)), ([13, 14], (0.05, 0.03))]
WARM = Sampling(max_tokens=12)
ASKED = [Request("def f(x):", i, direction=i if i % 3 else None, sigma=0.05) for i in range(6)]
NAME = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


def engine_of(folder, scope="lora:4", kind=FULL, **given):
    return load_engine(str(folder), noise=kind, scope=scope, device="cpu", threads=1, **given)


def logits(engine, nudges):
    ids = torch.randint(3, 300, (1, 9), generator=torch.Generator().manual_seed(0)).repeat(len(nudges), 1)
    rows = engine.rows(nudges)
    rows.columns = 9
    with torch.inference_mode(), rows:
        return engine.model(ids).logits


def eps_of(seed, name, shape):
    out = np.empty(shape, np.float32)
    noise.fill(out, seed, name)
    return torch.from_numpy(out)


def test_the_scope_has_a_rank_and_is_for_full_noise():
    assert resolve_scope(FULL, "lora") == "lora:8" and resolve_scope(FULL, "lora:3") == "lora:3"
    assert resolve({"noise": "full", "scope": "lora:16"}).scope == "lora:16"
    for scope in ("lora:", "lora:0", "lora:x", "lora:4096", "loras"):
        with pytest.raises(ConfigurationError, match="--scope"):
            resolve_scope(FULL, scope)
        with pytest.raises(ConfigurationError, match="--scope"):
            resolve({"noise": "full", "scope": scope})
    for refused in (lambda: resolve_scope(NoiseKind(), "lora"), lambda: resolve({"scope": "lora"})):
        with pytest.raises(ConfigurationError, match="--scope"):
            refused()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_before_the_first_step_the_model_is_the_one_that_was_loaded(folder, dtype):
    engine, plain = engine_of(folder, dtype=dtype), engine_of(folder, "all", dtype=dtype)
    asked = [Request("def f(x):", i) for i in range(4)]
    assert engine.generate(asked, WARM) == plain.generate(asked, WARM)
    assert engine.fingerprint() == plain.fingerprint() and engine.sha256() == plain.sha256()


def test_factors_move_by_full_noise_under_names_of_their_own_and_nothing_else_does(folder):
    engine = engine_of(folder)
    base = {name: tensor.clone() for name, tensor in engine.weights.live.items()}
    a, b = base[f"{NAME}/lora_A"], base[f"{NAME}/lora_B"]
    assert a.shape == (96, 4) and b.shape == (64, 4) and not a.any()
    assert torch.equal(b, eps_of(0, f"{NAME}/lora_B", (64, 4)) / np.float32(2))
    for step in STEPS:
        engine.step(*step)
    for name, tensor in engine.weights.live.items():
        if "/lora_" not in name:
            assert torch.equal(tensor, base[name])
            continue
        expected = torch.zeros_like(tensor)
        for seeds, coefficients in STEPS:
            acc = torch.zeros_like(tensor)
            for seed, c in zip(seeds, coefficients, strict=True):
                acc = acc + eps_of(seed, name, tensor.shape) * np.float32(c)
            expected = expected + acc
        assert torch.equal(tensor, base[name] + expected)
    facts = engine.describe()
    edges = 2 * (2 * (64 + 64) + 2 * (32 + 64) + 3 * (96 + 64))
    assert (facts["scope"], facts["moving_parameters"]) == ("lora:4", 4 * edges)


def test_noise_on_the_factors_changes_each_weight_by_sigma(folder):
    engine = engine_of(folder)
    live = engine.weights.live
    changes = []
    for direction in range(20):
        engine.weights.perturb(direction, 0.01)
        changes.append((live[f"{NAME}/lora_A"] @ live[f"{NAME}/lora_B"].T).flatten())
    assert torch.cat(changes).square().mean().sqrt() == pytest.approx(0.01, rel=0.15)


def test_a_batch_of_directions_equals_rewriting_the_weights(folder):
    engine, plain = engine_of(folder), engine_of(folder, "all")
    engine.rewind(STEPS)
    nudges = [(1, 0.05), None, (2**63 + 5, 0.02), (1, 0.01)]
    together = logits(engine, nudges)
    base = {name: tensor.clone() for name, tensor in plain.weights.live.items()}
    for row, nudge in enumerate(nudges):
        engine.weights.restore() if nudge is None else engine.weights.perturb(*nudge)
        for name in engine.adapters.factors:
            a, b = engine.adapters.factors[name]
            plain.weights.live[name].copy_(base[name] + a @ b.T)
        torch.testing.assert_close(together[row], logits(plain, [None])[0], rtol=1e-3, atol=1e-3)
    engine.weights.restore()
    assert (together[0] - together[1]).abs().max() > 0.1
    torch.testing.assert_close(logits(engine, [None])[0], together[1], rtol=1e-4, atol=1e-4)


def test_replies_do_not_depend_on_the_batch_and_leave_the_weights_alone(folder):
    engine = engine_of(folder)
    engine.rewind(STEPS)
    before = engine.sha256()
    together = engine.generate(ASKED, WARM)
    assert len({reply.text for reply in together}) > 3
    assert [engine.generate([request], WARM)[0] for request in ASKED] == together
    assert engine.sha256() == before
    assert all(value > 0 for value in engine.divergence([r for r in ASKED if r.direction], ["return x"] * 4, WARM))
    assert engine.drift([ASKED[0]], ["return x"], WARM) > 0
    assert engine.measure(STEPS, 0.05)["update_rms"] == pytest.approx(np.hypot(0.05, 0.03), rel=0.1)


@pytest.mark.parametrize("delta", ["host", "replay"])
def test_fingerprints_cover_base_and_factors_and_rewinding_goes_back(folder, delta):
    first, second = engine_of(folder), engine_of(folder, delta=delta)
    start = first.fingerprint()
    prints = []
    for step in STEPS:
        first.step(*step)
        prints.append(first.fingerprint())
    second.rewind(STEPS)
    assert len({start, *prints}) == 3 and second.fingerprint() == prints[-1] and second.sha256() == first.sha256()
    second.rewind(STEPS[:1])
    assert second.fingerprint() == prints[0]
    second.rewind([])
    assert second.fingerprint() == start
    second.weights.live["model.norm.weight"][0] += 1
    second.weights._prints.clear()
    assert second.fingerprint() != start


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_export_has_the_factors_merged_and_the_engine_goes_on_unmerged(folder, tmp_path, dtype):
    engine = engine_of(folder, dtype=dtype)
    engine.rewind(STEPS)
    before = engine.sha256()
    engine.export(tmp_path / "out")
    assert engine.sha256() == before
    merged = engine_of(tmp_path / "out", "all", dtype=dtype)
    a, b = engine.adapters.factors[NAME]
    expected = (engine.weights.live[NAME].float() + a.float() @ b.float().T).to(merged.weights.live[NAME].dtype)
    assert torch.equal(merged.weights.live[NAME], expected)
    if dtype == "float32":
        asked = [Request("def f(x):", i) for i in range(4)]
        assert merged.generate(asked, WARM) == engine.generate(asked, WARM)


def test_a_run_is_replayed_patched_and_begun_from(folder, tmp_path):
    engine = engine_of(folder)
    given = {"arm": "esopt", "budget": 20, "directions": 2, "model": str(folder), "noise": "full", "scope": "lora:4"}
    run = RunFolder.create(tmp_path / "run", resolve(given | {"device": "cpu"}), "test")
    run.note_model(engine.describe(), engine.fingerprint())
    es = ESOptimizer(run.settings.es_params(steps=2))
    for t in range(2):
        step = es.tell(es.ask(), [1.0, float(-t)])
        engine.step(step.seeds, step.coefficients)
        record = record_of(step, generation=0, operator="m1", orders=(0, 1), noise="full")
        run.history.append({**record, "fingerprint": engine.fingerprint()})
    again, fingerprint = runner.replayed(run.path)
    assert fingerprint == engine.fingerprint() and again.sha256() == engine.sha256()
    assert runner.export_patch(run.path, tmp_path / "p.json") == fingerprint
    assert json.loads((tmp_path / "p.json").read_text())["steps"][0]["scope"] == "lora:4"
    patched, found = runner.replayed(tmp_path / "p.json", str(folder))
    assert found == fingerprint
    patched.step([5], (0.1,))
    assert patched.fingerprint() != fingerprint


def test_steps_of_lora_may_come_first_and_other_scopes_move_the_base_beneath_them(folder, tmp_path):
    donor, engine = engine_of(folder), engine_of(folder, "linear")
    donor.rewind(STEPS)
    engine.adopt(FULL, "lora:4", STEPS)
    assert engine.fingerprint() == donor.fingerprint()
    torch.testing.assert_close(logits(engine, [None]), logits(donor, [None]))
    engine.step([7], (0.02,))
    assert f"{NAME}/lora_A" not in engine.weights.names and f"{NAME}/lora_A" in engine.weights.frozen
    engine.rewind([])
    assert engine.fingerprint() == donor.fingerprint()
    other = engine_of(folder, "lora:2")
    with pytest.raises(EngineError, match=r"factors of scope lora:4, this one has others .*export"):
        other.adopt(FULL, "lora:4", STEPS)
    base = engine_of(folder)
    base.adopt(FULL, "all", STEPS)
    base.step(*STEPS[0])
    assert base.fingerprint() != donor.fingerprint()
