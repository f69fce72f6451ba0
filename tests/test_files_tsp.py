"""TSPLIB and CVRPLIB readers: published optima, every layout, and faults named by line."""

import itertools
import re

import numpy as np
import pytest
from benchmark_files import A_N32_K5, A_N32_K5_SOLUTION, BERLIN52, BURMA14, GR17, TSP, written

from ttc_esopt.errors import DataError
from ttc_esopt.problems.files import detect, read_tsp, read_vrp
from ttc_esopt.problems.files.solutions import check_cvrp, read_routes
from ttc_esopt.problems.tsp import unit

SMALL = (
    "NAME: s\nTYPE: TSP\nDIMENSION: 4\nEDGE_WEIGHT_TYPE: {}\nNODE_COORD_SECTION\n1 0 0\n2 3 4\n3 7 1\n4 -2.5 9\nEOF\n"
)
MATRIX = np.array([[0, 1, 2, 3], [1, 0, 4, 5], [2, 4, 0, 6], [3, 5, 6, 0.0]])
LISTED = {
    "FULL_MATRIX": "0 1 2 3 1 0 4 5 2 4 0 6 3 5 6 0",
    "UPPER_ROW": "1 2 3 4 5 6",
    "LOWER_ROW": "1 2 4 3 5 6",
    "UPPER_DIAG_ROW": "0 1 2 3 0 4 5 0 6 0",
    "LOWER_DIAG_ROW": "0 1 0 2 4 0 3 5 6 0",
    "UPPER_COL": "1 2 4 3 5 6",
    "LOWER_COL": "1 2 3 4 5 6",
    "UPPER_DIAG_COL": "0 1 0 2 4 0 3 5 6 0",
    "LOWER_DIAG_COL": "0 1 2 3 0 4 5 0 6 0",
}


def explicit(layout, numbers, n=4):
    return (
        f"NAME: x\nDIMENSION: {n}\nEDGE_WEIGHT_TYPE: EXPLICIT\nEDGE_WEIGHT_FORMAT: {layout}\n"
        f"EDGE_WEIGHT_SECTION\n{numbers}\nEOF\n"
    )


@pytest.mark.parametrize("name", TSP)
def test_published_files_are_read(tmp_path, name):
    text, _ = TSP[name]
    path = written(tmp_path, name, text)
    record = read_tsp(path)
    n = int(re.search(r"DIMENSION ?: ?(\d+)", text)[1])
    assert record.distances.shape == (n, n) and detect(path) == "tsp"
    assert np.array_equal(record.distances, record.distances.T) and not record.distances.diagonal().any()
    assert (record.points is None) == (record.metric == "EXPLICIT")
    assert record.ids.tolist() == list(range(1, n + 1)) and record.best_known is None


@pytest.mark.parametrize(
    ("metric", "first", "second"),
    [("EUC_2D", 5, 7), ("CEIL_2D", 5, 8), ("MAN_2D", 7, 8), ("MAX_2D", 4, 7), ("ATT", 2, 3)],
)
def test_metrics_round_as_they_are_defined(tmp_path, metric, first, second):
    matrix = read_tsp(written(tmp_path, "s.tsp", SMALL.format(metric))).distances
    assert (matrix[0, 1], matrix[0, 2]) == (first, second)


def test_geographic_distances_are_the_published_ones(tmp_path):
    matrix = read_tsp(written(tmp_path, "burma14.tsp", BURMA14)).distances
    assert matrix[0, :6].tolist() == [0, 153, 510, 706, 966, 581]


@pytest.mark.parametrize("layout", LISTED)
@pytest.mark.parametrize("breaks", [False, True])
def test_matrix_layouts(tmp_path, layout, breaks):
    numbers = LISTED[layout].replace(" ", "\n") if breaks else LISTED[layout]
    assert np.array_equal(read_tsp(written(tmp_path, "x.tsp", explicit(layout, numbers))).distances, MATRIX)


