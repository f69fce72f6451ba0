"""The examples of docs/serve.md talk to a server as it is."""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from in_this_process import typed
from serving import EOH, lines, serving

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PAGE = (ROOT / "docs" / "serve.md").read_text()


@pytest.fixture
def served(tmp_path):
    with serving(tmp_path) as start:
        yield start


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_shell_script_asks_measures_and_tells(served):
    client = served(directions=2)
    environment = {**os.environ, "TTC_ESOPT_URL": client.server.url, "TTC_ESOPT_TOKEN": ""}
    done = subprocess.run(
        ["bash", EXAMPLES / "shell" / "shorter.sh", "4"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and '"step": 2' in done.stdout, done.stdout + done.stderr
    sizes = [int(size) for size in re.findall(r"\d+: (\d+) bytes", done.stdout)]
    assert [line["reward"] for line in lines(client)] == [-float(size) for size in sizes] and len(sizes) == 4


def test_the_evaluator_of_openevolve_scores_programs_and_tells_the_server(served, tmp_path, monkeypatch, capsys):
    client = served()
    monkeypatch.setenv("TTC_ESOPT_URL", client.server.url)
    folder = EXAMPLES / "openevolve"
    spec = importlib.util.spec_from_file_location("evaluator", folder / "evaluator.py")
    evaluator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(evaluator)
    first = evaluator.evaluate(str(folder / "initial_program.py"))  # nobody's, and no error
    best_fit = tmp_path / "best_fit.py"
    best_fit.write_text("def priority(item, gap):\n    return -gap\n")
    assert 0 < evaluator.packed(best_fit) < first["bins"] and client.state()["candidates"] == 0
    written = tmp_path / "written.py"  # the stand-in writes another function
    written.write_text(re.search("```python\n(.*?)```", client.ok("/completions", EOH)["content"][0], re.S)[1])
    assert evaluator.evaluate(str(written))["combined_score"] == 0.0
    assert [line["failure"] for line in lines(client)] == ["exception"]
    assert capsys.readouterr().err == ""


def test_the_commands_of_the_page_name_options_that_exist():
    shown = typed("serve", "--help")
    assert shown.returncode == 0
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", re.sub("`ttc-esopt exec[^`]*`", "", PAGE)))
    for option in options - {"--config", "--output"}:  # of openevolve-run
        assert option in shown.stdout, f"{option} is no option of serve"


def test_the_files_that_the_page_names_are_there():
    for path in re.findall(r"\]\(\.\./(examples/[\w/.-]+)\)", PAGE):
        assert (ROOT / path).exists()
    assert {path.name for path in (EXAMPLES / "openevolve").glob("*.*")} >= {
        "config.yaml", "evaluator.py", "initial_program.py", "pack.py",
    }  # fmt: skip
