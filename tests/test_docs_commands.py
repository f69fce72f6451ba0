"""Every `ttc-esopt` command of README, docs/ and runs/README.md is run as it stands, page by page.

Each page has a folder of its own, as its reader has. A command that several pages show is run once; what it made is
copied to the other folders. Searches and test sets are smaller than written, and the model called smollm2-135m
is a tiny random one. Commands that go on from a model which has learned are run with the real one (test_real_model.py);
what needs another program's environment has a test elsewhere.
"""

import functools
import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import benchmark_files
import pytest
from hosts_path import DOUBLE, PROBLEM_DOUBLES, user_script
from test_compare import BASELINE, CANDIDATE, side
from tiny_model import make_tiny_model

from ttc_esopt import models
from ttc_esopt.cli.main import main
from ttc_esopt.problems.kp_construct import KpConstruct
from ttc_esopt.problems.tsp_construct import TspConstruct

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
STUDIES = ROOT / "docs" / "studies.md"  # first: its studies are of several jobs, and other pages go on with them
PAGES = [STUDIES, README, *sorted(set((ROOT / "docs").glob("*.md")) - {STUDIES}), ROOT / "runs" / "README.md"]
ELSEWHERE = {
    "--engine vllm": "tests/with_vllm/test_vllm_runs.py",
    "ttc-esopt serve": "tests/test_serve_examples.py, tests/test_cli_serve.py",
    "--python ~/": "tests/hosts/test_llm4ad_exec.py",
    "main.py problem=": "tests/hosts/test_reevo.py",
}
STAND_INS = {
    "EoH/examples/tsp_construct/prob.py:TSPCONST": f"{PROBLEM_DOUBLES}/tour/prob.py:Tour",
    "LLM4AD/llm4ad/task/optimization/tsp_construct/evaluation.py:TSPEvaluation": (
        f"{PROBLEM_DOUBLES}/packing/evaluation.py:Packing"
    ),
    "reevo/problems/tsp_aco": f"{PROBLEM_DOUBLES}/checkout/problems/pick",
    " --problem-arg timeout=60": "",
}
NEAREST = """import numpy as np
def select_next_node(current_node, destination_node, unvisited_nodes, distance_matrix):
    return unvisited_nodes[np.argmin(distance_matrix[current_node][unvisited_nodes])]
"""


def commands(page):
    """The page's commands in order, those of ours in compound lines included."""
    blocks = re.findall(r"^```bash\n(.*?)^```", page.read_text(), re.S | re.M)
    lines = [line.split(" #")[0].strip() for block in blocks for line in block.replace("\\\n", "").splitlines()]
    parts = [part.strip().removeprefix(".venv/bin/") for line in lines for part in line.split("&&")]
    return [part for part in parts if part.startswith("ttc-esopt ")]


def smaller(command):
    """The same command on a tiny search."""
    for name, stand_in in STAND_INS.items():
        command = command.replace(name, stand_in)
    if command.startswith("ttc-esopt probe") and "--dry-run" not in command:
        command = re.sub(r" --(directions|replies|max-tokens|threads) \S+", "", command)
        return f"{command} --directions 2 --replies 2 --max-tokens 8 --threads 1"
    searches = re.match(r"ttc-esopt (run|solve|exec)\b", command)
    if not searches or "--dry-run" in command:
        return command
    given = {"--max-tokens": "8", "--threads": "1"}
    if searches[1] != "exec":
        given |= {"--budget": "28", "--directions": "4"}
        if "--evaluate-on" not in command:
            given["--workers"] = "1"
    if searches[1] == "solve":
        given |= {"--strong-seconds": "1"}
    for option in given:
        command = re.sub(rf" {option} \S+", "", command)
    added = " ".join(f"{option} {value}" for option, value in given.items())
    return re.sub(r"^(ttc-esopt \w+)", rf"\1 {added}", command)


