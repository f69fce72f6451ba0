"""Strong solvers: published optima where the packages are installed, a reason where they are not."""

import sys

import numpy as np
import pytest
from benchmark_files import A_N32_K5, KP_10_269, PISINGER, TRIPLETS, TSP, written

from ttc_esopt import strong_solvers
from ttc_esopt.problems.files import BppFile, CvrpFile, KpFile, TspFile, read_bpp, read_kp, read_tsp, read_vrp


def tour_of(matrix):
    return TspFile("x", None, matrix, "EXPLICIT")


@pytest.mark.parametrize("name", ["burma14.tsp", "gr17.tsp", "ulysses16.tsp"])
@pytest.mark.parametrize("package", ["pyvrp", "ortools"])
def test_tours(tmp_path, monkeypatch, name, package):
    pytest.importorskip(package)
    if package == "ortools":
        monkeypatch.setitem(sys.modules, "pyvrp", None)
    text, optimum = TSP[name]
    found = strong_solvers.tsp(read_tsp(written(tmp_path, name, text)), 0.3, seed=1)
    assert found.value == optimum and found.solver.startswith(package) and not found.optimal
    assert sorted(found.solution) == list(range(len(found.solution)))


def test_tours_of_decimal_distances_and_tiny_ones():
    pytest.importorskip("pyvrp")
    points = np.random.default_rng(0).random((12, 2))
    found = strong_solvers.tsp(tour_of(np.linalg.norm(points[:, None] - points, axis=2)), 0.2)
    assert 2 < found.value < 5
    assert strong_solvers.tsp(tour_of(np.ones((3, 3)) - np.eye(3)), 0.1).value == 3


def test_routes(tmp_path):
    pytest.importorskip("pyvrp")
    record = read_vrp(written(tmp_path, "a.vrp", A_N32_K5))
    found = strong_solvers.cvrp(record, 1.5)
    assert 784 <= found.value <= 800 and found.solver.startswith("pyvrp")


def test_bins(tmp_path):
    (triplets,) = read_bpp(written(tmp_path, "t", TRIPLETS))
    assert strong_solvers.bpp(triplets, 2)[1:3] == (2, True)


def test_bins_where_the_bound_and_first_fit_disagree():
    sizes = np.array([44, 24, 24, 22, 21, 17, 8, 8, 6, 6])  # two bins by sum; first-fit decreasing needs three
    found = strong_solvers.bpp(BppFile("x", sizes, 90), 4)
    assert found.value == 2 and found.optimal
    assert strong_solvers.bpp(BppFile("y", np.array([60, 45, 35, 30, 20, 15, 15, 10, 10]), 121), 4).optimal
    no_fit = strong_solvers.bpp(
        BppFile("z", np.array([34] * 5), 100), 4
    )  # three are needed although the sum allows two
    assert no_fit.value == 3 and no_fit.optimal


def test_items(tmp_path):
    pytest.importorskip("ortools")
    for text, optimum in ((KP_10_269, 295), (PISINGER, 8373)):
        (record,) = read_kp(written(tmp_path, "k", text))
        found = strong_solvers.kp(record, 5)
        assert (found.value, found.optimal) == (optimum, True)
    stream = np.random.default_rng(0)
    found = strong_solvers.kp(KpFile("x", stream.random(30), stream.random(30), 4.0), 5)
    assert found.value > 8 and not found.optimal


def test_missing_packages_are_a_reason(monkeypatch):
    for package in ("pyvrp", "ortools", "ortools.sat.python", "ortools.constraint_solver"):
        monkeypatch.setitem(sys.modules, package, None)
    square = np.ones((4, 4)) - np.eye(4)
    for found in (
        strong_solvers.tsp(tour_of(square), 1),
        strong_solvers.cvrp(CvrpFile("x", None, square, np.array([0, 1, 1, 1]), 3, "EXPLICIT"), 1),
        strong_solvers.kp(KpFile("x", np.array([1]), np.array([1]), 1), 1),
    ):
        assert found.solution is None and "not installed" in found.reason or "Neither" in found.reason
