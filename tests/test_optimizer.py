"""The ask/tell optimizer: directions, coefficients, arms, steps not taken, and bit equality with the oracle."""

import math
from dataclasses import asdict

import es_oracle as oracle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttc_esopt.errors import ConfigurationError, RewardError
from ttc_esopt.es import ESOptimizer, ESParams, History, noise


def params(**changes):
    settings = {"sigma": 1e-2, "alpha": 5e-3, "directions": 6, "steps": 20, "seed": 3}
    return ESParams(**{**settings, **changes})


def told(es, rewards=(1.0, 2.0, 4.0, 3.0, 0.0, -2.0)):
    return es.tell(es.ask(len(rewards)), rewards)


# --- directions -----------------------------------------------------------------------------------------------------


def test_directions_are_a_pure_function_of_seed_step_and_place():
    es = ESOptimizer(params())
    first = es.ask()
    assert es.ask() == first and es.ask(4) == first[:4] and len(first) == 6
    told(es)
    assert es.ask() == ESOptimizer(params(), t=1).ask() != first
    assert ESOptimizer(params(seed=4)).ask() != first
    assert ESOptimizer(params(alpha=0.1, sigma=0.5, arm="noise", steps=99)).ask() == first


def test_no_two_directions_of_a_run_are_equal_and_json_readers_keep_them_exact():
    es = params(directions=100, steps=500)
    seeds = [seed for t in range(500) for seed in ESOptimizer(es, t).ask()]
    assert len(set(seeds)) == 50_000 and all(0 <= seed < 2**52 for seed in seeds)
    assert all(abs(np.mean([seed >> bit & 1 for seed in seeds]) - 0.5) < 0.012 for bit in range(52))


@pytest.mark.parametrize("arm", ["frozen", "noise", "shuffled", "esopt"])
def test_all_arms_get_the_same_directions(arm):
    assert ESOptimizer(params(arm=arm)).ask() == ESOptimizer(params()).ask()


def test_asking_after_the_last_step_is_an_error():
    es = ESOptimizer(params(steps=2))
    told(es), told(es)
    assert es.done and es.t == 2
    with pytest.raises(ConfigurationError, match="at most 2 ES steps"):
        es.ask()
    with pytest.raises(ValueError, match=r"0 \.\. 2"):
        ESOptimizer(params(steps=2), t=3)


@pytest.mark.parametrize("n", [0, 7, -1])
def test_asking_for_more_than_a_batch_or_for_none_is_an_error(n):
    with pytest.raises(ValueError, match=r"1 \.\. 6"):
        ESOptimizer(params()).ask(n)


def test_directions_that_were_not_asked_for_are_an_error_and_the_step_stands():
    es = ESOptimizer(params())
    seeds = es.ask()
    for wrong in ((1, 2), (), (seeds[0], seeds[0])):
        with pytest.raises(ValueError, match="ask"):
            es.tell(wrong, [0.0] * len(wrong))
    with pytest.raises(ValueError, match="shape"):
        es.tell(seeds, [1.0, 2.0])
    assert es.t == 0


def test_mirrored_directions_come_in_pairs_and_a_smaller_batch_is_their_beginning():
    es = ESOptimizer(params(antithetic=True, steps=500))
    seeds = [one for t in range(500) for one in ESOptimizer(es.params, t).ask()]
    assert seeds[1::2] == [~one for one in seeds[::2]] and min(seeds[::2]) >= 0
    assert len(set(seeds)) == 3000 and all(abs(one) <= 2**52 for one in seeds)
    assert es.ask(3) == es.ask()[:3] and es.ask(4) == es.ask()[:4]
    with pytest.raises(ConfigurationError, match=r"even number of directions for mirrored pairs, got 5 \(--directions"):
        params(antithetic=True, directions=5)


