"""Anytime curves: steps of one run, bands over runs, areas, and the files for a paper."""

from __future__ import annotations

import csv
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from report_folders import make_study
from scipy import stats

from ttc_esopt.errors import ConfigurationError
from ttc_esopt.report import write_figures
from ttc_esopt.report.anytime import area, band, common, trajectory
from ttc_esopt.rundata import RunData


def run(objectives, tokens=10, seconds=2.0):
    samples = [
        {"order": i, "objective": value, "tokens": tokens, "generation": i, "operator": "m1"}
        for i, value in enumerate(objectives)
    ]
    timings = [{"order": i, "generate": seconds - 0.5, "evaluate": 0.5} for i in range(len(objectives))]
    return RunData(Path("x"), samples=samples, timings=timings if seconds else [])


def test_a_trajectory_holds_the_best_until_the_next_and_ends_with_the_run():
    x, y = trajectory(run([None, 5.0, 6.0, 4.0, None]), "candidates")
    assert x.tolist() == [2, 4, 5] and y.tolist() == [5, 4, 4]
    x, y = trajectory(run([None, 5.0, 6.0, 4.0, None]), "tokens")
    assert x.tolist() == [20, 40, 50] and y.tolist() == [5, 4, 4]
    x, y = trajectory(run([None, 5.0, 6.0, 4.0, None]), "seconds")
    assert x.tolist() == [4, 8, 10]


def test_candidates_that_cost_nothing_share_a_place():
    x, y = trajectory(run([7.0, 6.0, 6.5], tokens=0), "tokens")
    assert x.tolist() == [0] and y.tolist() == [6]


def test_steps_and_batches_made_twice_cost_time():
    one = run([5.0, 4.0])
    one.timings = [{"order": 0, "generate": 1}, {"order": 0, "generate": 2}, {"t": 0, "step": 4}]
    one.timings.append({"order": 1, "generate": 1})
    assert trajectory(one, "seconds")[0].tolist() == [3, 8]


def test_candidates_of_one_call_are_there_at_its_end():
    one = run([9.0, 8.0, 7.0, 6.0])
    for line in one.samples[1:3]:
        line["generation"] = 5
    x, best = trajectory(one, "seconds")
    assert x.tolist() == [2, 6, 8] and best.tolist() == [9, 7, 6]


def test_nothing_valid_or_no_clock_gives_no_curve():
    assert not len(trajectory(run([None, None]), "candidates")[0])
    assert not len(trajectory(run([1.0, 2.0], seconds=0), "seconds")[0])
    assert not len(trajectory(run([]), "tokens")[0])
    with pytest.raises(ValueError, match="candidates, tokens, seconds"):
        trajectory(run([1.0]), "hours")


def test_a_band_is_where_all_runs_have_a_value():
    runs = [run([None, 5.0, 4.0, 3.0]), run([9.0, 9.0, 2.0])]
    found = band(runs, "candidates")
    assert found.x.tolist() == [2, 3] and found.mean.tolist() == [7, 3]
    assert found.low.tolist() == [5, 2] and found.high.tolist() == [9, 4]
    assert (found.n, found.kind) == (2, "range")
    assert common(runs, "candidates") == (2, 3)
    assert not len(band([run([1.0]), run([None, None, 2.0])], "candidates").x)
    assert not len(band([], "candidates").x)


def test_from_five_runs_on_the_band_is_an_interval_of_the_mean():
    rng = np.random.default_rng(0)
    runs = [run([float(value), 0.0]) for value in rng.normal(10, 1, size=30)]
    found = band(runs, "tokens")
    first = [one.samples[0]["objective"] for one in runs]
    interval = stats.ttest_1samp(first, 0).confidence_interval()
    assert found.kind == "95 %" and found.mean[0] == pytest.approx(np.mean(first))
    assert (found.low[0], found.high[0]) == pytest.approx(tuple(interval))


def test_the_area_is_the_mean_over_the_axis():
    one = run([None, 5.0, 6.0, 3.0, 3.0])
    assert area(one, "candidates", 2, 5) == pytest.approx((5 * 2 + 3) / 3)
    assert area(one, "candidates", 2.5, 4.5) == pytest.approx((5 * 1.5 + 3 * 0.5) / 2)
    assert area(one, "candidates", 4, 4) == 3
    assert area(one, "candidates", 1, 4) is None and area(one, "candidates", 2, 6) is None


def test_figures_stand_alone_and_the_table_holds_their_values(tmp_path):
    study = make_study(tmp_path / "study", seeds=2)
    paths = write_figures(study)
    assert sorted(path.name for path in paths) == sorted(
        [f"{p}-{a}.svg" for p in ("tsp_construct", "kp_construct") for a in ("candidates", "tokens", "seconds")]
        + ["anytime.csv"]
    )
    for path in paths[:-1]:
        root = ElementTree.parse(path).getroot()
        text = " ".join(root.itertext())
        assert root.tag.endswith("svg") and "esopt (n = " in text and "frozen (n = 2)" in text
        assert "#ffffff" in path.read_text()
    rows = list(csv.DictReader((study / "figures" / "anytime.csv").read_text().splitlines()))
    assert {row["arm"] for row in rows} == {"frozen", "shuffled", "esopt"}
    assert {row["band"] for row in rows} == {"range"}
    assert all(float(row["low"]) <= float(row["mean"]) <= float(row["high"]) for row in rows)
    before = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in write_figures(study)] == before


def test_figures_need_a_study(tmp_path):
    with pytest.raises(ConfigurationError, match="holds no study"):
        write_figures(tmp_path)
