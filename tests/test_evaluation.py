"""The evaluator seen from its users: order, seeds, caching, limits, and what happens when its own processes die."""

import math
import os
import signal
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from ttc_esopt.errors import ConfigurationError, EvaluationError
from ttc_esopt.evaluation import Evaluator, sandbox_layers
from ttc_esopt.problems import load

PROBLEM = load("tsp_construct")
NEAREST = PROBLEM.baselines["nearest_neighbour"]
VALUE = 7.0043697989867315
RANDOM = """
import random
import numpy as np
SHIFT = np.random.rand() + random.random() + np.random.default_rng().random() + np.random.RandomState().rand()
def select_next_node(current_node, destination_node, unvisited_nodes, distance_matrix):
    noise = np.random.rand(len(unvisited_nodes)) * random.random() + SHIFT
    return unvisited_nodes[np.argmin(noise + np.random.default_rng().random(len(unvisited_nodes)))]
"""
COMPILED = """
import numpy as np
from numba import njit
@njit
def pick(n):
    return np.random.randint(n)
def select_next_node(current_node, destination_node, unvisited_nodes, distance_matrix):
    return unvisited_nodes[pick(len(unvisited_nodes))]
"""
TOY = """
import numpy as np
from ttc_esopt.problems import NonFinite, Problem, WrongShape

class Toy(Problem):
    name = "toy"
    function = "f"
    maximise = True
    splits = {"train": (1, 2)}
    counts = {"train": 3}

    def instances(self, split, size):
        return [1.0, 2.0, 3.0]

    def run(self, function, instance):
        value = function(instance)
        return value if isinstance(value, np.ndarray) else np.array(value, dtype=np.float64)

    def score(self, instance, output):
        if output.shape != ():
            raise WrongShape("expected a number")
        if np.isnan(output):
            raise NonFinite("NaN")
        return float(output)
"""


@pytest.fixture(scope="module")
def evaluator():
    with Evaluator(PROBLEM, workers=2, timeout=15) as shared:
        yield shared


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    path = tmp_path_factory.mktemp("toy") / "toy.py"
    path.write_text(TOY)
    return f"{path}:Toy"


