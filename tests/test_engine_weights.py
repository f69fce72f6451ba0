import numpy as np
import pytest
import torch
from tiny_model import make_tiny_model
from torch import nn
from transformers import AutoModelForCausalLM

from ttc_esopt.engines import load_engine, torch_noise
from ttc_esopt.engines.scopes import resolve_scope
from ttc_esopt.engines.weights import Weights
from ttc_esopt.errors import ConfigurationError, EngineError
from ttc_esopt.es import noise
from ttc_esopt.es.noise import NoiseKind

FULL, LOW, LOW3 = NoiseKind("full"), NoiseKind(), NoiseKind("lowrank", 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


def model(folder, dtype=torch.float32):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).requires_grad_(False)


def copies(weights):
    return {name: tensor.clone() for name, tensor in weights.live.items()}


def eps_of(kind, seed, name, shape):
    out = np.empty(shape, np.float32)
    if kind.kind == "full":
        noise.fill(out, seed, name)
    else:
        noise.fill_lowrank(out, seed, name, kind.rank)
    return out


def test_a_tied_tensor_is_one_tensor_under_its_checkpoint_name(folder, tmp_path):
    names = Weights.of(model(folder), FULL, "auto").names
    assert "model.embed_tokens.weight" in names and "lm_head.weight" not in names
    assert "lm_head.weight" in Weights.of(model(make_tiny_model(tmp_path, tied=False)), FULL, "auto").names


def test_scope_linear_holds_the_linear_layers_of_the_body_only(folder, tmp_path):
    expected = {
        f"model.layers.{i}.{part}.weight"
        for i in range(2)
        for part in [f"self_attn.{x}_proj" for x in "qkvo"] + [f"mlp.{x}_proj" for x in ("gate", "up", "down")]
    }
    assert set(Weights.of(model(folder), LOW, "auto").names) == expected
    assert set(Weights.of(model(make_tiny_model(tmp_path, tied=False)), FULL, "linear").names) == expected


def test_scopes_that_do_not_fit_are_refused():
    assert (resolve_scope(FULL, "auto"), resolve_scope(LOW, "auto")) == ("all", "linear")
    with pytest.raises(ConfigurationError, match="scope linear for low-rank"):
        resolve_scope(LOW, "all")
    with pytest.raises(ConfigurationError, match="got 'everything'"):
        resolve_scope(FULL, "everything")


def test_weights_are_restored_bit_for_bit_after_a_thousand_directions(folder):
    weights = Weights.of(model(folder), FULL, "linear")
    weights.step([11, 12], [0.01, -0.02])
    before, fingerprint = weights.sha256(), weights.fingerprint()
    for direction in range(1000):
        weights.perturb(direction, 0.01)
    assert weights.sha256() != before
    weights.restore()
    assert weights.sha256() == before and Weights.of(model(folder), FULL, "linear").fingerprint() != fingerprint


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_restoring_without_a_step_gives_back_what_was_loaded(folder, dtype):
    weights = Weights.of(model(folder, dtype), FULL, "all")
    before = weights.sha256()
    weights.perturb(5, 0.1)
    weights.restore()
    assert weights.sha256() == before


@pytest.mark.parametrize("kind", [FULL, LOW, LOW3], ids=str)
def test_steps_equal_plain_numpy_bit_for_bit(folder, kind):
    weights = Weights.of(model(folder), kind, "auto")
    start = copies(weights)
    delta = {name: np.zeros(start[name].shape, np.float32) for name in weights.names}
    rng = np.random.default_rng(0)
    for _ in range(3):
        seeds = [int(s) for s in rng.integers(0, 2**63, 4)]
        coefficients = rng.normal(0, 0.01, 4).astype(np.float32)
        weights.step(seeds, [float(c) for c in coefficients])
        for name in weights.names:
            acc = np.zeros_like(delta[name])
            for seed, c in zip(seeds, coefficients, strict=True):
                acc = acc + c * eps_of(kind, seed, name, acc.shape)
            delta[name] = delta[name] + acc
    for name, tensor in weights.live.items():
        expected = start[name].numpy()
        assert np.array_equal(tensor.numpy(), expected + delta[name] if name in delta else expected), name


def test_a_perturbed_model_is_base_plus_delta_plus_noise_bit_for_bit(folder):
    weights = Weights.of(model(folder), FULL, "all")
    base = copies(weights)
    weights.step([3], [0.01])
    weights.perturb(99, 0.02)
    for name in weights.names:
        eps = eps_of(FULL, 99, name, base[name].shape)
        expected = (base[name].numpy() + weights.delta[name].numpy()) + np.float32(0.02) * eps
        assert np.array_equal(weights.live[name].numpy(), expected), name


