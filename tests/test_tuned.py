"""Going back to the best batch, and starting from the weights of another run."""

import json
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stand_in import Quiet, StandInEngine
from tiny_model import make_tiny_model

from ttc_esopt import problems, runner, scaffolds
from ttc_esopt.engines import load_engine
from ttc_esopt.errors import ConfigurationError, DataError, EngineError
from ttc_esopt.es.history import path, record_of
from ttc_esopt.es.noise import NoiseKind
from ttc_esopt.es.optimizer import ESOptimizer
from ttc_esopt.evaluation import Evaluator
from ttc_esopt.runfolder import RunFolder
from ttc_esopt.search import Search, replay
from ttc_esopt.settings import resolve
from ttc_esopt.tuned import begin, best_batch, rollback_of, settled, tuned, write_patch

PROBLEM = problems.load("tsp_construct")
SMALL = {
    "arm": "esopt", "budget": 116, "population": 4, "init_candidates": 4, "directions": 6, "sigma": 0.05, "alpha": 0.2,
    "seed": 3,
}  # fmt: skip
STOP = 2500  # tokens, about half of the run
STEP = (
    '{"patch":1,"model":"m","steps":[{"chapter":0,"noise":"full","noise_version":1,"scope":"all","dtype":"float32",'
    '"began":"00","seeds":[%s],"weights":[0.5],"alpha":0.1,"fingerprint":"00"}]}'
)


@pytest.fixture(scope="module")
def evaluator():
    with Evaluator(PROBLEM, instances=PROBLEM.instances("train", 50)[:4]) as one:
        yield one


def go_on(folder, evaluator):
    """Run to the end, or to the limit of tokens."""
    engine = StandInEngine()
    begin(engine, folder.start.read())
    folder.note_model(engine.describe(), engine.fingerprint())
    scaffold = scaffolds.build(PROBLEM, folder.settings)
    Search(folder, PROBLEM, scaffold, engine, evaluator, Quiet()).run()
    return engine


def start(place, evaluator, **given):
    folder = RunFolder.create(place, resolve({**SMALL, **given}), "test")
    go_on(folder, evaluator)
    return RunFolder.open(place)


def unlimited(place):
    """The folder of a stopped run that may go on."""
    folder = RunFolder.open(place)
    folder.change_limits({"max_tokens_total": 0})
    return folder


def plan(folder):
    return scaffolds.build(PROBLEM, folder.settings).plan()


def note_rollback(folder, plan):
    best, order = rollback_of(folder, plan)
    folder.note_rollback({"order": order, "after": best.after})
    return best


def spoil(folder, batches):
    """Make all replies of these batches invalid, in both files, as if the model had gone bad there."""
    records, lines = folder.history.read(), folder.samples.read()
    spoilt = {seed for t in batches for seed in records[t]["seeds"]}
    for line in lines:
        if line["direction"] in spoilt:
            line |= {"objective": None, "copy_of": None}
    return records, lines


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, evaluator):
    """A run that stopped half-way and whose last batch is not its best."""
    for seed in range(3, 40):
        folder = start(tmp_path_factory.mktemp("stopped") / "run", evaluator, max_tokens_total=STOP, seed=seed)
        records = folder.history.read()
        best = best_batch(records, folder.samples.read())
        if best.step != len(records) - 1 and best.after >= 0 and any(record["taken"] for record in records):
            return folder.path
    raise AssertionError


@pytest.fixture(scope="module")
def finished(tmp_path_factory, evaluator):
    return start(tmp_path_factory.mktemp("finished") / "run", evaluator).path


def content(place):
    return {name: (place / name).read_bytes() for name in ("samples.jsonl", "history.jsonl", "best.json")}


def test_the_best_batch_is_the_one_with_the_most_valid_replies_then_new_ones_then_the_latest(finished):
    folder = RunFolder.open(finished)
    records, lines = folder.history.read(), folder.samples.read()

    def shares(t):
        batch = [line for line in lines if line["direction"] in records[t]["seeds"]]
        return (
            sum(line["objective"] is not None for line in batch),
            sum(line["objective"] is not None and line["copy_of"] is None for line in batch),
            t,
        )

    best = best_batch(records, lines)
    assert best.step == max(range(len(records)), key=shares)
    worse = [t for t in range(len(records)) if t != 1]
    best = best_batch(*spoil(folder, worse))
    assert (best.step, best.after, best.last) == (1, 0, 0)
    last = len(records) - 1
    best = best_batch(*spoil(folder, range(last)))
    assert (best.step, best.after) == (last, last)


