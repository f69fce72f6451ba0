"""The adapter of LLM4AD's EoH, on the stand-in in `llm4ad_double`, and on a checkout that TTC_ESOPT_LLM4AD names."""

from __future__ import annotations

import glob
import json
import os
import re
import runpy
import sys
import textwrap
import time
from pathlib import Path

import pytest
from fake_client import FakeClient

from ttc_esopt.scaffolds.hosts import llm4ad
from ttc_esopt.scaffolds.hosts.attachment import Attachment
from ttc_esopt.scaffolds.hosts.client import HostError, Stopped
from ttc_esopt.scaffolds.hosts.llm4ad_text import CannotSplice, as_reply

HERE = Path(__file__).parent
CHECKOUT = os.environ.get("TTC_ESOPT_LLM4AD")
TEMPLATE = '''
import math

def value(a: float, b: float) -> float:
    """Say a number.
    Args:
        a: one
    """
    return a
'''


@pytest.fixture(scope="module", params=["double", "checkout"])
def host(request):
    """The package llm4ad, imported before anything is patched."""
    folder = str(HERE / "llm4ad_double")
    if request.param == "checkout":
        if not CHECKOUT:
            pytest.skip("TTC_ESOPT_LLM4AD names no checkout of LLM4AD")
        pytest.importorskip("pytz")
        folder = CHECKOUT
    forget()
    sys.path.insert(0, folder)
    import llm4ad.base
    import llm4ad.method.eoh.resume
    import llm4ad.tools.profiler

    yield llm4ad.base.__package__ and sys.modules["llm4ad"]
    sys.path.remove(folder)
    forget()


def forget():
    for name in [name for name in sys.modules if name.partition(".")[0] == "llm4ad"]:
        del sys.modules[name]


@pytest.fixture
def attach(host, tmp_path, monkeypatch):
    """Attach a client until the test is over; the current folder is an empty one."""
    monkeypatch.chdir(tmp_path)
    attached = []

    def attach(client):
        while attached:
            attached.pop().restore()
        attached.append(Attachment(client, llm4ad.HOOKS))
        attached[-1].begin()
        return client

    yield attach
    for attachment in attached:
        attachment.restore()


def says(operator, prompt, number):
    """A heuristic of its own for each reply."""
    return f"{{idea {number}}}\n\ndef value(a, b):\n    return {number} - a * 0\n"


def client(writer=says, **options):
    return FakeClient(writer, **{"directions": 4, **options})


def problem(host, **settings):
    class Problem(host.base.Evaluation):
        def evaluate_program(self, program_str, callable_func, **kwargs):
            return callable_func(3.0, 4.0)

    return Problem(TEMPLATE, "Say a number.", **{"timeout_seconds": 20, **settings})


def eoh(host, evaluation=None, profiler="EoHProfiler", **settings):
    class Paid(host.base.LLM):
        def __init__(self):
            super().__init__()
            self.key = "sk-secret"

        def draw_sample(self, prompt, *args, **kwargs):
            raise AssertionError("the user's own model was asked")

    if isinstance(profiler, str):
        kind = getattr(host.method.eoh, profiler, None) or host.tools.profiler.ProfilerBase
        profiler = kind(log_dir="logs", log_style="simple")
    settings = {"max_sample_nums": 24, "max_generations": None, "pop_size": 4, **settings}
    return host.method.eoh.EoH(Paid(), evaluation or problem(host), profiler, **settings)


def results(client):
    return [one["result"] for one in client.candidates]


def stored(pattern):
    """Files of the host's log folder, by their numbers."""
    found = {int(re.search(r"(\d+)\.json", path)[1]): path for path in glob.glob(f"**/{pattern}", recursive=True)}
    return {number: json.loads(Path(path).read_text()) for number, path in sorted(found.items())}


