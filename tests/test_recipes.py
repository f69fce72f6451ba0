"""The recipes in runs/: each is read and resolves, the published protocol is held to the last count, and their page."""

from collections import Counter
from pathlib import Path

import pytest
import recipe_page

from ttc_esopt import scaffolds
from ttc_esopt.compare import compare_summaries
from ttc_esopt.instances import problem_of
from ttc_esopt.problems import names
from ttc_esopt.runner import settings_of
from ttc_esopt.statistics import Summary
from ttc_esopt.study import read_recipe

ROOT = Path(__file__).parents[1]
STUDIES = {path.stem: path for path in recipe_page.studies()}
SIX = set(names())


def counts(settings):
    """Candidates by operator, ES steps, generations after the initial one."""
    plan = scaffolds.build(problem_of(settings), settings).plan()
    by_operator = Counter()
    for call in plan:
        by_operator[call.operator] += call.count
    return dict(by_operator), sum(call.es for call in plan), max(call.generation for call in plan)


@pytest.mark.parametrize(
    ("name", "expected", "steps", "generations", "directions"),
    [
        ("eoh-1000", {"i1": 10, "e1": 250, "e2": 250, "m1": 250, "m2": 250}, 50, 25, 10),
        ("eoh-2000", {"i1": 10, "e1": 250, "e2": 250, "m1": 750, "m2": 750}, 50, 25, 30),
        ("ttest-20", {"i1": 10, "e1": 250, "e2": 250, "m1": 250, "m2": 250}, 50, 25, 10),
        ("sample-1000", {"i1": 1000}, 50, 50, 20),
        ("sample-2000", {"i1": 2000}, 100, 100, 20),
    ],
)
def test_the_published_protocol_is_held(name, expected, steps, generations, directions):
    recipe = read_recipe(STUDIES[name])
    assert set(recipe.problems) == ({"tsp_construct", "kp_construct"} if name == "ttest-20" else SIX)
    assert len(recipe.seeds) == (20 if name == "ttest-20" else 3)
    for cell in recipe.cells(Path())[:: len(recipe.seeds)]:
        s = settings_of(cell.given)
        assert counts(s) == (expected, steps, generations)
        assert sum(expected.values()) - expected.get("i1", 0) * (name[0] in "et") == s.budget
        assert (s.directions, s.replies_per_direction, s.model) == (directions, 1, "meta-llama/Llama-3.1-8B-Instruct")
        assert (s.sigma, s.sigma_end, s.sigma_schedule) == (1e-3, 0.0, "cosine")
        assert (s.alpha, s.alpha_schedule, s.shaping) == (5e-4, "constant", "zscore")
        assert (s.temperature, s.top_p, s.top_k, s.max_tokens) == (1.0, 0.98, 0, 768)
        assert (s.noise, s.reward, s.common_parent, s.distinct_parents) == ("full", "paper", False, False)
        assert (s.protocol, s.eval_timeout, s.prefill) == ("published", 0.0, False)


@pytest.mark.parametrize("name", [name for name in STUDIES if name not in ("pilot", "rewards")])
def test_the_arms_of_a_comparison_spend_alike(name):
    recipe = read_recipe(STUDIES[name])
    of_arm = {cell.arm: settings_of(cell.given) for cell in recipe.cells(Path())[: len(recipe.arms)]}
    for arm, against in recipe.pairs():
        same = of_arm[arm.name].directions == of_arm[against.name].directions
        if same and not (arm.equal_tokens_to or against.equal_tokens_to):
            assert counts(of_arm[arm.name]) == counts(of_arm[against.name])


@pytest.mark.parametrize(("problem", "p"), [("tsp_construct", 0.0258), ("kp_construct", 0.0100)])
def test_the_published_t_test_follows_from_its_figures(problem, p):
    figures = {one.arm: one for one in read_recipe(STUDIES["ttest-20"]).published if one.problem == problem}
    sides = [Summary(figures[arm].mean, figures[arm].sd, figures[arm].n) for arm in ("frozen", "esopt")]
    found = compare_summaries(*sides, maximise=figures["esopt"].maximised)
    assert found.student.p == pytest.approx(p, abs=1.5e-4)


def test_published_figures_name_their_source_and_lie_within_reason():
    for name, path in STUDIES.items():
        recipe = read_recipe(path)
        for one in recipe.published:
            assert one.source and one.problem in recipe.problems and one.arm in recipe.arms, name
            if one.best is not None:
                assert (one.best >= one.mean) if one.maximised else (one.best <= one.mean), (name, one)
            assert one.maximised == (one.problem in ("kp_construct", "asp_construct"))


def test_the_page_of_recipes_is_that_of_the_recipes():
    assert recipe_page.PAGE.read_text() == recipe_page.page(), "write it again: python tests/recipe_page.py"
