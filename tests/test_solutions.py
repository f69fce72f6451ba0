"""Solution files and the independent checkers."""

import re

import numpy as np
import pytest
from benchmark_files import A_N32_K5, A_N32_K5_SOLUTION, BERLIN52, KP_10_269, TRIPLETS, written

from ttc_esopt.errors import DataError
from ttc_esopt.problems.files import read_bpp, read_kp, read_tsp, read_vrp
from ttc_esopt.problems.files import solutions as s

# An optimal tour of berlin52, counted from 1.
BEST = """1 49 32 45 19 41 8 9 10 43 33 51 11 52 14 13 47 26 27 28 12 25 4 6 15 5 24 48 38 37 40 39 36 35 34 44 46 16 29
50 20 23 30 2 7 42 21 17 3 18 31 22"""


@pytest.fixture
def berlin(tmp_path):
    return read_tsp(written(tmp_path, "berlin52.tsp", BERLIN52))


@pytest.fixture
def routing(tmp_path):
    return read_vrp(written(tmp_path, "A-n32-k5.vrp", A_N32_K5))


@pytest.fixture
def bins(tmp_path):
    return read_bpp(written(tmp_path, "t.txt", TRIPLETS))[0]


@pytest.fixture
def knapsack(tmp_path):
    return read_kp(written(tmp_path, "f1.txt", KP_10_269))[0]


def refuses(words, function, *arguments):
    with pytest.raises(DataError, match=words) as caught:
        function(*arguments)
    assert "\n" not in str(caught.value)


def test_tours_go_to_files_and_back(tmp_path, berlin):
    tour = np.array(BEST.split(), dtype=int) - 1
    length = s.check_tsp(berlin, tour)
    assert length == 7542 and type(length) is int
    s.write_tour(tmp_path / "berlin52.opt.tour", berlin, tour)
    text = (tmp_path / "berlin52.opt.tour").read_text()
    assert "Length 7542" in text and text.endswith("\n-1\nEOF\n") and "TOUR_SECTION\n1\n49\n" in text
    assert np.array_equal(s.read_tour(tmp_path / "berlin52.opt.tour", berlin), tour)
    assert s.published_best(tmp_path / "berlin52.tsp", berlin) == 7542


def test_tours_use_the_numbers_of_the_file(tmp_path):
    text = re.sub(r"(?m)^(\d+) ", lambda m: f"{int(m[1]) + 99} ", BERLIN52)
    record = read_tsp(written(tmp_path, "b.tsp", text))
    s.write_tour(tmp_path / "b.tour", record, range(52))
    assert "TOUR_SECTION\n100\n101\n" in (tmp_path / "b.tour").read_text()
    assert s.read_tour(tmp_path / "b.tour", record).tolist() == list(range(52))


@pytest.mark.parametrize(
    ("tour", "words"),
    [
        (list(range(51)), "none of 51"),
        ([*range(51), 0], "0 twice"),
        ([*range(51), 52], "0 to 51, got 52"),
        (np.arange(52.0), "whole numbers"),
        ([[0, 1], [2]], "whole numbers"),
        (np.zeros((2, 2), dtype=int), "whole numbers"),
        ([True, False], "whole numbers"),
        ([], "none of 0"),
    ],
)
def test_wrong_tours(berlin, tour, words):
    refuses(words, s.check_tsp, berlin, tour)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("1\n2\n2\n-1", "line 4: expected every node once"),
        ("1\n2\n99\n-1", "line 4: expected a node"),
        ("1\n2\n-1", "expected 52 nodes"),
        ("1\nx\n-1", "expected"),
    ],
)
def test_wrong_tour_files(tmp_path, berlin, body, words):
    refuses(words, s.read_tour, written(tmp_path, "x.tour", "TOUR_SECTION\n" + body), berlin)


def test_routes_go_to_files_and_back(tmp_path, routing):
    path = written(tmp_path, "A-n32-k5.sol", A_N32_K5_SOLUTION)
    routes, cost = s.read_routes(path, routing)
    assert cost == 784 == s.check_cvrp(routing, routes)
    s.write_routes(tmp_path / "again.sol", routing, [*routes, []])
    assert (tmp_path / "again.sol").read_text() == A_N32_K5_SOLUTION
    bare = read_vrp(written(tmp_path, "A-n32-k5.vrp", re.sub("COMMENT.*\n", "", A_N32_K5)))
    assert bare.best_known is None and s.published_best(tmp_path / "A-n32-k5.vrp", bare) == 784
    refuses("line 6: expected cost 784", s.read_routes, written(tmp_path, "x", A_N32_K5_SOLUTION[:-2] + "5"), routing)


@pytest.mark.parametrize(
    ("routes", "words"),
    [
        ([list(range(1, 32))], "within the capacity 100, got 410 in route 1"),
        ([[k] for k in range(1, 31)], "none of 31"),
        ([[k] for k in [*range(1, 32), 5]], "5 twice"),
        ([[0], *([k] for k in range(1, 32))], "1 to 31, got 0"),
    ],
)
def test_wrong_routes(routing, routes, words):
    refuses(words, s.check_cvrp, routing, routes)


def test_bins_go_to_files_and_back(tmp_path, bins):
    packed = [[0, 1, 2], [3, 4, 5]]
    assert s.check_bpp(bins, packed) == 2 == s.check_bpp(bins, [*packed, []])
    s.write_bins(tmp_path / "b.txt", bins, packed)
    assert (tmp_path / "b.txt").read_text() == "Bin #1: 1 2 3\nBin #2: 4 5 6\nBins 2\n"
    assert s.read_bins(tmp_path / "b.txt", bins) == packed
    refuses("within the capacity 1000", s.check_bpp, bins, [[0, 1, 3], [2, 4, 5]])
    refuses("none of 5", s.check_bpp, bins, [[0, 1, 2], [3, 4]])
    refuses("line 3: expected bins 2", s.read_bins, written(tmp_path, "x", "Bin 1: 1 2 3\nBin 2: 4 5 6\nBins 3"), bins)


def test_items_go_to_files_and_back(tmp_path, knapsack):
    items = [1, 2, 3, 7, 8, 9]
    assert s.check_kp(knapsack, items) == 295 and s.kp_weight(knapsack, items) == 269
    s.write_items(tmp_path / "k.txt", knapsack, items[::-1])
    assert (tmp_path / "k.txt").read_text() == "Items: 2 3 4 8 9 10\nValue 295\nWeight 269\n"
    assert s.read_items(tmp_path / "k.txt", knapsack) == items and s.check_kp(knapsack, []) == 0
    refuses("weight at most 269", s.check_kp, knapsack, range(10))
    refuses("9 twice", s.check_kp, knapsack, [9, 9])
    refuses(
        "line 2: expected value 295", s.read_items, written(tmp_path, "x", "Items: 2 3 4 8 9 10\nValue 9"), knapsack
    )
    refuses("Items", s.read_items, written(tmp_path, "y", "Value 9"), knapsack)


def test_what_cannot_be_written_says_so(tmp_path, knapsack):
    refuses("can be written", s.write_items, tmp_path / "no" / "k.txt", knapsack, [1])
