"""Problems of EoH, LLM4AD and ReEvo, searched by our own scaffolds: on doubles, and on real checkouts where given."""

import json
import os
import shutil
from pathlib import Path

import pytest
from stand_in import StandInEngine

from ttc_esopt import problems
from ttc_esopt.cli.main import main
from ttc_esopt.errors import ConfigurationError
from ttc_esopt.evaluation import Evaluator
from ttc_esopt.evaluation.sandbox import usable
from ttc_esopt.instances import own_template
from ttc_esopt.problems.hosts import arguments
from ttc_esopt.problems.hosts.templates import take_apart
from ttc_esopt.runner import resume, run
from ttc_esopt.scaffolds.prompts import build_prefill, build_prompt
from ttc_esopt.scaffolds.replies import parse_reply

DOUBLES = Path(__file__).parent / "problem_doubles"
TOUR = f"{DOUBLES}/tour/prob.py"
BINS = f"{DOUBLES}/old_tour/prob.py:Bins"
PACKING = f"{DOUBLES}/packing/evaluation.py:Packing"
PICK = f"{DOUBLES}/checkout/problems/pick"
NEAREST = (
    "import numpy as np\ndef select_next_node(current_node, destination_node, unvisited_nodes, distance_matrix):\n"
    "    return unvisited_nodes[np.argmin(distance_matrix[current_node][unvisited_nodes])]\n"
)
CHOOSE = "def select_next_node(current_node, destination_node, unvisited_nodes, distance_matrix):\n"


def evaluated(name, *codes, problem_args="", **how):
    problem = problems.load(name, problem_args=problem_args)
    with Evaluator(problem, workers=1, **how) as evaluator:
        return problem, evaluator.evaluate(list(codes) or [problem.baselines["template"]])


def test_a_class_of_eoh_02_is_evaluated_as_the_host_does_it_and_its_faults_have_words():
    problem, outcomes = evaluated(
        f"{TOUR}:Tour",
        NEAREST,
        CHOOSE + "    return unvisited_nodes[np.argmax(unvisited_nodes)]\n",  # np is there, as in the host
        CHOOSE + "    return unvisited_nodes['a']\n",
        CHOOSE + "    return 0\n",
        CHOOSE + "    while True: pass\n",
        CHOOSE + "    return (\n",
        "def another(): pass\n",
        f"open({str(DOUBLES / 'tour' / 'written')!r}, 'w')\n" + NEAREST,
        problem_args="timeout=1",
    )
    assert (problem.name, problem.host, problem.timeout) == ("Tour", "EoH 0.2", 1.0)
    assert problem.baselines["template"].startswith("import numpy as np\n\ndef select_next_node(current_node: int")
    namespace = {}
    exec((DOUBLES / "tour" / "get_instance.py").read_text(), namespace)
    exec(NEAREST, namespace)
    assert outcomes[0].objective == round(length(namespace), 5) and outcomes[1].valid
    assert [outcome.failure for outcome in outcomes[2:7]] == ["exception", "infeasible", "timeout", "syntax", "name"]
    assert outcomes[2].detail.startswith("IndexError") and outcomes[2].detail.endswith("(line 2)")
    assert outcomes[3].detail.startswith("evaluate_program() returned None")
    if "landlock" in usable():
        assert outcomes[7].failure == "exception" and "written" in outcomes[7].detail
        assert not (DOUBLES / "tour" / "written").exists()


def length(namespace):
    """The mean tour length of the double's instances, computed on its own."""
    import numpy as np

    total = 0.0
    for points in namespace["instances"](3, 8):
        distances = np.linalg.norm(points[:, None] - points, axis=2)
        tour, left = [0], set(range(1, 8))
        while left:
            tour.append(min(sorted(left), key=lambda node: distances[tour[-1], node]))
            left.remove(tour[-1])
        total += sum(distances[a, b] for a, b in zip(tour, [*tour[1:], 0], strict=True))
    return total / 3