def test_paths_cut_rollbacks_out():
    records = [{}, {}, {"from": 0}, {}, {"from": -1}, {"from": 3}]
    assert [path(records, t) for t in range(-1, 6)] == [
        [], [0], [0, 1], [0, 2], [0, 2, 3], [4], [0, 2, 3, 5],
    ]  # fmt: skip


def test_a_run_goes_on_from_the_weights_of_its_best_batch(stopped, tmp_path, evaluator):
    shutil.copytree(stopped, tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    before = folder.history.read()
    best = note_rollback(folder, plan(folder))
    fingerprint = before[best.after]["fingerprint"]
    seen = []
    original = StandInEngine.rewind

    def rewind(engine, steps):
        original(engine, steps)
        seen.append(engine.fingerprint())

    StandInEngine.rewind = rewind
    try:
        engine = go_on(unlimited(tmp_path / "run"), evaluator)
    finally:
        StandInEngine.rewind = original
    assert seen == [fingerprint]
    records = folder.history.read()
    assert records[: len(before)] == before and len(records) == sum(call.es for call in plan(folder))
    assert records[len(before)]["from"] == best.after
    assert all("from" not in record for record in records[len(before) + 1 :])
    fresh = StandInEngine()
    assert replay(folder, fresh) == engine.fingerprint() == records[-1]["fingerprint"]


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_run_that_went_back_is_resumed_after_a_kill_at_any_byte(data, stopped, tmp_path, evaluator):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    if not whole.exists():
        shutil.copytree(stopped, whole)
        folder = RunFolder.open(whole)
        note_rollback(folder, plan(folder))
        go_on(unlimited(whole), evaluator)
    shutil.rmtree(cut, ignore_errors=True)
    shutil.copytree(whole, cut)
    samples, history = content(whole)["samples.jsonl"], content(whole)["history.jsonl"]
    at = data.draw(st.integers(len((stopped / "samples.jsonl").read_bytes()), len(samples)))
    lines = samples[:at].count(b"\n")
    steps = [row for row in history.splitlines(keepends=True) if json.loads(row)["orders"][1] < lines]
    (cut / "samples.jsonl").write_bytes(samples[:at])
    # the last step may not have been written, or half of it
    kept, last = b"".join(steps[:-1]), steps[-1]
    (cut / "history.jsonl").write_bytes(kept + last[: data.draw(st.sampled_from([0, 40, len(last)]))])
    go_on(RunFolder.open(cut), evaluator)
    assert content(cut) == content(whole)


def test_an_edited_way_back_is_refused(stopped, tmp_path, evaluator):
    shutil.copytree(stopped, tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    note_rollback(folder, plan(folder))
    go_on(unlimited(tmp_path / "run"), evaluator)
    file = tmp_path / "run" / "history.jsonl"
    file.write_text(file.read_text().replace('"from":', '"form":'))
    with pytest.raises(DataError, match="does not follow from samples"):
        go_on(RunFolder.open(tmp_path / "run"), evaluator)


def test_what_cannot_go_back_says_so(finished, stopped, tmp_path, evaluator):
    folder = RunFolder.open(finished)
    with pytest.raises(ConfigurationError, match="no batch left .*--init-from"):
        note_rollback(folder, plan(folder))
    quiet = start(tmp_path / "noise", evaluator, max_tokens_total=STOP, arm="noise")
    with pytest.raises(ConfigurationError, match="taken no ES step"):
        note_rollback(quiet, plan(quiet))
    shutil.copytree(stopped, tmp_path / "last")
    last = RunFolder.open(tmp_path / "last")
    records, lines = spoil(last, range(len(last.history.read()) - 1))
    (tmp_path / "last" / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ConfigurationError, match="last batch .* is its best"):
        note_rollback(last, plan(last))


# starting from another run


def test_a_run_starts_from_the_end_of_another_and_needs_its_folder_no_more(finished, tmp_path, evaluator):
    shutil.copytree(finished, tmp_path / "first")
    first = RunFolder.open(tmp_path / "first")
    second = start(tmp_path / "second", evaluator, init_from=str(first.path), seed=5)
    assert second.document["model"]["fingerprint"] == first.history.read()[-1]["fingerprint"]
    shutil.rmtree(first.path)
    third = start(tmp_path / "third", evaluator, init_from=str(second.path), seed=6, max_tokens_total=STOP)
    assert third.document["model"]["fingerprint"] == second.history.read()[-1]["fingerprint"]
    assert {line["chapter"] for line in third.start.read()} == {0, 1}
    shutil.rmtree(second.path)
    go_on(unlimited(third.path), evaluator)
    engine = StandInEngine()
    begin(engine, third.start.read())
    assert replay(third, engine) == third.history.read()[-1]["fingerprint"]


def test_a_run_starts_from_the_best_batch_of_another(stopped, tmp_path, evaluator):
    first = RunFolder.open(stopped)
    best = best_batch(first.history.read(), first.samples.read())
    second = start(tmp_path / "second", evaluator, init_from=str(stopped), rollback=True)
    assert second.document["model"]["fingerprint"] == first.history.read()[best.after]["fingerprint"]


def test_a_start_of_a_run_that_never_began_is_forgotten(finished, tmp_path):
    RunFolder.create(tmp_path / "run", resolve({**SMALL, "init_from": str(finished)}), "first")
    folder = RunFolder.create(tmp_path / "run", resolve(SMALL), "second")
    assert folder.start.read() == []


@pytest.mark.parametrize("back", [5, 1, -2, "0", None])
def test_a_way_that_does_not_lead_back_is_refused(back):
    with pytest.raises(DataError, match="`from`"):
        path([{}, {"from": back}], 1)


def test_another_model_cannot_take_the_steps(finished, tmp_path, evaluator):
    folder = RunFolder.create(tmp_path / "run", resolve({**SMALL, "init_from": str(finished)}), "test")
    engine = StandInEngine()
    engine.base += 1
    with pytest.raises(DataError, match=r"the run to start from began with .*--model"):
        begin(engine, folder.start.read())
    lines = folder.start.read()
    lines[-1]["weights"][0] += 1
    with pytest.raises(DataError, match="that run had"):
        begin(StandInEngine(), lines)




def test_a_start_takes_the_model_of_that_run_and_needs_steps(finished, tmp_path, evaluator):
    assert settled({"init_from": str(finished)})["model"] == "smollm2-135m"
    quiet = start(tmp_path / "noise", evaluator, max_tokens_total=STOP, arm="noise")
    with pytest.raises(ConfigurationError, match="moved no weights"):
        settled({"init_from": str(quiet.path)})
    with pytest.raises(ConfigurationError, match="was made with dtype float32, got bfloat16"):
        settled({"init_from": str(finished), "dtype": "bfloat16"})
    with pytest.raises(ConfigurationError, match="holds no run"):
        settled({"init_from": str(tmp_path / "nowhere")})
    with pytest.raises(ConfigurationError, match=r"--init-from DIR"):
        resolve({"rollback": True})


def test_a_patch_rebuilds_the_tuned_model_and_runs_start_from_it(finished, tmp_path, evaluator):
    first = RunFolder.open(finished)
    second = start(tmp_path / "second", evaluator, init_from=str(finished), seed=5)
    patch = tmp_path / "p.json"
    made = write_patch(second, patch)
    assert made == tuned(patch) and made.fingerprint == second.history.read()[-1]["fingerprint"]
    assert patch.stat().st_size < 1000 * sum(map(len, (first.history.read(), second.history.read())))
    engine = StandInEngine()
    begin(engine, tuned(patch).lines)
    assert engine.fingerprint() == made.fingerprint
    third = start(tmp_path / "third", evaluator, init_from=str(patch), seed=6, max_tokens_total=STOP)
    assert third.document["model"]["fingerprint"] == made.fingerprint
    assert settled({"init_from": str(patch)})["model"] == "smollm2-135m"


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"patch":1,"model":"m","steps":[]}', '{"patch":1,"model":"m","steps":[{"chapter":0}]}',
             '{"patch":9,"model":"m","steps":[{}]}', STEP % '"x"', STEP % "1.5", STEP % -(2**64 + 1), STEP % "1,2"],
)  # fmt: skip
def test_what_is_no_patch_is_refused(tmp_path, text):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(DataError, match="is no patch"):
        tuned(tmp_path / "p.json")
    with pytest.raises(ConfigurationError, match=r"is a patch \(--rollback\)"):
        tuned(tmp_path / "p.json", rollback=True)