def test_a_pair_that_is_told_moves_the_weights_by_the_difference_of_its_rewards():
    es = ESOptimizer(params(antithetic=True, directions=2))
    step = told(es, [1.0, 0.0])
    delta, alone = np.zeros(50, np.float32), np.zeros(50, np.float32)
    noise.accumulate(delta, step.seeds, step.coefficients, "w")
    noise.accumulate(alone, step.seeds[:1], [step.coefficients[0] - step.coefficients[1]], "w")
    assert step.taken and np.allclose(delta, alone, rtol=1e-6)
    assert told(ESOptimizer(es.params), [0.0, 1.0]).coefficients[0] == -step.coefficients[0]


# --- steps ----------------------------------------------------------------------------------------------------------


def test_coefficients_are_alpha_z_over_g_rounded_to_float32():
    step = told(ESOptimizer(params()))
    rewards = np.array(step.rewards)
    z = (rewards - rewards.mean()) / (rewards.std() + 1e-8)
    assert step.taken and step.skipped is None
    assert np.allclose(step.weights, z, rtol=1e-14)
    assert step.coefficients == tuple(float(np.float32(5e-3 * w / 6)) for w in step.weights)


def test_a_batch_cut_by_the_budget_divides_by_its_own_size():
    step = told(ESOptimizer(params()), [0.0, 1.0])
    assert step.coefficients == pytest.approx((-5e-3 / 2, 5e-3 / 2), rel=1e-6)


def test_ranks_shape_the_rewards_when_asked_for():
    assert told(ESOptimizer(params(shaping="ranks")), [5.0, 1.0, 900.0]).weights == (0.0, -0.5, 0.5)


def test_sigma_and_alpha_follow_their_schedules():
    es = ESOptimizer(params(steps=5, sigma_end=2e-3))
    seen = [(step.sigma, step.alpha) for step in (told(es) for _ in range(5))]
    assert seen[0] == (1e-2, 5e-3) and seen[-1][0] == 2e-3
    assert [alpha for _, alpha in seen] == pytest.approx([5e-3 * sigma / 1e-2 for sigma, _ in seen])
    constant = ESOptimizer(params(steps=5, alpha_schedule="constant"))
    assert {told(constant).alpha for _ in range(5)} == {5e-3}
    assert (es.sigma, constant.sigma) == (2e-3, 0.0)  # after the last step: the last step's


def test_the_mean_of_several_replies_is_the_reward_of_a_direction():
    several = ESOptimizer(params(replies_per_direction=3, directions=4))
    one = ESOptimizer(params(directions=4))
    replies = [[1.0, 2.0, 6.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.1, 0.2, 0.3]]
    step = several.tell(several.ask(), replies)
    means = [math.fsum(row) / 3 for row in replies]
    assert step.weights == one.tell(one.ask(), means).weights
    assert step.rewards == tuple(map(tuple, replies))
    with pytest.raises(ValueError, match=r"\(4, 3\)"):
        several.tell(several.ask(), np.zeros((4, 2)))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_reward_that_is_not_finite_names_its_candidate_and_the_step_stands(bad):
    es = ESOptimizer(params(replies_per_direction=2))
    with pytest.raises(RewardError, match="candidate 41"):
        es.tell(es.ask(2), [0.0, bad], names=["candidate 40", "candidate 41"])
    with pytest.raises(RewardError, match="direction 1, reply 0"):
        es.tell(es.ask(2), [[0.0, 1.0], [bad, 1.0]])
    with pytest.raises(RewardError, match="d"):
        es.tell(es.ask(2), [[0.0, 1.0], [1.0, bad]], names=["a", "b", "c", "d"])
    assert es.t == 0


