"""The compiled colonies: valid solutions, published distributions of draws, equal streams give equal solutions."""

import numpy as np
import pytest
from numba import njit

from ttc_esopt.solvers.ant_colony import LANES, Routes, _draw_32, _draw_64, cvrp_colony, tsp_colony


def square(n, seed=0):
    points = np.random.RandomState(seed).rand(n, 2)
    return np.linalg.norm(points[:, None] - points, axis=2) + np.eye(n)


def length(matrix, tour):
    return matrix[tour, np.roll(tour, -1)].sum()


@pytest.mark.parametrize("n", [2, 3, 7, 8, 9, 50, 130])
def test_tours_visit_every_node_once(n):
    matrix = square(n)
    tour = tsp_colony(matrix, 1 / matrix, matrix, 5, iterations=3)
    assert tour.dtype == np.int64 and sorted(tour) == list(range(n))


@pytest.mark.parametrize("n", [1, 2, 7, 8, 20, 90])
def test_routes_serve_every_customer_once_within_the_capacity(n):
    matrix = square(n + 1)
    demands = np.concatenate([[0], np.random.RandomState(1).randint(0, 10, n)]).astype(float)
    found = cvrp_colony(matrix, 1 / matrix, matrix, demands, 9, 5, iterations=3)
    assert isinstance(found, Routes)
    assert sorted(c for route in found.routes for c in route) == list(range(1, n + 1))
    assert all(demands[route].sum() <= 9 for route in found.routes)
    stops = [0] + [stop for route in found.routes for stop in (*route, 0)]
    assert found.charged == pytest.approx(matrix[stops[:-1], stops[1:]].sum())


def test_equal_streams_give_equal_solutions_and_others_do_not():
    matrix = square(30)
    demands = np.concatenate([[0.0], np.ones(29)])
    tours = [tsp_colony(matrix, np.ones((30, 30)), matrix, stream, iterations=2).tolist() for stream in (7, 7, 8)]
    assert tours[0] == tours[1] != tours[2]
    routes = [cvrp_colony(matrix, 1 / matrix, matrix, demands, 5, stream, iterations=2) for stream in (7, 7, 8)]
    assert routes[0] == routes[1] != routes[2]


@njit
def counted_32(weights, open_, blocks, counts, units):
    lanes = np.empty(LANES, np.float32)
    for unit in units:
        counts[_draw_32(weights, 1, 1, open_, blocks, lanes, unit)] += 1


@njit
def counted_64(weights, open_, blocks, counts, units):
    lanes = np.empty(LANES, np.float64)
    for unit in units:
        counts[_draw_64(weights, 1, 1, open_, blocks, lanes, unit)] += 1


@pytest.mark.parametrize(("counted", "kind"), [(counted_32, np.float32), (counted_64, np.float64)])
@pytest.mark.parametrize("n", [5, 8, 21, 150])
def test_nodes_are_drawn_in_proportion_to_their_weights(counted, kind, n):
    random = np.random.RandomState(n)
    blocks = -(-n // LANES)
    weights, open_ = np.zeros((2, LANES * blocks), kind), np.zeros(LANES * blocks, kind)
    weights[1, :n] = random.rand(n) ** 3
    weights[1, 1] = 0
    open_[:n] = random.rand(n) < 0.6
    open_[n - 1] = 1
    counts, units = np.zeros(LANES * blocks), (np.arange(200_000) + 0.5) / 200_000
    counted(weights, open_, blocks, counts, units)
    share = (weights[1] * open_).astype(float)
    share[1] = 0  # the node that is left is closed
    assert not counts[share == 0].any()
    assert np.abs(counts / len(units) - share / share.sum()).max() < 2e-5


def test_the_first_node_of_a_tour_is_uniform_and_pheromone_makes_tours_shorter():
    matrix = square(20)
    first = [tsp_colony(matrix, 1 / matrix, matrix, s, iterations=1, ants=1)[0] for s in range(2000)]
    assert np.bincount(first, minlength=20).min() > 60
    early, late = (
        np.mean([length(matrix, tsp_colony(matrix, 1 / matrix, matrix, s, iterations=i)) for s in range(5)])
        for i in (1, 60)
    )
    assert late < 0.9 * early


def test_lengths_are_measured_in_their_own_matrix():
    matrix = square(12)
    demands = np.concatenate([[0.0], np.ones(11)])
    best = tsp_colony(matrix, 1 / matrix, matrix, 3, iterations=20)
    assert np.array_equal(best, tsp_colony(matrix, 1 / matrix, 1000 * matrix, 3, iterations=20))
    one = cvrp_colony(matrix, 1 / matrix, matrix, demands, 4, 3, iterations=20)
    other = cvrp_colony(matrix, 1 / matrix, 1000 * matrix, demands, 4, 3, iterations=20)
    assert other.routes == one.routes and other.charged == pytest.approx(1000 * one.charged)


def test_waiting_at_the_depot_is_charged():
    matrix = square(30)
    demands = np.concatenate([[0.0], np.full(29, 2.0)])
    heuristic = np.full((30, 30), 1.0)
    free = cvrp_colony(matrix, heuristic, matrix, demands, 9, 3, iterations=1)
    charged = cvrp_colony(matrix, heuristic, matrix, demands, 9, 3, iterations=1, idle=(1.0, 1.0))
    assert charged.routes == free.routes  # one iteration: nothing has been learned yet
    assert free.charged < charged.charged < free.charged + 60


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_a_scale_of_the_heuristic_overflows_nothing(scale):
    matrix = square(15)
    assert len(tsp_colony(matrix, scale / matrix, matrix, 3, iterations=5)) == 15
    huge = (1e300 if scale > 1 else 1e-300) / matrix
    found = cvrp_colony(matrix, huge, matrix, np.concatenate([[0.0], np.ones(14)]), 4, 3, iterations=5)
    assert np.isfinite(found.charged)


def test_negative_and_zero_ratings_are_taken_for_the_floor():
    matrix = square(15)
    one = tsp_colony(matrix, np.zeros((15, 15)), matrix, 3, iterations=5)
    assert np.array_equal(one, tsp_colony(matrix, np.full((15, 15), -5.0), matrix, 3, iterations=5))


def test_points_that_coincide_are_no_trouble():
    matrix = np.eye(6)
    assert sorted(tsp_colony(matrix, np.ones((6, 6)), np.zeros((6, 6)), 1, iterations=3)) == list(range(6))
    found = cvrp_colony(np.zeros((6, 6)), np.ones((6, 6)), np.zeros((6, 6)), np.ones(6) - np.eye(6)[0], 2, 1)
    assert found.charged == 0


def test_a_demand_above_the_capacity_is_refused():
    matrix = square(3)
    with pytest.raises(ValueError, match="up to the capacity"):
        cvrp_colony(matrix, 1 / matrix, matrix, np.array([0.0, 1.0, 5.0]), 4, 1)
