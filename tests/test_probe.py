"""The probe: what it measures, its arithmetic, going on after a kill at any byte, and the command as it is typed."""

import json
import math
import shutil
import sys

import numpy as np
import pytest
from in_this_process import typed
from in_this_process import use as use_this_process
from stand_in import StandInEngine
from tiny_model import make_tiny_model

from ttc_esopt.cli.main import main
from ttc_esopt.errors import ConfigurationError, DataError
from ttc_esopt.es import noise, zscore
from ttc_esopt.es.optimizer import direction_seed
from ttc_esopt.probe import probe
from ttc_esopt.probe.plan import announcement, planned
from ttc_esopt.probe.signal import advise, directions_needed, mean_spread, reliability, step_gain, step_snr
from ttc_esopt.problems.tsp_construct import TspConstruct

GIVEN = {"model": "smollm2-135m", "sigmas": "0.01,0.1", "directions": 6, "replies": 5, "seed": 3, "workers": 2}
FILES = ("probe.toml", "probe.jsonl", "probe.json")


class Deaf(StandInEngine):
    """Directions change nothing that it writes, only what `divergence` says."""

    def generate(self, requests, sampling, progress=None):
        from dataclasses import replace

        return super().generate([replace(one, direction=None, sigma=0.0) for one in requests], sampling, progress)


class Dying(StandInEngine):
    """Is interrupted in its third call."""

    def generate(self, requests, sampling, progress=None):
        if self.calls == 2:
            raise KeyboardInterrupt
        return super().generate(requests, sampling, progress)


@pytest.fixture
def engine(monkeypatch):
    """What the probe opens, by class; counts how often. Programs are run in this process, on a few instances."""
    use_this_process(monkeypatch)
    instances = TspConstruct.instances
    monkeypatch.setattr(TspConstruct, "instances", lambda self, *where: instances(self, *where)[:8])
    state = {"kind": StandInEngine, "opened": 0}

    def opened(folder, model=None):
        state["opened"] += 1
        return state["kind"]()

    monkeypatch.setattr("ttc_esopt.runner.open_engine", opened)
    return state


def go(path, **given):
    said = []
    return probe(path, say=said.append, **{**GIVEN, **given}), said


def content(path):
    return {name: (path / name).read_bytes() for name in FILES}


def lines_of(path):
    return [json.loads(line) for line in (path / "probe.jsonl").read_text().splitlines()]


