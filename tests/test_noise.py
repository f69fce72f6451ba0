"""Noise version 1: bits, quality, kernels, fingerprint."""

import hashlib
import itertools
import math
import threading
from statistics import NormalDist

import es_oracle as oracle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ttc_esopt.errors import ConfigurationError, TtcEsoptError
from ttc_esopt.es import noise
from ttc_esopt.es.noise import NoiseKind

SEEDS = st.integers(0, 2**64 - 1)
NAMES = st.text(min_size=0, max_size=12)
SIZES = st.integers(0, 70) | st.sampled_from([2047, 2048, 2049, 4096, 4101])
STARTS = st.integers(0, 9) | st.integers(0, 2**40)

# Published bits of noise version 1: a change here makes every saved history unreadable.
FIRST = [
    0.6374292373657227,
    -0.009887398220598698,
    -0.06048861891031265,
    -0.8375869989395142,
    0.00805139634758234,
    1.2172179222106934,
    1.6206917762756348,
    -0.5455145835876465,
]
FINGERPRINT = 17987143681315659104


def eps(size, seed=1, name="w", start=0):
    out = np.empty(size, np.float32)
    noise.fill(out, seed, name, start)
    return out


def fast_oracle(size, seed, name, start=0):
    """The definition, vectorised in numpy (uint64 arrays wrap)."""
    i = np.arange(start, start + size, dtype=np.uint64)
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    key = np.uint64(oracle.mix(seed ^ int.from_bytes(digest, "little")))
    x = key + ((i >> np.uint64(2)) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    return oracle.TABLE[(x >> (np.uint64(16) * (i & np.uint64(3)))) & np.uint64(0xFFFF)]


def weights(size, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(0, 0.02, size).astype(np.float32), rng.normal(0, 1e-4, size).astype(np.float32)


def to_bf16(values):
    """Round to nearest even by exact arithmetic on the neighbouring bfloat16 values; NaN stays NaN."""
    low = (values.view(np.uint32) >> 16).astype(np.uint64)
    down, up = (((low + k) << 16).astype(np.uint32).view(np.float32).astype(np.float64) for k in (0, 1))
    up = np.where(np.isinf(up), np.copysign(2.0**128, up), up)  # where the next bfloat16 would lie
    exact = values.astype(np.float64)
    below, above = np.abs(exact - down), np.abs(up - exact)
    return (low + ((above < below) | ((above == below) & (low & 1 == 1)))).astype(np.uint16)


# --- bits ---------------------------------------------------------------------------------------------------------


def test_the_first_values_are_pinned():
    assert noise.VERSION == 1
    assert noise.mix(1) == oracle.mix(1) == 0x5692161D100B05E5
    assert eps(8, seed=0, name="model.embed_tokens.weight").tolist() == FIRST
    assert noise.tensor_fingerprint(np.arange(5, dtype=np.uint32), "w") == FINGERPRINT


def test_table_agrees_with_the_standard_library_is_symmetric_and_has_unit_variance():
    table = noise.table()
    deviation = math.sqrt(math.fsum(NormalDist().inv_cdf((u + 0.5) / 65536) ** 2 for u in range(65536)) / 65536)
    expected = [NormalDist().inv_cdf((u + 0.5) / 65536) / deviation for u in range(65536)]
    assert table.dtype == np.float32 and np.array_equal(table, np.array(expected).astype(np.float32))
    assert np.array_equal(table, -table[::-1]) and not table.flags.writeable
    assert abs(math.fsum(float(v) ** 2 for v in table) / 65536 - 1) < 1e-7


def test_a_platform_with_another_mathematics_library_is_an_error(monkeypatch):
    monkeypatch.setattr("scipy.special.ndtri", lambda p: np.sqrt(p))
    with pytest.raises(TtcEsoptError, match="SHA-256"):
        noise.table.__wrapped__()


@settings(max_examples=60, deadline=None)
@given(SEEDS, NAMES, SIZES, STARTS)
def test_fill_is_the_definition_for_any_seed_name_size_and_start(seed, name, size, start):
    out = eps(size, seed, name, start)
    assert np.array_equal(out, fast_oracle(size, seed, name, start))
    assert np.array_equal(out[:40], oracle.noise(seed, name, min(size, 40), start))


@settings(max_examples=60, deadline=None)
@given(SEEDS, SIZES, STARTS, st.floats(0, 1, width=32), st.booleans())
def test_perturb_is_the_numpy_formula_bit_for_bit(seed, size, start, sigma, with_delta):
    base, delta = weights(size, seed % 1000)
    out = np.empty_like(base)
    noise.perturb(base, delta if with_delta else None, seed, "w", sigma, out, start)
    expected = (base + delta if with_delta else base) + np.float32(sigma) * fast_oracle(size, seed, "w", start)
    assert np.array_equal(out.view(np.uint32), expected.view(np.uint32))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(SEEDS, st.floats(-1, 1)), max_size=5), SIZES, STARTS)
