"""The problem tsp_construct: published values, its rules, its seeds."""

import numpy as np
import pytest
from conformance import check_seeds, needs_values, published

from ttc_esopt.errors import ConfigurationError
from ttc_esopt.evaluation import Evaluator
from ttc_esopt.problems import Infeasible, WrongShape, load, names
from ttc_esopt.problems.tsp import TspInstance
from ttc_esopt.solvers.tsp_construct import (
    BadChoice,
    construct,
    distance_matrix,
    length_bounds,
    nearest_first,
    tour_length,
)

PROBLEM = load("tsp_construct")


def function_of(code):
    namespace = {}
    exec(code, namespace)
    return namespace[PROBLEM.function]


def objective(code, instances):
    return np.mean([PROBLEM.score(i, PROBLEM.run(function_of(code), i)) for i in instances])


@needs_values
def test_published_programs_have_their_published_values():
    programs = published("tsp_construct")
    with Evaluator(PROBLEM) as evaluator:
        outcomes = evaluator.evaluate([code for code, _ in programs.values()])
    for (name, (_, expected)), outcome in zip(programs.items(), outcomes, strict=True):
        value = expected["value"]
        assert outcome.valid == (value is not None), name
        if value is not None:
            assert outcome.objective == pytest.approx(value, rel=1e-9), name


def test_nearest_neighbour_has_its_published_value():
    code = PROBLEM.baselines["nearest_neighbour"]
    assert objective(code, PROBLEM.instances("train", 50)) == pytest.approx(7.0043697989867315, rel=1e-12)


def test_instances_are_drawn_from_one_stream_in_the_published_order():
    stream = np.random.RandomState(1234)
    assert np.array_equal(PROBLEM.instances("train", 50), stream.rand(64, 50, 2))
    for n in (20, 50, 100, 200):
        assert np.array_equal(PROBLEM.instances("val", n), stream.rand(64, n, 2))
    for n in (20, 50, 100, 200):
        assert np.array_equal(PROBLEM.instances("test", n), stream.rand(1000, n, 2))


def test_seed_heuristics_are_short_and_each_has_its_own_objective():
    instances = PROBLEM.instances("train", 50)
    values = [objective(seed.code, instances) for seed in PROBLEM.seeds]
    assert values == pytest.approx([6.815963, 6.951139, 6.893616, 6.892082], abs=1e-6)
    assert len({round(v, 5) for v in values}) == len(values)
    check_seeds(PROBLEM)


def test_a_program_sees_what_the_protocol_promises():
    calls = []

    def look(current, destination, unvisited, matrix):
        calls.append(unvisited)
        assert type(current) is int and destination == 0
        assert unvisited.dtype.kind == "i" and current not in unvisited and 0 not in unvisited
        assert np.all(np.diff(matrix[current][unvisited]) >= 0)
        assert matrix.shape == (100, 100) and not matrix.diagonal().any()
        return unvisited[-1]

    tour = PROBLEM.run(look, PROBLEM.instances("val", 100)[0])
    assert len(calls) == 98
    assert [len(offered) for offered in calls] == [50] * 50 + list(range(49, 1, -1))
    assert sorted(tour) == list(range(100)) and tour[0] == 0


def test_an_unvisited_node_that_was_not_offered_may_be_chosen():
    points = PROBLEM.instances("val", 100)[0]
    matrix = distance_matrix(points)

    def farthest(current, destination, unvisited, _):
        free = np.setdiff1d(np.arange(100), [*chosen, 0])
        chosen.append(int(free[np.argmax(matrix[current][free])]))
        return chosen[-1]

    chosen = []
    assert PROBLEM.score(points, PROBLEM.run(farthest, points)) > 30


@pytest.mark.parametrize("choice", [0, -1, 50, 10**30])
def test_a_visited_or_missing_node_is_infeasible(choice):
    with pytest.raises(Infeasible):
        PROBLEM.run(lambda *_: choice, PROBLEM.instances("train", 50)[0])


@pytest.mark.parametrize(
    "choice", [None, 1.0, np.float64(1), "1", True, np.True_, np.array([1]), [1], 1j, np.array(1.0)]
)
def test_a_choice_that_is_no_integer_has_the_wrong_shape(choice):
    with pytest.raises(WrongShape):
        PROBLEM.run(lambda *_: choice, PROBLEM.instances("train", 50)[0])


@pytest.mark.parametrize("kind", [int, np.int32, np.uint8, np.array])
def test_integers_of_any_kind_are_nodes(kind):
    points = PROBLEM.instances("train", 50)[0]
    tour = PROBLEM.run(lambda current, destination, unvisited, matrix: kind(unvisited[0]), points)
    assert tour.dtype == np.int64


