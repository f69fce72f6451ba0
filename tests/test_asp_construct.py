"""The problem asp_construct: published values, its rules, its seeds."""

import math
from fractions import Fraction

import numpy as np
import pytest
from conformance import check_seeds, needs_values, published

from ttc_esopt.evaluation import Evaluator
from ttc_esopt.problems import WrongShape, load
from ttc_esopt.problems.asp_construct import AspInstance
from ttc_esopt.solvers import admissible_sets

PROBLEM = load("asp_construct")
(TRAIN,) = PROBLEM.instances("train", 15)
SMALL = AspInstance(6, 4)
COUNT = len(admissible_sets.candidates(6, 4))


def size(code, instance=TRAIN):
    namespace = {"np": np}
    exec(code, namespace)
    return PROBLEM.score(instance, PROBLEM.run(namespace["priority"], instance))


@needs_values
def test_published_programs_have_their_published_values():
    programs = published("asp_construct")
    with Evaluator(PROBLEM) as evaluator:
        outcomes = evaluator.evaluate([code for code, _ in programs.values()])
    for (name, (_, expected)), outcome in zip(programs.items(), outcomes, strict=True):
        assert outcome.objective == expected["value"], name


def test_equal_priorities_give_the_published_sizes():
    sizes = {n: PROBLEM.score(*PROBLEM.instances("test", n), np.zeros(count)) for n, count in ((12, 448), (15, 2432))}
    assert sizes == {12: 690, 15: 1842}
    assert size(PROBLEM.baselines["constant"]) == 1842


def test_every_split_has_one_instance_per_size():
    for split in ("train", "val", "test"):
        assert PROBLEM.resolve(split) == (split, 15)
        for n in PROBLEM.splits[split]:
            (instance,) = PROBLEM.instances(split, n)
            assert (instance.n, instance.w, len(instance)) == (n, {12: 7, 15: 10, 21: 15, 24: 17}[n], n)
            assert PROBLEM.references(instance)["best_known"] <= PROBLEM.bounds(instance)[1] == math.comb(n, instance.w)
    assert PROBLEM.references(SMALL) == {}


def test_seed_heuristics_are_short_and_each_has_its_own_size():
    assert [size(seed.code) for seed in PROBLEM.seeds] == [2673, 2646, 2178, 2046]
    check_seeds(PROBLEM)


def test_a_program_rates_every_word_once():
    seen = []

    def look(el, n, w):
        assert type(el) is tuple and {type(letter) for letter in el} == {int}
        assert (len(el), n, w, sum(letter != 0 for letter in el)) == (15, 15, 10, 10)
        seen.append(el)
        return len(seen)

    output = PROBLEM.run(look, TRAIN)
    assert output.dtype == np.float64 and output.tolist() == list(range(1, 2433))
    assert seen == list(admissible_sets.words(15, 10)) and len(set(seen)) == 2432


@pytest.mark.parametrize("kind", [int, float, bool, np.float32, np.int8, Fraction, np.array, lambda x: np.array([[x]])])
def test_numbers_of_any_kind_are_priorities(kind):
    output = PROBLEM.run(lambda el, n, w: kind(el[0] > 0), SMALL)
    assert output.dtype == np.float64 and output.tolist() == [float(el[0] > 0) for el in admissible_sets.words(6, 4)]


@pytest.mark.parametrize("value", [None, "1.0", b"1", 1j, np.complex128(1), [1.0], (1,), np.ones(2), np.array("1"), {}])
def test_a_priority_that_is_no_number_has_the_wrong_shape(value):
    with pytest.raises(WrongShape):
        PROBLEM.run(lambda el, n, w: value, SMALL)


@pytest.mark.parametrize(
    ("output", "error"),
    [
        (np.zeros(COUNT - 1), WrongShape),
        (np.zeros((COUNT, 1)), WrongShape),
        (np.zeros(COUNT, np.int64), WrongShape),
    ],
)
def test_the_score_believes_no_priorities(output, error):
    with pytest.raises(error):
        PROBLEM.score(SMALL, output)


def test_some_infinite_priorities_are_valid():
    output = np.zeros(2432)
    output[:40:3], output[5], output[9] = np.inf, np.nan, -np.inf
    assert 0 < PROBLEM.score(TRAIN, output) <= 3003


def test_the_solution_has_as_many_words_as_the_score_says():
    output = np.random.default_rng(0).random(2432)
    output.flags.writeable = False
    family = PROBLEM.solution(TRAIN, output)
    least, most = PROBLEM.bounds(TRAIN)
    assert least <= len(family) == PROBLEM.score(TRAIN, output) <= most
    assert len(np.unique(family, axis=0)) == len(family) and set(np.unique(family)) == {0, 1, 2}


def test_the_time_limit_grows_with_the_number_of_words():
    assert PROBLEM.time_limit([TRAIN]) == 30
    assert PROBLEM.time_limit(PROBLEM.instances("test", 12)) == 30
    assert PROBLEM.time_limit(PROBLEM.instances("test", 21)) == pytest.approx(30 * 68768 / 2432)


def test_warming_makes_the_words():
    admissible_sets.words.cache_clear()
    PROBLEM.warm([SMALL, TRAIN])
    assert admissible_sets.words.cache_info().currsize == 2
