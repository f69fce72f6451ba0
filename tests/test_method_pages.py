"""Pages about the method, the files and the engines: their programs run, and no key of a file goes undocumented."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from stand_in import Quiet, StandInEngine
from tiny_model import make_tiny_model

from ttc_esopt import problems, scaffolds
from ttc_esopt.candidates import blank
from ttc_esopt.engines import load_engine
from ttc_esopt.es.noise import NoiseKind
from ttc_esopt.evaluation import Evaluator
from ttc_esopt.evaluation.frames import REPORTED
from ttc_esopt.runfolder import RunFolder
from ttc_esopt.search import Search
from ttc_esopt.settings import FIELDS, resolve

DOCS = Path(__file__).parents[1] / "docs"
FORMATS = (DOCS / "file-formats.md").read_text()


def section(title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", FORMATS, re.S | re.M)[1]


def named(text):
    """Names in backquotes, and keys of the objects that stand in them."""
    found = set()
    for part in re.findall(r"`([^`]+)`", text):
        found |= set(re.findall(r"[a-z_]+", part))
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small run with the stand-in engine."""
    path, problem = tmp_path_factory.mktemp("runs") / "small", problems.load("tsp_construct")
    settings = resolve({"budget": 40, "population": 4, "directions": 6, "sigma": 0.05, "alpha": 0.2, "arm": "esopt"})
    folder, engine = RunFolder.create(path, settings, "test"), StandInEngine()
    folder.note_model(engine.describe(), engine.fingerprint())
    with Evaluator(problem, instances=problem.instances("train", 50)[:4], workers=1) as evaluator:
        Search(folder, problem, scaffolds.build(problem, settings), engine, evaluator, Quiet()).run()
    return path


@pytest.mark.parametrize("name", ["samples.jsonl", "history.jsonl", "timings.jsonl"])
def test_every_key_of_a_line_is_documented_and_no_other(run, name):
    lines = [json.loads(line) for line in (run / name).read_text().splitlines()]
    keys = {key for line in lines for key in line}
    text = section(name)
    assert keys <= named(text)
    if name != "timings.jsonl":
        rows = named("".join(re.findall(r"^\| (`.*?) \|", text, re.M)))
        assert rows - keys == ({"from", "candidates", "worst", "discarded"} if name == "history.jsonl" else set())
    if name == "samples.jsonl":
        assert keys == set(blank(0, 0, "i1"))


def test_failures_and_tables_are_documented(run, tmp_path):
    assert named(section("samples.jsonl")) >= REPORTED
    document = tomllib.loads((run / "run.toml").read_text())
    assert set(document["settings"]) == set(FIELDS)
    assert all(f"`[{table}]`" in section("run.toml") for table in document)
    engine = load_engine(str(make_tiny_model(tmp_path / "model")), noise=NoiseKind("full")).describe()
    words = re.findall(r"\w+", section("run.toml"))
    assert set(engine) <= set(words) and {"fingerprint", "sha256"} <= set(words)
    assert set(json.loads((run / "best.json").read_text())) <= named(section("best.json"))


@pytest.mark.parametrize("page", ["es.md", "adding.md"])
def test_the_programs_of_the_page_run(page, tmp_path):
    """Blocks that name a file are written, those that do not are run, in order."""
    ran = 0
    for block in re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.S | re.M):
        file = re.match(r"# (\w+\.py)\n", block)
        script = tmp_path / (file[1] if file else "block.py")
        script.write_text(block)
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path, timeout=600)
        assert done.returncode == 0, done.stderr
        printed = re.search(rf"{re.escape(block)}```\n\n((?:    .*\n)+)", (DOCS / page).read_text())
        if printed:
            assert [line.strip() for line in printed[1].splitlines()] == done.stdout.strip().splitlines()
            ran += 1
    assert ran
