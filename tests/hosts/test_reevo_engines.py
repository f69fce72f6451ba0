"""ReEvo with a real engine's books: under `exec`, beside `serve`, and a real checkout where TTC_ESOPT_REEVO names one.

The checkout's modules (hydra and so on) are in the interpreter that TTC_ESOPT_REEVO_PYTHON names, or else in this one.
"""

import importlib
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from reevo_user import DOUBLE, Grower, double, samples
from serving import serving

from ttc_esopt.attached.exec import execute
from ttc_esopt.attached.options import host_options
from ttc_esopt.scaffolds.hosts import reevo as adapter
from ttc_esopt.scaffolds.hosts.client import HostError

CHECKOUT = os.environ.get("TTC_ESOPT_REEVO")


@pytest.fixture
def host(tmp_path, monkeypatch):
    with double(tmp_path, monkeypatch) as run:
        yield run


def test_a_server_is_asked_for_mutations_and_told_their_scores(host, tmp_path):
    with serving(tmp_path) as start:
        server = start(engine=Grower("```python\ndef grow_v2(x):\n    return x * {value}\n```"), function="grow_v2")
        main = importlib.import_module("main")
        client = adapter.Client(base_url=f"http://127.0.0.1:{server.port}/v1", mutations=3)
        try:
            best = main.main(key="sk", mutation=client, max_fe=11)
        finally:
            client.attachment.restore()
        lines, history = samples(tmp_path)
        assert [line["operator"] for line in lines] == ["m1"] * 6 and len(history) == 2
        assert all(line["objective"] is not None and line["direction"] is not None for line in lines)
        assert {tuple(line["parent_objectives"]) for line in lines} == {(1.5,)}  # the best of the user's own client
        assert "1.5" in best
        with pytest.raises(HostError, match="answered 404"):
            client.engine.tell([{"id": 10_000, "objective": 1.0}])
    with pytest.raises(HostError, match="running `ttc-esopt serve`"):
        client.engine.tell([{"id": 1, "objective": 1.0}])


def test_a_server_may_write_for_all_operators(host, tmp_path):
    with serving(tmp_path) as start:
        server = start(engine=Grower("```python\ndef grow_v2(x):\n    return x * {value}\n```"), directions=2)
        main = importlib.import_module("main")
        client = adapter.Client(base_url=f"http://127.0.0.1:{server.port}/v1")
        try:
            main.main(key="sk", mutation=client, generator=client)
        finally:
            client.attachment.restore()
        lines, history = samples(tmp_path)
        assert Counter(line["operator"] for line in lines) == {"i1": 4, "e1": 2, "m1": 2} and len(history) == 1
        assert {line["operator"] for line in lines if line["direction"] is not None} == {"m1"}


def test_without_an_engine_the_client_says_where_one_could_be(monkeypatch):
    monkeypatch.setattr(adapter, "_attached", None)
    with pytest.raises(HostError, match="ttc-esopt serve"):
        adapter.Client()
    with pytest.raises(HostError, match="Expected base_url like"):
        adapter.Client(base_url="localhost:8000")


def test_the_ready_configuration_names_our_client():
    command = [sys.executable, "-m", adapter.__name__, "--config"]
    folder = Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    text = (folder / "llm_client" / "esopt.yaml").read_text()
    assert f"_target_: {adapter.TARGET}\n" in text
    module, _, name = adapter.TARGET.rpartition(".")
    assert getattr(importlib.import_module(module), name) is adapter.Client


def test_under_exec_a_run_steps_and_its_files_hold_it(tmp_path, monkeypatch):
    checkout = shutil.copytree(DOUBLE, tmp_path / "checkout", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    given, options = host_options({"arm": "esopt", "prefill": False}, directions=3)
    said = []
    engine = Grower("```python\ndef grow_v2(x):\n    return x * {value}\n```")
    code = execute(checkout / "main.py", ["max_fe=15"], given, options, engine=engine, say=said.append, report=False)
    assert code == 0, said
    lines, history = samples(tmp_path)
    assert Counter(line["operator"] for line in lines) == {"seed": 1, "i1": 4, "e1": 4, "m1": 6}
    assert [record["operator"] for record in history] == ["m1", "m1"]
    assert history[0]["taken"] and history[1]["skipped"]  # the last sigma is 0
    assert all(line["objective"] is not None for line in lines)
    best = min(lines, key=lambda line: line["objective"])
    assert f"best objective: {best['objective']:.5g} ({best['operator']})" in said
    said.clear()
    assert execute(checkout / "main.py", ['algorithm="eoh"'], given, options, engine=engine, say=said.append) == 2


REAL = {
    "tsp_constructive": """
def select_next_node_v2(current_node, destination_node, unvisited_nodes, distance_matrix):
    row, home = distance_matrix[current_node], distance_matrix[destination_node]
    return min(unvisited_nodes, key=lambda node: row[node] - ({value} - 4.5) * home[node])
""",
    "tsp_aco": "def heuristics_v2(distance_matrix):\n    return 1 / distance_matrix ** ({value} / 2)",
}


@pytest.mark.skipif(not CHECKOUT, reason="TTC_ESOPT_REEVO names no checkout")
@pytest.mark.parametrize(
    ("problem", "way"),
    [("tsp_constructive", ""), ("tsp_constructive", "llm_client@llm_mutation=esopt"), ("tsp_aco", "")],
)
def test_a_real_checkout_runs_unmodified(tmp_path, monkeypatch, problem, way):
    checkout = shutil.copytree(CHECKOUT, tmp_path / "checkout", ignore=shutil.ignore_patterns(".git", "__pycache__"))
    data = checkout / "problems" / problem / "dataset"
    data.mkdir()
    for name in ("train50", "val20", "val50", "val100", "val200"):  # the host would draw larger ones: minutes
        np.save(data / f"{name}_dataset.npy", np.random.default_rng(1).random((1, int(name.strip("trainvl")), 2)))
    monkeypatch.chdir(checkout)
    given, options = host_options({"arm": "esopt"}, directions=3)
    said = []
    arguments = [f"problem={problem}", "init_pop_size=3", "pop_size=2", "max_fe=9", "timeout=60"]
    expected = {"seed": 1, "i1": 3, "e1": 2, "m1": 3}
    text = f"```python\nimport numpy as np\n{REAL[problem]}\n```"
    if way:  # the user's own client, as a module of his
        arguments += [way, "llm_client=mine", "--config-dir", str(Path(adapter.__file__).parent / "config")]
        expected = {"seed": 1, "m1": 3}
        (checkout / "cfg" / "llm_client" / "mine.yaml").write_text("_target_: mine.Mine\nmodel: mine\n")
        (checkout / "mine.py").write_text(MINE.format(text=text))
    python = os.environ.get("TTC_ESOPT_REEVO_PYTHON", sys.executable)
    code = execute(
        checkout / "main.py", arguments, given, options, engine=Grower(text), say=said.append, python=python,
        report=False,
    )  # fmt: skip
    assert code == 0, said
    lines, history = samples(checkout)
    assert Counter(line["operator"] for line in lines) == expected
    assert all(line["objective"] is not None for line in lines), lines
    assert len(history) == 1 and history[0]["taken"]
    (validation,) = checkout.rglob("best_code_overall_val_stdout.txt")
    assert "Average for 100" in validation.read_text()


MINE = """
import random
from utils.llm_client.base import BaseClient

class Mine(BaseClient):
    def multi_chat_completion(self, messages_list, n=1, temperature=None):
        return [{text!r}.replace("{{value}}", str(random.uniform(1, 5))) for _ in messages_list for _ in range(n)]
"""
