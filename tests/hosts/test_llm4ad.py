"""The adapter of LLM4AD's EoH: pairing, counting, telling, evaluating, ending."""

from __future__ import annotations

import glob
import json
import os
import runpy
import sys
import textwrap
import time
import types
from pathlib import Path

import llm4ad_user
import pytest
from llm4ad_user import CHECKOUT, SAMPLES, TEMPLATE, client, eoh, objectives, problem, results, says, stored

from ttc_esopt.scaffolds.hosts.client import HostError, Stopped

host, attach = llm4ad_user.host, llm4ad_user.attach


def test_every_score_goes_to_its_candidate_with_two_samplers_and_two_evaluators(host, attach):
    class Slow(host.base.Evaluation):
        def evaluate_program(self, program_str, callable_func, **kwargs):
            number = callable_func(3.0, 4.0)
            time.sleep((number * 7 % 5) / 50)  # they do not end in the order in which they began
            return number

    c = attach(client())
    eoh(host, Slow(TEMPLATE, timeout_seconds=20), max_sample_nums=24, num_samplers=2, num_evaluators=2).run()
    assert objectives(c) == [-number for number in range(24)]
    assert all(f"return {number} " in one["code"] for number, one in enumerate(results(c)))
    assert c.finished == [None]
    samples = json.loads(Path(glob.glob("logs/*/samples/samples_1~200.json")[0]).read_text())
    assert sorted(one["score"] for one in samples) == list(range(24))


def test_operators_parents_and_batches_are_known_without_reading_prompts(host, attach):
    c = attach(client())
    eoh(host).run()
    scores = {one["code"]: one["objective"] for one in results(c)}
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


def test_directions_host_makes_a_batch_of_one_generations_mutations(host, attach):
    c = attach(client(directions="host", arm="esopt", es_operators=["m2"]))
    eoh(host, max_sample_nums=48, pop_size=8, use_e2_operator=False).run()
    assert c.plan["largest_batch"] == 3  # a third of 8
    assert c.plan["steps"] == 3  # a third of 48 - 16
    assert {one["batch"] for one in c.candidates if one["operator"] == "m1"} == {None}


@pytest.mark.parametrize("profiler", ["EoHProfiler", "ProfilerBase", None])
def test_replies_that_the_host_drops_are_counted_and_told(host, attach, profiler):
    c = attach(client(lambda *_: "def value(a, b):\n    return a\n", parser="host"))
    eoh(host, profiler=profiler).run()  # goes on from the template, since LLM4AD would have nothing to go on from
    assert len(c.candidates) == SAMPLES and any("join the initial population" in line for line in c.lines)
    assert {one["failure"] for one in results(c)} == {"reply"}


def test_braceless_replies_in_the_main_loop_end_too(host, attach):
    def writer(operator, prompt, number):
        return says(operator, prompt, number) if operator == "i1" else "I would rather not."

    c = attach(client(writer, parser="host"))
    eoh(host, num_samplers=2).run()
    assert len(c.candidates) == SAMPLES
    others = [one["result"]["failure"] for one in c.candidates if one["operator"] != "i1"]
    assert len(others) >= SAMPLES - 6 and set(others) == {"reply"}


def test_without_a_profiler_the_limit_holds_and_populations_are_kept(host, attach):
    c = attach(client())
    eoh(host, profiler=None, num_samplers=3, num_evaluators=2).run()
    # valid all of them: no child waits for a lock of np.random that another thread held when it was forked
    assert objectives(c) == [-number for number in range(SAMPLES)]
    saved = stored("population/pop_*.json")
    assert list(saved) == list(c.told)
    last = max(saved)
    assert [-one["score"] for one in saved[last]] == [one["objective"] for one in c.told[last][0]]


