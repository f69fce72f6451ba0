"""What is measured after a step, on real weights and in a run; caps that stop a run, and going on from there."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
from report_folders import make_run
from stand_in import Quiet, StandInEngine
from tiny_model import make_tiny_model

from ttc_esopt import problems, scaffolds
from ttc_esopt.attached.options import host_options
from ttc_esopt.diagnoses import CAP
from ttc_esopt.engines import Request, Sampling, load_engine
from ttc_esopt.errors import ConfigurationError
from ttc_esopt.es import noise
from ttc_esopt.es.noise import NoiseKind
from ttc_esopt.evaluation import Evaluator
from ttc_esopt.report import write_report
from ttc_esopt.runfolder import RunFolder
from ttc_esopt.search import Search, replay
from ttc_esopt.settings import resolve
from ttc_esopt.tuned import begin, rollback_of, tuned, write_patch

PROBLEM = problems.load("tsp_construct")
SMALL = {
    "arm": "esopt", "budget": 92, "population": 4, "init_candidates": 4, "directions": 6, "sigma": 0.05, "alpha": 0.2,
    "seed": 3, "diagnostics": True,
}  # fmt: skip
STEPS = [([11, 12], (0.02, -0.01)), ([13, 14], (0.005, 0.03))]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def evaluator():
    with Evaluator(PROBLEM, instances=PROBLEM.instances("train", 50)[:4]) as one:
        yield one


@pytest.mark.parametrize("kind", ["full", "lowrank:2"])
def test_figures_are_those_of_plain_numpy(model, kind):
    noise_kind = NoiseKind.parse(kind)
    engine = load_engine(str(model), noise=noise_kind, threads=1)
    updates = []
    for directions, coefficients in STEPS:
        engine.step(directions, coefficients)
        parts = []
        for name in engine.weights.names:
            update = np.zeros(tuple(engine.weights.live[name].shape), np.float32)
            if kind == "full":
                noise.accumulate(update, directions, coefficients, name)
            else:
                noise.accumulate_lowrank(update, directions, coefficients, name, 2)
            parts.append(update.ravel())
        updates.append(np.concatenate(parts).astype(float))
    found = engine.measure(STEPS, 0.02)
    distance = sum(updates)
    assert found["update_rms"] == pytest.approx(np.sqrt(np.mean(updates[1] ** 2)), rel=1e-5)
    assert found["distance_rms"] == pytest.approx(np.sqrt(np.mean(distance**2)), rel=1e-5)
    cosine = updates[0] @ updates[1] / np.linalg.norm(updates[0]) / np.linalg.norm(updates[1])
    assert found["cosine"] == pytest.approx(cosine, abs=1e-5)
    for word, limit in (("0.001", 1e-3), ("0.002", 2e-3), ("sigma", 0.02)):
        assert found["below"][word] == pytest.approx(np.mean(np.abs(distance) < limit), abs=1e-4)
    # of independent directions with variance 1, as the report expects without looking at the weights
    expected = math.sqrt(sum(c * c for c in STEPS[1][1]))
    assert found["update_rms"] == pytest.approx(expected, rel=0.05 if kind == "full" else 0.3)
    assert engine.measure(STEPS[:1], 0.02)["cosine"] is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["full", "lowrank:1"])
def test_drift_is_the_kl_of_the_weights_at_the_beginning_to_those_now(model, kind, dtype):
    engine = load_engine(str(model), noise=NoiseKind.parse(kind), dtype=dtype, threads=1)
    request, sampling, reply = Request("def f(x):", 1), Sampling(max_tokens=8), "return x + 1 and more"

    def laws():
        ids = engine._row(0, request, sampling).ids
        own = engine.tokenizer(reply, add_special_tokens=False)["input_ids"]
        logits = engine.model(input_ids=torch.tensor([ids + own])).logits[0]
        return logits[len(ids) - 1 : -1].float().log_softmax(-1)

    before = laws()
    assert engine.drift([request], [reply], sampling) == 0
    for directions, coefficients in STEPS:
        engine.step(directions, coefficients)
    fingerprint = engine.weights.fingerprint()
    now = laws()
    expected = float((before.exp() * (before - now)).sum(-1).mean())
    assert engine.drift([request], [reply], sampling) == pytest.approx(expected, rel=1e-3) and expected > 0
    engine.weights._prints.clear()
    assert engine.fingerprint() == fingerprint  # and the weights are where they were


def go_on(folder, evaluator):
    engine = StandInEngine()
    folder.note_model(engine.describe(), engine.fingerprint())
    search = Search(folder, PROBLEM, scaffolds.build(PROBLEM, folder.settings), engine, evaluator, Quiet())
    search.run()
    return search


def begun(place, evaluator, **given):
    folder = RunFolder.create(place, resolve({**SMALL, **given}), "test")
    return folder, go_on(folder, evaluator)


def test_a_run_has_a_line_for_each_step_that_was_taken_and_resumes_to_the_same(tmp_path, evaluator):
    folder, _ = begun(tmp_path / "run", evaluator)
    lines, records = folder.diagnostics.read(), folder.history.read()
    assert [line["t"] for line in lines] == [record["t"] for record in records if record["taken"]] and lines
    assert all(line["kl"] > 0 and line["distance_rms"] > 0 for line in lines)
    whole = (tmp_path / "run" / "diagnostics.jsonl").read_bytes()
    for kept in (0, len(whole) // 2, len(whole) - 3):
        shutil.copytree(tmp_path / "run", tmp_path / f"cut{kept}")
        (tmp_path / f"cut{kept}" / "diagnostics.jsonl").write_bytes(whole[:kept])
        go_on(RunFolder.open(tmp_path / f"cut{kept}"), evaluator)
        assert (tmp_path / f"cut{kept}" / "diagnostics.jsonl").read_bytes() == whole


def test_measuring_changes_nothing_else(tmp_path, evaluator):
    for name, on in (("a", True), ("b", False)):
        begun(tmp_path / name, evaluator, diagnostics=on)
    for file in ("samples.jsonl", "history.jsonl", "best.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert not (tmp_path / "b" / "diagnostics.jsonl").exists()


@pytest.mark.parametrize("cap", ["cap_kl", "cap_distance"])
def test_a_cap_stops_the_run_which_goes_on_with_another_or_from_its_best_batch(tmp_path, evaluator, cap):
    folder, search = begun(tmp_path / "run", evaluator, diagnostics=False, **{cap: 1e-6})
    assert f"above 1e-06 (--{cap.replace('_', '-')})" in search.stopped
    taken = [record["t"] for record in folder.history.read() if record["taken"]]
    assert len(taken) == 1  # it stops after the step that passes it
    again = go_on(RunFolder.open(folder.path), evaluator)
    assert again.stopped == search.stopped
    opened = RunFolder.open(folder.path)
    opened.change_limits({cap: 0.0})
    assert go_on(RunFolder.open(folder.path), evaluator).stopped is None


def test_going_back_forgets_the_cap_that_was_passed(tmp_path, evaluator):
    for seed in range(3, 30):
        folder, search = begun(tmp_path / f"run{seed}", evaluator, cap_distance=0.09, seed=seed)
        plan = scaffolds.build(PROBLEM, folder.settings).plan()
        try:
            best, order = rollback_of(folder, plan)
        except ConfigurationError:
            continue
        if search.stopped and best.after < len(folder.history.read()) - 1:
            break
    before = len(folder.samples.read())
    folder.note_rollback({"order": order, "after": best.after})
    go_on(RunFolder.open(folder.path), evaluator)
    assert len(folder.samples.read()) > before


PULLED = {"cap_distance": 0.12, "on_cap": "pull-back", "diagnostics": False, "sigma_schedule": "constant"}


@pytest.fixture(scope="module")
def pulled(tmp_path_factory, evaluator):
    """A run that had to take steps back, the last one too, and yet took others behind the first of these."""
    for seed in range(3, 40):
        folder, search = begun(tmp_path_factory.mktemp("pulled") / "run", evaluator, seed=seed, **PULLED)
        records = folder.history.read()
        back = [record["t"] for record in records if record["skipped"] == CAP]
        taken = [record["t"] for record in records if record["taken"]]
        if back and taken and records[-1]["t"] in back and max(taken) > min(back):
            return folder.path, search.engine.fingerprint()
    raise AssertionError


def test_a_step_that_passes_a_cap_is_taken_back_and_the_run_goes_on(pulled, evaluator):
    folder, fingerprint = RunFolder.open(pulled[0]), pulled[1]
    lines, records = {line["t"]: line for line in folder.diagnostics.read()}, folder.history.read()
    before = folder.document["model"]["fingerprint"]
    for record in records:
        over = record["t"] in lines and lines[record["t"]]["distance_rms"] > PULLED["cap_distance"]
        assert (record["skipped"] == CAP) == over
        assert not (over and record["taken"])
        if not record["taken"]:
            assert record["fingerprint"] == before
        before = record["fingerprint"]
    assert len(folder.samples.read()) == SMALL["budget"]  # it ran to the end of its plan
    assert replay(folder, StandInEngine()) == fingerprint == before


def test_a_run_that_took_steps_back_resumes_to_the_same_bytes_from_anywhere(pulled, tmp_path, evaluator):
    names = ("samples.jsonl", "history.jsonl", "diagnostics.jsonl", "best.json")
    whole = {name: (pulled[0] / name).read_bytes() for name in names}
    rows = whole["history.jsonl"].splitlines(keepends=True)
    for kept in range(0, len(rows), 2):
        for measured in sorted({kept, kept + 1, 0}):  # killed before or after measuring; or the file is lost
            place = tmp_path / f"{kept}-{measured}"
            shutil.copytree(pulled[0], place)
            upto = json.loads(rows[kept])["orders"][1] + 1
            lines = whole["samples.jsonl"].splitlines(keepends=True)[:upto]
            (place / "samples.jsonl").write_bytes(b"".join(lines))
            (place / "history.jsonl").write_bytes(b"".join(rows[:kept]))
            steps = [json.loads(row)["t"] for row in rows[:measured]]
            stored = whole["diagnostics.jsonl"].splitlines(keepends=True)
            kept_lines = [row for row in stored if json.loads(row)["t"] in steps]
            (place / "diagnostics.jsonl").write_bytes(b"".join(kept_lines))
            engine = go_on(RunFolder.open(place), evaluator).engine
            assert {name: (place / name).read_bytes() for name in names} == whole
            assert engine.fingerprint() == pulled[1]


def test_a_model_that_was_pulled_back_travels_as_a_patch(pulled, tmp_path):
    made = write_patch(RunFolder.open(pulled[0]), tmp_path / "p.json")
    engine = StandInEngine()
    begin(engine, tuned(tmp_path / "p.json").lines)
    assert engine.fingerprint() == made.fingerprint == pulled[1]


def test_pulling_back_needs_a_cap_which_then_stays(pulled):
    with pytest.raises(ConfigurationError, match="Expected a cap with --on-cap pull-back"):
        resolve({"on_cap": "pull-back"})
    with pytest.raises(ConfigurationError, match="others would change the run"):
        RunFolder.open(pulled[0]).change_limits({"cap_distance": 1.0})


@pytest.mark.parametrize("arm", ["frozen", "noise"])
def test_arms_without_steps_measure_nothing(tmp_path, evaluator, arm):
    folder, _ = begun(tmp_path / "run", evaluator, arm=arm, cap_kl=1e-9)
    assert not folder.diagnostics.read()


def test_hosts_refuse_what_only_our_own_runs_measure():
    with pytest.raises(ConfigurationError, match="--diagnostics, --cap-kl"):
        host_options({"arm": "esopt", "diagnostics": True})
    with pytest.raises(ConfigurationError, match="--cap-kl"):
        resolve({"cap_kl": -1.0})


def test_the_report_shows_what_was_measured(tmp_path):
    run = make_run(tmp_path / "demo", candidates=20)
    line = {"t": 0, "update_rms": 1e-3, "distance_rms": 2e-3, "cosine": None, "kl": 0.0123,
            "below": {"0.001": 0.8368, "0.002": 0.9942, "sigma": 0.9626}}  # fmt: skip
    (run / "diagnostics.jsonl").write_text(json.dumps(line) + "\n")
    page = write_report([run], tmp_path / "page.html").read_text()
    assert "Measured after each step" in page and "84 %" in page and "0.0123" in page