def test_constructor_arguments_reach_the_class_and_other_functions_are_its_templates():
    _, (small,) = evaluated(f"{TOUR}:Tour", problem_args="size=5,n_instance=2")
    _, (two,) = evaluated(f"{TOUR}:TwoFunctions")
    _, (one,) = evaluated(f"{TOUR}:Tour")
    assert small.valid and small.objective != one.objective == two.objective


def test_the_started_reply_leaves_the_last_function_to_write_and_is_read_whole():
    problem = problems.load(f"{TOUR}:TwoFunctions")
    prefill = build_prefill(problem)
    assert prefill.endswith("distance_matrix):") and "return -distance_matrix" in prefill
    parsed = parse_reply(
        "\n    return int(rate(0, unvisited_nodes, distance_matrix).argmax())", problem.function, prefill=prefill
    )
    assert parsed.ok and "def rate" in parsed.code and parsed.code.count("def ") == 2
    assert "implements these functions" in build_prompt(problem, "i1", (), False)


def test_a_class_template_asks_for_a_class():
    problem, (outcome,) = evaluated(f"{TOUR}:AsClass")
    assert outcome.valid and problem.kind == "class" and problem.function == "Chooser"
    prompt, prefill = build_prompt(problem, "m1", (), True), build_prefill(problem)
    assert "modified version of this class" in prompt and prefill.endswith("distance_matrix):")
    parsed = parse_reply("\n        return unvisited_nodes[0]\n```", "Chooser", kind="class", prefill=prefill)
    assert parsed.ok and "self.weight = 1.0" in parsed.code


def test_a_problem_of_eoh_01_tells_what_it_swallows():
    score = "def score(item, bins):\n"
    problem, outcomes = evaluated(
        BINS, score + "    return -bins\n", score + "    return bins.none\n", score + "    return np.ones(3)\n"
    )
    assert problem.host == "EoH 0.1" and not problem.seeds and problem.task == "Rate the bins for an item."
    assert build_prefill(problem) == "```python\nimport numpy as np\n\ndef score(item, bins):"
    assert outcomes[0].objective == 1.33333  # five decimals
    assert [outcome.failure for outcome in outcomes[1:]] == ["exception", "exception"]
    assert "AttributeError" in outcomes[1].detail and "name 'np' is not defined" in outcomes[2].detail


def test_llm4ad_maximises_and_its_modifications_hold():
    problem, (template,) = evaluated(PACKING)
    assert problem.host == "LLM4AD" and problem.maximise and template.objective == 4
    divides = "def priority(item, bins):\n    return item / 0 - bins\n"
    chance = "def priority(item, bins):\n    return np.random.rand(len(bins))\n"
    _, plain = evaluated(PACKING, divides)
    assert plain[0].failure == "exception" and "ZeroDivisionError" in plain[0].detail
    _, changed = evaluated(PACKING, divides, problem_args="use_protected_div=True")
    assert changed[0].objective == 4
    objectives = set()
    for seed in range(3):
        _, (one,) = evaluated(PACKING, chance, problem_args="random_seed=5", seed=seed)
        objectives.add(one.objective)
    assert len(objectives) == 1 and None not in objectives


def test_llm4ad_problems_may_have_programs_compiled():
    code = "def priority(item, bins):\n    return item - bins\n"
    _, outcomes = evaluated(
        PACKING, code, "def priority(item, bins):\n    return {}['a']\n", problem_args="use_numba_accelerate=True"
    )
    assert outcomes[0].objective == 4 and outcomes[1].failure == "exception"


def test_a_folder_of_reevo_is_maximised_in_a_private_copy():
    problem, outcomes = evaluated(
        PICK,
        "def pick_v2(numbers):\n    return int(np.argmax(numbers))\n",
        "def pick_v2(numbers):\n    return int(np.argmin(numbers))\n",
        "def pick_v2(numbers):\n    return 99\n",
        "def pick_v2(numbers):\n    raise SystemExit(0)\n",
    )
    most, least, outside, ended = outcomes
    assert problem.maximise and problem.function == "pick_v2" and problem.timeout == 20.0
    assert most.objective < least.objective < 0 and outside.failure == "exception" and "IndexError" in outside.detail
    assert ended.failure == "shape" and "[*] Running ..." not in ended.detail
    assert problem.baselines["template"].startswith("import numpy as np\ndef pick_v2(")
    assert not (Path(PICK) / "gpt.py").exists() and not (Path(PICK) / "dataset").exists()
    _, (again,) = evaluated(PICK, "def pick_v2(numbers):\n    return int(np.argmax(numbers))\n")
    assert again.objective == most.objective  # the data set that the host makes without a seed


