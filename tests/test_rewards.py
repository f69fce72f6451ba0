"""Reward rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttc_esopt.rewards import Scored, default_rewards, paper_mutation_rewards, paper_sample_rewards

objectives = st.one_of(st.none(), st.floats(-1e12, 1e12, allow_nan=False))
batches = st.lists(
    st.builds(Scored, objectives, st.one_of(st.none(), st.floats(-1e12, 1e12)), st.booleans()), min_size=1
)


@given(batches)
def test_default_rewards_keep_invalid_below_known_below_new_at_any_scale(batch):
    got = default_rewards(batch)
    tiers = [0 if c.objective is None else 1 if c.known else 2 for c in batch]
    for a, reward_a in zip(tiers, got, strict=True):
        for b, reward_b in zip(tiers, got, strict=True):
            if a < b:
                assert reward_a < reward_b


def test_default_rewards_order_new_candidates_by_improvement_and_average_ties():
    batch = [
        Scored(6.5, 7.0),
        Scored(6.9, 7.0),
        Scored(6.5, 7.0),
        Scored(7.4, 7.0),
        Scored(7.0, 7.0, known=True),
        Scored(None, 7.0),
    ]
    top = 0.5 + 0.5 * 2.5 / 3
    assert default_rewards(batch) == pytest.approx([top, 0.5 + 0.5 / 3, top, 0.5, 0.0, -1.0])


def test_default_rewards_do_not_make_copying_the_parent_the_best_policy():
    copy, worse = Scored(7.0, 7.0, known=True), Scored(7.3, 7.0)
    got = default_rewards([copy, worse])
    assert got[1] > got[0]
    assert paper_mutation_rewards([copy, worse], worst=8.0) == [0.0, pytest.approx(-0.3)]


def test_paper_rule_of_mutation_is_parent_minus_child_with_a_floor():
    batch = [Scored(6.0, 7.0), Scored(9.0, 7.0), Scored(None, 7.0), Scored(None, 7.9)]
    assert paper_mutation_rewards(batch, worst=8.0) == [1.0, -1.0, -1.0, pytest.approx(-0.1)]


def test_paper_rule_lets_a_poor_valid_child_fall_below_invalid_code():
    child, invalid = paper_mutation_rewards([Scored(-1500.0, -1800.0), Scored(None, -1800.0)], worst=-1400.0)
    assert child == -300.0 and invalid == -1.0


def test_paper_rule_of_sampling_puts_invalid_one_deviation_below_the_worst():
    assert paper_sample_rewards([Scored(5.0), Scored(7.0), Scored(None)]) == [-5.0, -7.0, -8.0]
    assert paper_sample_rewards([Scored(500.0), Scored(None)]) == [-500.0, -505.0]
    assert paper_sample_rewards([Scored(None), Scored(None)]) == [0.0, 0.0]