@pytest.mark.parametrize("kind", ["full", "lowrank:1"])
def test_a_patch_is_exported_as_the_run_is(tmp_path, kind):
    model = make_tiny_model(tmp_path / "model")
    engine = load_engine(str(model), noise=NoiseKind.parse(kind), threads=1)
    given = {"arm": "esopt", "budget": 20, "directions": 2, "model": str(model), "noise": kind}
    folder = RunFolder.create(tmp_path / "run", resolve(given), "test")
    folder.note_model(engine.describe(), engine.fingerprint())
    es = ESOptimizer(folder.settings.es_params(steps=2))
    for t in range(2):
        step = es.tell(es.ask(), [1.0, float(-t)])
        engine.step(step.seeds, step.coefficients)
        record = record_of(step, generation=0, operator="m1", orders=(0, 1), noise=kind)
        folder.history.append({**record, "fingerprint": engine.fingerprint()})
    fingerprint = runner.export_patch(folder.path, tmp_path / "p.json")
    assert fingerprint == engine.fingerprint()
    assert runner.export(folder.path, tmp_path / "a") == fingerprint
    assert runner.export(tmp_path / "p.json", tmp_path / "b", str(model)) == fingerprint
    files = sorted(file.name for file in (tmp_path / "a").iterdir())
    assert [(tmp_path / "b" / file).read_bytes() for file in files] == [
        (tmp_path / "a" / file).read_bytes() for file in files
    ]
    with pytest.raises(DataError, match="--model"):
        runner.export(tmp_path / "p.json", tmp_path / "c", str(make_tiny_model(tmp_path / "other", seed=1)))
    with pytest.raises(ConfigurationError, match="exists"):
        runner.export_patch(folder.path, tmp_path / "p.json")