def test_steps_that_carry_no_information_are_not_taken_and_say_why():
    assert told(ESOptimizer(params()), [0.7] * 6).skipped == "all rewards equal"
    assert told(ESOptimizer(params()), [0.7]).skipped == "fewer than 2 directions"
    assert told(ESOptimizer(params(), t=19)).skipped == "sigma is 0"
    assert told(ESOptimizer(params(sigma=0.0))).skipped == "sigma is 0"
    assert told(ESOptimizer(params(arm="noise"))).skipped == "arm noise"
    assert told(ESOptimizer(params(arm="frozen"))).skipped == "arm frozen"
    for es in (ESOptimizer(params(), t=19), ESOptimizer(params(arm="noise"))):
        step = told(es)
        assert not step.taken and set(step.coefficients) == {0.0} and es.t == step.t + 1


def test_the_published_rule_takes_a_step_even_at_sigma_zero():
    step = told(ESOptimizer(params(alpha_schedule="constant"), t=19))
    assert step.taken and step.sigma == 0 and any(step.coefficients)


def test_equal_rewards_never_move_the_weights_whatever_their_value():
    for value in (0.7, 1 / 3, 40.14595, -1e30):
        step = told(ESOptimizer(params()), [value] * 6)
        assert step.weights == (0.0,) * 6 and not step.taken


# --- arms -----------------------------------------------------------------------------------------------------------


def test_the_frozen_arm_does_not_perturb_and_the_noise_arm_does():
    assert (ESOptimizer(params(arm="frozen")).sigma, ESOptimizer(params(arm="frozen")).alpha) == (0.0, 0.0)
    assert (ESOptimizer(params(arm="noise")).sigma, ESOptimizer(params(arm="noise")).alpha) == (1e-2, 0.0)


def test_the_shuffled_arm_deals_the_same_weights_to_other_directions_and_keeps_the_raw_rewards():
    rewards = (1.0, 2.0, 4.0, 3.0, 0.0, -2.0)
    changed = 0
    for t in range(20):
        esopt = told(ESOptimizer(params(sigma_end=1e-3), t), rewards)
        shuffled = told(ESOptimizer(params(sigma_end=1e-3, arm="shuffled"), t), rewards)
        assert shuffled.taken and sorted(shuffled.weights) == sorted(esopt.weights)
        assert shuffled.rewards == esopt.rewards == rewards
        assert told(ESOptimizer(params(sigma_end=1e-3, arm="shuffled"), t), rewards) == shuffled
        changed += shuffled.weights != esopt.weights
    assert changed >= 18


# --- resume, history, oracle ------------------------------------------------------------------------------------------


def test_an_optimizer_resumed_at_any_step_goes_on_as_if_it_had_never_stopped(tmp_path):
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=(20, 6))
    es = ESOptimizer(params(arm="shuffled"))
    steps = [told(es, row) for row in rewards]
    for t in range(20):
        assert told(ESOptimizer(params(arm="shuffled"), t), rewards[t]) == steps[t]
    with History(tmp_path / "history.jsonl") as history:
        for step in steps:
            history.append(asdict(step))
    back = history.read()
    assert [tuple(r["coefficients"]) for r in back] == [s.coefficients for s in steps]
    assert [tuple(r["seeds"]) for r in back] == [s.seeds for s in steps]
    assert [r["skipped"] for r in back] == [None] * 19 + ["sigma is 0"]


class LibraryModel:
    """The same small model as the oracle's, on the library's kernels."""

    def __init__(self, base, rank):
        self.base, self.rank = base, rank
        self.delta = {name: np.zeros_like(array) for name, array in base.items()}

    def live(self):
        out = {name: np.empty_like(array) for name, array in self.base.items()}
        for name, array in self.base.items():
            noise.apply(array, self.delta[name], out[name])
        return out

    def perturbed(self, seed, sigma):
        out = self.live()
        for name, array in self.base.items():
            if self.rank is None:
                noise.perturb(array, self.delta[name], seed, name, sigma, out[name])
            elif array.ndim == 2:
                eps = np.empty_like(array)
                noise.fill_lowrank(eps, seed, name, self.rank)
                out[name] += np.float32(sigma) * eps
        return out

    def step(self, seeds, coefficients):
        for name, delta in self.delta.items():
            if self.rank is None:
                noise.accumulate(delta, seeds, coefficients, name)
            elif delta.ndim == 2:
                noise.accumulate_lowrank(delta, seeds, coefficients, name, self.rank)


