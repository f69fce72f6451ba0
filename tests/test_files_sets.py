"""Bin-packing, knapsack and array readers, `detect`, and files broken at random."""

import time

import numpy as np
import pytest
from benchmark_files import (
    A_N32_K5,
    A_N32_K5_SOLUTION,
    ATT48,
    BURMA14,
    GR17,
    KP_10_269,
    MKNAP,
    PISINGER,
    TRIPLETS,
    U120,
    written,
)  # fmt: skip
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ttc_esopt.errors import DataError
from ttc_esopt.problems.files import detect, read_array, read_bpp, read_kp, read_tsp, read_vrp

READERS = (detect, read_tsp, read_vrp, read_bpp, read_kp)


def fault(reader, path):
    with pytest.raises(DataError) as caught:
        reader(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    return str(caught.value)


def test_several_bin_packing_problems(tmp_path):
    path = written(tmp_path, "binpack1.txt", U120)
    first, second = read_bpp(path)
    assert (first.name, first.capacity, first.best_known, len(first.sizes)) == ("u120_00", 150, 48, 120)
    assert second.best_known == 49 and first.sizes[:3].tolist() == [42, 69, 67] and detect(path) == "bpp"


def test_decimal_sizes_are_scaled_exactly(tmp_path):
    (only,) = read_bpp(written(tmp_path, "t.txt", TRIPLETS))
    assert only.capacity == 1000 and only.sizes.tolist() == [499, 266, 235, 413, 332, 255]


@pytest.mark.parametrize("text", ["3\n10\n4\n6\n5\n", "3 10\n4\n6\n5", "3\n10\n4 6 5\n", "3 10.0\r\n4.0\r\n6\r\n5\r\n"])
def test_one_bin_packing_problem(tmp_path, text):
    path = written(tmp_path, "small.bpp", text)
    (only,) = read_bpp(path)
    assert (only.name, only.capacity, only.sizes.tolist(), only.best_known) == ("small", 10, [4, 6, 5], None)
    assert detect(path) == "bpp"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("3\n10\n4\n6\n", "line 4: expected 3 sizes"),
        ("3\n10\n4\n6\n5\n1\n", "line 6: expected nothing after 3 sizes"),
        ("3\n10\n4\n11\n5\n", "line 4: expected a size within the capacity 10"),
        ("3\n10\n4\n-6\n5\n", "line 4: expected a size above 0"),
        ("3\n10\n4\nx\n5\n", "line 4: expected a size"),
        ("1000000000\n10\n4\n", "expected 1000000000 sizes"),
        ("1\n0\n4\n", "line 2: expected the capacity above 0"),
        ("1\n1\n0.00000000001\n", "at most 9 decimals"),
    ],
)
def test_faults_of_bin_packing_files(tmp_path, text, words):
    assert words in fault(read_bpp, written(tmp_path, "x.bpp", text))


def test_knapsack_layouts(tmp_path):
    (plain,) = read_kp(written(tmp_path, "f1.txt", KP_10_269))
    assert (plain.capacity, plain.values[:2].tolist(), plain.weights[:2].tolist()) == (269, [55, 10], [95, 4])
    assert plain.weights.dtype == np.int64 and plain.best_known is None
    (solved,) = read_kp(written(tmp_path, "f2.txt", KP_10_269 + "0 1 1 1 0 0 0 1 1 1\n"))
    assert solved.best_known == 295
    (pisinger,) = read_kp(written(tmp_path, "p.csv", PISINGER))
    assert (pisinger.name, len(pisinger.values), pisinger.best_known) == ("knapPI_1_50_1000_1", 50, 8373)
    whole, decimal = read_kp(written(tmp_path, "m.txt", MKNAP))
    assert whole.best_known == 20 and whole.weights.dtype == np.int64 and decimal.values.tolist() == [1.5, 2.5]
    (numbered,) = read_kp(written(tmp_path, "n.in", "2\n1 10 5\n2 20 7\n11\n"))
    assert (numbered.values.tolist(), numbered.weights.tolist(), numbered.capacity) == ([10, 20], [5, 7], 11)
    assert {detect(tmp_path / name) for name in ("f1.txt", "f2.txt", "p.csv", "m.txt", "n.in")} == {"kp"}
    assert len(read_kp(written(tmp_path, "pp.csv", PISINGER * 2))) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (KP_10_269.replace("87 46\n", ""), "line 10: expected 10 lines"),
        (KP_10_269 + "time: 10s\n", "line 12: expected nothing after 10 items"),
        (KP_10_269.replace("10 4", "-10 4"), "line 3: expected a value of at least 0"),
        (KP_10_269.replace("10 4", "10 inf"), "line 3: expected a weight"),
        (KP_10_269.replace("10 4", "10"), "line 3: expected a value and a weight"),
        (KP_10_269.replace("269", "-1"), "line 1: expected a capacity above 0"),
        (MKNAP.replace("3 1 20", "3 2 20"), "line 3: expected one constraint"),
        (MKNAP.replace("3 1 20", "999999999 1 20"), "expected 999999999 values"),
        (PISINGER.replace("c 995\n", ""), "'c 50'"),
        (PISINGER.replace("n 50", "n 51"), "line 56: expected number,value,weight,x"),
        ("hello\n", "line 1: expected 'n capacity'"),
    ],
)
def test_faults_of_knapsack_files(tmp_path, text, words):
    assert words in fault(read_kp, written(tmp_path, "x.txt", text))


