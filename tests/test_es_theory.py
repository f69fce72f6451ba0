"""Evolution strategies do what theory says, with this noise, these weights and this optimizer."""

import numpy as np
import pytest

from ttc_esopt.es import ESOptimizer, ESParams, noise

N = 40


def eps(seed, rank=None, shape=(8, 5)):
    out = np.empty(shape, np.float32)
    if rank is None:
        noise.fill(out, seed, "w")
    else:
        noise.fill_lowrank(out, seed, "w", rank)
    return out.reshape(-1).astype(np.float64)


@pytest.fixture(scope="module")
def quadratic():
    """f(x) = g'x - x'Hx / 2 at a point x, with a positive definite H."""
    rng = np.random.default_rng(1)
    root = rng.normal(size=(N, N)) / np.sqrt(N)
    return root @ root.T + 0.1 * np.eye(N), rng.normal(size=N), rng.normal(size=N)


@pytest.mark.parametrize("rank", [None, 1, 2])
def test_smoothing_a_quadratic_costs_half_sigma_squared_times_the_trace(quadratic, rank):
    """E f(x + sigma eps) - f(x) = -sigma^2 / 2 trace(H): the covariance of both kinds of noise is the identity."""
    hessian, slope, x = quadratic
    sigma = 0.3
    noises = np.stack([eps(seed, rank) for seed in range(20_000)])

    def f(points):
        return points @ slope - 0.5 * np.sum(points @ hessian * points, axis=-1)

    differences = f(x + sigma * noises) - f(x)
    error = differences.std() / np.sqrt(len(differences))
    expected = -0.5 * sigma**2 * np.trace(hessian)
    assert abs(differences.mean() - expected) < 4 * error
    assert abs(expected) > 8 * error  # the test could tell it from no cost


@pytest.mark.parametrize("rank", [None, 1])
def test_the_mean_step_points_along_the_gradient_with_the_length_that_theory_gives(quadratic, rank):
    """For a linear f the z-scored step has the mean alpha * gradient / |gradient|, up to O(1 / G)."""
    _, slope, _ = quadratic
    settings = ESParams(
        sigma=0.01, sigma_schedule="constant", alpha=1.0, directions=40, steps=500, alpha_schedule="constant", seed=5
    )
    es = ESOptimizer(settings)
    total = np.zeros(N)
    while not es.done:
        seeds = es.ask()
        noises = np.stack([eps(seed, rank) for seed in seeds])
        step = es.tell(seeds, es.sigma * noises @ slope)
        total += np.array(step.coefficients) @ noises
    mean = total / settings.steps
    unit = slope / np.linalg.norm(slope)
    along, across = mean @ unit, np.linalg.norm(mean - (mean @ unit) * unit)
    assert along == pytest.approx(1, abs=0.06)
    assert across < 2.5 * np.sqrt(N / (settings.directions * settings.steps))  # the sampling error of 39 coordinates


def ascend(arm, f, steps=150, rank=None):
    settings = ESParams(sigma=0.05, alpha=0.12, directions=16, steps=steps, arm=arm, seed=2)
    es = ESOptimizer(settings)
    base, delta = np.zeros((8, 5), np.float32), np.zeros((8, 5), np.float32)
    out = np.empty_like(base)
    while not es.done:
        seeds, rewards = es.ask(), []
        for seed in seeds:
            if rank is None:
                noise.perturb(base, delta, seed, "w", es.sigma, out)
            else:
                noise.fill_lowrank(out, seed, "w", rank)
                out[...] = (base + delta) + np.float32(es.sigma) * out
            rewards.append(f(out))
        step = es.tell(seeds, rewards)
        if step.taken and rank is None:
            noise.accumulate(delta, step.seeds, step.coefficients, "w")
        elif step.taken:
            noise.accumulate_lowrank(delta, step.seeds, step.coefficients, "w", rank)
    return f(base + delta)


@pytest.mark.parametrize("rank", [None, 1])
def test_it_climbs_a_known_hill_and_the_control_arms_do_not(rank):
    top = np.linspace(-0.5, 0.5, N).reshape(8, 5)

    def f(weights):
        return -float(np.sum((weights - top) ** 2))

    start = f(np.zeros((8, 5)))
    assert ascend("esopt", f, rank=rank) > 0.1 * start  # nine tenths of the way, and more
    assert ascend("noise", f, rank=rank) == start
    assert ascend("frozen", f, rank=rank) == start
    assert ascend("shuffled", f, rank=rank) < 0.7 * start


def test_it_climbs_a_hill_without_gradients():
    """Counting is flat almost everywhere: only the smoothed function has a slope."""
    thresholds = np.linspace(-0.3, 0.3, N).reshape(8, 5)

    def f(weights):
        return float(np.sum(weights > thresholds))

    assert f(np.zeros((8, 5))) == 20
    assert ascend("esopt", f, steps=300) > 30
