"""Compiled programs: the same answers as Python, or Python's own; what must not be compiled is not."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ttc_esopt.evaluation import Evaluator, compiled, stand_ins
from ttc_esopt.evaluation.compilable import NotCompilable, prepare
from ttc_esopt.evaluation.compiled import drive
from ttc_esopt.problems import Infeasible, load

TSP, KP = load("tsp_construct"), load("kp_construct")
POINTS = TSP.instances("val", 20)[:8]
SACKS = KP.instances("val", 50)[:8]
TSP_HEAD = """import numpy as np
import math
def select_next_node(current_node, destination_node, unvisited_nodes, distance_matrix):
"""
KP_HEAD = "def select_next_item(remaining_capacity, weights, values):\n"
LOOP = """
import math
from typing import List
WEIGHT = 0.3

def lean(matrix, node, home):
    return math.sqrt(matrix[node, home]) * WEIGHT

def select_next_node(current_node: int, destination_node: int, unvisited_nodes: List[int], distance_matrix) -> int:
    '''Says what it does.'''
    best = None
    low: float = float("inf")
    for node in unvisited_nodes:
        score = distance_matrix[current_node][node] - lean(distance_matrix, node, destination_node)
        if score < low:
            low, best = score, int(node)
    return best
"""


def function_of(problem, code):
    namespace = {"np": np}
    exec(code, namespace)
    return problem.find(namespace)


def both(problem, code, instances):
    function = function_of(problem, code)
    python, info = drive(problem, function, code, instances, lambda index: None, "never")
    assert info == {"path": "python", "compile_seconds": 0.0}
    outputs, info = drive(problem, function, code, instances, lambda index: None, "always")
    assert len(outputs) == len(python) == len(instances)
    for output, expected in zip(outputs, python, strict=True):
        assert output.dtype == expected.dtype and np.array_equal(output, expected)
    return info


def body(head, *lines):
    return head + "".join(f"    {line}\n" for line in lines)


COMPILED = {
    "loop": (TSP, LOOP),
    "spoils": (
        TSP,
        body(
            TSP_HEAD,
            "node = unvisited_nodes[np.argmin(distance_matrix[current_node][unvisited_nodes])]",
            "distance_matrix[:, node] += 0.01 * current_node",
            "unvisited_nodes[:] = 0",
            "return node",
        ),
    ),
    "sums": (
        TSP,
        body(
            TSP_HEAD,
            "between = distance_matrix[np.ix_(unvisited_nodes, unvisited_nodes)]",
            "score = distance_matrix[current_node][unvisited_nodes] - 0.1 * between.mean(axis=1)",
            "score += 0.2 * between.min(axis=0) + 1e-3 * np.sum(between) - between.sum(axis=0) / 99",
            "return int(unvisited_nodes[np.argsort(score)[0]])",
        ),
    ),
    "element": (KP, body(KP_HEAD, "return np.array([np.argmin(weights)])")),
    "ratio": (KP, KP.baselines["best_ratio"]),
    "constant": (KP, body(KP_HEAD, "while weights[0] > remaining_capacity: return np.argmin(weights)", "return 0")),
}


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_programs_answer_as_python_does(name):
    problem, code = COMPILED[name]
    info = both(problem, code, POINTS if problem is TSP else SACKS)
    assert info["path"] == "compiled" and info["compile_seconds"] > 0


terms = st.lists(
    st.sampled_from(
        [
            "0.3 * math.sqrt(home)", "near * home", "-0.2 * far", "near ** 2", "math.exp(-near)", "abs(near - home)",
            "0.01 * int(9 * home)", "0.1 * (node % 3)", "math.log(home - 0.1)", "1.0 / (node - 7)", "near // 0.1",
        ]
    ),
    min_size=1,
    max_size=3,
    unique=True,
)  # fmt: skip


@given(terms, st.sampled_from(["<", "<=", ">"]), st.integers(0, 60))
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_family_of_programs_is_driven_alike(parts, order, start):
    code = body(
        TSP_HEAD,
        "best = unvisited_nodes[0]",
        f"low = {'-np.inf' if order == '>' else 'np.inf'}",
        "for node in unvisited_nodes:",
        "    near, home = distance_matrix[current_node, node], distance_matrix[node, destination_node]",
        "    far = distance_matrix[node].max()",
        f"    score = {' + '.join(parts)}",
        f"    if score {order} low:",
        "        best, low = node, score",
        "return best",
    )
    function = function_of(TSP, code)
    instances = TSP.instances("val", 20)[start : start + 4]
    try:
        expected, _ = drive(TSP, function, code, instances, lambda index: None, "never")
    except (ValueError, ZeroDivisionError) as error:
        with pytest.raises(type(error)):
            drive(TSP, function, code, instances, lambda index: None, "always")
    else:
        outputs, _ = drive(TSP, function, code, instances, lambda index: None, "always")
        assert np.array_equal(outputs, expected)


REFUSED = {
    "random": "return unvisited_nodes[np.random.randint(len(unvisited_nodes))]",
    "import": "import random\n    return random.choice(unvisited_nodes)",
    "global": "global N\n    N = 1\n    return unvisited_nodes[0]",
    "attribute": "select_next_node.calls = 1\n    return unvisited_nodes[0]",
    "dict": "return {0: unvisited_nodes[0]}[0]",
    "set": "return max(set(unvisited_nodes))",
    "try": "try:\n        return unvisited_nodes[0]\n    except IndexError:\n        return 0",
    "open": "open('x', 'w')\n    return unvisited_nodes[0]",
    "print": "print(current_node)\n    return unvisited_nodes[0]",
    "narrow": "return unvisited_nodes[np.argmin(distance_matrix[current_node][unvisited_nodes].astype(np.float32))]",
    "text": "return unvisited_nodes[len('') * 0]",
    "sort": "return unvisited_nodes[distance_matrix[current_node][unvisited_nodes].argsort()[0]]",
    "underscores": "return __import__('os')",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_differ_is_not_compiled(name):
    with pytest.raises(NotCompilable):
        prepare(TSP_HEAD + "    " + REFUSED[name])


@pytest.mark.parametrize(
    "line",
    ["CACHE = []", "CACHE = {}", "X = np.zeros(3)", "x: int", "for i in range(3): pass", "N, M = 1, 2", "np = 3"]
    + ["@staticmethod\ndef f(): pass", "def f(x=[]): pass", "class A: pass", "from numpy import *", "import os"],
)
def test_state_of_the_module_is_not_compiled(line):
    with pytest.raises(NotCompilable):
        prepare(f"import numpy as np\n{line}\n{LOOP}")


@pytest.mark.parametrize(
    "lines",
    [
        ["h = 1", "for node in unvisited_nodes: h = h * 31 + node", "return unvisited_nodes[h % len(unvisited_nodes)]"],
        ["k = 2 ** len(unvisited_nodes)", "return unvisited_nodes[k % len(unvisited_nodes)]"],
        ["return unvisited_nodes[(1 << current_node) % len(unvisited_nodes)]"],
        ["return unvisited_nodes[0] if current_node < 99 else 1.5"],
    ],
)
def test_what_types_alone_tell_stays_in_python(lines):
    code = body(TSP_HEAD, *lines)
    assert both(TSP, code, POINTS[:3])["path"] == "python"


def test_numbers_that_python_lets_grow_are_not_cut_to_64_bits():
    code = body(TSP_HEAD, "big = 3 * 2 ** 61 * 5", "return unvisited_nodes[big % len(unvisited_nodes)]")
    assert both(TSP, code, POINTS[:3])["path"] == "python"


def test_an_exception_on_one_instance_is_pythons_to_raise():
    bad = POINTS[5].copy()
    bad[3] = bad[0]
    code = body(
        TSP_HEAD,
        "for node in unvisited_nodes:",
        "    if distance_matrix[node, 0] == 0: raise KeyError('twice')",
        "return unvisited_nodes[0]",
    )
    seeded = []
    with pytest.raises(KeyError, match="twice"):
        drive(TSP, function_of(TSP, code), code, [*POINTS[:4], bad], seeded.append, "always")
    assert seeded == [0, 4]  # instances 1 to 3 were answered by compiled code, which draws nothing


def test_an_exception_in_compiled_code_alone_leads_back_to_python():
    bad = POINTS[5].copy()
    bad[3] = bad[0]
    code = body(  # numpy divides by zero, compiled code does not
        TSP_HEAD,
        "best, low = unvisited_nodes[0], np.inf",
        "for node in unvisited_nodes:",
        "    score = distance_matrix[current_node, node] - 0.1 / distance_matrix[node, 0]",
        "    if score < low: best, low = node, score",
        "return best",
    )
    instances = [*POINTS[:4], bad, *POINTS[6:]]
    seeded = []
    function = function_of(TSP, code)
    with np.errstate(divide="ignore"):
        expected, _ = drive(TSP, function, code, instances, lambda index: None, "never")
        outputs, info = drive(TSP, function, code, instances, seeded.append, "always")
    assert np.array_equal(outputs, expected)
    assert info["path"] == "compiled" and seeded == [0, 4, 5, 6]


def test_a_bad_choice_is_reported_as_python_reports_it():
    code = body(TSP_HEAD, "return unvisited_nodes[0] if distance_matrix[0, 1] != 0 else 0")
    bad = POINTS[5].copy()
    bad[1] = bad[0]
    with pytest.raises(Infeasible, match="node 0, which was visited"):
        drive(TSP, function_of(TSP, code), code, [*POINTS[:3], bad], lambda index: None, "always")


def test_short_runs_are_not_compiled(monkeypatch):
    def no(*_):
        raise AssertionError("compiled")

    monkeypatch.setattr(compiled, "_compile", no)
    outputs, info = drive(TSP, function_of(TSP, LOOP), LOOP, POINTS, lambda index: None)
    assert info["path"] == "python" and len(outputs) == len(POINTS)


def test_long_runs_are_compiled_after_a_few_instances(monkeypatch):
    monkeypatch.setattr(compiled, "WORTH_SECONDS", 1e-3)
    monkeypatch.setattr(compiled, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(compiled, "PATIENCE", 1e9)
    seeded = []
    large = TSP.instances("val", 100)[:5]  # where compiled code is faster beyond doubt
    _, info = drive(TSP, function_of(TSP, LOOP), LOOP, large, seeded.append)
    assert info["path"] == "compiled" and seeded == [0, 1, 2]


def test_compiling_ends_when_it_takes_too_long(monkeypatch):
    monkeypatch.setattr(compiled, "WORTH_SECONDS", 1e-3)
    monkeypatch.setattr(compiled, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(compiled, "PATIENCE", 0.0)
    _, info = drive(TSP, function_of(TSP, LOOP), LOOP, POINTS, lambda index: None)
    assert info["path"] == "python" and info["compile_seconds"] < 0.5


def test_another_answer_of_compiled_code_is_not_believed(monkeypatch):
    monkeypatch.setattr(TSP, "compiled", lambda function: lambda instance: np.arange(20), raising=False)
    assert both(TSP, LOOP, POINTS)["path"] == "python"


@given(st.integers(1, 400), st.integers(0, 2**32 - 1), st.sampled_from([1, 2]))
@settings(max_examples=30, deadline=None)
def test_sums_are_numpys_to_the_last_bit(count, seed, stride):
    values = np.random.RandomState(seed).standard_normal(count * stride)[::stride]
    assert stand_ins._pairwise(values, 0, count) == np.sum(values)
    assert stand_ins.mean(values) == np.mean(values)
    matrix = np.random.RandomState(seed).rand(count % 23 + 1, count)
    for axis in (0, 1):
        assert np.array_equal(stand_ins.mean_axis(matrix, axis), matrix.mean(axis=axis))
        assert np.array_equal(stand_ins.least_axis(matrix, axis), matrix.min(axis=axis))
        assert np.array_equal(stand_ins.most_axis(matrix, axis), matrix.max(axis=axis))


def test_a_compiler_that_does_not_come_back_in_time_says_nothing_about_the_program():
    # numpy.setdiff1d takes numba tens of seconds in one pass, which no deadline between passes can end
    code = """import numpy as np
def select_next_node(current_node, destination_node, unvisited_nodes, distance_matrix):
    left = np.setdiff1d(unvisited_nodes, np.array([current_node, destination_node]))
    return left[np.argmin(distance_matrix[current_node][left])]
"""
    with Evaluator(load("tsp_construct"), workers=1, compile="always", timeout=3) as evaluator:
        outcome = evaluator.evaluate([code])[0]
    assert outcome.valid and not outcome.compiled, outcome
    assert outcome.objective == pytest.approx(7.0043697989867315, rel=1e-12)