@functools.cache
def elsewhere(command):
    return next((where for part, where in ELSEWHERE.items() if part in command), None)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache in which the small model is a tiny random one."""
    folder = tmp_path_factory.mktemp("cache")
    model = folder / "models" / "smollm2-135m"
    model.parent.mkdir()
    make_tiny_model(model, context=8192)
    files = {path.name: {"size": path.stat().st_size, "sha256": models._sha256(path)} for path in model.iterdir()}
    (model / models.MANIFEST).write_text(json.dumps({"format": 1, "source": "test", "wheel": "", "files": files}))
    return folder


def few(instances):
    """The method of a problem, with the first 16 instances of each set."""
    return lambda self, *where: instances(self, *where)[:16]


@pytest.fixture
def ttc(monkeypatch):
    """Runs a command in this process in the current folder; its exit code."""
    for problem in (TspConstruct, KpConstruct):  # a thousand test instances for each program take a while
        monkeypatch.setattr(problem, "instances", few(problem.instances))

    def call(command):
        words = []
        for word in shlex.split(command)[1:]:
            found = sorted(str(path) for path in Path().glob(word)) if "*" in word else []
            words += found or [word]
        monkeypatch.setattr(sys, "argv", ["ttc-esopt", *words])
        try:
            main()
        except SystemExit as stop:
            return stop.code or 0
        return 0

    return call


@pytest.fixture(scope="module")
def furniture(tmp_path_factory):
    return furnished(tmp_path_factory.mktemp("reader"))


@pytest.fixture(scope="module")
def done():
    """Of each command that was run, the folder where, and the names of the files and folders in it that it made."""
    return {}


def furnished(folder):
    """What a reader of the pages has: instance files, programs, a host's script, recipes, runs."""
    files = {
        "berlin52.tsp": benchmark_files.BERLIN52, "gr17.tsp": benchmark_files.GR17,
        "A-n32-k5.vrp": benchmark_files.A_N32_K5, "binpack1.txt": benchmark_files.U120,
        "f1.kp": benchmark_files.KP_10_269, "mine.py": NEAREST, "other.py": NEAREST.replace("min", "max"),
    }  # fmt: skip
    own = (ROOT / "docs" / "own-problem.md").read_text()
    files |= dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", own, re.S))
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "DIR").mkdir()
    user_script(folder, str(DOUBLE))
    shutil.copytree(ROOT / "runs", folder / "runs", ignore=shutil.ignore_patterns("*.py", "__pycache__", "[!p]*/"))
    pilot = folder / "runs" / "pilot.toml"
    small = re.sub(r"budget = \d+", "budget = 20\ndirections = 2", pilot.read_text())
    small = re.sub(r"max_tokens = \d+", "max_tokens = 8", small).replace("seeds = [1, 2]", "seeds = [1]")
    small = re.sub(r"\[arms.(noise|shuffled)\]\narm = .*\n", "", small).replace("tsp_construct", "asp_construct")
    pilot.write_text(re.sub(r"against = .*", 'against = "frozen"', small))
    for name, values, arm in (("a", BASELINE, "frozen"), ("b", CANDIDATE, "esopt"), ("es", CANDIDATE, "esopt")):
        side(folder / "runs", name, values, arm=arm)
    side(folder / "runs", "drawn", BASELINE, temperature=1.2)
    return folder


def run_all(listed, ttc, capfd, done):
    """Run commands in the current folder, or copy what those made that were run in another."""
    here = Path.cwd()
    for command in listed:
        short = smaller(command)
        key = re.sub(r" --jobs \S+", "", short)  # no result depends on it
        if key in done:
            there, made = done[key]
            if there != here:
                copy(short, there, made)
            continue
        before = set(here.iterdir())
        code = ttc(short)
        out, err = capfd.readouterr()
        assert code == 0 or lacking(command, out + err), f"{command}\n{out}\n{err}"
        done[key] = here, {path.name for path in set(here.iterdir()) - before} | outs(short)


def copy(command, there, made):
    """Bring here what a command made, if all that it reads is here as well."""
    for word in set(shlex.split(command)) - made:
        assert not (there / word).exists() or Path(word).exists(), f"{command}\nno {word} on this page"
    for name in made:
        if (there / name).is_dir():
            shutil.copytree(there / name, name, dirs_exist_ok=True)
        else:
            shutil.copy(there / name, name)


def outs(command):
    """What its --out names: it may have been there before."""
    return {name for name in re.findall(r" --out (\S+)", command) if Path(name).exists()}


def lacking(command, said):
    """A machine may lack what `required` asks for."""
    return "--sandbox required" in command and "required" in said


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_the_commands_of_the_page_run(page, furniture, done, ttc, capfd, cache, monkeypatch, tmp_path):
    listed = [one for one in commands(page) if not elsewhere(one) and not learned(one)]
    if not listed:
        return
    monkeypatch.setenv("TTC_ESOPT_CACHE", str(cache))
    shutil.copytree(furniture, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    if {"demo", "demo-frozen"} & {word for command in listed for word in shlex.split(command)}:
        listed = commands(README)[:3] + listed  # runs that other pages go on from
    run_all(listed, ttc, capfd, done)


def learned(command):
    """Whether a command needs a model that has taken steps, which random weights never do."""
    return "--patch" in command or "--init-from" in command


def test_what_is_tested_elsewhere_is_there():
    for places in ELSEWHERE.values():
        assert all((ROOT / place).is_file() for place in places.split(", "))
    found = [command for page in PAGES for command in commands(page)]
    assert all(any(part in command for command in found) for part in ELSEWHERE)
