"""The problem tsp_aco: published distributions, its rules, its seeds."""

import math
import pickle

import numpy as np
import pytest
from conformance import DATA, check_seeds, needs_values, published

from ttc_esopt.errors import DataError
from ttc_esopt.problems import Infeasible, NonFinite, WrongShape, load
from ttc_esopt.problems.tsp import TspInstance, nearest_neighbour, scaled_unit, tour_length

PROBLEM = load("tsp_aco")
TRAIN = PROBLEM.instances("train", 50)


def program(code):
    namespace = {"np": np}
    exec(code, namespace)
    return PROBLEM.find(namespace)


def objective(code, seed=0, instances=TRAIN):
    return np.mean([PROBLEM.score(i, PROBLEM.run(program(code), i), seed) for i in instances])


@needs_values
@pytest.mark.parametrize("name", ["inverse_distance", "inverse_square_sparse"])
def test_published_programs_have_their_published_means(name):
    code, expected = published("tsp_aco")[name]
    values = [objective(code, seed) for seed in range(5)]
    assert len(set(values)) == 5
    error = expected["std"] * math.sqrt(1 / expected["runs"] + 1 / 5)
    assert abs(np.mean(values) - expected["mean"]) <= 4 * error
    assert values[0] == objective(code, 0)


@needs_values
@pytest.mark.parametrize(("name", "error"), [("wrong_shape", WrongShape), ("all_nan", NonFinite)])
def test_published_invalid_programs_are_invalid(name, error):
    with pytest.raises(error):
        objective(published("tsp_aco")[name][0])


def test_instances_are_drawn_from_one_stream_in_the_published_order():
    stream = np.random.RandomState(1234)
    for split, count, n in (("train", 5, 50), ("val", 64, 20), ("val", 64, 50), ("val", 64, 100), ("test", 64, 20)):
        drawn = stream.rand(count, n, 2)
        got = PROBLEM.instances(split, n)
        assert [i.index for i in got] == list(range(count)) and {len(i) for i in got} == {n}
        assert np.array_equal([i.points for i in got], drawn)
        assert PROBLEM.source(split, n) == "published"


def test_large_test_sets_are_files_or_our_own(monkeypatch):
    monkeypatch.delenv("TTC_ESOPT_DATA", raising=False)
    own = load("tsp_aco")
    assert own.source("test", 50) == "own"
    points = np.array([i.points for i in own.instances("test", 50)])
    assert np.array_equal(points, np.random.RandomState(987654371).rand(64, 50, 2))
    if not DATA.is_dir():
        pytest.skip("the published sets are not here")
    theirs = load("tsp_aco", data=DATA)
    assert theirs.source("test", 100) == "published"
    stored = np.load(DATA / "tsp_aco" / "test100_dataset.npy")
    assert np.array_equal([i.points for i in theirs.instances("test", 100)], stored)


def test_a_program_sees_distances_with_ones_on_the_diagonal():
    def look(matrix):
        assert matrix.dtype == np.float64 and (matrix.diagonal() == 1).all()
        assert matrix[0, 1] == np.linalg.norm(TRAIN[0].points[0] - TRAIN[0].points[1])
        matrix[:] = 7  # its own copy
        return matrix

    assert (PROBLEM.run(look, TRAIN[0]) == 7).all()
    assert TRAIN[0].matrix().max() < 1.5


@pytest.mark.parametrize(
    "returned",
    [
        np.ones((50, 50), dtype=bool),
        np.ones((50, 50), dtype=np.int8),
        np.ones((50, 50), dtype=np.float32),
        [[1] * 50] * 50,
    ],
)
def test_numbers_of_any_kind_become_float64(returned):
    output = PROBLEM.run(lambda matrix: returned, TRAIN[0])
    assert output.dtype == np.float64 and (output == 1).all()


@pytest.mark.parametrize(
    "returned",
    [
        None,
        3.0,
        "x",
        {},
        np.ones(50),
        np.ones((49, 50)),
        np.ones((50, 50), complex),
        [[1], [2, 3]],
        np.full((50, 50), "x"),
    ],
)
def test_what_is_no_matrix_has_the_wrong_shape(returned):
    with pytest.raises(WrongShape):
        PROBLEM.run(lambda matrix: returned, TRAIN[0])


@pytest.mark.parametrize(
    ("output", "error"),
    [
        (np.ones((50, 50), np.int64), WrongShape),
        (np.ones((50, 51)), WrongShape),
        (np.ones(2500), WrongShape),
        (np.full((50, 50), np.nan), NonFinite),
        (np.where(np.eye(50) > 0, np.inf, 1.0), NonFinite),
        (np.full((50, 50), 1e39), NonFinite),  # infinite in float32, as in the published protocol
    ],
)
def test_the_score_believes_no_matrix(output, error):
    with pytest.raises(error):
        PROBLEM.score(TRAIN[0], output, 0)


