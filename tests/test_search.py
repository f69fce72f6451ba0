"""The loop: equal arms, steps, limits, and resuming after a kill at any byte."""

import json
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stand_in import Quiet, StandInEngine

from ttc_esopt import problems, scaffolds
from ttc_esopt.errors import DataError
from ttc_esopt.evaluation import Evaluator
from ttc_esopt.runfolder import RunFolder
from ttc_esopt.search import Search, replay
from ttc_esopt.settings import resolve

PROBLEM = problems.load("tsp_construct")
SMALL = {
    "budget": 68, "population": 4, "init_candidates": 4, "directions": 6, "sigma": 0.05, "alpha": 0.2, "seed": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def evaluator():
    with Evaluator(PROBLEM, instances=PROBLEM.instances("train", 50)[:4]) as one:
        yield one


def start(path, evaluator, engine=None, **given_settings):
    folder = RunFolder.create(path, resolve({**SMALL, "arm": "esopt", **given_settings}), "test")
    return go_on(folder, evaluator, engine)


def go_on(folder, evaluator, engine=None):
    engine = engine or StandInEngine()
    folder.note_model(engine.describe(), engine.fingerprint())
    scaffold = scaffolds.build(PROBLEM, folder.settings)
    search = Search(folder, PROBLEM, scaffold, engine, evaluator, Quiet())
    search.run()
    return search


def content(path):
    """Everything a run leaves but clock readings."""
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.name != "timings.jsonl")
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, evaluator):
    path = tmp_path_factory.mktemp("runs") / "undisturbed"
    start(path, evaluator)
    return path


def test_a_run_holds_its_budget_and_one_history_line_per_batch(undisturbed):
    samples = [json.loads(line) for line in (undisturbed / "samples.jsonl").read_text().splitlines()]
    history = [json.loads(line) for line in (undisturbed / "history.jsonl").read_text().splitlines()]
    assert [line["order"] for line in samples] == list(range(68))
    assert len(history) == sum(call.es for call in scaffolds.build(PROBLEM, resolve(SMALL)).plan())
    assert [record["t"] for record in history] == list(range(len(history)))
    assert sum(record["taken"] for record in history) >= 3
    assert history[-1]["sigma"] == 0.0 and history[-1]["skipped"] in ("sigma is 0", "all rewards equal")
    for record in history:
        batch = samples[record["orders"][0] : record["orders"][1] + 1]
        assert [line["reward"] for line in batch] == record["rewards"]
        assert [line["direction"] for line in batch] == record["seeds"]


def test_the_same_run_twice_is_the_same_bytes(undisturbed, tmp_path, evaluator):
    start(tmp_path / "again", evaluator)
    assert content(tmp_path / "again") == content(undisturbed)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_resuming_after_a_kill_at_any_byte_gives_the_bytes_of_the_undisturbed_run(
    data, undisturbed, tmp_path, evaluator
):
    """A kill leaves a prefix of samples.jsonl, and those steps whose batches it holds (perhaps not the last)."""
    whole = content(undisturbed)
    cut = data.draw(st.integers(0, len(whole["samples.jsonl"])))
    samples = whole["samples.jsonl"][:cut]
    lines = samples.count(b"\n")
    records = [
        line for line in whole["history.jsonl"].splitlines(keepends=True) if json.loads(line)["orders"][1] < lines
    ]
    torn = data.draw(st.integers(0, len(records[-1]))) if records else 0
    history = b"".join(records)[: len(b"".join(records)) - torn]
    path = tmp_path / "killed"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    shutil.copy(undisturbed / "run.toml", path)
    (path / "samples.jsonl").write_bytes(samples)
    (path / "history.jsonl").write_bytes(history)
    go_on(RunFolder.open(path), evaluator)
    assert content(path) == whole


def test_resuming_a_finished_run_asks_the_engine_for_nothing(undisturbed, tmp_path, evaluator):
    shutil.copytree(undisturbed, tmp_path / "done")
    engine = StandInEngine()
    go_on(RunFolder.open(tmp_path / "done"), evaluator, engine)
    assert engine.calls == 0
    assert content(tmp_path / "done") == content(undisturbed)


def test_replay_ends_with_the_fingerprint_of_the_run(undisturbed):
    history = [json.loads(line) for line in (undisturbed / "history.jsonl").read_text().splitlines()]
    assert replay(RunFolder.open(undisturbed), StandInEngine()) == history[-1]["fingerprint"]


def test_an_edited_history_is_refused(undisturbed, tmp_path, evaluator):
    shutil.copytree(undisturbed, tmp_path / "edited")
    file = tmp_path / "edited" / "history.jsonl"
    record = json.loads(file.read_text().splitlines()[0])
    record["rewards"][0] += 1
    file.write_text("\n".join([json.dumps(record), *file.read_text().splitlines()[1:]]) + "\n")
    with pytest.raises(DataError, match="line 1 does not follow from samples.jsonl"):
        go_on(RunFolder.open(tmp_path / "edited"), evaluator)


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("samples.jsonl", "{}", "line 3 is no line of a run"),
        ("samples.jsonl", '{"order":2,"operator":"seed","generation":0}', "line 3 is no line of a run"),
        ("samples.jsonl", None, "has 69 lines, this run has 68"),
        ("history.jsonl", None, "the file was edited"),
    ],
)
def test_edited_files_are_refused_in_one_sentence(undisturbed, tmp_path, evaluator, file, line, message):
    shutil.copytree(undisturbed, tmp_path / "edited")
    path = tmp_path / "edited" / file
    lines = path.read_text().splitlines()
    lines = [*lines, lines[-1]] if line is None else [*lines[:2], line, *lines[3:]]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=message):
        go_on(RunFolder.open(tmp_path / "edited"), evaluator)