def test_accumulate_sums_over_directions_in_order(pairs, size, start):
    seeds, coefficients = [s for s, _ in pairs], [c for _, c in pairs]
    delta = weights(size)[1]
    acc = np.zeros(size, np.float32)
    for seed, c in pairs:
        acc = acc + np.float32(c) * fast_oracle(size, seed, "w", start)
    expected = delta + acc
    noise.accumulate(delta, seeds, coefficients, "w", start)
    assert np.array_equal(delta, expected)


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(1, 9), st.integers(1, 9) | st.just(2050), st.integers(1, 4), st.integers(1, 3))
def test_lowrank_accumulate_and_fill_match_the_formula(seed, rows, cols, rank, directions):
    seeds = [(seed + i) % 2**64 for i in range(directions)]
    coefficients = np.random.default_rng(seed % 1000).normal(0, 1e-3, directions)
    acc = np.zeros((rows, cols), np.float32)
    for s, c in zip(seeds, coefficients, strict=True):
        a = fast_oracle(rows * rank, s, "w/A").reshape(rows, rank)
        b = fast_oracle(cols * rank, s, "w/B").reshape(cols, rank)
        left, right = noise.factors(s, "w", (rows, cols), rank)
        assert np.array_equal(left, a) and np.array_equal(right, b)
        total = np.outer(a[:, 0], b[:, 0])
        for k in range(1, rank):
            total = total + np.outer(a[:, k], b[:, k])
        value = np.float32(1 / math.sqrt(rank)) * total
        acc = acc + np.float32(c) * value
    out = np.empty((rows, cols), np.float32)
    noise.fill_lowrank(out, s, "w", rank)
    assert np.array_equal(out, value)
    delta = weights(rows * cols)[1].reshape(rows, cols)
    expected = delta + acc
    noise.accumulate_lowrank(delta, seeds, coefficients, "w", rank)
    assert np.array_equal(delta, expected)


@settings(max_examples=40, deadline=None)
@given(SEEDS, SIZES, STARTS, st.floats(0, 0.125, width=32), st.booleans())
def test_bf16_perturb_and_apply_round_once_to_nearest_even(seed, size, start, sigma, with_delta):
    base, delta = weights(size, seed % 1000)
    bits = to_bf16(base)
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    out = np.empty_like(bits)
    noise.perturb_bf16(bits, delta if with_delta else None, seed, "w", sigma, out, start)
    expected = (wide + delta if with_delta else wide) + np.float32(sigma) * fast_oracle(size, seed, "w", start)
    assert np.array_equal(out, to_bf16(expected))
    noise.apply_bf16(bits, delta, out)
    assert np.array_equal(out, to_bf16(wide + delta))


def test_bf16_rounding_keeps_ties_even_infinities_and_nan():
    def rounded(patterns):
        delta = np.array(patterns, np.uint32).view(np.float32)
        out = np.empty(delta.size, np.uint16)
        noise.apply_bf16(np.full(delta.size, 0x8000, np.uint16), delta, out)  # base -0.0: the sum is delta
        return [hex(v) for v in out]

    assert rounded([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF]) == ["0x3f80", "0x3f82", "0x3f81", "0x3f80"]
    assert rounded([0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x80000000]) == ["0x7f80", "0x7f80", "0xff80", "0x8000"]
    nan = np.array(rounded([0x7F800001, 0x7FFFFFFF, 0xFFC00000]))
    assert all(int(v, 16) & 0x7FFF > 0x7F80 for v in nan)


def test_apply_adds_and_perturb_may_write_over_its_base():
    base, delta = weights(5000)
    out = np.empty_like(base)
    noise.apply(base, delta, out)
    assert np.array_equal(out, base + delta)
    expected = base + np.float32(0.01) * fast_oracle(5000, 3, "w")
    noise.perturb(base, None, 3, "w", 0.01, base)
    assert np.array_equal(base, expected)


def test_any_shard_of_a_tensor_has_the_bits_of_the_whole():
    whole = eps(10_007, 5, "w")
    cuts = [0, 1, 3, 4, 6, 2049, 2050, 9_999, 10_007]
    parts = [eps(b - a, 5, "w", a) for a, b in itertools.pairwise(cuts)]
    assert np.array_equal(np.concatenate(parts), whole)
    shape = np.empty((7, 11), np.float32)
    noise.fill(shape, 5, "w")
    assert np.array_equal(shape.reshape(-1), whole[:77])


