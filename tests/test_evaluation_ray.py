"""Evaluation on a Ray cluster of two nodes made here: outcomes are those of an evaluation in this process."""

import os
import signal
import sys
import threading
from importlib.util import find_spec

import pytest
from ray_nodes import two_nodes
from stand_in import Quiet, StandInEngine

from ttc_esopt import problems, scaffolds
from ttc_esopt.conclude import conclude
from ttc_esopt.errors import ConfigurationError, EvaluationError
from ttc_esopt.evaluation import Evaluator
from ttc_esopt.instances import evaluator
from ttc_esopt.runfolder import RunFolder
from ttc_esopt.search import Search
from ttc_esopt.settings import resolve

needs_ray = pytest.mark.skipif(
    find_spec("ray") is None or find_spec("joblib") is None, reason="needs Ray (pip install 'ttc-esopt[ray]')"
)
LIMIT = 3.0  # seconds
HEAD = "def select_next_node(current_node, destination_node, unvisited_nodes, distance_matrix):\n"
NEAREST = HEAD + "    return min(unvisited_nodes, key=lambda node: distance_matrix[current_node][node])\n"
FIRST = HEAD + "    return unvisited_nodes[0]\n"
LAST = HEAD + "    return unvisited_nodes[-1]\n"
SLOW = "import time\n" + LAST.replace("    return", "    time.sleep(0.01)\n    return")  # a second for two instances
BAD = {
    "syntax": "def select_next_node(:\n",
    "exception": HEAD + "    return 1 / 0\n",
    "timeout": HEAD + "    while True: pass\n",
    "crash": "import os, signal\n" + HEAD + "    os.kill(os.getpid(), signal.SIGSEGV)\n",
    "infeasible": HEAD + "    return current_node\n",
    "reply": "",
}


@pytest.fixture(scope="module")
def nodes():
    with two_nodes(cpus=2) as found:
        yield found


@pytest.fixture(scope="module")
def problem():
    return problems.load("tsp_construct")


@pytest.fixture(scope="module")
def on_ray(nodes, problem):
    """On two instances of fifty places; open all the time, as that of a run is."""
    from ttc_esopt.evaluation.on_ray import RayEvaluator

    with RayEvaluator(problem, instances=problem.instances("train", 50)[:2], workers=2, timeout=LIMIT) as found:
        yield found


@pytest.fixture(scope="module")
def here(problem):
    with Evaluator(problem, instances=problem.instances("train", 50)[:2], workers=2, timeout=LIMIT) as found:
        yield found


def gist(outcomes):
    return [(one.valid, one.objective, one.true_objective, one.scores, one.failure, one.detail) for one in outcomes]


def at_work(evaluator):
    """Process ids of the workers, and the nodes that they are on."""
    import joblib

    ray = evaluator._crew.ray
    say = joblib.delayed(lambda: (os.getpid(), ray.get_runtime_context().get_node_id()))
    return dict(evaluator._crew._parallel(say() for _ in range(2)))


@needs_ray
def test_outcomes_are_those_of_an_evaluation_here_in_the_order_of_the_programs(on_ray, here):
    codes = [NEAREST, BAD["timeout"], FIRST, *BAD.values(), NEAREST]
    done = []
    found = on_ray.evaluate(codes, done.append)
    assert gist(found) == gist(here.evaluate(codes))
    assert [one.failure for one in found] == [None, "timeout", None, *BAD, None]
    assert done[-1] == len(codes) and done == sorted(done)
    assert not on_ray._all  # no process of this one ran any of them


@needs_ray
def test_the_workers_are_on_all_nodes_stay_between_calls_and_are_shared_by_what_is_open(on_ray, problem):
    from ttc_esopt.evaluation.on_ray import RayEvaluator

    on_ray.evaluate([NEAREST])
    before = at_work(on_ray)
    assert len(before) == len(set(before.values())) == 2 and os.getpid() not in before
    with RayEvaluator(problem, instances=problem.instances("train", 50)[2:3], workers=2, compile="never") as other:
        assert other.evaluate([FIRST])[0].objective != on_ray.evaluate([FIRST])[0].objective
        assert at_work(other) == before
    assert at_work(on_ray) == before


