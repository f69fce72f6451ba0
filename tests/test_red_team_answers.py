"""Programs that try to win by the answers they give: each is refused, or scored as what it is."""

import json

import pytest
import red_team
from red_team import FORGE, HONEST

from ttc_esopt import problems
from ttc_esopt.evaluation import Evaluator

pytestmark = pytest.mark.skipif(not red_team.FULL, reason="this machine has no full sandbox")


@pytest.fixture(scope="module")
def evaluators():
    with red_team.opened() as get:
        yield get


KP = "import numpy as np\ndef select_next_item(remaining_capacity, weights, values):\n"
KP_HONEST = KP + "    return int(np.argmax(np.where(weights <= remaining_capacity, values / weights, -1)))\n"
ASP = "import numpy as np\ndef priority(el, n, w):\n"
ASP_HONEST = ASP + "    return 0.0\n"
ACO = "import numpy as np\ndef heuristics_v2(*a):\n    n = len(a[0])\n"
ACO_HONEST = ACO + "    return np.ones((n, n))\n"


def forged(entries, body):
    """A program that sends a frame of its own as soon as it is imported."""
    return f"import numpy as np\n{FORGE}\nforge({json.dumps(entries)}, {body})\n"


ANSWERS = {
    "kp_construct": (KP_HONEST, {
        "items that do not fit": (KP + "    return int(np.argmax(values))\n", "infeasible"),
        "one item again and again": (KP + "    return 0\n", "infeasible|" + HONEST),
        "nothing": (KP + "    return None\n", "shape"),
        "no item": (KP + "    return len(weights)\n", "infeasible"),
        "a negative item": (KP + "    return -1\n", "infeasible"),
        "weights made zero": (KP + "    weights[:] = 0\n    return int(np.argmax(values))\n", "infeasible"),
        "values made large": (
            KP + "    k = int(np.argmax(np.where(weights <= remaining_capacity, values / weights, -1)))\n"
            "    values[:] = 1e9\n    weights[:] = 0\n    return k\n", HONEST),
        "a forged frame of no picks": (forged([["int64", [0]]] * 2, "b''"), "infeasible"),
        "a forged frame of every item": (
            forged([["int64", [100]]] * 2, "np.arange(100).tobytes() * 2"), "infeasible"),
        "a forged frame of one item many times": (
            forged([["int64", [50]]] * 2, "np.zeros(50, 'int64').tobytes() * 2"), "infeasible"),
        "a forged frame of negative items": (
            forged([["int64", [2]]] * 2, "np.array([-1, -2]).tobytes() * 2"), "infeasible"),
        "a forged value": (forged([["float64", [1]]] * 2, "np.array([1e9]).tobytes() * 2"), "shape"),
    }),
    "asp_construct": (ASP_HONEST, {
        "NaN everywhere": (ASP + "    return float('nan')\n", HONEST),
        "infinity everywhere": (ASP + "    return float('inf')\n", HONEST),
        "no number": (ASP + "    return '1'\n", "shape"),
        "a forged size": (forged([["float64", [1]]], "np.array([1e9]).tobytes()"), "shape"),
        "a forged set of words": (forged([["int64", [5000, 15]]], "bytes(8 * 5000 * 15)"), "shape"),
        "too many priorities": (forged([["float64", [2433]]], "bytes(8 * 2433)"), "shape"),
        "priorities forged as zeros": (forged([["float64", [2432]]], "bytes(8 * 2432)"), HONEST),
        "a float that overflows": (ASP + "    return 10 ** 400\n", "exception|nonfinite|shape"),
        "one mutable answer for all": (
            "import numpy as np\nx = np.zeros(1)\ndef priority(el, n, w):\n    return x\n", HONEST),
        "words that are spoilt": (ASP + "    try: el[0] = 9\n    except TypeError: pass\n    return 0.0\n", HONEST),
    }),
    "bpp_aco": (ACO_HONEST, {
        "all zero": (ACO + "    return np.zeros((n, n))\n", "infeasible"),
        "all infinite": (ACO + "    return np.full((n, n), np.inf)\n", "nonfinite"),
        "NaN in one place": (ACO + "    x = np.ones((n, n)); x[3, 4] = np.nan\n    return x\n", "nonfinite"),
        "the largest float": (ACO + "    return np.full((n, n), 1.7e308)\n", HONEST),
        "negative": (ACO + "    return -np.ones((n, n))\n", "infeasible"),
        "too small": (ACO + "    return np.ones((n - 1, n - 1))\n", "shape"),
        "strings": (ACO + "    return np.full((n, n), '1')\n", "shape"),
        "Fortran order": (ACO + "    return np.asfortranarray(np.ones((n, n)))\n", HONEST),
        "a view without memory": (ACO + "    return np.broadcast_to(1.0, (n, n))\n", HONEST),
        "complex": (ACO + "    return np.full((n, n), 1j)\n", "shape"),
        "a subclass that lies": (
            "import numpy as np\nclass A(np.ndarray):\n    def max(self, *a, **k): return 1.0\n" + ACO[19:]
            + "    return np.full((n, n), np.nan).view(A)\n", "nonfinite"),
        "sizes made small": (ACO + "    a[0][:] = 1\n    return np.ones((n, n))\n", HONEST + "|exception"),
        "a forged number of bins": (forged([["float64", [1]]] * 2, "np.array([1.0]).tobytes() * 2"), "shape"),
    }),
    "tsp_aco": (ACO_HONEST, {
        "all zero": (ACO + "    return np.zeros((n, n))\n", "infeasible|nonfinite|bounded"),
        "all infinite": (ACO + "    return np.full((n, n), np.inf)\n", "infeasible|nonfinite|bounded"),
        "NaN": (ACO + "    return np.full((n, n), np.nan)\n", "nonfinite"),
        "distances made zero": (ACO + "    a[0][:] = 0\n    return np.ones((n, n))\n", HONEST + "|exception"),
        "too large": (ACO + "    return np.ones((n + 1, n + 1))\n", "shape"),
        "a forged tour": (forged([["int64", [50]]] * 2, "np.arange(50).tobytes() * 2"), "shape"),
        "a forged length": (forged([["float64", [1]]] * 2, "np.zeros(1).tobytes() * 2"), "shape"),
    }),
    "cvrp_aco": (ACO_HONEST, {
        "huge where nothing fits": (
            ACO + "    x = np.full((n, n), 1e-9); x[1:, 1:] = 1e300\n    return x\n", "bounded|infeasible|nonfinite"),
        "never to the depot": (
            ACO + "    x = np.ones((n, n)); x[:, 0] = 0; x[0, :] = 0\n    return x\n", "bounded|infeasible|nonfinite"),
        "all zero": (ACO + "    return np.zeros((n, n))\n", "infeasible|nonfinite|bounded"),
        "NaN": (ACO + "    return np.full((n, n), np.nan)\n", "nonfinite"),
        "demands made zero": (
            ACO + "    for x in a:\n        if isinstance(x, np.ndarray): x[...] = 0\n    return np.ones((n, n))\n",
            HONEST + "|exception"),
        "a forged length": (forged([["float64", [1]]] * 2, "np.zeros(1).tobytes() * 2"), "shape"),
        "forged routes": (forged([["int64", [52]]] * 2, "np.arange(52).tobytes() * 2"), "shape"),
    }),
}  # fmt: skip