def test_a_duplicate_keeps_its_score_for_us(host, attach):
    c = attach(client(lambda operator, prompt, number: says(operator, prompt, number // 2)))
    eoh(host, max_sample_nums=12).run()
    assert objectives(c) == [-(number // 2) for number in range(12)]
    assert all(one["objective"] is not None for population, _ in c.told.values() for one in population)


def test_scores_that_are_none_or_infinite_are_invalid(host, attach):
    values = ["float('nan')", "float('-inf')", "float('inf')", "undefined", "0.0"]

    def writer(operator, prompt, number):
        value = values[number] if number < len(values) else number
        return f"{{idea}}\ndef value(a, b):\n    return {value}\n"

    c = attach(client(writer))
    eoh(host).run()
    told = results(c)[: len(values)]
    assert [one["objective"] for one in told] == [None] * 4 + [0.0]
    assert [one["failure"] for one in told] == ["nonfinite"] * 3 + ["exception", None]
    assert "NameError" in told[3]["detail"]
    assert 0.0 in [one["objective"] for one in c.told[min(c.told)][0]]  # 0 is a score


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
    assert objectives(c) == [-number for number in range(SAMPLES)]
    assert "# what counts" in results(c)[0]["code"]
    assert results(c)[0]["description"] == "Sure, here it is."


def test_a_reply_that_our_parser_refuses_is_told_with_its_reason(host, attach):
    stateful = "```python\nn = 0\ndef value(a, b):\n    global n\n```"
    texts = ["nothing", "```python\ndef other(): return 1\n```", stateful]
    c = attach(client(lambda o, p, n: texts[n] if n < 3 else says(o, p, n), parser="ours"))
    eoh(host, max_sample_nums=12).run()
    assert [one["failure"] for one in results(c)[:3]] == ["reply", "name", "reply"]
    assert "global variables (n)" in results(c)[2]["detail"]
    assert len(c.candidates) == 12


def test_the_log_holds_no_key_and_nothing_of_our_model(host, attach):
    c = attach(client())
    eoh(host, max_sample_nums=8).run()
    log = Path(glob.glob("logs/*/run_log.txt")[0]).read_text()
    assert "TtcEsopt" in log and len(c.candidates) == 8
    assert "sk-secret" not in log and "ttc_esopt" not in log and "FakeClient" not in log


def test_endless_programs_end_at_the_timeout(host, attach):
    def writer(operator, prompt, number):
        loop = "\n    while True: pass" if number in (1, 9) else ""
        return f"{{idea}}\ndef value(a, b):{loop}\n    return {number}\n"

    c = attach(client(writer))
    eoh(host, problem(host, timeout_seconds=0.5), max_sample_nums=12).run()
    assert [number for number, one in enumerate(results(c)) if one["failure"] == "timeout"] == [1, 9]


def test_the_hosts_own_changes_of_a_program_hold(host, attach):
    def writer(operator, prompt, number):
        return f"{{idea}}\ndef value(a, b):\n    return (0 * a + 7) / (b - 1 + {number})\n"

    c = attach(client(writer))
    eoh(host, problem(host, use_protected_div=True, protected_div_delta=1.0), max_sample_nums=8).run()
    assert [-one for one in objectives(c)] == pytest.approx([7 / (4 + number) for number in range(8)])


@pytest.mark.parametrize("sandbox, where", [("off", "here"), ("auto", "in children")])
def test_safe_evaluate_false_holds_only_without_a_sandbox(host, attach, sandbox, where):
    seen = []

    class Here(host.base.Evaluation):
        def evaluate_program(self, program_str, callable_func, **kwargs):
            seen.append(callable_func(3.0, 4.0))
            return seen[-1]

    c = attach(client(sandbox=sandbox))
    eoh(host, Here(TEMPLATE, safe_evaluate=False), max_sample_nums=8).run()
    assert objectives(c) == [-number for number in range(8)]
    assert seen == (list(range(8)) if where == "here" else [])
    assert ("safe_evaluate=False is not followed" in "\n".join(c.plan["lines"])) == (where != "here")


def test_stopping_ends_after_the_running_samples(host, attach):
    c = attach(client())
    c.stop_at = (2, "m1")
    profiler = host.method.eoh.EoHProfiler(log_dir="logs", log_style="simple")
    ended = []
    profiler.finish = lambda: ended.append(True)
    with pytest.raises(Stopped, match="stopped by the test"):
        eoh(host, profiler=profiler, num_samplers=2).run()
    assert len(c.candidates) < SAMPLES and None not in results(c)
    assert ended == [True] and c.finished == ["stopped by the test"]
    assert c.names()[-1] == "finish"


def test_stopping_in_the_initial_population(host, attach):
    c = attach(client())
    c.stop_at = (0, "i1")
    with pytest.raises(Stopped):
        eoh(host, profiler=None).run()
    assert len(c.candidates) == 1 and None not in results(c)


@pytest.mark.parametrize("fault", [HostError("The engine's process has ended.", 1), KeyError("a mistake of ours")])
def test_a_fault_is_no_bad_sample_but_the_end(host, attach, fault):
    def writer(operator, prompt, number):
        if number == 9:
            raise fault
        return says(operator, prompt, number)

    c = attach(client(writer))
    with pytest.raises(type(fault), match="has ended|a mistake"):
        eoh(host, num_samplers=2).run()
    assert len(c.candidates) <= 11


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


def test_everything_is_put_back(host, attach):
    from llm4ad.method.eoh.eoh import EoHPrompt

    before = [getattr(host.method.eoh.EoH, name) for name in ("__init__", "run")]
    attach(client())
    assert [getattr(host.method.eoh.EoH, name) for name in ("__init__", "run")] != before
    attach(None)
    assert [getattr(host.method.eoh.EoH, name) for name in ("__init__", "run")] == before
    function = host.base.TextFunctionProgramConverter.text_to_function(TEMPLATE)
    assert "def value(a: float" in EoHPrompt.get_prompt_i1("Task.", function)


def test_another_method_of_llm4ad_is_refused_before_it_asks_anybody(host, attach, monkeypatch):
    other = types.ModuleType("llm4ad.method.hillclimb")
    other.HillClimb = type("HillClimb", (), {"__module__": "llm4ad.method.hillclimb.hillclimb", "run": print})
    before = other.HillClimb.__init__
    monkeypatch.setitem(sys.modules, other.__name__, other)
    attach(client())
    with pytest.raises(HostError, match="got its method HillClimb"):
        other.HillClimb(None, max_sample_nums=6)
    attach(None)
    assert other.HillClimb.__init__ is before


@pytest.mark.skipif(not CHECKOUT, reason="TTC_ESOPT_LLM4AD names no checkout of LLM4AD")
def test_an_unchanged_example_runs_to_its_end(host, attach):
    script = os.path.join(CHECKOUT, "example/methods/eoh/run_eoh_tsp.py")
    if not os.path.exists(script) or not host.__file__.startswith(CHECKOUT):
        pytest.skip("there are no examples here")

    def writer(operator, prompt, number):
        return textwrap.dedent(f"""\
            The nearest node, less its way home.
            ```python
            import numpy as np
            def select_next_node(current, home, nodes, distances):
                return nodes[np.argmin(distances[current][nodes] - {number / 50} * distances[home][nodes])]
            ```""")

    c = attach(client(writer, parser="ours", sandbox="auto", arm="esopt"))
    runpy.run_path(script, run_name="__main__")
    assert c.finished == [None] and c.plan["problem"] == "TSPEvaluation"
    assert all(6 < one < 20 for one in objectives(c))
