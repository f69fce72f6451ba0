"""Settings: layers, checks, messages."""

import pytest

from ttc_esopt.errors import ConfigurationError
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
        ({"operators": "e1,x9"}, "Expected operators among e1,e2,m1,m2, got x9"),
        ({"chat_template_args": "[1]"}, "Expected a JSON object"),
        ({"budget": 10**30}, "Expected budget below 2\\^64"),
        ({"budget": 10**9}, "Expected budget <= 1000000"),
        ({"model": ""}, "Expected a model, got an empty name"),
        ({"preset": "papers"}, "Expected preset to be one of default, paper"),
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