def test_every_sigma_has_the_same_directions_and_streams_and_replies_of_their_own(tmp_path, engine):
    go(tmp_path / "p")
    lines = lines_of(tmp_path / "p")
    assert [line["order"] for line in lines] == list(range(90))
    assert [line["sigma"] for line in lines] == [0.0] * 30 + [0.01] * 30 + [0.1] * 30
    for first in (0, 30, 60):
        part = lines[first : first + 30]
        assert [line["direction"] for line in part] == [direction_seed(3, 0, i // 5) for i in range(30)]
        assert len({line["sampling_seed"] for line in part}) == 30
        assert [line["sampling_seed"] for line in part] == [line["sampling_seed"] for line in lines[:30]]
        assert all(line["divergence"] == part[line["order"] // 5 * 5 % 30]["divergence"] for line in part)
    assert all(line["divergence"] == 0 for line in lines[:30])
    assert 0 < lines[30]["divergence"] < lines[60]["divergence"]


def test_rewards_are_the_rule_of_a_run_over_one_sigma(tmp_path, engine):
    go(tmp_path / "p")
    document = json.loads((tmp_path / "p" / "probe.json").read_text())
    known = {round(objective, 5) for objective in document["probe"]["seeds"]}
    part = lines_of(tmp_path / "p")[30:60]
    assert all(line["parent_objectives"] == document["probe"]["parents"] for line in part)
    assert document["probe"]["parents"] == [min(document["probe"]["seeds"])]
    for line in part:
        if line["objective"] is None:
            assert line["reward"] == -1
        elif round(line["objective"], 5) in known:
            assert line["reward"] == 0
        else:
            assert 0.5 <= line["reward"] <= 1
    new = [line for line in part if line["reward"] > 0]
    assert min(new, key=lambda line: line["objective"])["reward"] == 1
    assert max(new, key=lambda line: line["objective"])["reward"] == 0.5


def test_a_signal_is_found_and_priced(tmp_path, engine):
    found, said = go(tmp_path / "p", sigmas="0.03", directions=10, replies=10, max_kl=5.0)
    control, rung = found.rungs
    assert control.sigma == 0 and not control.signal and control.divergence == 0 and control.change is None
    assert rung.signal and rung.safe and rung.reward.icc > 0.1
    advice = found.advice
    assert found.verdict.startswith(f"--sigma 0.03 --alpha {advice.alpha:g} --directions {advice.directions} ")
    assert advice.snr >= 1 and step_snr(rung.reward.icc, advice.directions - 1, advice.replies) < 1
    assert advice.gain_low < advice.gain < advice.gain_high
    assert advice.alpha * math.sqrt(advice.steps / advice.directions) <= 0.03
    assert (tmp_path / "p" / "probe.svg").read_text().count("<svg") == 1
    page = (tmp_path / "p" / "probe.html").read_text()
    assert found.verdict in page and page.count("<figure") == 4
    more, _ = go(tmp_path / "p", sigmas="0.03", directions=10, replies=10, max_kl=5.0, snr=2.0)
    assert more.advice.directions > advice.directions and engine["opened"] == 1


def test_without_a_signal_it_says_so(tmp_path, engine):
    engine["kind"] = Deaf
    found, _ = go(tmp_path / "p", sigmas="0.001,0.002", max_kl=5.0)
    assert found.advice is None and not any(rung.signal for rung in found.rungs)
    assert found.verdict.startswith("This model, prompt and reward show no signal at any safe sigma")
    assert any("larger ones may show a signal" in note for note in found.notes)


def test_a_sigma_beyond_the_cap_is_not_safe_and_not_advised(tmp_path, engine):
    found, _ = go(tmp_path / "p", sigmas="0.03", directions=10, replies=10, max_kl=1e-6)
    assert found.rungs[1].signal and not found.rungs[1].safe and found.advice is None
    assert "KL" in found.rungs[1].unsafe[0] and found.verdict.startswith("No sigma above 0 is safe")


def test_a_probe_cut_at_any_byte_goes_on_to_the_same_bytes(tmp_path, engine):
    go(tmp_path / "whole")
    whole = content(tmp_path / "whole")
    bytes_of = whole["probe.jsonl"]
    for cut in (0, 1, len(bytes_of) // 5, len(bytes_of) // 3, len(bytes_of) // 3 * 2, len(bytes_of) - 1):
        path = tmp_path / f"cut-{cut}"
        shutil.copytree(tmp_path / "whole", path)
        (path / "probe.jsonl").write_bytes(bytes_of[:cut])
        (path / "probe.json").unlink()
        _, said = go(path)
        assert content(path) == whole
        assert not any("differ" in line for line in said)


def test_an_interrupted_probe_goes_on_and_a_finished_one_loads_no_model(tmp_path, engine):
    go(tmp_path / "whole")
    engine["kind"] = Dying
    with pytest.raises(SystemExit) as stop:
        go(tmp_path / "p", batch_size=5)
    assert stop.value.code == 1
    engine["kind"] = StandInEngine
    go(tmp_path / "p", batch_size=5)
    assert lines_of(tmp_path / "p") == lines_of(tmp_path / "whole")
    opened = engine["opened"]
    go(tmp_path / "p", batch_size=5, budget=50)
    assert engine["opened"] == opened


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"sigmas": "0.01,0.2"}, "a probe with sigmas"),
        ({"replies": 4}, "replies_per_direction 5, got 4"),
        ({"temperature": 0.5}, "temperature"),
        ({"operator": "m2"}, "operator m1, got m2"),
        ({"seed": 4}, "seed 3, got 4"),
    ],
)
def test_other_settings_in_a_folder_are_refused(tmp_path, engine, other, message):
    go(tmp_path / "p")
    before = content(tmp_path / "p")
    with pytest.raises(ConfigurationError, match=message):
        go(tmp_path / "p", **other)
    assert content(tmp_path / "p") == before


def test_edited_lines_and_other_folders_are_refused(tmp_path, engine):
    go(tmp_path / "p")
    lines = (tmp_path / "p" / "probe.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "p" / "probe.jsonl").write_text("".join(lines[1:]))
    with pytest.raises(DataError, match="line 1 is no line of this probe"):
        go(tmp_path / "p")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.toml").write_text("")
    with pytest.raises(ConfigurationError, match="holds something else"):
        go(tmp_path / "run")


def test_the_ladder_is_relative_to_the_models_own_sigma():
    assert planned(model="smollm2-135m").sigmas == (0.0, 0.0015, 0.003, 0.006, 0.012, 0.024)
    assert planned(model="smollm2-135m", sigma=1e-3).sigmas == (0.0, 2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3)
    assert planned(sigmas=[2e-3, 0, 1e-3]).sigmas == (0.0, 1e-3, 2e-3)
    assert planned(scaffold="sample").operator == "i1" and planned().operator == "m1"
    assert planned(operator="i1").operator == "i1"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sigmas": "a"}, "--sigmas"),
        ({"sigmas": "0"}, "above 0"),
        ({"sigmas": "-1"}, "--sigmas"),
        ({"directions": 1}, "--directions"),
        ({"replies": 1}, "--replies"),
        ({"operator": "m9"}, "--operator"),
    ],
)
def test_what_cannot_be_probed_is_refused(given, message):
    with pytest.raises(ConfigurationError, match=message):
        planned(**given)