@pytest.mark.parametrize(
    ("name", "problem_args", "message"),
    [
        (f"{TOUR}:Tor", "", "no class Tor .* TwoFunctions"),
        (f"{TOUR}:Tour", "sise=3", "unexpected keyword argument 'sise'.*--problem-arg"),
        (f"{TOUR}:Tour", "size", "Expected NAME=VALUE"),
        (f"{DOUBLES}/old_tour/prompts.py:GetPrompts", "", "is no problem that is known here"),
        (TOUR, "", "Expected FILE.py:CLASS"),
        (f"{DOUBLES}/checkout/problems", "", "Expected a problem of ReEvo"),
        (PICK, "sise=3", "Expected config, problem_size, timeout"),
        (PICK, "config='other'", "other.yaml cannot be read"),
        ("tsp_construct", "size=3", "is no problem of another framework"),
    ],
)
def test_what_cannot_be_loaded_is_said_in_one_sentence(name, problem_args, message):
    with pytest.raises(ConfigurationError, match=message) as error:
        problems.load(name, problem_args=problem_args)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("module", "how"), [("eoh", "eoh/src of your EoH checkout"), ("llm4ad", "your LLM4AD checkout")]
)
def test_a_host_that_is_not_importable_is_named_with_the_remedy(tmp_path, monkeypatch, module, how):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (tmp_path / "prob.py").write_text(f"from {module} import BaseProblem\nclass P(BaseProblem):\n    pass\n")
    with pytest.raises(ConfigurationError, match=f"needs the module {module}, .*PYTHONPATH to .*{how}"):
        problems.load(f"{tmp_path}/prob.py:P")


