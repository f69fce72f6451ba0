"""The problem kp_construct: published values, its rules, its sets and files."""

import numpy as np
import pytest
from conformance import DATA, check_seeds, needs_sets, needs_values, published

from ttc_esopt.errors import DataError
from ttc_esopt.problems import Infeasible, Rejected, WrongShape, load
from ttc_esopt.problems.files import KpFile
from ttc_esopt.problems.kp import KpInstance, kp_instance

PROBLEM = load("kp_construct")


def function_of(code):
    namespace = {"np": np}
    exec(code, namespace)
    return PROBLEM.find(namespace)


def objective(problem, code, instances):
    return -np.mean([problem.score(i, problem.run(function_of(code), i)) for i in instances])


def small(capacity=1.0, exact=None):
    return KpInstance(np.array([0.5, 0.6, 0.4, 0.1]), np.array([1.0, 2.0, 3.0, 4.0]), capacity, exact)


@needs_values
@needs_sets
def test_published_programs_have_their_published_values():
    problem = load("kp_construct", data=DATA)
    assert problem.source("train", 100) == "published"
    instances = problem.instances("train", 100)
    for name, (code, expected) in published("kp_construct").items():
        value = expected["value"]
        if value is None:
            with pytest.raises(Rejected):
                objective(problem, code, instances)
        else:
            assert objective(problem, code, instances) == pytest.approx(value, rel=1e-9), name


@needs_sets
def test_seed_heuristics_are_short_and_each_has_its_own_objective():
    problem = load("kp_construct", data=DATA)
    instances = problem.instances("train", 100)
    values = [objective(problem, seed.code, instances) for seed in PROBLEM.seeds]
    assert values == pytest.approx([-40.0919752, -40.1325352, -40.0987307, -40.1007026], abs=1e-6)
    check_seeds(PROBLEM)


def test_without_the_published_sets_own_ones_are_drawn(monkeypatch):
    monkeypatch.delenv("TTC_ESOPT_DATA", raising=False)
    problem = load("kp_construct")
    stream = np.random.RandomState(1234)
    for split, sizes in (("train", (100,)), ("val", (50, 100, 200)), ("test", (50,))):
        for size in sizes:
            instances = problem.instances(split, size)
            rows = stream.rand(problem.counts[split], size, 2)
            assert problem.source(split, size) == "own"
            assert np.array_equal([i.weights for i in instances], rows[..., 0])
            assert np.array_equal([i.values for i in instances], rows[..., 1])
            assert {i.capacity for i in instances} == {12.5 if size == 50 else 25.0}


def test_a_program_sees_the_remaining_items_in_their_order():
    calls = []

    def look(remaining, weights, values):
        calls.append((remaining, weights.tolist(), values.tolist()))
        pick = len(weights) - 1
        weights[:] = 0  # copies: spoiling them changes nothing
        values[:] = 0
        return pick

    instance = small(0.9)
    output = PROBLEM.run(look, instance)
    assert output.tolist() == [3, 2] and output.dtype == np.int64
    assert calls == [
        (0.9, [0.5, 0.6, 0.4, 0.1], [1.0, 2.0, 3.0, 4.0]),
        (0.9 - 0.1, [0.5, 0.6, 0.4], [1.0, 2.0, 3.0]),
    ]
    assert PROBLEM.score(instance, output) == 7 and PROBLEM.solution(instance, output) == [2, 3]


@pytest.mark.parametrize(
    "choice", [None, "0", [0], np.array([0, 1]), np.array([]), np.array(["0"]), float("nan"), float("inf"), 1j]
)
def test_a_pick_that_is_no_integer_has_the_wrong_shape(choice):
    with pytest.raises(WrongShape):
        PROBLEM.run(lambda *_: choice, small())


@pytest.mark.parametrize("choice", [-1, 4, 10**30, 0])
def test_a_pick_that_does_not_exist_or_fit_is_infeasible(choice):
    with pytest.raises(Infeasible):
        PROBLEM.run(lambda *_: choice, small(0.2))


@pytest.mark.parametrize(
    "kind",
    [int, np.int32, np.uint8, np.array, lambda k: np.array([[k]]), float, np.float32, lambda k: np.array([k + 0.5])],
)
def test_numbers_of_any_kind_are_items(kind):
    assert PROBLEM.run(lambda c, w, v: kind(int(np.argmin(w))), small()).tolist() == [3, 2, 0]


@pytest.mark.parametrize(
    ("output", "error", "message"),
    [
        ([], Infeasible, "left that fits"),
        ([3], Infeasible, "left that fits"),
        ([3, 3], Infeasible, "twice"),
        ([0, 1], Infeasible, "more than the capacity"),
        ([0, 4], Infeasible, "does not exist"),
        ([-1], Infeasible, "does not exist"),
        ([0.0, 2.0, 3.0], WrongShape, "float64"),
        ([[0, 2, 3]], WrongShape, "shape"),
        (3, WrongShape, "shape"),
    ],
)
def test_the_score_believes_no_knapsack(output, error, message):
    output = np.array(output) if output != [] else np.array(output, dtype=np.int64)
    with pytest.raises(error, match=message):
        PROBLEM.score(small(), output)
    with pytest.raises(error):
        PROBLEM.solution(small(), output)


def test_an_empty_knapsack_counts_only_if_nothing_fits():
    assert PROBLEM.run(lambda *_: 1 / 0, small(0.05)).tolist() == []
    assert PROBLEM.score(small(0.05), np.array([], dtype=np.int64)) == 0


def test_bounds_hold_every_filled_knapsack():
    for instance in PROBLEM.instances("val", 50)[:20]:
        low, high = PROBLEM.bounds(instance)
        best = PROBLEM.score(instance, PROBLEM.run(function_of(PROBLEM.baselines["best_ratio"]), instance))
        assert low <= 0.9 * high < best <= high


def test_bounds_allow_what_fits_by_rounding_only():
    instance = KpInstance(np.array([0.3]), np.array([1.0]), 0.3 - 1e-13)
    output = PROBLEM.run(lambda *_: 0, instance)
    assert PROBLEM.score(instance, output) == 1 <= PROBLEM.bounds(instance)[1]


def test_instances_of_files_are_counted_in_their_own_integers():
    instance = kp_instance(KpFile("x", np.array([3, 7, 7]), np.array([10, 20, 30]), 10))
    assert instance.weights.max() == instance.values.max() == 1 and instance.capacity == 10 / 7
    seen = []
    output = PROBLEM.run(lambda c, w, v: seen.append(c) or int(np.argmax(v * (w <= c))), instance)
    assert output.tolist() == [2, 0] and seen == [10 / 7, 3 / 7]
    assert PROBLEM.score(instance, output) == 40
    assert PROBLEM.bounds(instance)[1] == pytest.approx(40)
    with pytest.raises(DataError, match="sum up to less"):
        kp_instance(KpFile("x", np.array([10**15, 7]), np.array([1, 1]), 10))


def test_files_are_read(tmp_path):
    path = tmp_path / "small.kp"
    path.write_text("3 10\n10 3\n20 7\n30 7\n")
    (instance,) = PROBLEM.read(path)
    assert [a.tolist() for a in instance.exact[:2]] == [[3, 7, 7], [10, 20, 30]] and instance.exact[2] == 10
    np.save(tmp_path / "set.npy", np.full((2, 50, 2), 0.5))
    read = PROBLEM.read(tmp_path / "set.npy")
    assert [len(i) for i in read] == [50, 50] and read[0].capacity == 12.5
