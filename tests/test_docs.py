"""The documentation's commands exist, and its programs and worked examples run as they stand."""

import contextlib
import functools
import io
import json
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from benchmark_files import BERLIN52, written
from in_this_process import typed

from ttc_esopt import problems
from ttc_esopt.problems.files import detect
from ttc_esopt.problems.tsp_construct import TspConstruct

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [README, *(page.read_text() for page in sorted((ROOT / "docs").glob("*.md")))]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.S)
OWN_PROBLEM = (ROOT / "docs" / "own-problem.md").read_text()
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", OWN_PROBLEM, re.S))


def commands(page):
    blocks = re.findall(r"^```bash\n(.*?)^```", page, re.S | re.M)
    rows = [line.split("#")[0].strip() for block in blocks for line in block.replace("\\\n", "").splitlines()]
    return [row for row in rows if row.startswith("ttc-esopt ")]


COMMANDS = commands(README)
# files of the worked example, and names of ours; `prob.py:CLASS` is a user's
NAMED = sorted(set(re.findall(r"--problem ([\w.:]+)", README)) - {"prob.py:CLASS"})


def execute(code, tmp_path):
    written(tmp_path, "berlin52.tsp", BERLIN52)
    script = tmp_path / "block.py"
    script.write_text(code)
    return subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path, timeout=900)


def commanded(command, folder):
    return typed(*shlex.split(command)[1:], cwd=folder)


@functools.lru_cache
def help_of(command):
    done = commanded(f"ttc-esopt {command} --help", ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def own_problem(tmp_path):
    """A folder with the files of the worked example."""
    assert set(FILES) == {"job_shop.py", "rule.py"}
    for name, code in FILES.items():
        (tmp_path / name).write_text(code)
    return tmp_path


def only(start):
    found = [command for command in COMMANDS if command.startswith(start)]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("block", [block for block in BLOCKS if "smollm2" not in block])
def test_python_of_the_docs_runs(block, tmp_path):
    done = execute(block, tmp_path)
    assert done.returncode == 0, done.stderr
    if "squared distance" in block:
        before, after = (float(x) for x in re.findall(r"\d+\.\d+", done.stdout))
        assert after < before / 10
    if "berlin52" in block:
        assert "files" in done.stdout and "nearest_neighbour" in done.stdout
        assert float(done.stdout.split()[0]) >= 7542


@pytest.mark.model
@pytest.mark.parametrize("block", [block for block in BLOCKS if "smollm2" in block])
def test_python_of_the_docs_runs_with_the_real_model(block, tmp_path, monkeypatch):
    """In this process, and on few instances: no interpreter of its own, which loads much, and no thousand tests."""
    instances = TspConstruct.instances
    monkeypatch.setattr(TspConstruct, "instances", lambda self, *where: instances(self, *where)[:16])
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "berlin52.tsp", BERLIN52)
    (tmp_path / "block.py").write_text(block.replace("budget=120", "budget=28, directions=4, max_tokens=24"))
    with contextlib.redirect_stdout(io.StringIO()) as out:
        runpy.run_path("block.py", run_name="__main__")
    printed = out.getvalue()
    if "result = run(" in block:
        steps = (tmp_path / "demo" / "history.jsonl").read_text().splitlines()
        last = json.loads(steps[-1])["fingerprint"]
        assert re.search(rf"^{last} \d+ \[Row\(", printed, re.M) and (tmp_path / "demo" / "best.py").is_file()
    elif "solved = solve(" in block:
        length, file, gaps = re.search(r"^length (\S+) \[.+\] (\S+)\n(.+)", printed, re.M | re.S).groups()
        assert float(length) >= 7542 and (tmp_path / file).is_file() and Path(file).name == "berlin52.tour"
        assert "1-tree" in gaps and all(re.search(r" \S+ -?\d\S*$", line) for line in gaps.splitlines())
    else:
        assert "engine.generate(" in block
        assert len(re.findall(r" \d+ (?:stop|length)$", printed, re.M)) == 4
        assert re.fullmatch("[0-9a-f]{16}", printed.splitlines()[-1])


@pytest.mark.parametrize("command", sorted({command for page in PAGES for command in commands(page)}))
def test_every_command_of_the_pages_names_options_that_exist(command):
    words = shlex.split(command)
    known = help_of(words[1])
    for word in words[2:]:
        if words[1] == "exec" and word.endswith(".py"):
            break  # what stands behind a script is its own
        if word.startswith("--"):
            assert re.search(rf"(?<![\w-]){word}(?![\w-])", known) or word == "--", f"{word} is no option of {words[1]}"


def test_the_instance_files_of_the_pages_are_written(tmp_path):
    page = (ROOT / "docs" / "solve.md").read_text()
    script = re.search(r"PYTHONPATH=tests python - <<'END'\n(.*?)END\n", page, re.S)[1]
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env={"PYTHONPATH": str(ROOT / "tests")}, check=True)
    kinds = {path.name: detect(path) for path in tmp_path.iterdir()}
    assert set(kinds.values()) == {"tsp", "vrp", "bpp", "kp"}
    words = {word for page in PAGES for command in commands(page) for word in shlex.split(command)}
    named = {word for word in words if re.search(r"\.(tsp|vrp|txt|kp)$", word)}
    assert named == set(kinds)


@pytest.mark.parametrize("name", NAMED)
def test_every_problem_that_the_readme_names_loads(name, own_problem, monkeypatch):
    monkeypatch.chdir(own_problem)
    assert problems.load(name).task


def test_the_page_of_the_settings_has_a_row_for_each():
    page = (ROOT / "docs" / "problems.md").read_text()
    for name in problems.names():
        problem = problems.load(name)
        row = re.search(rf"^\| `{name}` \|.*$", page, re.M)[0]
        assert f"`{problem.function}(" in row
        signature = re.search(r"def (.*):\n", problem.template)[1]
        assert signature in row
        assert all(f"`{baseline}`" in row for baseline in problem.baselines)


def test_the_worked_example_is_evaluated_as_written(own_problem):
    done = commanded(only("ttc-esopt evaluate --problem job_shop.py:JobShop"), own_problem)
    assert done.returncode == 0, done.stderr
    printed = {line.rsplit(maxsplit=2)[0]: line.split()[-2] for line in done.stdout.splitlines()[1:]}
    assert printed == {"rule.py": "907.688", "baseline shortest_operation": "1312.56"}
    for name, objective in printed.items():
        assert re.search(rf"^    {name} +{objective} ", OWN_PROBLEM, re.M)


@pytest.mark.model
def test_the_worked_example_is_searched_with_the_real_model(own_problem):
    command = only("ttc-esopt run --problem job_shop.py:JobShop")
    assert "--budget 120" in command
    small = command.replace("--budget 120", "--budget 28 --directions 4 --max-tokens 24 --threads 1 --workers 1")
    done = commanded(small, own_problem)
    assert done.returncode == 0, done.stderr
    assert "def priority" in (own_problem / "shop" / "best.py").read_text()