@pytest.mark.parametrize(
    ("tour", "error"),
    [
        (np.arange(49), WrongShape),
        (np.arange(51), WrongShape),
        (np.arange(50.0), WrongShape),
        (np.arange(50).reshape(5, 10), WrongShape),
        (np.zeros(50, dtype=np.int64), Infeasible),
        (np.arange(50)[::-1], Infeasible),
        (np.arange(50) - 1, Infeasible),
    ],
)
def test_the_score_believes_no_tour(tour, error):
    with pytest.raises(error):
        PROBLEM.score(PROBLEM.instances("train", 50)[0], tour)


def test_lengths_and_orders_of_a_square():
    points = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 2.0], [0.0, 2.0]])
    assert tour_length(points, np.arange(4)) == 6
    order = nearest_first(distance_matrix(points))
    assert order[0].tolist() == [1, 3, 2]
    assert construct(lambda node, near: int(near[0]), order).tolist() == [0, 1, 2, 3]
    with pytest.raises(BadChoice, match="choice 2 is node 1, which was visited"):
        construct(lambda node, near: 1, order)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_tiny_instances_have_tours(n):
    order = nearest_first(distance_matrix(np.random.RandomState(0).rand(n, 2)))
    assert sorted(construct(lambda node, near: int(near[0]), order)) == list(range(n))


def test_an_unknown_problem_gets_close_matches():
    assert "tsp_construct" in names()
    with pytest.raises(ConfigurationError, match="Did you mean tsp_construct?"):
        load("tsp_constuct")


@pytest.mark.parametrize("name", ["nosuch.py:X", "no_such_module:X", "json:JSONDecoder", "nosuch", ""])
def test_what_is_no_problem_is_refused_in_one_line(name):
    with pytest.raises(ConfigurationError) as caught:
        load(name)
    assert "\n" not in str(caught.value)


def test_distances_orders_and_lengths_are_those_of_numpy():
    for points in PROBLEM.instances("val", 100)[:5]:
        matrix = np.linalg.norm(points[:, None] - points, axis=2)
        assert np.array_equal(distance_matrix(points), matrix)
        assert np.array_equal(nearest_first(matrix), np.argsort(matrix, axis=1)[:, 1:])
        tour = PROBLEM.run(function_of(PROBLEM.baselines["nearest_neighbour"]), points)
        ordered = points[tour]
        length = np.linalg.norm(ordered - np.roll(ordered, -1, axis=0), axis=1).sum()
        assert tour_length(points, tour) == pytest.approx(length, rel=1e-14)


def test_two_nodes_in_one_place_are_both_offered():
    points = np.array([[0.0, 0.0], [1.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    order = nearest_first(distance_matrix(points))
    assert all(sorted([i, *order[i]]) == [0, 1, 2, 3] for i in range(4))
    assert construct(lambda node, near: int(near[0]), order)[:2].tolist() == [0, 3]


def test_an_instance_of_a_file_is_measured_in_its_own_lengths(tmp_path):
    path = tmp_path / "square.tsp"
    nodes = "1 0 0\n2 10 0\n3 10 20\n4 0 20\n"
    head = "NAME : square\nTYPE : TSP\nDIMENSION : 4\nEDGE_WEIGHT_TYPE : EUC_2D\nNODE_COORD_SECTION\n"
    path.write_text(f"{head}{nodes}EOF\n")
    (instance,) = PROBLEM.read(path)
    np.save(tmp_path / "set.npy", np.ones((2, 5, 2)))
    assert [points.shape for points in PROBLEM.read(tmp_path / "set.npy")] == [(5, 2)] * 2
    seen = []

    def nearest(current, destination, unvisited, matrix):
        seen.append(matrix.max())
        return unvisited[0]

    tour = PROBLEM.run(nearest, instance)
    assert max(seen) < 1.5
    assert PROBLEM.score(instance, tour) == 60 and PROBLEM.solution(instance, tour).tolist() == [0, 1, 2, 3]
    assert PROBLEM.size_of(instance) == 4
    low, high = PROBLEM.bounds(instance)
    assert (low, high) == pytest.approx((60, 2 * (20 + np.round(500**0.5))))


def test_bounds_hold_every_tour():
    stream = np.random.RandomState(0)
    for n in (1, 2, 3, 4, 7):
        points = stream.rand(n, 2)
        low, high = PROBLEM.bounds(points)
        for _ in range(10):
            tour = np.append(0, 1 + stream.permutation(n - 1))
            assert low <= PROBLEM.score(points, tour) <= high
    uneven = stream.rand(5, 5)
    low, high = length_bounds(uneven)
    tour = np.append(0, 1 + stream.permutation(4))
    assert low <= PROBLEM.score(TspInstance(0, None, uneven), tour) <= high