def test_threads_that_share_the_kernels_make_the_same_bits():
    outs = [np.empty(100_003, np.float32) for _ in range(8)]
    threads = [threading.Thread(target=noise.fill, args=(out, i, "w")) for i, out in enumerate(outs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(out, fast_oracle(out.size, i, "w")) for i, out in enumerate(outs))


def test_a_thousand_directions_leave_no_residue():
    base, _ = weights(999)
    live, before = base.copy(), base.copy()
    for seed in range(1000):
        noise.perturb(base, None, seed, "w", 1e-3, live)
    noise.apply(base, np.zeros_like(base), live)
    assert np.array_equal(live, before) and np.array_equal(base, before)


def test_wrong_arguments_are_errors_and_never_reach_the_kernels():
    good = np.zeros(8, np.float32)
    for call in (
        lambda: noise.fill(np.zeros((8, 8), np.float32).T[1:], 1, "w"),
        lambda: noise.fill(good, -(2**64) - 1, "w"),
        lambda: noise.fill(good, 2**64, "w"),
        lambda: noise.fill(good, 1, "w", -1),
        lambda: noise.perturb(good[:7], None, 1, "w", 0.1, good),
        lambda: noise.perturb(good, good[:7], 1, "w", 0.1, good),
        lambda: noise.apply(good, good[:7], good),
        lambda: noise.accumulate(good, [1, 2], [0.1], "w"),
        lambda: noise.accumulate_lowrank(good, [1], [0.1], "w", 1),
    ):
        with pytest.raises(ValueError, match="Expected"):
            call()
    with pytest.raises(TypeError, match="float32"):
        noise.fill(np.zeros(8), 1, "w")
    with pytest.raises(TypeError, match="uint16"):
        noise.perturb_bf16(good, None, 1, "w", 0.1, good)


# --- quality: fixed seeds, thresholds at about one false alarm in 10,000 per test -----------------------------------

N = 400_000


def correlations_are_chance(pairs, limit=4.5):
    for a, b in pairs:
        a, b = a.astype(np.float64), b.astype(np.float64)
        r = np.dot(a, b) / math.sqrt(np.dot(a, a) * np.dot(b, b))
        assert abs(r) * math.sqrt(a.size) < limit


def test_moments_up_to_the_fourth_are_those_of_a_normal():
    x = eps(4 * N, 11, "w").astype(np.float64)
    errors = [  # (moment, its value, the variance of one term)
        (1, 0, 1),
        (2, 1, 2),
        (3, 0, 15),
        (4, 3, 96),
    ]
    for power, value, variance in errors:
        assert abs(np.mean(x**power) - value) < 4 * math.sqrt(variance / x.size)


def test_distribution_is_normal_and_all_table_entries_are_equally_likely():
    x = eps(N, 12, "w")
    assert stats.kstest(x, "norm").pvalue > 1e-4
    counts = np.bincount(np.searchsorted(noise.table(), eps(4_000_000, 13, "w")), minlength=65536)
    assert 1e-4 < stats.chisquare(counts).pvalue < 1 - 1e-4


def test_bits_of_the_indices_are_fair_one_by_one_and_in_pairs():
    index = np.searchsorted(noise.table(), eps(N, 14, "w"))
    bits = ((index[:, None] >> np.arange(16)) & 1).astype(np.float64) - 0.5
    assert np.all(np.abs(bits.sum(0)) < 4.5 * 0.5 * math.sqrt(N))
    products = 4 * bits.T @ bits
    off_diagonal = products[~np.eye(16, dtype=bool)]
    assert np.all(np.abs(off_diagonal) < 4.5 * math.sqrt(N))


def test_neighbouring_indices_are_uncorrelated_within_and_across_words():
    x = eps(N, 15, "w")
    correlations_are_chance((x[:-lag], x[lag:]) for lag in (*range(1, 9), 64, 576, 2048))
    lanes = x.reshape(-1, 4)
    correlations_are_chance((lanes[:, i].copy(), lanes[:, j].copy()) for i, j in itertools.combinations(range(4), 2))
    correlations_are_chance([(x[:-1] ** 2 - 1, x[1:] ** 2 - 1)])  # nor are their magnitudes


def test_neighbouring_seeds_and_names_are_uncorrelated():
    streams = [eps(N // 4, seed, "w") for seed in (0, 1, 2, 3, 2**32, 2**63, 2**64 - 1)]
    names = [f"model.layers.{i}.mlp.{kind}.weight" for i in (0, 1, 10) for kind in ("up_proj", "gate_proj")]
    streams += [eps(N // 4, 1, name) for name in names]  # equal shapes, one seed
    correlations_are_chance(itertools.combinations(streams, 2))
    shifted = [(a[:-k], b[k:]) for a, b in itertools.pairwise(streams) for k in (1, 4)]
    correlations_are_chance(shifted)


def test_directions_are_nearly_orthogonal_as_a_set():
    matrix = np.stack([eps(4096, seed, "w") for seed in range(200)]).astype(np.float64)
    gram = matrix @ matrix.T / 4096
    eigenvalues = np.linalg.eigvalsh(gram)  # Marchenko-Pastur: (1 +- sqrt(200 / 4096))^2
    edge = math.sqrt(200 / 4096)
    assert (1 - edge) ** 2 * 0.95 < eigenvalues[0] and eigenvalues[-1] < (1 + edge) ** 2 * 1.05


def test_no_two_streams_are_equal_or_shifts_of_each_other():
    heads = {eps(8, seed, name).tobytes() for seed in range(2000) for name in ("a", "b", "w/A", "w/B", "")}
    assert len(heads) == 10_000
    words = {eps(4, 7, name, 4 * j).tobytes() for name in ("a", "b", "c") for j in range(5000)}
    assert len(words) == 15_000


def test_lowrank_noise_has_unit_variance_at_any_rank():
    for rank in (1, 2, 8):
        out = np.empty((600, 500), np.float32)
        noise.fill_lowrank(out, 21, "w", rank)
        spectrum = np.linalg.svd(out.astype(np.float64), compute_uv=False)
        assert spectrum[rank - 1] > 100 > 1e-3 > spectrum[rank]  # rank, but for rounding
        deviation = math.sqrt((2 / 600 + 2 / 500) / rank)  # of the mean square, by the two factors' own
        assert abs(np.mean(out.astype(np.float64) ** 2) - 1) < 4 * deviation


# --- fingerprint ------------------------------------------------------------------------------------------------------


def reference_fingerprint(bits, name, start=0):
    key = oracle.mix(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little"))
    golden = 0x9E3779B97F4A7C15
    terms = (oracle.mix(oracle.mix((key + (start + i + 1) * golden) % 2**64) ^ int(b)) for i, b in enumerate(bits))
    return sum(terms) % 2**64


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), NAMES, STARTS, st.data())
def test_fingerprint_is_its_definition_and_shards_add_up(values, name, start, data):
    bits = np.array(values, np.uint32)
    whole = noise.tensor_fingerprint(bits, name, start)
    assert whole == reference_fingerprint(values, name, start)
    cut = data.draw(st.integers(0, len(values)))
    parts = noise.tensor_fingerprint(bits[cut:], name, start + cut) + noise.tensor_fingerprint(bits[:cut], name, start)
    assert parts % 2**64 == whole
    half = (bits & 0xFFFF).astype(np.uint16)
    assert noise.tensor_fingerprint(half, name, start) == reference_fingerprint(half, name, start)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=20), st.integers(0, 31), st.data())
def test_fingerprint_changes_with_any_bit_name_or_index(values, bit, data):
    bits = np.array(values, np.uint32)
    whole = noise.tensor_fingerprint(bits, "w")
    flipped = bits.copy()
    flipped[data.draw(st.integers(0, len(values) - 1))] ^= np.uint32(1 << bit)
    others = [
        noise.tensor_fingerprint(flipped, "w"),
        noise.tensor_fingerprint(bits, "v"),
        noise.tensor_fingerprint(bits, "w", 1),
    ]
    if len(set(values)) > 1:
        swapped = bits.copy()
        i = next(i for i, v in enumerate(values) if v != values[0])
        swapped[[0, i]] = swapped[[i, 0]]
        others.append(noise.tensor_fingerprint(swapped, "w"))
    assert whole not in others


# --- kinds ------------------------------------------------------------------------------------------------------------


def test_noise_kinds_are_read_and_written():
    assert NoiseKind.parse("full") == NoiseKind("full") and str(NoiseKind("full")) == "full"
    assert NoiseKind.parse("lowrank") == NoiseKind("lowrank", 1) == NoiseKind()
    assert NoiseKind.parse("lowrank:4").rank == 4 and str(NoiseKind("lowrank", 4)) == "lowrank:4"
    assert NoiseKind.parse("full+rademacher") == NoiseKind("full", values="rademacher")
    for kind in (NoiseKind("lowrank", 3), NoiseKind("full"), NoiseKind("lowrank", 1, "rademacher")):
        assert NoiseKind.parse(str(kind)) == kind
    assert str(NoiseKind("lowrank", 2, "rademacher")) == "lowrank:2+rademacher"
    with pytest.raises(ConfigurationError, match="normal or rademacher, got uniform .--noise"):
        NoiseKind(values="uniform")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fuII",
        "full:1",
        "lowrank:",
        "lowrank:0",
        "lowrank:-1",
        "lowrank:x",
        "lowrank:1.0",
        "full+",
        "full+normal",
        "full:+rademacher",
    ],
)
def test_a_wrong_noise_kind_names_its_option(text):
    with pytest.raises(ConfigurationError, match="--noise"):
        NoiseKind.parse(text)