def test_bfloat16_keeps_steps_below_its_resolution_in_delta(folder):
    weights = Weights.of(model(folder, torch.bfloat16), FULL, "all")
    gains = weights.live["model.norm.weight"]
    weights.step([1], [1e-4])
    assert torch.equal(gains, torch.ones(64).bfloat16())
    for _ in range(99):
        weights.step([1], [1e-4])
    expected = (torch.ones(64) + weights.delta["model.norm.weight"]).bfloat16()
    assert torch.equal(gains, expected) and not torch.equal(gains, torch.ones(64).bfloat16())


def test_replaying_the_steps_gives_the_fingerprint_and_the_sum_is_cached(folder):
    first, second = Weights.of(model(folder), LOW, "auto"), Weights.of(model(folder), LOW, "auto")
    assert first.fingerprint() == second.fingerprint()
    for seeds, coefficients in [([1, 2], [0.1, 0.2]), ([2**64 - 1], [-0.3])]:
        first.step(seeds, coefficients)
        assert first.fingerprint() != second.fingerprint()
        second.step(seeds, coefficients)
    assert first.fingerprint() == second.fingerprint() and first.sha256() == second.sha256()
    total = sum(noise.tensor_fingerprint(t.numpy().view(np.uint32), n) for n, t in first.live.items())
    assert first.fingerprint() == f"{total % 2**64:016x}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_torch_path_has_the_bits_of_the_kernels(dtype, monkeypatch):
    monkeypatch.setattr(torch_noise, "CHUNK", 1000)
    generator = torch.Generator().manual_seed(1)
    base = torch.randn(61, 53, generator=generator).to(dtype)
    delta = torch.randn(61, 53, generator=generator) * 1e-3
    eps = np.empty(base.numel(), np.float32)
    noise.fill(eps, 7, "w")
    assert np.array_equal(torch_noise.values(7, "w", 0, eps.size, base.device).numpy(), eps)
    assert np.array_equal(torch_noise.values(7, "w", 1001, 50, base.device).numpy(), eps[1001:1051])

    def view(tensor):
        return tensor.numpy() if dtype == torch.float32 else tensor.view(torch.uint16).numpy()

    perturb, apply = (noise.perturb, noise.apply) if dtype == torch.float32 else (noise.perturb_bf16, noise.apply_bf16)
    for change in (None, delta):
        ours, theirs = torch.empty_like(base), torch.empty_like(base)
        torch_noise.perturb(base, change, 7, "w", 0.013, ours)
        perturb(view(base), None if change is None else change.numpy(), 7, "w", 0.013, view(theirs))
        assert torch.equal(ours, theirs)
    torch_noise.apply(base, delta, ours)
    apply(view(base), delta.numpy(), view(theirs))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", [FULL, LOW, LOW3], ids=str)
def test_the_torch_path_accumulates_the_bits_of_the_kernels(kind):
    ours = torch.randn(40, 31, generator=torch.Generator().manual_seed(1))
    theirs = ours.clone()
    seeds, coefficients = [1, 2**63, 3], [0.1, -0.2, float(np.float32(1 / 3))]
    if kind.kind == "full":
        torch_noise.accumulate(ours, seeds, coefficients, "w")
        noise.accumulate(theirs.numpy(), seeds, coefficients, "w")
    else:
        torch_noise.accumulate_lowrank(ours, seeds, coefficients, "w", kind.rank)
        noise.accumulate_lowrank(theirs.numpy(), seeds, coefficients, "w", kind.rank)
    assert torch.equal(ours, theirs)


def test_tensors_that_cannot_be_perturbed_are_refused_by_name(folder):
    packed = model(folder)
    packed.model.layers[1].mlp.up_proj.weight = nn.Parameter(torch.zeros(3, 4, dtype=torch.uint8), requires_grad=False)
    with pytest.raises(EngineError, match=r"model\.layers\.1\.mlp\.up_proj\.weight .*--noise lowrank:1"):
        Weights.of(packed, FULL, "linear")
    live = {"a.weight": torch.zeros(3, 4, dtype=torch.uint8)}
    with pytest.raises(EngineError, match=r"a\.weight has type uint8"):
        Weights(live, ["a.weight"], LOW, "linear")
    empty = model(folder)
    empty.model.layers[0].self_attn.q_proj.weight = nn.Parameter(torch.zeros(0))
    with pytest.raises(EngineError, match=r"model\.layers\.0\.self_attn\.q_proj\.weight holds no values"):
        Weights.of(empty, FULL, "auto")


def test_an_exported_model_loads_and_has_the_live_weights(folder, tmp_path):
    engine = load_engine(str(folder), noise=LOW, device="cpu", threads=1)
    engine.step([5, 6], [0.05, -0.02])
    engine.export(tmp_path / "out")
    again = load_engine(str(tmp_path / "out"), noise=LOW, device="cpu", threads=1)
    assert again.fingerprint() == engine.fingerprint() and again.sha256() == engine.sha256()