@pytest.mark.parametrize(("first", "second"), [("full", "lowrank:1"), ("lowrank:2", "full")])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_engine_takes_steps_of_another_noise_and_begins_there(tmp_path, first, second, dtype):
    folder = make_tiny_model(tmp_path / "model")
    steps = [([11, 12], (0.02, -0.01)), ([13, 14], (0.005, 0.03))]
    donor = load_engine(str(folder), noise=NoiseKind.parse(first), dtype=dtype)
    beginning = donor.fingerprint()
    for directions, coefficients in steps:
        donor.step(directions, coefficients)
    engine = load_engine(str(folder), noise=NoiseKind.parse(second), dtype=dtype)
    engine.adopt(NoiseKind.parse(first), "auto", steps)
    assert engine.fingerprint() == donor.fingerprint() and engine.sha256() == donor.sha256()
    assert engine.describe()["base_fingerprint"] == beginning
    engine.step([15], (0.01,))
    moved = engine.fingerprint()
    engine.rewind([])
    assert engine.fingerprint() == donor.fingerprint()
    engine.rewind([([15], (0.01,))])
    assert engine.fingerprint() == moved
    with pytest.raises(EngineError, match="not moved"):
        engine.adopt(NoiseKind.parse(first), "auto", steps)


def test_a_tuned_model_keeps_its_rounding(tmp_path, evaluator):
    place = tmp_path / "stochastic"
    folder = start(place, evaluator, rounding="stochastic")
    write_patch(folder, tmp_path / "patch.json")
    for source in (place, tmp_path / "patch.json"):
        assert tuned(source).rounding == "stochastic"
        assert settled({"init_from": str(source)})["rounding"] == "stochastic"
        with pytest.raises(ConfigurationError, match=r"made with rounding stochastic, got nearest \(--rounding"):
            settled({"init_from": str(source), "rounding": "nearest"})
