"""Settings are checked, and paths made absolute, before a run folder exists; resuming keeps what `auto` came to."""

from contextlib import closing

import pytest
from tiny_model import make_tiny_model

from ttc_esopt.errors import ConfigurationError, DataError
from ttc_esopt.runfolder import RunFolder
from ttc_esopt.runner import announcement, open_engine, settings_of
from ttc_esopt.settings import resolve


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"problem": 3}, "Expected problem as text, got 3"),
        ({"model": ["a"]}, "Expected model as text"),
        ({"preset": ["a"]}, "Expected preset as text"),
        ({"dtype": "fp16"}, "Expected dtype to be one of auto, float32"),
        ({"device": "gpu"}, r"Expected device auto, cpu or cuda\[:N\], got gpu"),
        ({"scope": "all"}, "--noise full"),
        ({"presence_penalty": float("nan")}, "--presence-penalty"),
        ({"repetition_penalty": float("inf")}, "--repetition-penalty"),
        ({"seed": 10**25}, "--seed"),
        ({"arm": "esopt", "budget": 8, "scaffold": "sample"}, "needs at least one batch of 10"),
        ({"arm": "esopt", "es_operators": ""}, "--es-operators"),
        ({"sigma": "1e-2:1e-3", "sigma_schedule": "constant"}, "constant"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(given, message):
    with pytest.raises(ConfigurationError, match=message):
        settings_of(given)


def test_paths_of_problem_and_model_become_absolute(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "own.py").write_text(
        "from ttc_esopt.problems.tsp_construct import TspConstruct\nclass Own(TspConstruct):\n    name = 'own'\n"
    )
    monkeypatch.chdir(tmp_path)
    settings = settings_of({"problem": "own.py:Own", "model": "./model"})
    assert settings.problem == f"{tmp_path}/own.py:Own" and settings.model == f"{tmp_path}/model"


def test_a_folder_whose_run_never_began_is_taken_over_and_one_that_began_is_not(tmp_path):
    RunFolder.create(tmp_path / "run", resolve({}), "first")
    folder = RunFolder.create(tmp_path / "run", resolve({"seed": 2}), "second")
    folder.note_model({"model": "x"}, "00")
    with pytest.raises(ConfigurationError, match="already holds a run"):
        RunFolder.create(tmp_path / "run", resolve({}), "third")


def test_resuming_takes_dtype_and_threads_of_the_run(tmp_path, monkeypatch):
    folder = RunFolder.create(tmp_path / "run", resolve({}), "test")
    folder.note_model({"dtype": "bfloat16", "threads": 3}, "00")
    asked = {}
    monkeypatch.setattr("ttc_esopt.engines.load_engine", lambda model, **given: asked.update(given))
    open_engine(RunFolder.open(tmp_path / "run"))
    assert asked["dtype"] == "bfloat16" and asked["threads"] == 3


def test_a_run_may_go_on_with_delta_elsewhere(tmp_path):
    settings = {"problem": "tsp_construct", "model": str(make_tiny_model(tmp_path / "model")), "arm": "esopt"}
    folder = RunFolder.create(tmp_path / "run", resolve(settings), "test")
    folder.change_limits({"delta": "replay"})
    with closing(open_engine(RunFolder.open(tmp_path / "run"))) as engine:
        assert engine.weights.placement == engine.describe()["delta"] == "replay"
    with pytest.raises(ConfigurationError, match="--delta"):
        folder.change_limits({"delta": "moon"})


def test_a_second_process_is_kept_out(tmp_path):
    folder = RunFolder.create(tmp_path / "run", resolve({}), "test")
    folder.lock()
    with pytest.raises(DataError, match="Another process"):
        RunFolder.open(tmp_path / "run").lock()
    folder.unlock()
    RunFolder.open(tmp_path / "run").lock()


def test_what_will_be_spent_is_said_for_every_arm(tmp_path):
    said = {arm: "\n".join(announcement(resolve({"arm": arm, "budget": 120}), tmp_path)) for arm in ("frozen", "esopt")}
    assert "candidates: 120" in said["frozen"] and "sigma" not in said["frozen"]
    assert "batches: 8, each 10 directions x 1 replies" in said["esopt"]


def test_what_has_no_effect_is_said(tmp_path):
    def said(**given):
        return [line for line in announcement(resolve({"budget": 120, **given}), tmp_path) if "without effect" in line]

    capped = {"cap_distance": 0.1, "on_cap": "pull-back"}
    (line,) = said(arm="frozen", **capped)
    assert "--cap-distance" in line and "arm frozen takes no steps" in line
    (line,) = said(ray_address="auto")
    assert "--ray-address" in line and "--replicas, --evaluate-on" in line
    assert not said(arm="esopt", **capped, ray_address="auto", replicas=2) + said(ray_address="auto", evaluate_on="ray")


def test_the_paper_preset_samples_in_batches_of_20(tmp_path):
    settings = settings_of({"preset": "paper", "scaffold": "sample", "arm": "esopt", "budget": 1000})
    assert settings.directions == 20 and settings.reward == "paper"


@pytest.mark.parametrize(
    ("content", "message"),
    [("raise RuntimeError('no')", "RuntimeError: no"), ("def (", "SyntaxError"), ("import nosuchone", "nosuchone")],
)
def test_a_problem_file_that_does_not_load_is_one_sentence(tmp_path, content, message):
    (tmp_path / "own.py").write_text(content)
    with pytest.raises(ConfigurationError, match=message):
        settings_of({"problem": f"{tmp_path}/own.py:Own"})


@pytest.mark.parametrize(
    "content", ["settings = 3", "[versions]", "[settings", "[settings]\nseed = 1\n[model]\n[[run]]"]
)
def test_a_damaged_run_toml_is_one_sentence(tmp_path, content):
    (tmp_path / "run.toml").write_text(content)
    with pytest.raises(DataError, match=r"run\.toml"):
        RunFolder.open(tmp_path)


def test_limits_may_be_changed_on_resume_and_nothing_else(tmp_path):
    folder = RunFolder.create(tmp_path / "run", resolve({"max_tokens_total": 10}), "test")
    folder.change_limits({"max_tokens_total": 0})
    assert RunFolder.open(tmp_path / "run").settings.max_tokens_total == 0
    with pytest.raises(ConfigurationError, match="would change the run"):
        folder.change_limits({"seed": 3})