def test_the_announcement_says_what_is_spent_at_most(tmp_path):
    text = "\n".join(announcement(planned(max_tokens=100, sigmas="1e-3,2e-3"), tmp_path))
    assert "at most 300 replies, 30000 tokens" in text and "read again for KL" in text


# arithmetic


@pytest.mark.parametrize(("icc", "directions", "replies"), [(0.1, 10, 1), (0.4, 5, 3), (0.8, 40, 2), (0.02, 100, 1)])
def test_mean_and_spread_of_a_step_are_those_of_simulated_steps(icc, directions, replies):
    rng = np.random.default_rng(1)
    gains = []
    for _ in range(6000):
        n = rng.normal(size=directions)
        rewards = math.sqrt(icc) * n + rng.normal(0, math.sqrt((1 - icc) / replies), directions)
        gains.append(zscore(rewards) @ n / directions)
    mean, deviation = step_gain(icc, directions, replies)
    assert np.mean(gains) == pytest.approx(mean, abs=5 * deviation / math.sqrt(6000))
    assert np.std(gains) == pytest.approx(deviation, rel=0.04)


def test_the_gain_of_a_step_is_that_of_the_optimizers_arithmetic_on_a_linear_reward():
    """Weights, noise and z-scores as the engine moves them: reward = gradient . weights + chance."""
    rng = np.random.default_rng(2)
    gradient = rng.normal(size=300).astype(np.float32) / 10
    sigma, alpha, chance, directions = 0.02, 0.01, 0.05, 12
    between = sigma**2 * float(gradient @ gradient)
    icc, gains = between / (between + chance**2), []
    for seed in range(1500):
        eps = np.empty((directions, 300), np.float32)
        for i in range(directions):
            noise.fill(eps[i], direction_seed(seed, 0, i), "w")
        z = zscore(sigma * eps @ gradient + rng.normal(0, chance, directions))
        gains.append(float(alpha / directions * z @ (eps @ gradient)))
    mean, deviation = (alpha / sigma * math.sqrt(between) * part for part in step_gain(icc, directions, 1))
    assert np.mean(gains) == pytest.approx(mean, abs=4 * deviation / math.sqrt(1500))
    assert np.std(gains) == pytest.approx(deviation, rel=0.08)


def test_reliability_and_limits():
    assert reliability(0.1, 1) == pytest.approx(0.1) and reliability(0.1, 9) == pytest.approx(0.5)
    assert reliability(0.0, 9) == 0 and step_snr(0.0, 10, 3) == 0
    assert mean_spread(10**6) == pytest.approx(1, abs=1e-5) and mean_spread(2) == pytest.approx(1 / math.sqrt(math.pi))
    assert step_snr(0.1, 100, 1) == pytest.approx(math.sqrt(100 * 0.1 / (1 - 0.05)), rel=0.02)
    assert directions_needed(0.0, 4, 1.0) is None and directions_needed(1e-6, 1, 5.0) is None
    for replies in (1, 4):
        directions = directions_needed(0.05, replies, 1.5)
        assert step_snr(0.05, directions, replies) >= 1.5 > step_snr(0.05, directions - 1, replies)
    # at equal cost one reply per direction has the most signal
    assert step_snr(0.1, 40, 1) > step_snr(0.1, 20, 2) > step_snr(0.1, 5, 8)