def test_a_problem_of_ours_in_a_file_that_does_not_say_so_is_still_ours(tmp_path, monkeypatch):
    (tmp_path / "shared.py").write_text("from ttc_esopt.problems.tsp_construct import TspConstruct as Base\n")
    (tmp_path / "own.py").write_text("from shared import Base\nclass Own(Base):\n    name = 'own'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert problems.load(f"{tmp_path}/own.py:Own").name == "own"


def test_evaluate_takes_arguments_several_times(monkeypatch, capsys):
    given = ["--problem", f"{TOUR}:Tour", "--problem-arg", "size=5", "--problem-arg", "n_instance=2", "--baselines"]
    monkeypatch.setattr("sys.argv", ["ttc-esopt", "evaluate", *given, "--json", "--workers", "1"])
    with pytest.raises(SystemExit) as end:
        main()
    row = json.loads(capsys.readouterr().out)
    assert not end.value.code and row["program"] == "baseline template" and row["valid"]
    assert row["problem_args"] == "size=5,n_instance=2"


def test_a_run_records_the_arguments_and_goes_on_to_the_same_end(tmp_path, monkeypatch):
    monkeypatch.setattr("ttc_esopt.runner.open_engine", lambda *_: StandInEngine())
    given = {"problem": f"{TOUR}:Tour", "problem_args": "size=6,timeout=9", "arm": "esopt", "seed": 3, "workers": 1}
    small = {"budget": 30, "population": 3, "init_candidates": 3, "directions": 4, "sigma": 0.05, "alpha": 0.2}
    said = []
    whole = run(tmp_path / "whole", report=False, say=said.append, **given, **small)
    assert 'problem_args = "size=6,timeout=9"' in (tmp_path / "whole" / "run.toml").read_text()
    best = json.loads((tmp_path / "whole" / "best.json").read_text())
    assert best["chosen_on"] == "train" and best["val"] is None and "template" in best["reference"]
    assert whole.steps > 0 and not any("on val" in line for line in said)
    run(tmp_path / "half", report=False, say=said.append, **given, **small, max_tokens_total=200)
    resume(tmp_path / "half", report=False, say=said.append, max_tokens_total=0)
    for file in ("samples.jsonl", "history.jsonl", "best.json"):
        assert (tmp_path / "half" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_a_problem_that_works_only_outside_the_sandbox_is_refused_with_that_word():
    if "seccomp" not in usable():
        pytest.skip("no system-call filter here")
    problem = problems.load(f"{TOUR}:StartsProcesses")
    with (
        Evaluator(problem, workers=1) as evaluator,
        pytest.raises(ConfigurationError, match="outside the sandbox only"),
    ):
        own_template(problem, evaluator)


def test_arguments_are_literals_and_flags_may_hold_plain_words():
    assert arguments.parse("timeout=60,n_instance=8, sizes=[1, 2],name='a,b'") == {
        "timeout": 60, "n_instance": 8, "sizes": [1, 2], "name": "a,b",
    }  # fmt: skip
    joined = arguments.joined(["timeout=60", "path=/a b/c", "n=8,m=None"])
    assert arguments.parse(joined) == {"timeout": 60, "path": "/a b/c", "n": 8, "m": None}
    assert arguments.parse("") == {} and arguments.joined([]) == ""
    for wrong in (["a=1", "a=2"], ["=3"], ["**{}"], ["a=[1"], ["3"]):
        with pytest.raises(ConfigurationError, match="--problem-arg"):
            arguments.joined(wrong)


@pytest.mark.parametrize(
    ("text", "opening", "has_body"),
    [
        ("def f(x): return x", "def f(x):", True),
        ("def f(x):\n    # a comment\n    return x", "def f(x):", True),
        ("def f(\n    x,\n):  # why\n    '''Says.'''\n", "def f(\n    x,\n):", False),
        ("def f(x):\n    raise NotImplementedError('write me')", "def f(x):", False),
        ("K = 3\n@dec\ndef f(x):\n    'Says.'\n    return K", "K = 3\n@dec\ndef f(x):", True),
    ],
)
def test_templates_are_taken_apart(text, opening, has_body):
    template = take_apart(text, "it")
    assert template.opening == opening and (template.program is not None) == has_body
    assert "return" not in template.shown


# Real checkouts, where the tester has them.


def real(variable, *parts):
    root = os.environ.get(variable)
    if not root:
        pytest.skip(f"{variable} names no checkout")
    return str(Path(root).joinpath(*parts))


@pytest.mark.parametrize(
    ("where", "objective"),
    [
        ("tsp_construct/prob.py:TSPCONST", 6.60788),
        ("bp_online/prob.py:BPONLINE", 1.51534),
        ("tsp_construct_class/prob.py:TSPCONST_CLASS", 6.60788),
    ],
)
def test_examples_of_eoh_02(where, objective):
    _, (outcome,) = evaluated(real("TTC_ESOPT_EOH", "examples", where))
    assert outcome.objective == objective


def test_an_example_of_eoh_01():
    place = real("TTC_ESOPT_EOH_V01", "examples", "user_bp_online", "prob.py:BPONLINE")
    _, (outcome,) = evaluated(place, "def score(item, bins):\n    return -bins\n")
    assert outcome.valid and 0 < outcome.objective < 1


def test_a_task_of_llm4ad():
    place = real(
        "TTC_ESOPT_LLM4AD", "llm4ad", "task", "optimization", "online_bin_packing", "evaluation.py:OBPEvaluation"
    )
    problem, (outcome,) = evaluated(place, problem_args="n_items=300,n_instances=2")
    assert problem.maximise and 100 < outcome.objective < 200


def test_a_folder_of_a_reevo_checkout(tmp_path):
    root = real("TTC_ESOPT_REEVO")
    for part in ("cfg", "prompts", "problems/tsp_constructive"):
        shutil.copytree(Path(root) / part, tmp_path / part)
    _, (outcome,) = evaluated(f"{tmp_path}/problems/tsp_constructive", timeout=120)
    assert outcome.objective == pytest.approx(6.273092009780198)