def test_every_score_goes_to_its_candidate_with_two_samplers_and_two_evaluators(host, attach):
    class Slow(host.base.Evaluation):
        def evaluate_program(self, program_str, callable_func, **kwargs):
            number = callable_func(3.0, 4.0)
            time.sleep((number * 7 % 5) / 50)  # they do not end in the order in which they began
            return number

    c = attach(client())
    eoh(host, Slow(TEMPLATE, timeout_seconds=20), num_samplers=2, num_evaluators=2).run()
    assert [one["objective"] for one in results(c)] == [-number for number in range(24)]
    assert all(f"return {number} " in one["code"] for number, one in enumerate(results(c)))
    assert c.finished == [None]
    samples = json.loads(Path(glob.glob("logs/*/samples/samples_1~200.json")[0]).read_text())
    assert sorted(one["score"] for one in samples) == list(range(24))


def test_operators_parents_and_batches_are_known_without_reading_prompts(host, attach):
    c = attach(client())
    eoh(host).run()
    scores = {one["result"]["code"]: one["result"]["objective"] for one in c.candidates}
    by = {operator: [one for one in c.candidates if one["operator"] == operator] for operator in ("i1", "e1", "m2")}
    assert [one["operator"] for one in c.candidates[:8]] == ["i1"] * 4 + ["e1", "e2", "m1", "m2"]
    assert {one["batch"] for one in c.candidates if one["operator"] in ("m1", "m2")} == {"stream"}
    assert {one["batch"] for one in by["i1"] + by["e1"]} == {None}
    for operator, count in (("i1", 0), ("e1", 2), ("m2", 1)):
        for one in by[operator]:
            [ask] = one["asks"]
            assert len(ask["parents"]) == count
            assert all(scores[parent["code"]] == parent["objective"] for parent in ask["parents"])
    assert by["m2"][0]["asks"][0]["worst"] == 0
    assert by["i1"][0]["generation"] == 0 < by["m2"][0]["generation"]


def test_the_plan_says_what_is_spent(host, attach):
    c = attach(client(arm="esopt", directions=3))
    eoh(host, problem(host, timeout_seconds=None), max_sample_nums=40, max_generations=5).run()
    plan = c.plan
    assert (plan["candidates"], plan["host_candidates"], plan["population"], plan["generations"]) == (40, 40, 4, 5)
    assert (plan["function"], plan["problem"], plan["largest_batch"]) == ("value", "Problem", 3)
    assert plan["steps"] == 2  # half of 3 generations of 4 samples, in batches of 3
    assert plan["prefill"].endswith("def value(a: float, b: float) -> float:")
    assert Path(plan["folder"]).parent.parent == Path("logs").resolve()
    text = "\n".join(plan["lines"])
    assert "max_generations=5 ends the run sooner, after about 20 samples" in text
    assert "600 s each (timeout_seconds is None)" in text
    assert len(c.candidates) < 40


@pytest.mark.parametrize("profiler", ["EoHProfiler", "ProfilerBase", None])
def test_replies_that_the_host_drops_are_counted_and_told(host, attach, profiler):
    c = attach(client(lambda *_: "def value(a, b):\n    return a\n", parser="host"))
    with pytest.raises(HostError, match=r"None of 8 candidates was valid; .*reply: LLM4AD found no description"):
        eoh(host, profiler=profiler).run()
    assert len(c.candidates) == 8  # twice the population, the most that LLM4AD makes at first
    assert {one["failure"] for one in results(c)} == {"reply"}


def test_braceless_replies_in_the_main_loop_end_too(host, attach):
    def writer(operator, prompt, number):
        return says(operator, prompt, number) if operator == "i1" else "I would rather not."

    c = attach(client(writer, parser="host"))
    eoh(host, num_samplers=2).run()
    assert len(c.candidates) == 24
    others = [one["result"]["failure"] for one in c.candidates if one["operator"] != "i1"]
    assert len(others) >= 18 and set(others) == {"reply"}


def test_without_a_profiler_the_limit_holds_and_populations_are_kept(host, attach):
    c = attach(client())
    method = eoh(host, profiler=None, num_samplers=3, num_evaluators=2)
    method.run()
    assert len(c.candidates) == 24
    saved = stored("population/pop_*.json")
    assert list(saved) == list(c.told)
    last = [-one["score"] for one in saved[max(saved)]]
    assert last == [one["objective"] for one in c.told[max(saved)][0]]


