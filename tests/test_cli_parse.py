"""The `parse` command: one result per file, and one helpful line when a file is missing."""

from __future__ import annotations

import json

import pytest
from in_this_process import typed

GOOD = "{Take the nearest.}\n```python\ndef f(x):\n    return x\n```\n"


@pytest.fixture
def command(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    return lambda *arguments: typed("parse", *arguments, cwd=tmp_path)


@pytest.fixture
def good(tmp_path):
    (tmp_path / "good.txt").write_text(GOOD)
    return "good.txt"


def test_json_has_the_five_keys_and_one_object_per_file(command, good, tmp_path):
    (tmp_path / "bad.txt").write_text("no program")
    done = command("--function", "f", "--json", good, "bad.txt")
    assert done.returncode == 0, done.stderr
    first, second = map(json.loads, done.stdout.splitlines())
    assert list(first) == ["ok", "code", "description", "truncated", "reason"]
    assert first["ok"] and first["description"] == "Take the nearest." and first["code"].startswith("def f(x):")
    assert not second["ok"] and second["code"] is None and second["reason"]


def test_readable_form_shows_code_or_reason_and_no_control_characters(command, good, tmp_path):
    (tmp_path / "bad.txt").write_text("```\ndef g(x): return x\n```")
    (tmp_path / "evil.txt").write_text("{\x1b[2Jidea}\n```\ndef f(x): return '\x1b[2J'\n```")
    done = command("--function", "f", good, "bad.txt", "evil.txt")
    assert done.returncode == 0
    assert "good.txt: accepted" in done.stdout and "return x" in done.stdout
    assert "bad.txt: rejected. The program defines no function named f." in done.stdout
    assert "\x1b" not in done.stdout


def test_bytes_that_are_no_utf8_are_read(command, tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"{id\xe9e}\n```\ndef f(x): return x\n```")
    done = command("--function", "f", "--json", "latin.txt")
    assert json.loads(done.stdout)["description"] == "id\ufffde"


def test_a_prefill_file_and_a_cut_are_taken_into_account(command, tmp_path):
    (tmp_path / "started.txt").write_text("```python\ndef f(x):\n   ")
    (tmp_path / "reply.txt").write_text(" return x\n```")
    done = command("--function", "f", "--prefill-file", "started.txt", "--truncated", "--json", "reply.txt")
    found = json.loads(done.stdout)
    assert found["ok"] and found["truncated"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--function", "f", "absent.txt"], "absent.txt"),
        (["--function", "f", "."], "directory"),
        (["--function", "f", "--kind", "module", "good.txt"], "--kind"),
        (["--function", "no name", "good.txt"], "--function"),
        (["--function", "f", "--prefill-file", "none.txt", "good.txt"], "--prefill-file"),
    ],
)
def test_bad_usage_gives_one_line_and_exit_status_2(command, good, arguments, word):
    done = command(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1 and word in done.stderr


def test_help_has_an_example(command):
    done = command("--help")
    assert done.returncode == 0
    assert "ttc-esopt parse --function select_next_node reply.txt" in done.stdout
