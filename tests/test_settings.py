"""Settings: layers, checks, messages."""

import os

import pytest
import stand_in
from benchmark_files import BURMA14, GR17, U120, written
from in_this_process import use

from ttc_esopt.errors import ConfigurationError
from ttc_esopt.instances import problem_of
from ttc_esopt.runfolder import RunFolder
from ttc_esopt.runner import resume, run, settings_of
from ttc_esopt.settings import FIELDS, Settings, read_toml, resolve


def test_flags_win_over_model_defaults_which_win_over_the_preset():
    settings = resolve({"preset": "paper", "alpha": 1e-2}, {"sigma": 6e-3, "alpha": 3e-3})
    assert (settings.sigma, settings.alpha, settings.noise, settings.reward) == (6e-3, 1e-2, "full", "paper")


def test_resolving_the_resolved_changes_nothing():
    settings = resolve({"budget": 120, "sigma": "4e-3:1e-3", "preset": "paper"})
    again = resolve({name: getattr(settings, name) for name in FIELDS})
    assert again == settings


def test_sigma_takes_start_and_end():
    settings = resolve({"sigma": "0.004:0.001"})
    assert (settings.sigma, settings.sigma_end) == (0.004, 0.001)
    assert resolve({"sigma": "0.004", "sigma_schedule": "constant"}).sigma_end == 0.004


def test_an_unknown_key_names_the_closest_one():
    with pytest.raises(ConfigurationError, match="Unknown setting temperatur; did you mean temperature"):
        resolve({"temperatur": 0.5})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"alpha": -1.0}, r"Expected alpha >= 0, got -1.0 \(--alpha\)"),
        ({"alpha": float("nan")}, "Expected alpha >= 0, got nan"),
        ({"sigma": "big"}, "Expected a number or START:END, got big"),
        ({"directions": 1}, "Expected directions >= 2"),
        ({"budget": "many"}, "Expected budget as a whole number, got 'many'"),
        ({"budget": True}, "Expected budget as a whole number"),
        ({"arm": "esop"}, "Expected arm to be one of frozen, noise, shuffled, esopt, got esop"),
        ({"top_p": 1.5}, r"Expected 0 < top_p <= 1, got 1.5 \(--top-p\)"),
        ({"noise": "lowrank:0"}, "--noise"),
        ({"noise": "lowrank:99999999"}, r"Expected a noise rank in 1 .. 1024, got 99999999 \(--noise"),
        ({"tensor_parallel": 0}, r"Expected tensor_parallel >= 1, got 0 \(--tensor-parallel\)"),
        ({"engine": "transformers", "tensor_parallel": 2}, "Expected --engine vllm where --tensor-parallel is given"),
        ({"engine": "transformers", "engine_args": '{"a": 1}'}, "Expected --engine vllm where --engine-args is given"),
        ({"engine_args": "[1]"}, r"Expected a JSON object, got \[1\] \(--engine-args\)"),
        ({"operators": "e1,x9"}, "Expected operators among e1,e2,m1,m2, got x9"),
        ({"chat_template_args": "[1]"}, "Expected a JSON object"),
        ({"budget": 10**30}, "Expected budget below 2\\^64"),
        ({"budget": 10**9}, "Expected budget <= 1000000"),
        ({"model": ""}, "Expected a model, got an empty name"),
        ({"preset": "papers"}, "Expected preset to be one of default, paper"),
        ({"protocol": "mine"}, r"Expected protocol to be one of published, corrected, got mine \(--protocol\)"),
        ({"sandbox": "off"}, r"Expected sandbox to be one of auto, required, got off \(--sandbox\)"),
        ({"instances": ["a"]}, "Expected instances as text"),
    ],
)
def test_a_wrong_value_is_one_sentence_that_names_the_flag(given, message):
    with pytest.raises(ConfigurationError, match=message):
        resolve(given)