@needs_ray
@pytest.mark.parametrize("what", ["node", "worker"])
def test_what_is_lost_in_the_middle_is_repeated_elsewhere(on_ray, here, nodes, what):
    on_ray.evaluate([NEAREST])
    before = at_work(on_ray)
    lose = {"worker": lambda: os.kill(max(before), signal.SIGKILL), "node": nodes[1]}[what]
    timer = threading.Timer(0.5, lose)
    timer.start()
    found = on_ray.evaluate([f"{SLOW}# {what} {i}\n" for i in range(2)])
    timer.join()
    assert gist(found) == gist(here.evaluate([LAST])) * 2
    assert len(at_work(on_ray)) == 2


@needs_ray
def test_a_fault_of_the_machinery_on_a_node_is_that_of_an_evaluation_here(on_ray, monkeypatch):
    from ttc_esopt.evaluation import on_ray as module

    def fails(task):
        raise EvaluationError("tried twice")

    monkeypatch.setattr(module, "evaluated", lambda task: fails(task))
    with pytest.raises(EvaluationError, match="^tried twice$"):
        on_ray.evaluate([FIRST + "# never\n"])


def searched(path, problem, file, **given):
    """What a small run writes."""
    given = {"budget": 26, "directions": 4, "population": 3, "arm": "esopt", "init": "seeds", "workers": 2, **given}
    folder = RunFolder.create(path, resolve({**given, "instances": str(file)}), "test")
    with evaluator(problem, folder.settings) as search_set:
        scaffold = scaffolds.build(problem, folder.settings)
        state = Search(folder, problem, scaffold, StandInEngine(), search_set, Quiet()).run()
        conclude(folder, problem, state)
    return [(path / name).read_bytes() for name in ("samples.jsonl", "history.jsonl", "best.json", "best.py")]


@needs_ray
def test_a_whole_run_writes_what_it_writes_here(nodes, problem, tmp_path):
    places = "".join(f"{i} {i * 7 % 12} {i * 5 % 11}\n" for i in range(1, 13))
    file = tmp_path / "small.tsp"
    file.write_text(
        f"NAME: small\nTYPE: TSP\nDIMENSION: 12\nEDGE_WEIGHT_TYPE: EUC_2D\nNODE_COORD_SECTION\n{places}EOF\n"
    )
    there = searched(tmp_path / "there", problem, file, evaluate_on="ray")
    assert there == searched(tmp_path / "here", problem, file)
    assert len(there[0].splitlines()) == 26 and there[1]


def test_where_a_run_is_evaluated_may_change_when_it_goes_on(tmp_path):
    assert resolve({}).evaluate_on == "here"
    folder = RunFolder.create(tmp_path / "run", resolve({}), "test")
    folder.change_limits({"evaluate_on": "ray"})
    assert RunFolder.open(tmp_path / "run").settings.evaluate_on == "ray"
    with pytest.raises(ConfigurationError, match=r"here, ray, got there \(--evaluate-on\)"):
        resolve({"evaluate_on": "there"})


def test_without_joblib_the_message_says_what_to_install(problem, monkeypatch):
    monkeypatch.setitem(sys.modules, "joblib", None)
    settings = resolve({"evaluate_on": "ray", "ray_address": "elsewhere:1"})
    with (
        evaluator(problem, settings) as found,
        pytest.raises(ConfigurationError, match=r"pip install 'ttc-esopt\[ray\]'"),
    ):
        found.evaluate([NEAREST])


@needs_ray
def test_a_program_over_which_every_worker_is_lost_ends_the_call(on_ray, monkeypatch):  # last: its workers end
    from ttc_esopt.evaluation import on_ray as module

    monkeypatch.setattr(module, "evaluated", lambda task: os._exit(1))
    with pytest.raises(EvaluationError, match=r"^1 programs .*tried 3 times.*ttc-esopt resume.*--evaluate-on here"):
        on_ray.evaluate([FIRST + "# lost\n"])
