"""Where base and delta lie changes no bit: beside the weights, on the host in blocks, or summed anew."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_model import make_tiny_model

from ttc_esopt.engines import Request, Sampling, load_engine
from ttc_esopt.engines import weights as module
from ttc_esopt.engines.weights import PLACEMENTS, Weights
from ttc_esopt.errors import ConfigurationError
from ttc_esopt.es.noise import NoiseKind
from ttc_esopt.es.shard import Shard

FULL, LOW = NoiseKind("full"), NoiseKind("lowrank", 2)
SHARDS = {"slice": Shard((9, 40), 2, 5, 8, 16), "rows": Shard((30, 7), 10, 11, 0, 7)}
VECTORS = {"gain": (13,)}
SEED = st.integers(0, 2**64 - 1)
STEP = st.tuples(st.lists(SEED, min_size=1, max_size=3), st.sampled_from([0.1, -0.02, 3e-4])).map(
    lambda one: (one[0], [one[1]] * len(one[0]))
)
DEED = st.one_of(
    st.tuples(st.just("step"), STEP),
    st.tuples(st.just("perturb"), st.tuples(SEED, st.sampled_from([1e-3, 0.05]))),
    st.tuples(st.just("rewind"), st.lists(STEP, max_size=2)),
    st.tuples(st.just("to_base"), st.none()),
)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 50)  # several per tensor


def weights_of(placement, kind, dtype, rounding="nearest"):
    generator = torch.Generator().manual_seed(3)
    shapes = {"whole": (12, 10), "slice": (5, 16), "rows": (11, 7), **(VECTORS if kind.kind == "full" else {})}
    live = {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}
    live["turned"] = torch.randn((10, 12), generator=generator).to(dtype).T  # as some engines hold a matrix
    if kind.kind == "full":
        live["stack"] = torch.randn((5, 6, 4), generator=generator).to(dtype).transpose(1, 2)
    return Weights(live, list(live), kind, "all", SHARDS, rounding=rounding, placement=placement)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", [FULL, LOW], ids=str)
@settings(max_examples=25, deadline=None)
@given(deeds=st.lists(DEED, min_size=1, max_size=6))
def test_all_places_of_delta_give_the_same_bits_whatever_is_done(kind, dtype, deeds):
    all_of_them = [weights_of(placement, kind, dtype) for placement in PLACEMENTS]
    for word, value in deeds:
        for weights in all_of_them:
            if word == "perturb":
                if kind.kind == "full":
                    weights.perturb(*value)
            elif word == "step":
                weights.step(*value)
            elif word == "rewind":
                weights.rewind(value)
            else:
                weights.to_base()
        first = all_of_them[0]
        for other in all_of_them[1:]:
            assert other.sha256() == first.sha256(), (word, other.placement)
        if word in ("perturb", "to_base"):
            for weights in all_of_them:
                weights.restore()
        assert len({weights.fingerprint() for weights in all_of_them}) == 1
        assert len({weights.sha256() for weights in all_of_them}) == 1


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_restoring_after_many_directions_is_exact_wherever_delta_lies(placement):
    weights = weights_of(placement, FULL, torch.bfloat16)
    weights.step([1, 2], [0.01, -0.02])
    before = weights.sha256()
    for direction in range(30):
        weights.perturb(direction, 0.05)
    assert weights.sha256() != before
    weights.restore()
    assert weights.sha256() == before


def test_blocks_bound_what_travels_also_of_tensors_that_lie_another_way():
    weights = weights_of("host", FULL, torch.float32)
    for name in ("whole", "turned", "stack"):
        sizes = [part.stop - part.start for part, _ in weights.blocks(name)]
        assert max(sizes) <= 50 and sum(sizes) == weights.live[name].numel()


def test_replay_holds_no_delta_and_says_what_is_held():
    sizes = {}
    for placement in PLACEMENTS:
        weights = weights_of(placement, LOW, torch.bfloat16)
        assert weights.held()["base"] == weights.held()["delta"] == {}
        weights.step([1], [0.1])
        sizes[placement] = weights.held()
    live = 2 * (12 * 10 + 5 * 16 + 11 * 7 + 12 * 10)
    both = {"live": {"cpu": live}, "base": {"cpu": live}, "delta": {"cpu": 2 * live}}
    assert sizes == {"device": both, "host": both, "replay": both | {"delta": {}}}


def test_a_place_that_does_not_exist_is_refused():
    with pytest.raises(ConfigurationError, match=r"got 'disk' \(--delta\)"):
        weights_of("disk", FULL, torch.float32)


@pytest.mark.parametrize("noise", ["full", "lowrank:1"])
def test_an_engine_writes_and_measures_the_same_wherever_delta_lies(tmp_path, noise):
    model = str(make_tiny_model(tmp_path / "model"))
    steps = [([11, 12], (0.02, -0.01)), ([13], (0.03,))]
    found = []
    for delta in PLACEMENTS:
        engine = load_engine(model, noise=NoiseKind.parse(noise), threads=1, delta=delta, device="cpu")
        assert engine.describe()["delta"] == delta
        for directions, coefficients in steps:
            engine.step(directions, coefficients)
        replies = engine.generate([Request("def f(x):", 1, direction=5, sigma=0.1)], Sampling(max_tokens=6))
        drift = engine.drift([Request("def f(x):", 1)], ["return x"], Sampling(max_tokens=6))
        found.append((replies, engine.measure(steps, 0.1), drift, engine.sha256()))
        engine.rewind(steps[:1])
        found[-1] += (engine.fingerprint(),)
    for place in (0, 2, 3, 4):
        assert len({str(one[place]) for one in found}) == 1
    for one in found[1:]:
        assert one[1]["update_rms"] == pytest.approx(found[0][1]["update_rms"], rel=1e-12)
        assert one[1]["below"] == found[0][1]["below"]


def test_auto_is_beside_the_weights_on_a_cpu(tmp_path):
    engine = load_engine(str(make_tiny_model(tmp_path / "model")), noise=LOW, threads=1, device="cpu")
    assert engine.describe()["delta"] == "device"
