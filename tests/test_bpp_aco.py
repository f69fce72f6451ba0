"""The problem bpp_aco: published values, its rules, its seeds."""

import statistics

import numpy as np
import pytest
from conformance import DATA, check_seeds, needs_sets, needs_values, published

from ttc_esopt.errors import DataError
from ttc_esopt.problems import Infeasible, NonFinite, WrongShape, load
from ttc_esopt.problems.bpp import BppInstance
from ttc_esopt.problems.bpp_aco import BppAco

PROBLEM = load("bpp_aco")
COLONY = load("bpp_aco", mode="aco")
TRAIN = PROBLEM.instances("train", 500)
SMALL = BppInstance(0, np.array([60, 60, 40, 40, 50, 50, 90, 30, 30, 20, 70, 80]), 100)


def function_of(code):
    namespace = {"np": np}
    exec(code, namespace)
    return PROBLEM.find(namespace)


def objective(code, seed=0, problem=PROBLEM):
    function = function_of(code)
    return statistics.fmean(problem.score(i, problem.run(function, i), seed) for i in TRAIN)


@needs_values
@pytest.mark.parametrize("name", ["large_with_large", "pair_fills_bin", "avoids_good_pairs", "small_first"])
def test_published_programs_have_their_published_means(name):
    code, expected = published("bpp_aco")[name]
    values = [objective(code, seed) for seed in range(5)]
    error = expected["std"] * (1 / expected["runs"] + 1 / len(values)) ** 0.5
    assert abs(statistics.fmean(values) - expected["mean"]) <= 4 * error
    assert len(set(values)) > 1


@needs_values
def test_the_published_invalid_program_is_invalid():
    code, expected = published("bpp_aco")["all_zero"]
    assert expected["value"] is None
    with pytest.raises(Infeasible):
        objective(code)


def test_sets_are_drawn_from_a_stream_per_split():
    assert [len(PROBLEM.instances(split, PROBLEM.splits[split][0])) for split in ("train", "val", "test")] == [
        5,
        64,
        64,
    ]
    stream = np.random.RandomState(3)
    for n in (120, 500, 1000):
        drawn = stream.randint(20, 101, (64, n))
        assert np.array_equal([i.sizes for i in PROBLEM.instances("val", n)], drawn)
    assert [i.index for i in TRAIN] == list(range(5)) and {i.capacity for i in TRAIN} == {150}
    assert PROBLEM.source("test", 1000) == "published"


@needs_sets
@pytest.mark.parametrize("n", [500, 1000])
def test_the_published_test_sets_are_those_that_the_stream_draws(n):
    path = DATA / "bpp_offline_aco" / f"test{n}_dataset.npz"
    drawn, read = PROBLEM.instances("test", n), PROBLEM.read(path)
    assert len(read) == 64
    for a, b in zip(drawn, read, strict=True):
        assert np.array_equal(a.sizes, b.sizes) and (a.index, a.capacity) == (b.index, b.capacity)


def test_seed_heuristics_are_short_and_each_has_its_own_objective():
    values = [objective(seed.code) for seed in PROBLEM.seeds]
    assert values == pytest.approx([203.0, 202.6, 204.0, 207.8], abs=1e-9)
    check_seeds(PROBLEM)
    assert objective(PROBLEM.baselines["large_with_large"]) == 203.0


def test_a_program_sees_what_the_protocol_promises():
    def look(demand, capacity):
        assert demand.dtype == np.int32 and demand.tolist() == SMALL.sizes.tolist()
        assert type(capacity) is int and capacity == 100
        demand[:] = 1  # its own copy
        return np.ones((12, 12))

    output = PROBLEM.run(look, SMALL)
    assert output.dtype == np.float64 and SMALL.sizes[0] == 60
    corrected = load("bpp_aco", protocol="corrected")
    assert corrected.run(lambda demand, capacity: np.full((12, 12), demand.dtype == np.int64), SMALL).all()
    wide = BppInstance(0, np.array([2**31, 5]), 2**32)
    assert PROBLEM.run(lambda demand, capacity: np.full((2, 2), demand.max()), wide).max() == 2**31


@pytest.mark.parametrize("name", ["heuristics", "heuristics_v1", "heuristics_v2", "heuristics_v3"])
def test_all_published_names_are_accepted(name):
    assert PROBLEM.find({name: len, "helper": max}) is len
    assert PROBLEM.find({"heuristics_v9": min, name: len}) is len


def test_another_name_or_no_function_is_nothing():
    assert PROBLEM.find({"heuristic": len}) is None
    assert PROBLEM.find({"heuristics_v2": 3}) is None
    assert PROBLEM.find({"heuristics_v2": 3, "heuristics": len}) is len


@pytest.mark.parametrize("kind", [int, bool, np.float32, np.uint8, np.float64, object])
def test_numbers_of_any_kind_are_ratings(kind):
    assert PROBLEM.run(lambda demand, capacity: np.ones((12, 12)).astype(kind), SMALL).tolist() == [[1.0] * 12] * 12


