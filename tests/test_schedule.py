"""Sigma schedules: exact ends, the published cosine, errors."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttc_esopt.errors import ConfigurationError
from ttc_esopt.es.schedule import SigmaSchedule

SIGMAS = st.floats(0, 1, allow_subnormal=False)


@given(st.sampled_from(["cosine", "linear"]), SIGMAS, SIGMAS, st.integers(2, 300))
def test_both_ends_are_exact_and_the_way_between_is_monotone(kind, start, end, steps):
    schedule = SigmaSchedule(kind, start, end, steps)
    values = [schedule.at(t) for t in range(steps)]
    assert values[0] == start and values[-1] == end
    slack = 1e-15 * max(start, end)
    assert all((b - a) * (end - start) >= -slack for a, b in zip(values, values[1:], strict=False))


def test_cosine_is_the_published_formula_and_passes_the_middle_half_way():
    schedule = SigmaSchedule("cosine", 1e-3, 2.5e-4, 5)
    assert schedule.at(2) == pytest.approx((1e-3 + 2.5e-4) / 2, rel=1e-15)
    assert schedule.at(1) == pytest.approx(2.5e-4 + 7.5e-4 * (1 + math.cos(math.pi / 4)) / 2, rel=1e-15)


def test_linear_has_equal_steps():
    assert [SigmaSchedule("linear", 4.0, 0.0, 5).at(t) for t in range(5)] == [4, 3, 2, 1, 0]


def test_constant_never_moves():
    assert {SigmaSchedule("constant", 1e-3, 1e-3, 7).at(t) for t in range(7)} == {1e-3}


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_a_single_step_uses_the_start(kind):
    assert SigmaSchedule(kind, 1e-3, 0.0, 1).at(0) == 1e-3


@pytest.mark.parametrize("t", [-1, 5])
def test_a_step_out_of_range_is_an_error(t):
    with pytest.raises(ValueError, match=r"0 \.\. 4"):
        SigmaSchedule("cosine", 1e-3, 0.0, 5).at(t)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cosin", 1e-3, 0.0, 5), "got cosin .--sigma-schedule"),
        (("cosine", -1, 0.0, 5), "Expected sigma >= 0, got -1 .--sigma"),
        (("cosine", math.nan, 0.0, 5), "--sigma"),
        (("cosine", 1e-3, math.inf, 5), "--sigma"),
        (("cosine", 1e-3, 0.0, 0), "got 0 .--budget"),
        (("constant", 1e-3, 0.0, 5), "one sigma for a constant schedule"),
    ],
)
def test_wrong_settings_name_their_option(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        SigmaSchedule(*arguments)
