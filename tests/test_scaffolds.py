"""Plans, parents, prompts and survival."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttc_esopt import problems, scaffolds
from ttc_esopt.scaffolds.base import Individual, distinct_best, select_parents
from ttc_esopt.scaffolds.prompts import build_prefill, build_prompt
from ttc_esopt.settings import resolve

PROBLEM = problems.load("tsp_construct")


def plan(**given):
    return scaffolds.build(PROBLEM, resolve(given)).plan()


def people(*objectives):
    return [Individual(i, f"idea {i}", f"code {i}", objective) for i, objective in enumerate(objectives)]


@given(
    budget=st.integers(1, 300), directions=st.integers(2, 12), k=st.integers(1, 3),
    scaffold=st.sampled_from(["eoh", "sample"]), init=st.sampled_from(["both", "model", "seeds"]),
)  # fmt: skip
def test_the_plan_holds_exactly_the_budget(budget, directions, k, scaffold, init):
    calls = plan(budget=budget, directions=directions, replies_per_direction=k, scaffold=scaffold, init=init)
    assert sum(call.count for call in calls) == budget
    assert [call.index for call in calls] == list(range(len(calls)))
    assert all(call.count == directions * k for call in calls if call.es)


def test_a_budget_of_120_holds_at_least_six_steps_by_default():
    calls = plan(budget=120)
    assert sum(call.count for call in calls) == 120
    assert sum(call.es for call in calls) >= 7  # the last one is at sigma 0 and takes no step


def test_the_published_budget_of_1000_is_25_generations_of_40():
    calls = plan(budget=1000, preset="paper")
    assert Counter(call.operator for call in calls if call.generation) == {"e1": 25, "e2": 25, "m1": 25, "m2": 25}
    assert sum(call.count for call in calls if call.generation) == 1000 and sum(call.es for call in calls) == 50


def test_one_objective_survives_once_and_the_best_first():
    kept = distinct_best(people(3.0, 1.0, 1.000001, 2.0, 3.0), 3)
    assert [(one.order, one.objective) for one in kept] == [(1, 1.0), (3, 2.0), (0, 3.0)]


def test_parents_are_drawn_by_rank():
    random, counts = Random(0), Counter()
    for _ in range(20000):
        counts[select_parents(people(1.0, 2.0, 3.0), 1, random)[0].order] += 1
    total = 1 / 4 + 1 / 5 + 1 / 6
    for rank in range(3):
        assert counts[rank] / 20000 == pytest.approx(1 / (rank + 4) / total, abs=0.015)


def test_two_parents_differ_as_long_as_there_are_two():
    for seed in range(50):
        assert len({one.order for one in select_parents(people(1.0, 2.0), 2, Random(seed))}) == 2
    assert len(select_parents(people(1.0), 2, Random(0))) == 2


def test_a_batch_of_directions_shares_its_parent_unless_told_otherwise():
    population = people(*range(1, 11))
    for common, parents in ((True, 1), (False, 2)):
        scaffold = scaffolds.build(PROBLEM, resolve({"common_parent": common, "directions": 12}))
        call = next(call for call in scaffold.plan() if call.operator == "m1")
        drafts = scaffold.drafts(call, population, Random(0))
        assert (len({draft.parents[0].order for draft in drafts}) >= parents) and (
            common is (len({d.parents for d in drafts}) == 1)
        )


def test_an_empty_population_turns_every_operator_into_a_fresh_design():
    scaffold = scaffolds.build(PROBLEM, resolve({}))
    call = next(call for call in scaffold.plan() if call.operator == "m2")
    assert {draft.parents for draft in scaffold.drafts(call, [], Random(0))} == {()}


def test_prompts_show_task_parents_instruction_and_signature():
    parent = Individual(0, "Take the nearest.", "def select_next_node(): pass", 7.0)
    for operator in ("i1", "e1", "e2", "m1", "m2"):
        shown = [] if operator == "i1" else [parent]
        prompt = build_prompt(PROBLEM, operator, shown, prefill=False)
        assert PROBLEM.task in prompt and PROBLEM.template.strip() in prompt and "inside braces" in prompt
        assert ("Take the nearest." in prompt and parent.code in prompt) is bool(shown)


def test_the_started_reply_is_read_back_as_a_program():
    scaffold = scaffolds.build(PROBLEM, resolve({"prefill": True}))
    prefill = build_prefill(PROBLEM)
    parsed = scaffold.parse(" return unvisited_nodes[0]\n", prefill, truncated=False)
    assert parsed.ok and "import numpy as np" in parsed.code and "return unvisited_nodes[0]" in parsed.code