@pytest.mark.parametrize(("problem", "name"), [(p, n) for p, (_, table) in ANSWERS.items() for n in table])
def test_an_answer_that_cheats_is_refused_or_scored_as_what_it_is(evaluators, problem, name):
    evaluator = evaluators(problem)
    honest, table = ANSWERS[problem]
    code, expected = table[name]
    outcome = evaluator.evaluate([code])[0]
    if outcome.valid:
        assert not outcome.alarm
        allowed = set(expected.split("|"))
        assert allowed & {HONEST, "bounded"}, outcome
        if HONEST in allowed:
            assert outcome.objective == pytest.approx(evaluator.evaluate([honest])[0].objective, rel=1e-12)
        else:
            scores = zip(evaluator.instances, outcome.scores, strict=True)
            for (low, high), score in ((evaluator.problem.bounds(i), s) for i, s in scores):
                assert low * (1 - 1e-9) <= score <= high * (1 + 1e-9)
    else:
        assert outcome.failure in expected.split("|"), outcome
    assert evaluator.evaluate([honest])[0].valid


# --- a problem that scores itself -------------------------------------------------------------------------------------

SELF_SCORED = """
from ttc_esopt.problems import SelfScored
class Own(SelfScored):
    name, function, template, task = "own", "f", "def f(x):\\n", "t"
    splits, counts = {"train": (2,), "val": (2,), "test": (2,)}, {"train": 2, "val": 2, "test": 2}
    def instances(self, split, size): return [[1], [2]]
    def bounds(self, instance): return 0.0, 10.0
    def evaluate(self, function, instance): return function(instance[0])
"""


@pytest.fixture(scope="module")
def self_scored(tmp_path_factory):
    (file := tmp_path_factory.mktemp("problem") / "self_scored.py").write_text(SELF_SCORED)
    with Evaluator(problems.load(f"{file}:Own"), workers=1, timeout=4) as evaluator:
        yield evaluator


@pytest.mark.parametrize(
    ("code", "word", "alarm"),
    [
        ("def f(x): return -5.0", "infeasible", True),
        ("def f(x): return 1e300", "infeasible", True),
        ("def f(x): return float('nan')", "nonfinite", False),
        ("def f(x): return float('-inf')", "nonfinite", False),
        ("def f(x): return 'x'", "exception", False),
        ("import sys\nm = sys._getframe(1)\ndef f(x):\n type(sys._getframe(1).f_locals['self']).bounds = "
         "lambda *a: (-9e9, 9e9)\n return -1.0", "infeasible", True),
        (f"{FORGE}\nimport struct\nforge([['float64', [1]]] * 2, struct.pack('<2d', -1e9, -1e9))", "infeasible", True),
        (f"{FORGE}\nforge([['float64', [2]]] * 2, bytes(32))", "shape", False),
        ("def f(x): return float(x)", None, False),
    ],
)  # fmt: skip
def test_a_score_of_the_programs_own_must_be_possible(self_scored, code, word, alarm):
    outcome = self_scored.evaluate([code])[0]
    assert (outcome.failure, outcome.alarm) == (word, alarm), outcome


@pytest.mark.parametrize(
    ("said", "then", "word"),
    [
        ("~", "while True: pass", "forbidden"),
        ("~", "os._exit(0)", "forbidden"),
        ("~", "os.abort()", "forbidden"),
        ("~~", "", "forbidden"),
        (".", "", "forbidden"),
        ("~.", "while True: pass", "timeout"),
        ("~.", "", "valid"),
    ],
)
def test_a_program_that_pretends_to_be_compiled_gains_nothing(sacks, said, then, word):
    honest = sacks.problem.baselines["best_ratio"]
    code = f"import os\nos.write(3, {said.encode()!r})\n{then}\n{honest}"
    outcome = sacks.evaluate([code])[0]
    assert (outcome.failure or "valid") == word, outcome
    if outcome.valid:
        assert outcome.objective == sacks.evaluate([honest])[0].objective


@pytest.fixture(scope="module")
def sacks():
    """The whole train set, which may be compiled."""
    with Evaluator(problems.load("kp_construct"), workers=1, timeout=2) as evaluator:
        yield evaluator
