"""Files whose instance is odd: few points, all in one place, nothing that fits, several in a file."""

import pytest
import solving
from benchmark_files import written
from in_this_process import use
from solving import FAR, gap, go, tsp_file, vrp_file

from ttc_esopt.errors import DataError


@pytest.fixture(autouse=True)
def engines(monkeypatch):
    return solving.stand_in_engines(monkeypatch)


@pytest.fixture
def here(monkeypatch):
    use(monkeypatch)


SQUARE = ["0 0", "0 3", "4 3", "4 0"]


@pytest.mark.parametrize(
    ("points", "length"),
    [(FAR, 12), (SQUARE * 2, 14), (["5 5"] * 6, 0), ([f"{k} 0" for k in range(9)], 16)],
    ids=["three nodes", "coincident", "one place", "a line"],
)
@pytest.mark.parametrize("problem", ["tsp_aco", "tsp_construct"])
def test_odd_tours(tmp_path, here, points, length, problem):
    solved = go(tsp_file(tmp_path, points), out=tmp_path / "out", problem=problem)
    assert length <= solved.value <= 2 * length and sorted(solved.solution) == list(range(len(points)))
    assert gap(solved, "1-tree").value <= length
    if length == 0:
        assert gap(solved, "1-tree").percent is None
        assert '"percent": null' in (tmp_path / "out" / "solution.json").read_text()


@pytest.mark.parametrize("count", [1, 2])
def test_tours_of_fewer_than_three_nodes_are_refused(tmp_path, here, count):
    with pytest.raises(DataError, match=r"expected (at least 3|3 to \d+) nodes, got"):
        go(tsp_file(tmp_path, FAR[:count]), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_odd_routes(tmp_path, here):
    one = go(vrp_file(tmp_path, ["0 0", "3 4"], [0, 10]), out=tmp_path / "one")
    assert (one.value, one.solution) == (10, [[1]]) and gap(one, "weak").percent == 0
    same = go(vrp_file(tmp_path, ["1 1"] * 4, [0, 4, 4, 4]), out=tmp_path / "same")
    assert same.value == 0 and sorted(c for route in same.solution for c in route) == [1, 2, 3]
    assert gap(same, "weak").percent is None
    each = go(vrp_file(tmp_path, ["0 0", "1 0", "2 0"], [0, 10, 10]), out=tmp_path / "each")
    assert each.value == 6 and len(each.solution) == 2


@pytest.mark.parametrize(
    ("sizes", "capacity", "bins"), [([7], 9, 1), ([3, 3, 3], 9, 1), ([9, 9], 9, 2), ([1] * 20, 10, 2)]
)
def test_odd_bins(tmp_path, here, sizes, capacity, bins):
    text = "\n".join(map(str, [len(sizes), capacity, *sizes])) + "\n"
    solved = go(written(tmp_path, "b.bpp", text), out=tmp_path / "out", strong_seconds=0.1)
    assert (solved.value, gap(solved, "L2").value, gap(solved, "proven").value) == (bins, bins, bins)


@pytest.mark.parametrize(
    ("rows", "capacity", "value"),
    [(["5 3", "4 2"], 1, 0), (["5 3", "4 2"], 9, 9), (["5 3"], 3, 5), (["0 1", "0 1"], 1, 0), (["1.5 0.5"] * 3, 1, 3)],
    ids=["nothing fits", "all fits", "one item", "worthless", "decimals"],
)
def test_odd_knapsacks(tmp_path, here, rows, capacity, value):
    text = f"{len(rows)} {capacity}\n" + "\n".join(rows) + "\n"
    solved = go(written(tmp_path, "k.kp", text), out=tmp_path / "out")
    assert solved.value == value and gap(solved, "LP").value >= value
    assert (gap(solved, "LP").percent is None) == (gap(solved, "LP").value == 0)


def test_one_of_several_knapsacks_keeps_its_numbers(tmp_path, here):
    text = "2\n2 1 7\n4 3\n0.5 0.75\n1\n3 1 0\n1 2 3\n0.1 0.2 0.3\n0.35\n"
    file = written(tmp_path, "k.txt", text)
    solved = go(file, out=tmp_path / "out", index=2)
    assert solved.value == 3 and solved.notes
    assert go(file, out=tmp_path / "other", index=1).value == 4