def toy_reward(weights):
    """Rounded, so that some rewards tie, as valid and invalid programs do."""
    return round(-sum(float(np.mean((array - 0.05) ** 2)) for array in weights.values()), 5)


@pytest.mark.parametrize("rank", [None, 1, 3])
@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_twenty_steps_match_the_oracle_bit_for_bit(rank, schedule):
    rng = np.random.default_rng(7)
    shapes = {"embed.weight": (13, 7), "norm.weight": (7,), "layers.0.up.weight": (5, 7), "layers.0.up.bias": (5,)}
    base = {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}
    settings = params(sigma=0.05, sigma_end=0.01, alpha=0.04, sigma_schedule=schedule, directions=6)
    es, ours, theirs = ESOptimizer(settings), LibraryModel(base, rank), oracle.Model(base, rank)
    first = toy_reward(theirs.live())
    for t in range(20):
        sigma = oracle.sigma_at(schedule, 0.05, 0.01, 20, t)
        seeds = es.ask()
        rewards = []
        for seed in seeds:
            mine, reference = ours.perturbed(seed, es.sigma), theirs.perturbed(seed, sigma)
            assert all(np.array_equal(mine[name], reference[name]) for name in base)
            rewards.append(toy_reward(reference))
        step = es.tell(seeds, rewards)
        assert step.taken
        ours.step(step.seeds, step.coefficients)
        coefficients = theirs.step(seeds, rewards, alpha=0.04 * (sigma / 0.05))
        assert [float(c) for c in coefficients] == list(step.coefficients)
        assert all(np.array_equal(ours.delta[name], theirs.delta[name]) for name in base)
        live, reference = ours.live(), theirs.live()
        assert all(np.array_equal(live[name].view(np.uint32), reference[name].view(np.uint32)) for name in base)
    assert any(ours.delta[name].any() for name in base) and toy_reward(ours.live()) > first


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alpha": -1}, r"Expected alpha >= 0, got -1 \(--alpha\)\."),
        ({"alpha": math.nan}, "--alpha"),
        ({"sigma": -1e-3}, "Expected sigma >= 0, got -0.001 .--sigma"),
        ({"sigma_end": math.inf}, "--sigma"),
        ({"sigma_schedule": "exponential"}, "--sigma-schedule"),
        ({"alpha_schedule": "cosine"}, "Expected alpha schedule sigma, constant, got cosine"),
        ({"directions": 0}, r"Expected directions >= 1, a whole number, got 0 \(--directions\)\."),
        ({"directions": 2.5}, "--directions"),
        ({"replies_per_direction": 0}, "--replies-per-direction"),
        ({"steps": 0}, "--budget"),
        ({"shaping": "none"}, "--shaping"),
        ({"arm": "es"}, "Expected arm frozen, noise, shuffled, esopt, got es .--arm"),
        ({"seed": -1}, "--seed"),
        ({"seed": 2**64}, "--seed"),
    ],
)
def test_wrong_settings_name_their_option(change, message):
    with pytest.raises(ConfigurationError, match=message):
        params(**change)


def test_sigma_end_defaults_to_zero_and_to_sigma_for_a_constant_schedule():
    assert params().sigma_end == 0.0
    assert params(sigma_schedule="constant").sigma_end == 1e-2


@given(st.integers(2, 30), st.integers(0, 2**64 - 1))
def test_coefficients_sum_to_nothing_so_a_common_shift_of_rewards_moves_nothing(directions, seed):
    es = ESOptimizer(params(directions=directions, seed=seed))
    rewards = [float(s % 97) for s in es.ask()]
    step = es.tell(es.ask(), rewards)
    assert abs(sum(step.coefficients)) < 1e-8