def test_lower_rows_that_are_listed_as_upper_ones(tmp_path):
    record = read_tsp(written(tmp_path, "x.tsp", explicit("LOWER_ROW", "1 2 3\n4 5\n6")))
    assert np.array_equal(record.distances, MATRIX)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.replace("\n", "\r\n"),
        lambda t: t.replace("EOF\n", ""),
        lambda t: t.replace(": ", " : "),
        lambda t: t.replace(": ", ":"),
        lambda t: t.replace("DIMENSION: 52", "DIMENSION 52").replace("TYPE: TSP", "type : tsp"),
        lambda t: t.replace("COMMENT:", "COMMENT: Mühlhausen\nCOMMENT:") + "0\nrubbish\n",
        lambda t: "\ufeff" + t.replace("\n", "\n\n").replace("NODE_COORD_SECTION", "NODE_COORD_SECTION :"),
        lambda t: re.sub(r"(?m)^(\d+) ", lambda m: f"{int(m[1]) - 1} ", t),
        lambda t: "EDGE_WEIGHT_TYPE: EUC_2D\n" + t.replace("EDGE_WEIGHT_TYPE: EUC_2D\n", ""),
    ],
)
def test_spellings(tmp_path, change):
    expected = read_tsp(written(tmp_path, "a.tsp", BERLIN52)).distances
    assert np.array_equal(read_tsp(written(tmp_path, "b.tsp", change(BERLIN52))).distances, expected)


def test_latin_1_and_best_known_values(tmp_path):
    path = tmp_path / "x.tsp"
    path.write_bytes(BERLIN52.replace("locations in Berlin", "Plätze, best known: 7542").encode("latin-1"))
    assert read_tsp(path).best_known == 7542
    assert read_tsp(written(tmp_path, "y.tsp", BERLIN52 + "")).best_known is None
    assert read_tsp(written(tmp_path, "z.tsp", "OPTIMUM: 7542\n" + BERLIN52)).best_known == 7542


def test_a_routing_file(tmp_path):
    path = written(tmp_path, "A-n32-k5.vrp", A_N32_K5)
    record = read_vrp(path)
    assert (record.name, record.capacity, record.vehicles, record.best_known) == ("A-n32-k5", 100, 5, 784)
    assert record.demands.sum() == 410 and record.demands[0] == 0 and detect(path) == "vrp"
    routes, cost = read_routes(written(tmp_path, "A-n32-k5.sol", A_N32_K5_SOLUTION), record)
    assert check_cvrp(record, routes) == cost == 784


def test_the_depot_moves_to_row_0(tmp_path):
    text = A_N32_K5.replace(" 1\n -1", " 7\n -1").replace("7 12\n", "7 0\n").replace("\n1 0\n", "\n1 12\n")
    moved, plain = (read_vrp(written(tmp_path, f"{k}.vrp", t)) for k, t in enumerate((text, A_N32_K5)))
    assert moved.ids[:4].tolist() == [7, 1, 2, 3] and moved.demands[:3].tolist() == [0, 12, 19]
    assert moved.points[0].tolist() == [58, 30] and moved.points[1].tolist() == [82, 76]
    assert np.array_equal(moved.distances, plain.distances[np.ix_(moved.ids - 1, moved.ids - 1)])


def test_an_explicit_routing_file(tmp_path):
    text = explicit("LOWER_ROW", "1 2 4 3 5 6\nDEMAND_SECTION\n0 3\n1 0\n2 4\n3 5\nDEPOT_SECTION\n1\n-1")
    record = read_vrp(written(tmp_path, "x-k2.vrp", "TYPE: CVRP\nCAPACITY: 9.0\n" + text.replace("x\n", "x-k2\n")))
    assert record.ids.tolist() == [1, 0, 2, 3] and record.vehicles == 2 and record.points is None
    assert record.distances[0].tolist() == [0, 1, 4, 5]


