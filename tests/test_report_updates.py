"""Expected sizes of updates, from the history alone, against updates that are really made."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ttc_esopt.es.noise import fill
from ttc_esopt.es.optimizer import ESOptimizer, ESParams, coefficients
from ttc_esopt.report.diagnostics import updates
from ttc_esopt.report.tables import update_rows, update_summary


def history(steps=6, directions=8, back=None, antithetic=False):
    """Lines of a history as a run writes them; `back`: step -> the step to whose weights it goes back."""
    es = ESOptimizer(ESParams(sigma=6e-3, alpha=3e-3, directions=directions, steps=steps, seed=3,
                              antithetic=antithetic))  # fmt: skip
    lines = []
    while not es.done:
        rewards = np.random.default_rng(es.t).normal(size=directions)
        step = es.tell(es.ask(), rewards)
        line = {"t": step.t, "operator": "m1", "seeds": list(step.seeds), "rewards": list(step.rewards),
                "weights": list(step.weights), "sigma": step.sigma, "alpha": step.alpha, "taken": step.taken,
                "skipped": step.skipped}  # fmt: skip
        if step.t in (back or {}):
            line["from"] = back[step.t]
        lines.append(line)
    return lines


def moved(lines, size=200_000):
    """Root mean square of each update and of the distance after it, with real noise."""
    after = {-1: np.zeros(size)}
    rms, distance = [], []
    for line in lines:
        here = after[line.get("from", line["t"] - 1)]
        update = np.zeros(size)
        if line["taken"]:
            for seed, c in zip(line["seeds"], coefficients(line["alpha"], line["weights"]), strict=True):
                noise = np.empty(size, np.float32)
                fill(noise, seed, "w")
                update += c * noise.astype(float)
        after[line["t"]] = here + update
        rms.append(math.sqrt(np.mean(update**2)))
        distance.append(math.sqrt(np.mean(after[line["t"]] ** 2)))
    return rms, distance


@pytest.mark.parametrize("antithetic", [False, True])
@pytest.mark.parametrize("back", [None, {3: 0}, {2: -1, 4: 1}])
def test_expected_sizes_are_those_of_real_noise(back, antithetic):
    lines = history(back=back, antithetic=antithetic)
    found = updates(lines)
    rms, distance = moved(lines)
    assert [one.rms for one in found] == pytest.approx(rms, rel=0.02)
    assert [one.distance for one in found] == pytest.approx(distance, rel=0.02)
    assert found[-1].rms == 0 and not found[-1].taken  # sigma is 0 there
    assert [one.back_to for one in found] == [None if not back else back.get(t) for t in range(6)]


def test_weights_and_rewards_are_summed_up():
    (one,) = updates(
        [{"t": 0, "weights": [2.0, -1.0, -1.0], "rewards": [[3, 1], [0, 0], [0, 0]], "sigma": 0.5, "alpha": 0.3,
          "taken": True}]
    )  # fmt: skip
    assert one.largest == 2 and one.effective == pytest.approx(36 / 18)
    assert one.spread == pytest.approx(np.std([2, 0, 0])) and one.rewards == [3, 1, 0, 0, 0, 0]
    assert one.rms == pytest.approx(0.1 * math.sqrt(6)) and one.ratio == pytest.approx(one.rms / 0.5)


def test_odd_lines_count_as_no_step():
    lines = [{"t": "x", "weights": [[1, None], "a"], "alpha": "big", "taken": True}, {}, {"from": True, "t": 10**400}]
    found = updates(lines)
    assert [one.rms for one in found] == [0, 0, 0] and [one.t for one in found] == [0, 1, 2]
    assert len(update_rows(found)) == 3


def test_the_summary_names_reasons_and_rollbacks():
    lines = history(back={3: 0})
    text = update_summary(updates(lines))
    assert "5 of 6 steps were taken" in text and "1 (sigma is 0)" in text and "times the first sigma" in text
    assert update_rows(updates(lines))[3][-1] == "from the weights after step 0"
    assert update_summary([]) == "The history holds no step."