@pytest.mark.parametrize(
    "value",
    [None, 1.0, [[1.0] * 12] * 11, [["1"] * 12] * 12, np.ones(12), np.ones((12, 11)), np.ones((1, 12, 12)),
     np.ones((12, 12), complex), np.full((12, 12), "1")],
)  # fmt: skip
def test_what_is_no_matrix_of_numbers_has_the_wrong_shape(value):
    with pytest.raises(WrongShape):
        PROBLEM.run(lambda demand, capacity: value, SMALL)


@pytest.mark.parametrize("problem", [PROBLEM, COLONY])
@pytest.mark.parametrize(
    ("output", "error"),
    [
        (np.ones((12, 11)), WrongShape),
        (np.ones(144), WrongShape),
        (np.ones((12, 12), np.int64), WrongShape),
        (np.zeros((12, 12)), Infeasible),
        (-np.ones((12, 12)), Infeasible),
        (np.full((12, 12), -np.inf), NonFinite),
        (np.where(np.eye(12), np.inf, 1.0), NonFinite),
        (np.where(np.eye(12), np.nan, 1.0), NonFinite),
    ],
)
def test_the_score_believes_no_matrix(problem, output, error):
    with pytest.raises(error):
        problem.score(SMALL, output, 0)


def test_minus_infinity_is_as_good_as_the_least_rating():
    random = np.random.default_rng(0).random((12, 12))
    output = np.where(random < 0.3, -np.inf, random)
    least = np.where(random < 0.3, 1e-7, random)
    assert PROBLEM.solution(SMALL, output, 0) == PROBLEM.solution(SMALL, least, 0)


@pytest.mark.parametrize("problem", [PROBLEM, COLONY])
def test_solutions_are_packings_that_agree_with_the_score(problem):
    output = np.random.default_rng(1).random((12, 12))
    output.flags.writeable = False
    for seed in (0, 1, -1, 2**40):
        bins = problem.solution(SMALL, output, seed)
        assert sorted(sum(bins, [])) == list(range(12))
        assert all(0 < sum(SMALL.sizes[items]) <= 100 for items in bins)
        assert len(bins) == problem.score(SMALL, output, seed) == problem.score(SMALL, output.copy(), seed)
        least, most = problem.bounds(SMALL)
        assert least <= len(bins) <= most


def test_instances_and_seeds_have_streams_of_their_own():
    output = np.ones((500, 500))
    again = BppInstance(1, TRAIN[0].sizes, 150)
    solutions = [
        PROBLEM.solution(TRAIN[0], output, 0),
        PROBLEM.solution(TRAIN[0], output, 1),
        PROBLEM.solution(again, output, 0),
    ]
    assert solutions[0] != solutions[1] != solutions[2] != solutions[0]
    assert PROBLEM.solution(TRAIN[0], output) == solutions[0] == BppAco().solution(TRAIN[0], output)


def test_the_colony_is_another_search():
    output = PROBLEM.run(function_of(PROBLEM.baselines["large_with_large"]), TRAIN[0])
    assert COLONY.chosen["mode"] == "aco" and PROBLEM.chosen["mode"] == "sample"
    assert COLONY.solution(TRAIN[0], output, 0) != PROBLEM.solution(TRAIN[0], output, 0)
    assert 197 <= COLONY.score(TRAIN[0], output, 0) <= 260


def test_references_and_bounds():
    assert PROBLEM.references(SMALL) == {"first_fit_decreasing": 7.0, "best_fit_decreasing": 7.0}
    assert PROBLEM.bounds(SMALL) == (7.0, 12.0)
    assert [PROBLEM.references(i)["first_fit_decreasing"] for i in TRAIN] == [200, 202, 201, 206, 203]
    assert [PROBLEM.bounds(i)[0] for i in TRAIN] == [197, 199, 198, 204, 200]


def test_what_one_child_returns_is_limited():
    for split, size in (("train", 500), ("val", 1000)):
        share = PROBLEM.per_process(PROBLEM.instances(split, size))
        assert share >= 1 and share * size * size * 8 <= 32 << 20
    assert PROBLEM.per_process([BppInstance(0, np.ones(2500, np.int64), 3)]) == 1


def test_files_are_read(tmp_path):
    (tmp_path / "three.bpp").write_text("3\n10\n7\n4\n3\n")
    (found,) = PROBLEM.read(tmp_path / "three.bpp")
    assert (found.index, found.sizes.tolist(), found.capacity, found.name) == (0, [7, 4, 3], 10, "three")
    assert len(found) == 3
    np.save(tmp_path / "set.npy", np.array([[20, 150], [1, 7]]))
    assert [i.sizes.tolist() for i in PROBLEM.read(tmp_path / "set.npy")] == [[20, 150], [1, 7]]


@pytest.mark.parametrize(("array", "message"), [([[20, 151]], "150"), (np.ones((1, 2801)), "2800 items")])
def test_sets_that_cannot_be_packed_or_sent_are_refused(tmp_path, array, message):
    np.save(tmp_path / "set.npy", np.array(array))
    with pytest.raises(DataError, match=message):
        PROBLEM.read(tmp_path / "set.npy")