@pytest.mark.parametrize(
    ("base", "old", "new", "line", "words"),
    [
        (BERLIN52, "DIMENSION: 52", "DIMENSION: 1000000000", 4, "at most"),
        (BERLIN52, "DIMENSION: 52", "DIMENSION: 53", 58, "53 nodes"),
        (BERLIN52, "DIMENSION: 52", "DIMENSION: 51", 58, "51 nodes"),
        (BERLIN52, "DIMENSION: 52", "DIMENSION: x", 4, "DIMENSION"),
        (BERLIN52, "DIMENSION: 52\n", "", 58, "DIMENSION"),
        (BERLIN52, "EUC_2D", "XRAY1", 5, "EDGE_WEIGHT_TYPE"),
        (BERLIN52, "TYPE: TSP", "TYPE: ATSP", 2, "TSP"),
        (BERLIN52, "\n2 25.0", "\n1 25.0", 8, "once"),
        (BERLIN52, "25.0 185.0", "nan 185.0", 8, "coordinate"),
        (BERLIN52, "25.0 185.0", "1e400 185.0", 8, "coordinate"),
        (BERLIN52, "25.0 185.0", "1_0 185.0", 8, "coordinate"),
        (BERLIN52, "25.0 185.0", "25.0", 8, "two coordinates"),
        (BERLIN52, "NODE_COORD_SECTION", "NODES", 6, "KEY : value"),
        (GR17, "633 0 257", "-633 0 257", 8, "at least 0"),
        (GR17, "LOWER_DIAG_ROW", "FUNNY", 6, "EDGE_WEIGHT_FORMAT"),
        (GR17, " 236 390 238 301 55 96 153 336 0\n", "", 19, "153 distances"),
        (GR17, "153 336 0", "153 336 0 1", 20, "153 distances"),
    ],
)
def test_faults_of_tsp_files(tmp_path, base, old, new, line, words):
    assert old in base
    path = written(tmp_path, "x.tsp", base.replace(old, new, 1))
    with pytest.raises(DataError, match=rf"x\.tsp, line {line}: expected .*{re.escape(words)}.*, got ") as caught:
        read_tsp(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("2 19\n", "2 -19\n", 42, "demand of at least 0"),
        ("2 19\n", "2 101\n", 42, "within the capacity 100"),
        ("2 19\n", "2 1.5\n", 42, "whole"),
        ("2 19\n", "3 19\n", 43, "once"),
        ("32 9\n", "", 71, "32 demands"),
        ("32 9\n", "33 9\n", 40, "of every node"),
        (" 1\n -1", " 1\n 2\n -1", 75, "one depot"),
        (" 1\n -1", " -1", 73, "one depot"),
        (" 1\n -1", " 77\n -1", 74, "a node as depot"),
        (" 1\n -1", " 2\n -1", 42, "no demand at the depot"),
        ("CAPACITY : 100", "CAPACITY : 0", 6, "CAPACITY"),
        ("CAPACITY : 100\n", "", 75, "CAPACITY"),
        ("TYPE : CVRP", "TYPE : VRPTW", 3, "CVRP"),
        ("DEPOT_SECTION\n 1\n -1\n", "", 73, "DEPOT_SECTION"),
    ],
)
def test_faults_of_routing_files(tmp_path, old, new, line, words):
    assert old in A_N32_K5
    path = written(tmp_path, "x.vrp", A_N32_K5.replace(old, new, 1))
    with pytest.raises(DataError, match=rf"x\.vrp, line {line}: expected .*{re.escape(words)}") as caught:
        read_vrp(path)
    assert "\n" not in str(caught.value)


def test_an_asymmetric_matrix_is_refused(tmp_path):
    with pytest.raises(DataError, match="symmetric"):
        read_tsp(written(tmp_path, "x.tsp", explicit("FULL_MATRIX", "0 1 2 3 9 0 4 5 2 4 0 6 3 5 6 0")))


def test_unit_scales_by_one_factor():
    points = np.array([[10.0, 5.0], [30.0, 9.0], [20.0, 7.0]])
    assert unit(points).tolist() == [[0, 0], [1, 0.2], [0.5, 0.1]]
    assert not unit(np.ones((3, 2))).any()


def test_files_agree_with_the_vrplib_package(tmp_path):
    vrplib = pytest.importorskip("vrplib")
    path = written(tmp_path, "a.vrp", A_N32_K5)
    ours, theirs = read_vrp(path), vrplib.read_instance(str(path))
    assert np.array_equal(ours.distances, np.floor(theirs["edge_weight"] + 0.5))
    assert np.array_equal(ours.demands, theirs["demand"]) and theirs["capacity"] == ours.capacity
    path = written(tmp_path, "s.sol", A_N32_K5_SOLUTION)
    theirs = vrplib.read_solution(str(path))
    assert read_routes(path, ours) == (theirs["routes"], theirs["cost"])
    path = written(tmp_path, "x.vrp", explicit("LOWER_ROW", LISTED["LOWER_ROW"]))
    assert np.array_equal(vrplib.read_instance(str(path))["edge_weight"], read_tsp(path).distances)


def test_every_tour_of_a_small_matrix_has_its_length(tmp_path):
    from ttc_esopt.problems.files.solutions import check_tsp

    record = read_tsp(written(tmp_path, "x.tsp", explicit("UPPER_ROW", LISTED["UPPER_ROW"])))
    lengths = {check_tsp(record, (0, *rest)) for rest in itertools.permutations((1, 2, 3))}
    assert lengths == {1 + 4 + 6 + 3, 1 + 5 + 6 + 2, 2 + 4 + 5 + 3}