@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_text_file(tmp_path, reader):
    assert "empty" in fault(reader, written(tmp_path, "e.txt", " \n"))
    assert "folder" in fault(reader, tmp_path)
    assert "nothing there" in fault(reader, tmp_path / "none.txt")
    (tmp_path / "b.txt").write_bytes(b"abc\n\x00\x01")
    assert "line 2: expected text, got a binary file" in fault(reader, tmp_path / "b.txt")


def test_detect(tmp_path):
    assert detect(written(tmp_path, "a", A_N32_K5.replace("TYPE : CVRP\n", ""))) == "vrp"
    assert detect(written(tmp_path, "b", BURMA14.replace("TYPE: TSP\n", ""))) == "tsp"
    assert "TYPE : TSP or CVRP" in fault(detect, written(tmp_path, "c", "TYPE: TOUR\nTOUR_SECTION\n1\n-1\n"))
    fault(detect, written(tmp_path, "d", "some words\n"))
    fault(detect, written(tmp_path, "e", "1 2 3 4\n"))
    np.save(tmp_path / "f.npy", np.zeros((2, 5, 2)))
    assert "may be tsp or kp" in fault(detect, tmp_path / "f.npy")


def test_arrays(tmp_path):
    stream = np.random.default_rng(0)
    np.save(tmp_path / "t.npy", stream.random((2, 5, 2)))
    routes = stream.random((2, 6, 3))
    routes[..., 0] = np.arange(6)
    np.save(tmp_path / "c.npy", routes)
    np.savez(tmp_path / "b.npz", demands=stream.integers(20, 100, (3, 7), dtype=np.int32))
    assert read_array(tmp_path / "t.npy", "tsp").shape == read_array(tmp_path / "t.npy", "kp").shape == (2, 5, 2)
    assert read_array(tmp_path / "c.npy", "vrp").shape == (2, 6, 3) and detect(tmp_path / "c.npy") == "vrp"
    assert read_array(tmp_path / "b.npz", "bpp").dtype == np.int64 and detect(tmp_path / "b.npz") == "bpp"
    for name, kind in (("t.npy", "bpp"), ("t.npy", "vrp"), ("c.npy", "tsp"), ("b.npz", "kp"), ("none.npy", "tsp")):
        fault(lambda path, kind=kind: read_array(path, kind), tmp_path / name)
    routes[0, 1, 0] = -1
    np.save(tmp_path / "c.npy", routes)
    assert "demands" in fault(lambda path: read_array(path, "vrp"), tmp_path / "c.npy")
    np.save(tmp_path / "n.npy", np.full((1, 2, 2), np.nan))
    assert "finite" in fault(lambda path: read_array(path, "tsp"), tmp_path / "n.npy")


def test_pickles_and_huge_headers_are_refused(tmp_path):
    np.save(tmp_path / "o.npy", np.array([{}], dtype=object), allow_pickle=True)
    fault(lambda path: read_array(path, "tsp"), tmp_path / "o.npy")
    np.save(tmp_path / "h.npy", np.zeros((1, 3, 2)))
    raw = (tmp_path / "h.npy").read_bytes().replace(b"(1, 3, 2)", b"(9999999999999, 3, 2)").replace(b" " * 12, b"", 1)
    (tmp_path / "h.npy").write_bytes(raw)
    fault(lambda path: read_array(path, "tsp"), tmp_path / "h.npy")


GOOD = [A_N32_K5, ATT48, BURMA14, GR17, KP_10_269, MKNAP, PISINGER, TRIPLETS, U120, A_N32_K5_SOLUTION]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_broken_files_are_data_errors_and_take_no_time(tmp_path, data):
    raw = bytearray(data.draw(st.sampled_from(GOOD)).encode())
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        how = data.draw(st.sampled_from(["flip", "cut", "insert", "drop"]))
        if how == "flip":
            raw[at] = data.draw(st.integers(0, 255))
        elif how == "insert":
            words = [b"9" * 30, b"-", b"\n", b" ", b"nan ", b"1e9 ", b"0", b"\xff", b":", b"EOF\n", b"_SECTION\n"]
            raw[at:at] = data.draw(st.sampled_from(words))
        else:
            del raw[at : at + data.draw(st.integers(1, 40)) if how == "drop" else len(raw)]
        if not raw:
            break
    path = tmp_path / "x.txt"
    path.write_bytes(raw)
    start = time.perf_counter()
    for reader in READERS:
        try:
            reader(path)
        except DataError as error:
            assert "\n" not in str(error)
    assert time.perf_counter() - start < 2


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_broken_arrays_are_data_errors(tmp_path, data):
    good = tmp_path / "good.npy"
    if not good.exists():
        np.save(good, np.ones((2, 3, 2)))
        np.savez(tmp_path / "good.npz", demands=np.ones((2, 3), dtype=np.int32))
    suffix = data.draw(st.sampled_from([".npy", ".npz"]))
    raw = bytearray((tmp_path / f"good{suffix}").read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / f"x{suffix}"
    path.write_bytes(raw[: data.draw(st.integers(0, len(raw)))] if data.draw(st.booleans()) else raw)
    for kind in ("tsp", "bpp"):
        try:
            read_array(path, kind)
        except DataError as error:
            assert "\n" not in str(error)
