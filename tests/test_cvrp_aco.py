"""The problem cvrp_aco: published distributions, its rules, its two protocols, its seeds."""

import math

import numpy as np
import pytest
from conformance import DATA, check_seeds, needs_values, published

from ttc_esopt.errors import DataError
from ttc_esopt.problems import NonFinite, WrongShape, load
from ttc_esopt.problems.cvrp import (
    CvrpInstance,
    nearest_neighbour_routes,
    planar_embedding,
    route_length,
)

PROBLEM, CORRECTED = load("cvrp_aco"), load("cvrp_aco", protocol="corrected")
TRAIN = PROBLEM.instances("train", 50)


def program(code):
    namespace = {"np": np}
    exec(code, namespace)
    return PROBLEM.find(namespace)


def objective(code, seed=0, problem=PROBLEM):
    return np.mean([problem.score(i, problem.run(program(code), i), seed).value for i in TRAIN])


@needs_values
@pytest.mark.parametrize("name", ["inverse_distance", "savings", "normalised_two_arguments"])
def test_published_programs_have_their_published_means(name):
    code, expected = published("cvrp_aco")[name]
    values = [objective(code, seed) for seed in range(5)]
    assert len(set(values)) == 5
    error = expected["std"] * math.sqrt(1 / expected["runs"] + 1 / 5)
    assert abs(np.mean(values) - expected["mean"]) <= 4 * error


def test_instances_are_drawn_from_one_stream_in_the_published_order():
    stream = np.random.RandomState(1234)
    for split, count, n in (("train", 10, 50), ("val", 64, 20), ("val", 64, 50), ("val", 64, 100), ("test", 64, 20)):
        got = PROBLEM.instances(split, n)
        assert [i.index for i in got] == list(range(count)) and {len(i) for i in got} == {n}
        assert PROBLEM.source(split, n) == "published"
        for instance in got:
            points, demands = stream.rand(n, 2), stream.randint(1, 10, n)
            assert np.array_equal(instance.points, [[0.5, 0.5], *points])
            assert np.array_equal(instance.demands, [0, *demands]) and instance.capacity == 50


def test_large_test_sets_are_files_or_our_own(monkeypatch):
    monkeypatch.delenv("TTC_ESOPT_DATA", raising=False)
    own = load("cvrp_aco")
    assert own.source("test", 50) == "own" and len(own.instances("test", 50)) == 64
    assert np.array_equal(own.instances("test", 50)[3].points, own.instances("test", 50)[3].points)
    if not DATA.is_dir():
        pytest.skip("the published sets are not here")
    theirs = load("cvrp_aco", data=DATA)
    assert theirs.source("test", 100) == "published"
    stored = np.load(DATA / "cvrp_aco" / "test100_dataset.npy")
    assert np.array_equal([i.points for i in theirs.instances("test", 100)], stored[..., 1:])
    assert np.array_equal([i.demands for i in theirs.instances("test", 100)], stored[..., 0])


def test_programs_of_four_and_of_two_arguments_see_what_the_protocol_promises():
    instance, calls = TRAIN[0], []

    def four(distance_matrix, coordinates, demands, capacity):
        calls.append(4)
        assert (distance_matrix.diagonal() == 1).all() and np.array_equal(coordinates, instance.points)
        assert np.array_equal(demands, instance.demands) and demands.dtype == np.float64
        assert capacity == 50 and type(capacity) is int
        demands[:] = coordinates[:] = 99  # its own copies
        return distance_matrix

    def two(distance_matrix, demands):
        calls.append(2)
        assert np.array_equal(demands, instance.demands / 50)
        return distance_matrix

    def more(distance_matrix, coordinates, demands, capacity, power=2.0):
        assert capacity == 50
        return distance_matrix**power

    for function in (four, two, lambda *all_: four(*all_)):
        assert PROBLEM.run(function, instance).shape == (51, 51)
    assert calls == [4, 2, 4] and instance.points[0, 0] == 0.5
    for function in (lambda a, b, c: a, more):
        with pytest.raises(TypeError, match="4 or 2 parameters"):
            PROBLEM.run(function, instance)


def test_a_rating_below_zero_counts_as_zero_and_infinity_is_refused():
    matrix = np.eye(51)
    with np.errstate(divide="ignore"):
        least = PROBLEM.run(lambda a, b, c, d: np.log(matrix), TRAIN[0])
    assert not least.any()
    with pytest.raises(NonFinite):
        PROBLEM.run(lambda a, b, c, d: -np.log(matrix), TRAIN[0])


@pytest.mark.parametrize("returned", [None, 1, np.ones((50, 50)), np.ones(51)])
def test_what_is_no_matrix_has_the_wrong_shape(returned):
    with pytest.raises(WrongShape):
        PROBLEM.run(lambda a, b, c, d: returned, TRAIN[0])


@pytest.mark.parametrize(
    ("output", "error"),
    [
        (np.ones((51, 51), np.int64), WrongShape),
        (np.ones((50, 50)), WrongShape),
        (np.full((51, 51), np.nan), NonFinite),
        (np.where(np.eye(51) > 0, np.inf, 1.0), NonFinite),
    ],
)
def test_the_score_believes_no_matrix(output, error):
    with pytest.raises(error):
        PROBLEM.score(TRAIN[0], output, 0)


