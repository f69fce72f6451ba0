"""What EoH ships, in real checkouts: its populations load, their objectives come out again, its programs parse.

Set TTC_ESOPT_EOH and TTC_ESOPT_EOH_V01 to checkouts of EoH 0.2 and of its tag v0.1; without them nothing runs.
"""

import ast
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ttc_esopt.scaffolds.hosts.populations import check_objectives, last_population, read_population
from ttc_esopt.scaffolds.replies import parse_reply

EOH, EOH_V01 = os.environ.get("TTC_ESOPT_EOH"), os.environ.get("TTC_ESOPT_EOH_V01")
needs_eoh = pytest.mark.skipif(not EOH, reason="needs TTC_ESOPT_EOH")
needs_v01 = pytest.mark.skipif(not EOH_V01, reason="needs TTC_ESOPT_EOH_V01")
# What takes seconds to evaluate, by neither chance nor the clock; and how many individuals of the last generation.
DETERMINISTIC = {
    "cvrp_construct": 4,
    "tsp_construct_class": 4,
    "tsp_construct_multifunction": 4,
    "admissible_set": 1,
    "portfolio_construct": 4,
    "nurse_rostering": 4,
}


def in_checkout(checkout, script, *arguments, given=None, folder=None):
    """Run a script with the checkout's EoH; what it prints is JSON."""
    environment = {**os.environ, "PYTHONPATH": str(Path(checkout) / "eoh" / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        input=json.dumps(given), env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    if "ModuleNotFoundError" in done.stderr and "ttc_esopt" not in done.stderr.splitlines()[-1]:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# Populations


@needs_eoh
def test_every_population_that_eoh_ships_loads():
    runs = sorted(Path(EOH, "examples").glob("*/results/pops/population_generation_*.json"))
    papers = sorted(Path(EOH, "docs", "Results").rglob("population_generation_*.json"))
    best = sorted(Path(EOH, "examples").glob("*/results/pops_best/population_generation_*.json"))
    assert len(runs) >= 576 and len(papers) >= 1569 and len(best) >= 548
    for path in runs + papers:
        stored, read = json.loads(path.read_text()), read_population(path)
        assert len(read) == len(stored), path
        assert [one["objective"] for one in read] == sorted(one["objective"] for one in stored), path
    assert all(len(read_population(path)) == 1 for path in best)
    for example in {path.parents[2] for path in runs}:
        assert last_population(example) == last_population(example / "results" / "pops")


@needs_v01
def test_every_population_of_the_first_eoh_loads():
    paths = sorted(Path(EOH_V01).rglob("population_generation_*.json"))
    assert len(paths) >= 1570
    keys, individuals = set(), 0
    for path in paths:
        stored = json.loads(path.read_text())
        keys.update(key for one in stored for key in one)
        individuals += len(read_population(path))
    assert {"first_obj", "other_inf"} <= keys and individuals >= 25_800


# Objectives

EVALUATE = """
    import json, os, sys
    sys.path.insert(0, os.getcwd())
    import eoh, prob
    from ttc_esopt.scaffolds.hosts.isolate import Isolation, evaluate, settle
    kinds = [kind for kind in vars(prob).values() if isinstance(kind, type) and kind.__module__ == "prob"]
    problem = next(kind for kind in kinds if issubclass(kind, eoh.BaseProblem))()
    isolation, sentence = settle(problem.evaluate, problem.template_program, Isolation(), problem.timeout)
    codes = json.load(sys.stdin)
    found = evaluate(problem.evaluate, codes, timeout=problem.timeout, processes=-1, isolation=isolation)
    print(json.dumps({"sentence": sentence, "found": [(one.value, one.detail) for one in found]}))
"""


@needs_eoh
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_stored_objectives_come_out_again_under_the_sandbox(name):
    folder = Path(EOH, "examples", name)
    _, path = last_population(folder)
    population = read_population(path)[: DETERMINISTIC[name]]
    assert population
    answer = in_checkout(EOH, EVALUATE, given=[one["code"] for one in population], folder=folder)
    values = [value for value, _ in answer["found"]]
    assert None not in values, answer["found"]
    assert [round(value, 5) for value in values] == [one["objective"] for one in population]
    check_objectives([one["objective"] for one in population], values, path)
    assert answer["sentence"] is None


# Replies. EoH stores the programs, not the replies that they came from: each is put into the shapes that models give.

DRAFT = "def draft():\n    return 0"
SHAPES = {
    "braces, fence": "{{{text}}}\n\n```python\n{code}\n```",
    "braces, bare fence": "{{{text}}}\n```\n{code}\n```\n",
    "prose, fence": "Here is a new algorithm: {text}\n\n```python\n{code}\n```\nIt should do well.",
    "braces, no fence": "{{{text}}}\n\n{code}\n",
    "no fence, prose after": "{{{text}}}\n\n{code}\n\nThis function will return the best choice.",
    "capital tag": "{{{text}}}\n```Python\n{code}\n```",
    "short tag": "{{{text}}}\n```py\n{code}\n```",
    "Windows lines": "{{{text}}}\r\n```python\r\n{code}\r\n```\r\n",
    "trailing space": "{{{text}}}\n```python \n{code}\n``` ",
    "boxed": "$\\boxed{{{text}}}$\n```python\n{code}\n```",
    "fence first": "```python\n{code}\n```\n{{{text}}}",
    "fence only": "```python\n{code}\n```",
    "braces in the fence": "```python\n{{{text}}}\n\n{code}\n```",
    "thinking with a draft": "<think>Perhaps\n```python\n"
    + DRAFT
    + "\n```\nno.</think>{{{text}}}\n```python\n{code}\n```",
    "thinking with braces": "<think>{{a: 1, b: 2, c: 3}}</think>{{{text}}}\n```python\n{code}\n```",
    "draft in a fence before": "{{{text}}}\n```python\n" + DRAFT + "\n```\nand\n```python\n{code}\n```",
}

HOST_PARSES = """
    import json, sys
    from eoh.eoh.evolution import Evolution
    found = []
    for reply in json.load(sys.stdin):
        description, code = Evolution._extract(None, reply)
        found.append([description[0], code[0]] if description and code else None)
    print(json.dumps(found))
"""
HOST_V01_PARSES = """
    import json, sys
    from eoh.methods.eoh.eoh_evolution import Evolution
    class Told:
        def get_response(self, prompt):
            return prompt
    found = []
    for reply, outputs in json.load(sys.stdin):
        host = object.__new__(Evolution)
        host.interface_llm, host.debug_mode, host.prompt_func_outputs = Told(), False, outputs
        try:
            found.append(host._get_alg(reply)[::-1])
        except IndexError:  # it gives up on a reply in this way
            found.append(None)
    print(json.dumps(found))
"""


def meaning(code):
    """The program without layout, comments and docstrings; None if it does not compile."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):  # what calls nothing and binds nothing
            node.body = [one for one in body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
    return ast.dump(tree)


def defined(code):
    """Name and kind of what a stored program defines, by EoH's rule: its first class, else its last function."""
    body = ast.parse(code).body
    classes = [one.name for one in body if isinstance(one, ast.ClassDef)]
    functions = [one.name for one in body if isinstance(one, ast.FunctionDef)]
    return (classes[0], "class") if classes else (functions[-1], "function") if functions else None


def compare(programs, host):
    """Per shape, how many replies EoH and we read as the program that is in them; `host` maps replies to readings."""
    replies = [
        (shape, SHAPES[shape].format(text=text or "an algorithm", code=code), code)
        for shape in SHAPES
        for code, text in programs
    ]
    counts = {shape: [0, 0] for shape in SHAPES}
    for (shape, reply, code), read in zip(replies, host([reply for _, reply, _ in replies]), strict=True):
        name, kind = defined(code)
        parsed = parse_reply(reply, name, kind=kind)
        counts[shape][0] += read is not None and meaning(read[1]) == meaning(code)
        counts[shape][1] += parsed.ok and meaning(parsed.code) == meaning(code)
    return counts


@needs_eoh
def test_stored_programs_of_eoh_parse_at_least_as_often_as_with_its_own_rules():
    programs = []
    for path in sorted(Path(EOH, "examples").glob("*/results/samples/samples_*~*.json")):
        stored = [one for one in json.loads(path.read_text()) if one["code"] and meaning(one["code"])]
        programs += [(one["code"], one["algorithm"]) for one in stored[::40] if defined(one["code"])]
    assert len(programs) > 60
    counts = compare(programs, lambda replies: in_checkout(EOH, HOST_PARSES, given=replies))
    assert {shape: count for shape, count in counts.items() if count[1] < count[0]} == {}
    assert {ours for _, ours in counts.values()} == {len(programs)}


@needs_v01
def test_stored_programs_of_the_first_eoh_parse_at_least_as_often_as_with_its_own_rules():
    programs = []
    for folder in sorted({path.parent for path in Path(EOH_V01, "docs").rglob("population_generation_*.json")}):
        for one in read_population(last_population(folder)[1])[:1]:
            if meaning(one["code"]) and defined(one["code"]):
                programs.append((one["code"], one["description"]))
    assert len(programs) > 50

    def host(replies):
        outputs = [one.rstrip().rpartition("return")[2].strip().split("\n")[0] for one, _ in programs]
        given = [[reply, [outputs[n % len(programs)]]] for n, reply in enumerate(replies)]
        return in_checkout(EOH_V01, HOST_V01_PARSES, given=given)

    counts = compare(programs, host)
    assert {shape: count for shape, count in counts.items() if count[1] < count[0]} == {}
    assert {ours for _, ours in counts.values()} == {len(programs)}