def test_the_step_size_is_the_best_of_gain_less_loss_or_keeps_the_walk_within_sigma():
    given = {
        "sigma": 6e-3, "icc": 0.13, "interval": (0.03, 0.4), "variance": 0.25, "directions": 10, "replies": 1,
    }  # fmt: skip
    short = advise(**given, drop=0.08, budget=1000)
    assert short.alpha_from == "walk" and short.alpha == pytest.approx(6e-3 * math.sqrt(10 / 100), rel=0.06)
    long = advise(**given, drop=5.0, budget=10)
    assert long.alpha_from == "loss"
    assert long.loss == pytest.approx(long.gain / 2, rel=0.06)  # at the best alpha half of the gain is lost
    for other in (0.9 * long.alpha, 1.1 * long.alpha):
        ratio = other / long.alpha
        assert long.gain * ratio - long.loss * ratio**2 <= (long.gain - long.loss) * 1.02
    ranks = advise(**given, drop=0.08, budget=1000, shaping="ranks")
    assert ranks.alpha == pytest.approx(short.alpha * math.sqrt(12), rel=0.06)
    assert ranks.gain == pytest.approx(short.gain, rel=0.06)


# the real engine and the command


@pytest.mark.parametrize("kind", ["full", "lowrank:1"])
def test_with_a_model_it_goes_on_to_the_same_bytes(tmp_path, kind):
    model = make_tiny_model(tmp_path / "model", context=2048)
    given = {
        "model": str(model), "sigmas": [0.02], "directions": 2, "replies": 2, "max_tokens": 8, "threads": 1,
        "noise": kind, "workers": 1,
    }  # fmt: skip
    found, _ = go(tmp_path / "p", **given)
    assert found.rungs[0].divergence == 0 and found.rungs[1].divergence > 0
    assert found.moving > 1000
    whole = content(tmp_path / "p")
    (tmp_path / "p" / "probe.jsonl").write_bytes(whole["probe.jsonl"][: len(whole["probe.jsonl"]) * 2 // 3])
    go(tmp_path / "p", **given)
    assert content(tmp_path / "p") == whole


def command(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["ttc-esopt", "probe", *map(str, words)])
    try:
        main()
    except SystemExit as stop:
        return stop.code or 0
    return 0


def test_the_command_prints_a_table_and_last_the_file(tmp_path, engine, monkeypatch, capsys):
    words = ("--model", "smollm2-135m", "--sigmas", "0.01", "--directions", 3, "--replies", 4, "--out", tmp_path / "p")
    assert command(monkeypatch, *words) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == f"result: {tmp_path}/p/probe.json" and any(line.startswith("sigma  valid") for line in out)
    assert any("24/24" in line for line in out)
    assert command(monkeypatch, *words, "--json") == 0
    done = capsys.readouterr()
    found = json.loads(done.out)
    assert [rung["sigma"] for rung in found["rungs"]] == [0.0, 0.01] and "verdict" in found
    assert "24 replies are there already" in done.err


def test_the_command_refuses_in_one_line_and_exit_2(tmp_path, engine, monkeypatch, capsys):
    assert command(monkeypatch, "--snr", "0", "--out", tmp_path / "p") == 2
    assert "(--snr)" in capsys.readouterr().err
    assert command(monkeypatch, "--arm", "esopt", "--out", tmp_path / "p") == 2  # no option here


def test_dry_run_writes_nothing(tmp_path):
    done = typed("probe", "--dry-run", "--out", tmp_path / "p")
    assert done.returncode == 0, done.stderr
    assert "at most 600 replies" in done.stdout and done.stdout.endswith("nothing was run (--dry-run)\n")
    assert not (tmp_path / "p").exists()