def test_a_duplicate_keeps_its_score_for_us(host, attach):
    c = attach(client(lambda operator, prompt, number: says(operator, prompt, number // 2)))
    eoh(host, max_sample_nums=12).run()
    assert [one["objective"] for one in results(c)] == [-(number // 2) for number in range(12)]
    assert all(one["objective"] is not None for population, _ in c.told.values() for one in population)


def test_scores_that_are_none_or_infinite_are_invalid(host, attach):
    bodies = ["None", "float('nan')", "float('-inf')", "float('inf')", "undefined", "0.0"]

    def writer(operator, prompt, number):
        value = bodies[number] if number < len(bodies) else number
        return f"{{idea}}\ndef value(a, b):\n    return {value}\n"

    c = attach(client(writer))
    eoh(host, max_sample_nums=16).run()
    told = results(c)[:6]
    assert [one["objective"] for one in told] == [None] * 5 + [0.0]
    assert [one["failure"] for one in told] == ["exception", "nonfinite", "nonfinite", "nonfinite", "exception", None]
    assert "NameError" in told[4]["detail"]
    # the score 0 is a score: it is in the first population
    assert 0.0 in [one["objective"] for one in c.told[min(c.told)][0]]


def test_our_parser_brings_helpers_imports_and_other_names_along(host, attach):
    def writer(operator, prompt, number):
        return textwrap.dedent(f"""\
            Sure, here it is.
            ```python
            import itertools
            SHIFT = {number}
            def helper(x):
                return next(itertools.count(x)) + SHIFT
            def value(x, y):
                # what counts
                return helper(x - 3) + math.floor(y) - 4
            ```
            """)

    c = attach(client(writer, parser="ours"))
    eoh(host).run()
    assert [one["objective"] for one in results(c)] == [-number for number in range(24)]
    assert "# what counts" in results(c)[0]["code"]
    assert results(c)[0]["description"] == "Sure, here it is."


def test_a_reply_that_our_parser_refuses_is_told_with_its_reason(host, attach):
    texts = ["nothing", "```python\ndef other(): return 1\n```", "```python\nn = 0\ndef value(a, b):\n    global n\n```"]
    c = attach(client(lambda o, p, n: texts[n] if n < 3 else says(o, p, n), parser="ours"))
    eoh(host, max_sample_nums=12).run()
    assert [one["failure"] for one in results(c)[:3]] == ["reply", "name", "reply"]
    assert "global variables (n)" in results(c)[2]["detail"]
    assert len(c.candidates) == 12


def test_the_log_holds_no_key_and_no_model(host, attach):
    attach(client())
    eoh(host, max_sample_nums=8).run()
    log = Path(glob.glob("logs/*/run_log.txt")[0]).read_text()
    assert "TtcEsopt" in log
    assert "sk-secret" not in log and "object at" not in log.partition("Method Parameters")[0].partition("method")[0]


def test_endless_programs_end_at_the_timeout(host, attach):
    def writer(operator, prompt, number):
        loop = "\n    while True: pass" if number in (1, 9) else ""
        return f"{{idea}}\ndef value(a, b):{loop}\n    return {number}\n"

    c = attach(client(writer))
    start = time.monotonic()
    eoh(host, problem(host, timeout_seconds=1), max_sample_nums=12).run()
    assert [number for number, one in enumerate(results(c)) if one["failure"] == "timeout"] == [1, 9]
    assert time.monotonic() - start < 20


def test_the_hosts_own_changes_of_a_program_hold(host, attach):
    def writer(operator, prompt, number):
        return f"{{idea}}\ndef value(a, b):\n    return (0 * a + 7) / (b - 1 + {number})\n"

    c = attach(client(writer))
    eoh(host, problem(host, use_protected_div=True, protected_div_delta=1.0), max_sample_nums=8).run()
    given = [7 // (3 + number) if "double" in host.__file__ else 7 / (4 + number) for number in range(8)]
    assert [-one["objective"] for one in results(c)] == pytest.approx(given)


def test_without_a_process_if_the_user_wants_it_so(host, attach):
    seen = []

    class Here(host.base.Evaluation):
        def evaluate_program(self, program_str, callable_func, **kwargs):
            seen.append(callable_func(3.0, 4.0))
            return seen[-1]

    c = attach(client())
    eoh(host, Here(TEMPLATE, safe_evaluate=False), max_sample_nums=8).run()
    assert seen == list(range(8)) and [one["objective"] for one in results(c)] == [-n for n in range(8)]
    seen.clear()
    other = FakeClient(says, directions=4, sandbox="auto")
    method = eoh(host, Here(TEMPLATE, safe_evaluate=False), max_sample_nums=8)
    method._ttc_esopt.client = method._ttc_esopt.client
    assert other.plan is None


def test_stopping_ends_after_the_running_samples(host, attach):
    c = attach(client())
    c.stop_at = (2, "m1")
    profiler = host.method.eoh.EoHProfiler(log_dir="logs", log_style="simple")
    ended = []
    profiler.finish = lambda: ended.append(True)
    with pytest.raises(Stopped, match="stopped by the test"):
        eoh(host, profiler=profiler, num_samplers=2).run()
    assert len(c.candidates) < 24 and None not in results(c)
    assert ended == [True] and c.finished == ["stopped by the test"]
    assert c.names()[-1] == "finish"


def test_stopping_in_the_initial_population(host, attach):
    c = attach(client())
    c.stop_at = (0, "i1")
    with pytest.raises(Stopped):
        eoh(host, profiler=None).run()
    assert len(c.candidates) == 1 and None not in results(c)


def test_a_fault_of_the_engine_ends_the_run(host, attach):
    def writer(operator, prompt, number):
        if number == 9:
            raise HostError("The engine's process has ended.", 1)
        return says(operator, prompt, number)

    attach(client(writer))
    with pytest.raises(HostError, match="has ended"):
        eoh(host, num_samplers=2).run()


def run_to(host, attach, samples=16):
    """The log folder of a run."""
    attach(client())
    eoh(host, max_sample_nums=samples).run()
    return glob.glob("logs/*")[0]


@pytest.mark.parametrize("place", ["", "population"])
def test_continue_goes_on_in_the_same_folder(host, attach, place):
    folder = run_to(host, attach)
    before = stored("population/pop_*.json")
    c = attach(client(lambda o, p, n: says(o, p, n + 100), **{"continue": os.path.join(folder, place)}))
    eoh(host, max_sample_nums=24).run()
    assert c.plan["continued"]["generation"] == max(before)
    assert Path(c.plan["folder"]).parent == Path(folder).resolve()
    assert "i1" not in {one["operator"] for one in c.candidates} and len(c.candidates) == 8
    assert [one["objective"] for one in c.given_seeds] == [-one["score"] for one in before[max(before)]]
    assert c.candidates[0]["generation"] == max(before) and min(c.told) == max(before) + 1
    assert list(stored("population/pop_*.json")) == [*before, *c.told]
    [samples] = stored("samples/samples_*~200.json").values()
    assert [one["sample_order"] for one in samples] == list(range(1, 25))
    assert [Path(path).name for path in glob.glob("logs/*")] == [Path(folder).name]


def test_continue_of_our_own_run_counts_and_draws_as_it_would_have(host, attach):
    whole = attach(client())
    eoh(host).run()
    [folder] = glob.glob("logs/*")
    k = min(whole.told) + 2
    for path in glob.glob(f"{folder}/population/pop_*.json"):
        if int(re.search(r"pop_(\d+)", path)[1]) > k:
            os.remove(path)
    done = whole.told[k][1]["samples"]
    c = attach(client(lambda o, p, n: says(o, p, n + done), **{"continue": folder}))
    c.hello_answer = {"ours": True, "state": whole.told[k][1], "samples": done}
    for path in glob.glob(f"{folder}/samples/samples_1~200.json"):
        Path(path).write_text(json.dumps(json.loads(Path(path).read_text())[:done]))
    eoh(host).run()
    assert len(c.candidates) == 24 - done and c.given_seeds == []
    parents = [[p["objective"] for p in one["asks"][0]["parents"]] for one in whole.candidates[done:]]
    # LLM4AD begins its turns of e1, e2, m1, m2 anew; what is drawn is drawn from the same state
    first = [p["objective"] for p in c.candidates[0]["asks"][0]["parents"]]
    assert c.candidates[0]["operator"] == "e1" and first[0] == parents[0][0]


def test_continue_with_fewer_than_the_population(host, attach):
    folder = run_to(host, attach)
    path = Path(max(glob.glob(f"{folder}/population/pop_*.json"), key=lambda p: int(re.search(r"pop_(\d+)", p)[1])))
    path.write_text(json.dumps([{"algorithm": "{zero}", "function": "def value(a, b):\n    return 0 * a", "score": 0}]))
    c = attach(client(**{"continue": folder}))
    eoh(host).run()
    assert len(c.candidates) == 8
    assert [parent["objective"] for parent in c.candidates[0]["asks"][0]["parents"]] == [0, 0]


def test_continue_refuses_another_problem(host, attach):
    folder = run_to(host, attach)

    class Other(host.base.Evaluation):
        def evaluate_program(self, program_str, callable_func, **kwargs):
            return callable_func(3.0, 4.0) + 1

    attach(client(**{"continue": folder}))
    with pytest.raises(HostError, match="to come out again, but 4 of 4 do not"):
        eoh(host, Other(TEMPLATE, timeout_seconds=20)).run()
    c = attach(client(**{"continue": folder, "trust_objectives": True}))
    eoh(host, Other(TEMPLATE, timeout_seconds=20)).run()
    assert len(c.candidates) == 8


def test_continue_when_nothing_is_left(host, attach):
    folder = run_to(host, attach)
    attach(client(**{"continue": folder}))
    with pytest.raises(HostError, match=r"16 of 16 are there \(max_sample_nums in the script\)") as found:
        eoh(host, max_sample_nums=16).run()
    assert found.value.exit_code == 0


def test_the_hosts_own_resume_with_a_short_population_and_a_score_of_zero(host, attach):
    folder = run_to(host, attach)
    path = Path(max(glob.glob(f"{folder}/population/pop_*.json"), key=lambda p: int(re.search(r"pop_(\d+)", p)[1])))
    path.write_text(json.dumps(json.loads(path.read_text())[:2]))
    for samples in glob.glob(f"{folder}/samples/samples_1~200.json"):
        lines = json.loads(Path(samples).read_text())
        Path(samples).write_text(json.dumps([{**one, "score": one["score"] - 15} for one in lines]))
    c = attach(client())
    profiler = host.method.eoh.EoHProfiler(log_dir=folder, log_style="simple", create_random_path=False)
    method = eoh(host, profiler=profiler)
    sys.modules["llm4ad.method.eoh.resume"].resume_eoh(method, folder)
    assert profiler._cur_best_program_score == 0
    method.run()
    assert len(c.candidates) == 8 and len(c.given_seeds) == 2


def test_a_population_without_a_valid_heuristic_ends_the_run(host, attach):
    attach(client())
    method = eoh(host, resume_mode=True)
    function = host.base.TextFunctionProgramConverter.text_to_function(TEMPLATE)
    function.score, function.algorithm = float("-inf"), "{nothing}"
    method._population._population.append(function)
    with pytest.raises(HostError, match="goes on without asking"):
        method.run()


def test_a_subclass_with_a_loop_of_its_own_is_refused(host, attach):
    attach(client())

    class Mine(host.method.eoh.EoH):
        def _continue_loop(self):
            return True

    with pytest.raises(HostError, match="Mine has its own _continue_loop"):
        Mine(host.base.LLM(), problem(host))


def test_an_arm_that_needs_mutations_says_so(host, attach):
    attach(client(arm="esopt"))
    with pytest.raises(HostError, match="m1, m2"):
        eoh(host, use_m1_operator=False, use_m2_operator=False).run()


@pytest.mark.parametrize(
    "code",
    [
        "def value(a, b):\n    return a + 2 * b\n",
        "def value(p, q=2):\n  if p:\n    return p + 2 * q\n",
        "value = lambda x, y: x + 2 * y\n",
        "from math import *\ndef value(a, b):\n    return sqrt(a * a) + 2 * floor(b)\n",
        "import math as m\ndef value(a, b):\n    '''Text.\n    '''\n    # why\n    return m.fsum([a, b, b])\n",
        "a = 2\ndef twice(x):\n    return a * x\ndef value(a, b):\n    return a + twice(b)\n",
        "def value(*numbers):\n    return numbers[0] + 2 * numbers[1]\n",
        "def value(a, b, c=2):\n    return a + c * b\n",
        "class Two:\n    n = 2\n\ndef value(a, b):\n    text = f'''{a}\n{b}'''.split()\n    return float(text[0]) + Two.n * b\n",
        "import functools\n@functools.lru_cache\ndef f(n):\n    return n and 2 + f(n - 1)\n"
        "def value(a, b):\n    return a + f(int(b))\n",
        "def value(a, b):\n    def keep(f):\n        return f\n    @keep\n    def g(x):\n        return 2 * x\n    return a + g(b)\n",
        "def keep(f):\n    return lambda *given: f(*given) + 8\n@keep\ndef value(a, b):\n    return a\n",
        "@njit\ndef value(a, b):\n    @keep\n    def g(x):\n        return 2 * x\n    return a + g(b)\nkeep = lambda f: f\n",
        "def value(a, b):\n    sep = '\x0c\u2028'\n    return a + len(sep) * b\n",
    ],
)
def test_a_program_means_the_same_inside_one_function(host, code):
    class Says(host.base.LLM):
        def draw_sample(self, prompt, *args, **kwargs):
            return as_reply(code, "an {idea}\nof mine", TEMPLATE)

    thought, function = host.method.eoh.sampler.EoHSampler(Says(), TEMPLATE).get_thought_and_function("")
    assert thought == "{an (idea) of mine}"
    program = str(host.base.TextFunctionProgramConverter.function_to_program(function, host_template(host)))
    namespace: dict = {}
    exec(program, namespace)
    assert namespace["value"](3.0, 4.0) == 11.0
    again = as_reply(program, None, TEMPLATE)  # what is stored can be read again
    exec(again.partition("\n")[2], namespace)
    assert namespace["value"](3.0, 4.0) == 11.0


def host_template(host):
    return host.base.TextFunctionProgramConverter.text_to_program(TEMPLATE)


def test_programs_that_cannot_be_moved_are_refused():
    with pytest.raises(CannotSplice, match="global variables"):
        as_reply("n = 0\ndef value(a, b):\n    global n\n    n += 1\n    return n\n", None, TEMPLATE)
    with pytest.raises(CannotSplice, match="from os import"):
        as_reply("from os import *\ndef value(a, b):\n    return a\n", None, TEMPLATE)


@pytest.mark.skipif(not CHECKOUT, reason="TTC_ESOPT_LLM4AD names no checkout of LLM4AD")
def test_an_unchanged_example_runs_to_its_end(host, attach):
    if "double" in host.__file__:
        pytest.skip("the stand-in has no examples")

    def writer(operator, prompt, number):
        return (
            "The nearest node, less its way home.\n```python\nimport numpy as np\n"
            "def select_next_node(current, destination, nodes, distances):\n"
            f"    return nodes[np.argmin(distances[current][nodes] - {number / 50} * distances[destination][nodes])]\n```"
        )

    c = attach(client(writer, parser="ours", sandbox="auto", arm="esopt"))
    runpy.run_path(os.path.join(CHECKOUT, "example/methods/eoh/run_eoh_tsp.py"), run_name="__main__")
    assert c.finished == [None] and c.plan["problem"] == "TSPEvaluation"
    assert all(6 < one["objective"] < 20 for one in results(c))
