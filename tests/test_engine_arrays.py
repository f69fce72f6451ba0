"""Parts of tensors, mirrored directions, Rademacher values and stochastic rounding, on every path that works here."""

import math

import numpy as np
import pytest
import torch
from es_oracle import mix
from hypothesis import given, settings
from hypothesis import strategies as st

from ttc_esopt.engines import arrays, torch_noise
from ttc_esopt.es import noise
from ttc_esopt.es.noise import NoiseKind
from ttc_esopt.es.shard import Shard, matrix

FULL = NoiseKind("full")
KINDS = [NoiseKind(kind, rank, values) for kind, rank in (("full", 1), ("lowrank", 1), ("lowrank", 3))
         for values in ("normal", "rademacher")]  # fmt: skip
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = st.one_of(
    st.tuples(st.integers(1, 40)),
    st.tuples(st.integers(1, 12), st.integers(1, 40)),
    st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 9)),
)
SEEDS = st.integers(-(2**64), 2**64 - 1)


def tensors(shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    base = (torch.randn(shape, generator=generator) * 0.02).to(dtype)
    return base, torch.randn(shape, generator=generator) * 1e-3


@st.composite
def parts(draw, shape):
    """A shard of a tensor of this shape."""
    height, width = matrix(shape)
    row, column = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    rows, columns = draw(st.integers(1, height - row)), draw(st.integers(1, width - column))
    return Shard(shape, row, rows, column, columns)


def cut(tensor, shard):
    whole = tensor.reshape(matrix(shard.shape))
    block = whole[shard.row : shard.row + shard.rows, shard.column : shard.column + shard.columns]
    return block.contiguous()


@pytest.fixture(params=["as it is", "torch alone"])
def path(request, monkeypatch):
    """The paths of the CPU: compiled kernels where there are any, or torch operations for everything."""
    if request.param == "torch alone":
        monkeypatch.setattr(arrays, "_by_numpy", lambda tensor: False)
        monkeypatch.setattr(torch_noise, "CHUNK", 37)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("rounding", noise.ROUNDINGS)
def test_a_part_of_a_tensor_is_perturbed_and_written_as_the_same_part_of_the_whole(rounding):
    @settings(max_examples=60, deadline=None)
    @given(st.data(), SHAPES, SEEDS, st.sampled_from(DTYPES), st.booleans(), st.sampled_from(noise_kinds("full")))
    def check(data, shape, direction, dtype, moved, kind):
        shard = data.draw(parts(shape))
        base, delta = tensors(shape, dtype)
        whole, restored = torch.empty_like(base), torch.empty_like(base)
        arrays.perturb(base, delta if moved else None, direction, "w", 0.01, whole, kind=kind, rounding=rounding)
        arrays.apply(base, delta, restored, "w", rounding=rounding)
        part_base, part_delta = cut(base, shard), cut(delta, shard)
        part = torch.empty_like(part_base)
        change = part_delta if moved else None
        arrays.perturb(part_base, change, direction, "w", 0.01, part, shard, kind=kind, rounding=rounding)
        assert torch.equal(part, cut(whole, shard))
        arrays.apply(part_base, part_delta, part, "w", shard, rounding)
        assert torch.equal(part, cut(restored, shard))

    check()


def noise_kinds(kind):
    return [one for one in KINDS if one.kind == kind]


@pytest.mark.parametrize("code", [noise, torch_noise], ids=["kernels", "torch"])
def test_a_part_of_a_tensor_takes_the_step_of_the_same_part_of_the_whole(code, monkeypatch):
    monkeypatch.setattr(torch_noise, "CHUNK", 37)
    if code is torch_noise:
        monkeypatch.setattr(arrays, "noise", FakeNoise)

    @settings(max_examples=60, deadline=None)
    @given(st.data(), SHAPES, st.lists(SEEDS, max_size=3), st.sampled_from(KINDS))
    def check(data, shape, directions, kind):
        shard = data.draw(parts(shape))
        coefficients = [0.1 * (-1) ** i / (i + 1) for i in range(len(directions))]
        delta = tensors(shape)[1]
        part = cut(delta, shard)
        arrays.accumulate(delta, kind, directions, coefficients, "w")
        arrays.accumulate(part, kind, directions, coefficients, "w", shard)
        assert torch.equal(part, cut(delta, shard))

    check()


class FakeNoise:
    """The numpy functions' names, worked by the torch ones."""

    @staticmethod
    def accumulate(array, *given, **named):
        torch_noise.accumulate(torch.from_numpy(array), *given, **named)

    @staticmethod
    def accumulate_lowrank(array, *given):
        torch_noise.accumulate_lowrank(torch.from_numpy(array), *given)


@settings(max_examples=60, deadline=None)
@given(st.data(), SHAPES, st.sampled_from(DTYPES))
def test_fingerprints_of_parts_add_up_to_that_of_the_whole(data, shape, dtype):
    tensor = tensors(shape, dtype)[0]
    height, width = matrix(shape)
    row, column = data.draw(st.integers(0, height)), data.draw(st.integers(0, width))
    total = 0
    for top, bottom in ((0, row), (row, height)):
        for left, right in ((0, column), (column, width)):
            if top < bottom and left < right:
                shard = Shard(shape, top, bottom - top, left, right - left)
                total += arrays.fingerprint(cut(tensor, shard), "w", shard)
    assert total & noise.MASK == arrays.fingerprint(tensor, "w")


@settings(max_examples=60, deadline=None)
@given(SHAPES, SEEDS, st.sampled_from(DTYPES), st.sampled_from(noise.ROUNDINGS), st.sampled_from(noise_kinds("full")))
def test_compiled_kernels_and_torch_have_the_same_bits(shape, direction, dtype, rounding, kind):
    base, delta = tensors(shape, dtype)
    ours, theirs = torch.empty_like(base), torch.empty_like(base)
    arrays.perturb(base, delta, direction, "w", 0.01, ours, kind=kind, rounding=rounding)
    torch_noise.perturb(base, delta, direction, "w", 0.01, theirs, values=kind.values, rounding=rounding)
    assert torch.equal(ours, theirs)
    arrays.apply(base, delta, ours, "w", rounding=rounding)
    torch_noise.apply(base, delta, theirs, "w", rounding=rounding)
    assert torch.equal(ours, theirs)


# --- mirrored directions, Rademacher values ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_mirrored_direction_is_exactly_the_negative(kind):
    def eps(direction):
        out = np.empty((9, 11), np.float32)
        if kind.kind == "full":
            noise.fill(out, direction, "w", values=kind.values)
        else:
            noise.fill_lowrank(out, direction, "w", kind.rank, kind.values)
        return out

    for seed in (0, 7, 2**52 - 1, 2**64 - 1):
        assert np.array_equal(eps(~seed), -eps(seed))
        up, down = torch.zeros(9, 11), torch.zeros(9, 11)
        arrays.accumulate(up, kind, [seed, ~seed, 5], [0.3, 0.1, 0.0], "w")
        arrays.accumulate(down, kind, [~seed, seed, 5], [-0.3, -0.1, 0.0], "w")
        assert torch.equal(up, down) and up.any()


def test_the_factors_of_a_mirrored_direction_have_a_negated():
    (a, b), (c, d) = (noise.factors(seed, "w", (5, 7), 2) for seed in (3, ~3))
    assert np.array_equal(a, -c) and np.array_equal(b, d)


def test_a_pair_that_is_perturbed_lies_on_both_sides_of_the_model():
    base = torch.zeros(1000)
    up, down = torch.empty(1000), torch.empty(1000)
    arrays.perturb(base, None, 12, "w", 0.01, up)
    arrays.perturb(base, None, ~12, "w", 0.01, down)
    assert torch.equal(up, -down)


def test_rademacher_noise_is_the_sign_of_normal_noise():
    normal, signs = np.empty(4001, np.float32), np.empty(4001, np.float32)
    noise.fill(normal, 3, "w", 5)
    noise.fill(signs, 3, "w", 5, values="rademacher")
    assert np.array_equal(signs, np.sign(normal)) and abs(signs.mean()) < 0.06
    out = np.empty((200, 300), np.float32)
    noise.fill_lowrank(out, 3, "w", 1, "rademacher")
    assert set(np.unique(out)) == {-1.0, 1.0}
    with pytest.raises(ValueError, match="rademacher"):
        noise.fill(out, 3, "w", values="uniform")


# --- stochastic rounding ----------------------------------------------------------------------------------------------


def dither_of(name, i):
    word = mix((noise.tensor_key(0, f"{name}/dither") + ((i >> 2) + 1) * 0x9E3779B97F4A7C15) % 2**64)
    return word >> 16 * (i & 3) & 0xFFFF


def test_stochastic_rounding_is_its_definition():
    value = np.float32([1.0, 1.001, -1.001, 3e-5, -3e-5, 1e-7, 0.02, 0.0, math.inf, -math.inf, math.nan, 65000.0])
    zeros = torch.zeros(value.size)
    for dtype in (torch.bfloat16, torch.float16):
        live = torch.empty(value.size, dtype=dtype)
        arrays.apply(zeros.to(dtype), torch.from_numpy(value), live, "w", rounding="stochastic")
        for i, (x, got) in enumerate(zip(value, live.double().tolist(), strict=True)):
            if not math.isfinite(x):
                assert got == x or (math.isnan(x) and math.isnan(got))
                continue
            grain, bits = (2.0**-133, 16) if dtype == torch.bfloat16 else (2.0**-24, 13)
            digits = 8 if dtype == torch.bfloat16 else 11
            exponent = math.frexp(float(x))[1]
            grain = max(grain, 2.0 ** (exponent - digits)) if x else grain
            dither = (dither_of("w", i) >> (16 - bits)) / 2**bits
            expected = math.floor(abs(float(x)) / grain + dither) * grain
            assert abs(got) == expected, (dtype, i, x)
            assert math.copysign(1, got) == math.copysign(1, x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_a_type_holds_exactly_is_never_moved(dtype):
    patterns = torch.arange(65536, dtype=torch.int32)
    base = patterns.to(torch.int16).view(dtype) if dtype != torch.float32 else patterns.view(torch.float32)
    base = base[torch.isfinite(base)]
    live = torch.empty_like(base)
    arrays.apply(base, torch.zeros(base.shape), live, "w", rounding="stochastic")
    assert torch.equal(live, base)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_on_average_stochastic_rounding_keeps_a_step_that_rounding_to_nearest_loses(dtype):
    base, size = torch.ones(400_000, dtype=dtype), 2e-5
    means = {}
    for rounding in noise.ROUNDINGS:
        live = torch.empty_like(base)
        arrays.apply(base, torch.full(base.shape, size), live, "gains", rounding=rounding)
        means[rounding] = float((live.double() - 1).mean())
        again = torch.empty_like(base)
        arrays.apply(base, torch.full(base.shape, size), again, "gains", rounding=rounding)
        assert torch.equal(again, live)
    grain = 2.0**-7 if dtype == torch.bfloat16 else 2.0**-10
    assert means["nearest"] == 0
    assert abs(means["stochastic"] - size) < 4 * math.sqrt(size * grain / base.numel())


def test_rounding_says_nothing_to_float32():
    base, delta = tensors((50, 3))
    one, other = torch.empty_like(base), torch.empty_like(base)
    arrays.perturb(base, delta, 4, "w", 0.1, one)
    arrays.perturb(base, delta, 4, "w", 0.1, other, rounding="stochastic")
    assert torch.equal(one, other)


@pytest.mark.parametrize("rounding", noise.ROUNDINGS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_thousand_directions_leave_not_one_bit(dtype, rounding):
    base, delta = tensors((23, 41), dtype)
    live = torch.empty_like(base)
    arrays.apply(base, delta, live, "w", rounding=rounding)
    before, kept = live.clone(), base.clone()
    for seed in range(500):
        for direction in (seed, ~seed):
            arrays.perturb(base, delta, direction, "w", 1e-3, live, rounding=rounding)
    assert not torch.equal(live, before)
    arrays.apply(base, delta, live, "w", rounding=rounding)
    assert torch.equal(live, before) and torch.equal(base, kept)


def test_low_rank_noise_does_not_rewrite_weights():
    base = torch.zeros(3, 3)
    with pytest.raises(ValueError, match="full noise"):
        arrays.perturb(base, None, 1, "w", 0.1, base, kind=NoiseKind())