def children():
    """Process ids of the evaluator processes of this process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                command = (entry / "cmdline").read_bytes()
            except (OSError, IndexError):
                continue
            if parent == os.getpid() and b"ttc_esopt.evaluation.zygote" in command:
                found.append(int(entry.name))
    return set(found)


def test_outcomes_come_in_the_order_of_the_programs_and_equal_programs_run_once(evaluator):
    codes = [f"# {k}\n{NEAREST}" if k % 2 else f"broken {k}" for k in range(6)] * 2
    seen = []
    outcomes = evaluator.evaluate(codes, progress=seen.append)
    assert [o.valid for o in outcomes] == [False, True] * 6
    assert [o.failure for o in outcomes] == ["syntax", None] * 6
    assert all(o is p for o, p in zip(outcomes[:6], outcomes[6:], strict=True))
    assert seen == sorted(seen) and seen[-1] == 12
    assert evaluator.evaluate(codes[:1])[0] is outcomes[0]


def test_nothing_to_evaluate_gives_nothing_and_starts_nothing():
    before = children()
    with Evaluator(PROBLEM) as idle:
        assert idle.evaluate([]) == []
        assert children() == before


def test_random_numbers_depend_on_program_and_seed_and_on_nothing_else(evaluator):
    first = evaluator.evaluate([RANDOM, RANDOM + "#", NEAREST])
    assert first[0].valid and first[0].objective != first[1].objective
    with Evaluator(PROBLEM, workers=1) as again, Evaluator(PROBLEM, workers=1, seed=1) as other:
        assert again.evaluate([NEAREST, RANDOM])[1].objective == first[0].objective
        assert other.evaluate([RANDOM])[0].objective != first[0].objective


def test_random_numbers_of_compiled_code_are_seeded_too(evaluator):
    value = evaluator.evaluate([COMPILED])[0]
    assert value.valid, value
    with Evaluator(PROBLEM, workers=1) as again:
        assert again.evaluate([COMPILED])[0].objective == value.objective


def test_lazy_imports_work_and_torch_is_never_loaded(evaluator):
    code = (
        "import sys, scipy.optimize, scipy.spatial, concurrent.futures, dataclasses, json, heapq, itertools\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
        "assert scipy.optimize.linear_sum_assignment([[1.0]])\n"
        "with concurrent.futures.ThreadPoolExecutor(2) as pool: assert list(pool.map(abs, [-1])) == [1]\n"
    )
    assert evaluator.evaluate([code + NEAREST])[0].objective == pytest.approx(VALUE)


def test_processes_stay_warm_between_calls_and_end_with_close():
    before = children()
    evaluator = Evaluator(PROBLEM, workers=1)
    evaluator.evaluate([NEAREST])
    warm = children() - before
    evaluator.evaluate(["x = 1"])
    assert children() - before == warm and len(warm) == 1
    evaluator.close()
    assert children() == before
    with pytest.raises(EvaluationError, match="closed"):
        evaluator.evaluate([NEAREST])


def test_a_zygote_that_dies_is_replaced():
    before = children()
    with Evaluator(PROBLEM, workers=1) as evaluator:
        evaluator.evaluate([NEAREST])
        (zygote,) = children() - before
        os.kill(zygote, signal.SIGKILL)
        assert evaluator.evaluate(["# again\n" + NEAREST])[0].objective == pytest.approx(VALUE)


def test_machinery_that_cannot_start_is_an_error_with_its_reason(tmp_path):
    path = tmp_path / "toy.py"
    path.write_text(TOY)
    problem = load(f"{path}:Toy")
    path.write_text("raise OSError('the disk is gone')")
    with Evaluator(problem, workers=1) as evaluator, pytest.raises(EvaluationError, match="the disk is gone"):
        evaluator.evaluate(["def f(x): return x"])


def test_a_problem_from_a_users_file_works_and_maximisation_is_negated(toy):
    codes = {
        "def f(x): return 2 * x": (-4.0, None),
        "def f(x): return x if x < 3 else float('nan')": (None, "nonfinite"),
        "def f(x): return float('inf')": (None, "nonfinite"),
        "def f(x): return [x]": (None, "shape"),
        "import numpy as np\ndef f(x): return np.zeros(3_000_000)": (None, "output"),
        "import numpy as np\ndef f(x): return np.array(None)": (None, "exception"),
        "def f(x): return {}": (None, "exception"),
    }
    with Evaluator(load(toy), workers=1) as evaluator:
        outcomes = evaluator.evaluate(list(codes))
    assert [(o.objective, o.failure) for o in outcomes] == list(codes.values())


def test_memory_limit_and_time_limit_are_the_callers():
    code = "import numpy as np\nx = np.ones(25_000_000)\n" + NEAREST
    with Evaluator(PROBLEM, workers=1, memory_mb=64, timeout=30) as small:
        assert small.evaluate([code])[0].failure == "memory"
    with Evaluator(PROBLEM, workers=1, memory_mb=512, timeout=0.001) as brief:
        assert brief.evaluate([NEAREST])[0].failure == "timeout"


def test_time_limits_grow_with_the_set():
    def limit(split, size):
        return PROBLEM.time_limit(PROBLEM.instances(split, size))

    assert limit("train", 50) == limit("val", 20) == 20
    assert limit("val", 100) == 80
    assert limit("test", 50) == 20 * 1000 / 64
    assert PROBLEM.time_limit(PROBLEM.instances("val", 200)[:1]) == 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers >= 1, got 0"),
        ({"timeout": 0}, "timeout > 0"),
        ({"timeout": math.nan}, "timeout > 0"),
        ({"memory_mb": 1}, "at least 16 MiB, got 1"),
        ({"split": "trian"}, "train, val, test"),
        ({"split": "val", "size": 30}, "20, 50, 100, 200"),
    ],
)
def test_wrong_parameters_are_named(options, message):
    with pytest.raises(ConfigurationError, match=message):
        Evaluator(PROBLEM, **options)


def test_an_interrupt_ends_the_call_at_once_and_the_evaluator_can_go_on():
    with Evaluator(PROBLEM, workers=1, timeout=60) as evaluator:
        evaluator.evaluate([NEAREST])
        threading.Timer(0.5, signal.pthread_kill, [threading.get_ident(), signal.SIGINT]).start()
        with pytest.raises(KeyboardInterrupt):
            evaluator.evaluate(["while True: pass", "while 1: pass"])
        assert evaluator.evaluate(["# more\n" + NEAREST])[0].valid


def test_scratch_folders_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Evaluator(PROBLEM, workers=1) as evaluator:
        evaluator.evaluate([NEAREST])
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_objective_is_a_plain_float_and_the_outcome_plain_data(evaluator):
    outcome = asdict(evaluator.evaluate([NEAREST])[0])
    assert type(outcome["objective"]) is float and outcome["objective"] == pytest.approx(VALUE, rel=1e-12)
    assert outcome["detail"] == "" and not isinstance(outcome["seconds"], np.generic)


def test_the_layers_of_protection_are_told_without_loading_anything_heavy():
    assert any("process" in layer for layer in sandbox_layers())
    code = "import sys, ttc_esopt.evaluation as e; e.sandbox_layers(); assert not {'torch', 'numba'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_programs_find_the_names_that_numpy_2_took_away():
    code = """import numpy as np
def select_next_node(current_node, destination_node, unvisited_nodes, distance_matrix):
    assert np.in1d([[1, 2]], [2]).tolist() == [False, True] and np.Inf > 0 > np.NINF
    assert np.product([2, 3]) == 6 and np.trapz([1.0, 1.0]) == 1.0 and np.float_(1) == 1
    return unvisited_nodes[np.argmin(distance_matrix[current_node][unvisited_nodes])]
"""
    with Evaluator(PROBLEM, workers=1) as fresh:
        assert fresh.evaluate([code])[0].objective == pytest.approx(VALUE)


FAULTY = {
    "def instances(self, split, size): 1 / 0": r"instances\(\) or source\(\) failed: ZeroDivisionError",
    "def per_process(self, instances): return None": r"per_process\(\) failed: TypeError",
    "counts = {}": "expected a count and at least one size",
    "splits = {'train': ()}": "expected a count and at least one size",
}


@pytest.mark.parametrize(("line", "message"), FAULTY.items())
def test_a_fault_of_a_users_class_is_one_line_that_names_it(tmp_path, line, message):
    (tmp_path / "toy.py").write_text(TOY + f"\n    {line}\n")
    with pytest.raises(ConfigurationError, match=message) as raised:
        Evaluator(load(f"{tmp_path}/toy.py:Toy"))
    assert "\n" not in str(raised.value)


def test_a_message_does_not_say_where_packages_lie():
    code = "def select_next_node(a, b, c, d):\n    from numpy.linalg import nosuch\n"
    with Evaluator(PROBLEM, workers=1) as evaluator:
        detail = evaluator.evaluate([code])[0].detail
    assert "nosuch" in detail and "(site-packages/numpy/linalg/__init__.py)" in detail and sys.prefix not in detail