def test_solutions_are_feasible_and_scores_agree_with_them():
    instance = TRAIN[2]
    output = PROBLEM.run(program(PROBLEM.baselines["inverse_distance"]), instance)
    for problem in (PROBLEM, CORRECTED):
        score, routes = problem.score(instance, output, 1), problem.solution(instance, output, 1)
        assert score == problem.score(instance, output, 1) != problem.score(instance, output, 2)
        assert sorted(c for route in routes for c in route) == list(range(1, 51))
        assert all(0 < instance.demands[route].sum() <= 50 for route in routes)
        assert score.true == route_length(instance.matrix(), routes)
        low, high = problem.bounds(instance)
        assert 0.35 * score.true < low <= score.true <= score.value <= high
        assert low <= problem.references(instance)["nearest_neighbour"] < 2.5 * score.true
    assert score.value == score.true  # corrected: no charge


def test_the_corrected_protocol_charges_nothing_and_finds_shorter_routes():
    code = PROBLEM.baselines["inverse_distance"]
    assert objective(code, problem=CORRECTED) < objective(code) - 3


def test_seed_heuristics_are_short_and_each_has_its_own_objective():
    values = [objective(seed.code) for seed in PROBLEM.seeds]
    assert values == pytest.approx([12.848927, 14.468292, 14.371923, 12.191667], abs=1e-6)
    assert len({round(v, 5) for v in values}) == len(values)
    check_seeds(PROBLEM)


def test_files_are_measured_in_their_own_lengths(tmp_path):
    path = tmp_path / "toy.vrp"
    places = [(50, 50), (0, 0), (100, 0), (100, 100), (0, 100)]
    nodes = "".join(f"{i + 1} {x} {y}\n" for i, (x, y) in enumerate(places))
    demands = "".join(f"{i + 1} {d}\n" for i, d in enumerate([0, 3, 3, 3, 3]))
    path.write_text(
        "NAME : toy\nTYPE : CVRP\nDIMENSION : 5\nEDGE_WEIGHT_TYPE : EUC_2D\nCAPACITY : 6\n"
        f"NODE_COORD_SECTION\n{nodes}DEMAND_SECTION\n{demands}DEPOT_SECTION\n1\n-1\nEOF\n"
    )
    (instance,) = PROBLEM.read(path)
    assert len(instance) == 4 and instance.capacity == 6 and instance.points.max() == 1
    output = PROBLEM.run(program(PROBLEM.baselines["inverse_distance"]), instance)
    score = CORRECTED.score(instance, output, 0)
    assert score.value == score.true == 2 * (71 + 100 + 71)
    assert PROBLEM.score(instance, output, 0).value >= score.true
    with pytest.raises(DataError):
        PROBLEM.read(tmp_path / "none.vrp")


def test_sets_of_arrays_are_read(tmp_path):
    rows = np.random.RandomState(0).rand(3, 6, 3)
    rows[..., 0] = [0, 5, 6, 7, 8, 9]
    np.save(tmp_path / "unit.npy", rows)
    assert all(i.lengths is None and i.capacity == 50 for i in PROBLEM.read(tmp_path / "unit.npy"))
    np.save(tmp_path / "large.npy", rows * [1, 90, 90])
    large = PROBLEM.read(tmp_path / "large.npy")
    assert large[1].index == 1 and large[1].metric().max() > 2 > large[1].matrix().max()
    np.save(tmp_path / "heavy.npy", rows * [9, 1, 1])
    with pytest.raises(DataError, match="up to the capacity 50"):
        PROBLEM.read(tmp_path / "heavy.npy")


def test_coordinates_are_made_from_distances():
    points = np.random.RandomState(1).rand(9, 2)
    matrix = np.linalg.norm(points[:, None] - points, axis=2)
    made = CvrpInstance(0, None, np.ones(9) - np.eye(9)[0], 4.0, matrix).coordinates()
    again = np.linalg.norm(made[:, None] - made, axis=2)
    assert made.min() == 0 and made.max() == 1
    assert np.allclose(again / again[0, 1], matrix / matrix[0, 1])
    assert not planar_embedding(np.zeros((3, 3))).any() and planar_embedding(np.zeros((1, 1))).shape == (1, 2)


def test_bounds_hold_for_every_partition_of_a_tiny_instance():
    points = np.random.RandomState(4).rand(4, 2)
    matrix = np.linalg.norm(points[:, None] - points, axis=2)
    demands = np.array([0.0, 2, 2, 2])
    every = [[[1], [2], [3]], [[1, 2], [3]], [[1, 3], [2]], [[2, 3], [1]]]
    best = min(route_length(matrix, routes) for routes in every)
    assert 0 < PROBLEM.bounds(CvrpInstance(0, points, demands, 4.0))[0] <= best
    assert nearest_neighbour_routes(matrix, demands, 2) == [[c] for c in 1 + np.argsort(matrix[0, 1:])]