def test_another_model_is_refused_on_resume(undisturbed, tmp_path, evaluator):
    shutil.copytree(undisturbed, tmp_path / "other")
    engine = StandInEngine()
    engine.base[3] = 1
    with pytest.raises(DataError, match="give the model of run.toml"):
        go_on(RunFolder.open(tmp_path / "other"), evaluator, engine)


def test_arms_share_streams_counts_and_initial_population(undisturbed, tmp_path, evaluator):
    """Until the first step the perturbing arms are equal; the frozen arm differs in direction and sigma alone."""
    runs = {"esopt": undisturbed}
    for arm in ("frozen", "noise", "shuffled"):
        start(tmp_path / arm, evaluator, arm=arm)
        runs[arm] = tmp_path / arm
    read = {
        arm: [json.loads(x) for x in (path / "samples.jsonl").read_text().splitlines()] for arm, path in runs.items()
    }
    for arm, lines in read.items():
        assert [(x["operator"], x["sampling_seed"]) for x in lines] == [
            (x["operator"], x["sampling_seed"]) for x in read["esopt"]
        ], arm
        assert all((x["direction"] is None) == (arm == "frozen" or x["operator"] not in ("m1", "m2")) for x in lines)
    first = next(i for i, x in enumerate(read["esopt"]) if x["operator"] == "m2")
    assert read["noise"][:first] == read["shuffled"][:first] == read["esopt"][:first]
    assert not (tmp_path / "frozen" / "history.jsonl").exists()
    noise = [json.loads(x) for x in (tmp_path / "noise" / "history.jsonl").read_text().splitlines()]
    assert {(x["taken"], x["skipped"]) for x in noise} == {(False, "arm noise")}
    assert len({x["fingerprint"] for x in noise}) == 1


def test_es_raises_the_share_of_valid_replies_of_a_model_that_can_learn_it(tmp_path, evaluator):
    shares = {}
    for arm in ("frozen", "esopt"):
        given_settings = {"scaffold": "sample", "budget": 600, "directions": 20, "alpha": 0.3}
        search = start(tmp_path / arm, evaluator, arm=arm, **given_settings)
        last = search.state.lines[-100:]
        shares[arm] = sum(line["objective"] is not None for line in last) / len(last)
    assert shares["esopt"] > shares["frozen"] + 0.15, shares


def test_several_replies_per_direction_are_averaged(tmp_path, evaluator):
    start(tmp_path / "k", evaluator, replies_per_direction=2, directions=4)
    samples = [json.loads(line) for line in (tmp_path / "k" / "samples.jsonl").read_text().splitlines()]
    record = json.loads((tmp_path / "k" / "history.jsonl").read_text().splitlines()[0])
    batch = samples[record["orders"][0] : record["orders"][1] + 1]
    assert record["rewards"] == [[batch[2 * i]["reward"], batch[2 * i + 1]["reward"]] for i in range(4)]
    assert [line["reply_index"] for line in batch] == [0, 1] * 4


def test_a_run_of_mirrored_directions_is_resumed_and_replayed(tmp_path, evaluator):
    path = tmp_path / "pairs"
    start(path, evaluator, antithetic=True)
    history = path / "history.jsonl"
    records = [json.loads(line) for line in history.read_text().splitlines()]
    assert all(record["seeds"][1::2] == [~seed for seed in record["seeds"][::2]] for record in records)
    assert sum(record["taken"] for record in records) >= 2
    assert replay(RunFolder.open(path), StandInEngine()) == records[-1]["fingerprint"]
    before = content(path)
    for file in (history, path / "samples.jsonl"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    go_on(RunFolder.open(path), evaluator)
    assert content(path) == before


def test_a_token_limit_stops_after_a_batch_and_resume_goes_no_further(tmp_path, evaluator):
    search = start(tmp_path / "limited", evaluator, max_tokens_total=300)
    assert search.stopped and 0 < len(search.state.lines) < 68
    before = content(tmp_path / "limited")
    again = go_on(RunFolder.open(tmp_path / "limited"), evaluator)
    assert again.stopped and content(tmp_path / "limited") == before


def test_populations_are_written_in_the_hosts_format(undisturbed):
    files = sorted((undisturbed / "results" / "pops").iterdir())
    assert files[0].name == "population_generation_0.json"
    for file in files:
        rows = json.loads(file.read_text())
        assert all(list(row) == ["algorithm", "code", "objective", "other_inf"] for row in rows)
        assert [row["objective"] for row in rows] == sorted(row["objective"] for row in rows)


def test_failures_are_data_with_a_reason(undisturbed):
    for line in map(json.loads, (undisturbed / "samples.jsonl").read_text().splitlines()):
        assert (line["objective"] is None) == (line["failure"] is not None)
        if line["failure"]:
            assert line["detail"]