def test_toml_keys_may_stand_at_the_top_or_under_settings(tmp_path):
    (tmp_path / "a.toml").write_text("budget = 50\n")
    (tmp_path / "b.toml").write_text("[settings]\nbudget = 50\n[versions]\nx = '1'\n")
    assert read_toml(tmp_path / "a.toml") == read_toml(tmp_path / "b.toml") == {"budget": 50}
    (tmp_path / "c.toml").write_text("budget = = 50\n")
    with pytest.raises(ConfigurationError, match="not valid TOML"):
        read_toml(tmp_path / "c.toml")


def test_small_budgets_get_a_small_population():
    assert resolve({"budget": 120}).population == 4
    assert resolve({"budget": 1000}).population == 10
    assert isinstance(resolve({}), Settings)


def test_what_a_run_works_on_survives_its_folder_and_a_resume(tmp_path, monkeypatch):
    """Paths are absolute, so that a resume from elsewhere finds them."""
    use(monkeypatch)
    monkeypatch.setattr("ttc_esopt.runner.open_engine", lambda folder, model=None: stand_in.StandInEngine())
    monkeypatch.setattr("ttc_esopt.evaluation.sandbox.require", lambda layers: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sets").mkdir()
    written(tmp_path, "u.txt", U120)
    given = {
        "problem": "bpp_aco", "instances": "u.txt", "data": "sets", "protocol": "corrected", "mode": "aco",
        "sandbox": "required", "seed": 3,
    }  # fmt: skip
    first = run("out", report=False, say=lambda _: None, budget=12, max_tokens_total=1, **given)
    assert first.stopped
    kept = RunFolder.open(tmp_path / "out").settings
    absolute = given | {"instances": f"{tmp_path}/u.txt", "data": f"{tmp_path}/sets"}
    assert {name: getattr(kept, name) for name in given} == absolute
    monkeypatch.chdir("/")
    problem = problem_of(kept)
    assert problem.chosen == {"protocol": "corrected", "mode": "aco"} and problem.data == tmp_path / "sets"
    second = resume(tmp_path / "out", report=False, say=lambda _: None, max_tokens_total=0)
    assert second.stopped is None and second.conclusion.rows[-1].train <= first.conclusion.rows[-1].train
    assert RunFolder.open(tmp_path / "out").settings == resolve(
        {name: getattr(kept, name) for name in FIELDS} | {"max_tokens_total": 0}
    )


def test_the_folder_of_sets_may_come_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sets").mkdir()
    monkeypatch.setenv("TTC_ESOPT_DATA", "sets")
    assert settings_of({"problem": "kp_construct"}).data == f"{tmp_path}/sets"
    (tmp_path / "other").mkdir()
    assert settings_of({"problem": "kp_construct", "data": "other"}).data == f"{tmp_path}/other"
    monkeypatch.setenv("TTC_ESOPT_DATA", "nowhere")
    with pytest.raises(ConfigurationError, match="nowhere"):
        settings_of({"problem": "kp_construct"})


def test_instance_files_are_checked_before_a_run_begins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in (("a.tsp", GR17), ("b.tsp", BURMA14)):
        written(tmp_path, name, text)
    several = os.pathsep.join(["a.tsp", "b.tsp"])
    assert settings_of({"problem": "tsp_aco", "instances": several}).instances == os.pathsep.join(
        [f"{tmp_path}/a.tsp", f"{tmp_path}/b.tsp"]
    )
    with pytest.raises(ConfigurationError, match=r"No such file: .*/c\.tsp \(--instances\)"):
        settings_of({"problem": "tsp_aco", "instances": "c.tsp"})
    with pytest.raises(ConfigurationError, match=r"no option mode \(--mode\)"):
        settings_of({"problem": "tsp_aco", "mode": "aco"})


def test_mirrored_pairs_need_an_even_number_of_directions():
    assert resolve({"antithetic": True, "directions": 4}).es_params(3).antithetic
    with pytest.raises(ConfigurationError, match="got 5 .--directions, --antithetic"):
        resolve({"antithetic": True, "directions": 5})
    assert resolve({"noise": "full+rademacher", "rounding": "stochastic"}).noise == "full+rademacher"
    with pytest.raises(ConfigurationError, match="--rounding"):
        resolve({"rounding": "up"})