def test_score_is_the_length_of_the_solution_and_within_the_bounds():
    for instance in TRAIN[:2]:
        output = PROBLEM.run(program(PROBLEM.baselines["inverse_distance"]), instance)
        tour = PROBLEM.solution(instance, output, 3)
        assert sorted(tour) == list(range(50))
        score = PROBLEM.score(instance, output, 3)
        assert score == tour_length(instance.matrix(), tour)
        low, high = PROBLEM.bounds(instance)
        assert low <= score <= high and low > 3
        assert low <= PROBLEM.references(instance)["nearest_neighbour"]


def test_names_are_found_in_the_published_order():
    ours, other, third = (lambda m: m), (lambda m: m), (lambda m: m)
    assert PROBLEM.find({"heuristics": other, "heuristics_v2": ours}) is other
    assert PROBLEM.find({"heuristics_v3": other, "heuristics_v2": ours}) is ours
    assert PROBLEM.find({"heuristics_v3": third, "heuristics": other}) is other
    assert PROBLEM.find({"heuristics_v17": third}) is third
    assert PROBLEM.find({"heuristics_v2": 5, "heuristics_v4": third}) is third
    assert PROBLEM.find({"heuristic": other}) is None


def test_seed_heuristics_are_short_and_each_has_its_own_objective():
    values = [objective(seed.code) for seed in PROBLEM.seeds]
    assert values == pytest.approx([6.090805, 6.144866, 6.474395, 5.937145], abs=1e-6)
    assert len({round(v, 5) for v in values}) == len(values)
    check_seeds(PROBLEM)


def test_instances_are_pickled_and_have_their_own_random_streams():
    again = pickle.loads(pickle.dumps(TRAIN[1]))
    output = np.ones((50, 50))
    assert PROBLEM.score(again, output, 0) == PROBLEM.score(TRAIN[1], output, 0)
    moved = TspInstance(2, TRAIN[1].points)
    assert PROBLEM.score(moved, output, 0) != PROBLEM.score(TRAIN[1], output, 0)


def test_files_are_measured_in_their_own_lengths(tmp_path):
    path = tmp_path / "square.tsp"
    nodes = "".join(
        f"{i + 1} {x} {y}\n" for i, (x, y) in enumerate([(0, 0), (300, 0), (300, 100), (0, 100), (150, 40)])
    )
    path.write_text(
        f"NAME : square\nTYPE : TSP\nDIMENSION : 5\nEDGE_WEIGHT_TYPE : EUC_2D\nNODE_COORD_SECTION\n{nodes}EOF\n"
    )
    (instance,) = PROBLEM.read(path)
    assert len(instance) == 5 and instance.points.max() == 1 and instance.metric()[0, 1] == 300
    output = PROBLEM.run(program(PROBLEM.baselines["inverse_distance"]), instance)
    tour = PROBLEM.solution(instance, output, 0)
    assert PROBLEM.score(instance, output, 0) == instance.metric()[tour, np.roll(tour, -1)].sum() > 800


def test_sets_of_arrays_are_read(tmp_path):
    points = np.random.RandomState(0).rand(3, 6, 2)
    np.save(tmp_path / "unit.npy", points)
    assert all(i.lengths is None for i in PROBLEM.read(tmp_path / "unit.npy"))
    np.save(tmp_path / "large.npy", 50 * points)
    large = PROBLEM.read(tmp_path / "large.npy")
    assert [i.index for i in large] == [0, 1, 2] and large[0].metric().max() > 2 > large[0].matrix().max()
    np.save(tmp_path / "pairs.npy", points[:, :2])
    with pytest.raises(DataError, match="expected 3 to"):
        PROBLEM.read(tmp_path / "pairs.npy")


def test_instances_without_coordinates():
    matrix = np.array([[9.0, 2, 4], [2, 0, 8], [4, 8, 0]])
    instance = TspInstance(0, None, scaled_unit(matrix), matrix)
    assert len(instance) == 3
    assert instance.matrix().max() == 1 and not instance.matrix().diagonal().any()
    assert nearest_neighbour(instance.matrix()).tolist() == [0, 1, 2]
    assert PROBLEM.score(instance, np.ones((3, 3)), 0) == 14
    assert not scaled_unit(np.zeros((2, 2))).any()


def test_few_large_matrices_travel_at_once():
    assert PROBLEM.per_process(TRAIN) >= 5
    assert PROBLEM.per_process([TspInstance(0, np.zeros((2800, 2)))]) == 1


def test_a_kernel_that_returned_no_tour_would_be_noticed(monkeypatch):
    from ttc_esopt.solvers import ant_colony

    monkeypatch.setattr(ant_colony, "tsp_colony", lambda *_: np.zeros(50, np.int64))
    with pytest.raises(Infeasible):
        PROBLEM.score(TRAIN[0], np.ones((50, 50)), 0)
