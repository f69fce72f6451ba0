"""A user's EoH 0.1 problem and run, with and without us, for the tests of its adapter.

The host is the double here, and a real checkout (with joblib and requests in the environment of the tests) where
TTC_ESOPT_EOH_V01 names one.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import sys
from pathlib import Path
from random import Random

import pytest
from fake_client import FakeClient

from ttc_esopt.scaffolds.hosts import eoh1
from ttc_esopt.scaffolds.hosts.attachment import Attachment

DOUBLE = Path(__file__).parent / "eoh1_double"
CHECKOUT = os.environ.get("TTC_ESOPT_EOH_V01")
HOSTS = [str(DOUBLE)] + ([os.path.join(CHECKOUT, "eoh", "src")] if CHECKOUT else [])
POPULATION = "results/pops/population_generation_{}.json"


class Prompts:
    def get_task(self):
        return "Choose a number near 2 pi."

    def get_func_name(self):
        return "choose"

    def get_func_inputs(self):
        return ["x"]

    def get_func_outputs(self):
        return ["y"]

    def get_inout_inf(self):
        return "x and y are numbers."

    def get_other_inf(self):
        return ""


class Choose:
    """What a user of EoH 0.1 writes: prompts, and `evaluate`, which swallows every exception."""

    def __init__(self, wanted=6.28):
        self.prompts, self.wanted = Prompts(), wanted

    def evaluate(self, code_string):
        try:
            space = {}
            exec(code_string, space)
            return self.score(space)
        except Exception:
            return None

    def score(self, space):
        return abs(space["choose"](2.0) - self.wanted)


def program(a):
    return f"import numpy as np\n\ndef choose(x):\n    y = {a} * x\n    return y"


def write(prompt, number):
    """A reply: good, without a program, without anything after `return`, failing, or one that comes again and again."""
    seed = hashlib.blake2b(f"{number}/{prompt}".encode(), digest_size=8).digest()
    random = Random(int.from_bytes(seed, "big"))
    kind = random.random()
    if kind < 0.2:
        return "I would rather not."
    if kind < 0.5:
        return f"{{Take one of three.}}\n```python\n{program(random.choice((3, 3.1, 3.2)))}\n```"
    if kind < 0.6:
        return f"{{Fail.}}\n```python\n{program('(1 / 0)')}\n```"
    a = round(random.uniform(0, 5), 6)
    return f"{{Choose {a} times x.}}\n```python\n{program(a)}\n```\nGood luck."


def loaded(host, monkeypatch, folder):
    """Body of a fixture: the host is on the path of modules, and no module of another test's host is loaded."""
    if host != str(DOUBLE):
        pytest.importorskip("joblib")
    monkeypatch.syspath_prepend(host)
    monkeypatch.chdir(folder)
    forget()
    yield host
    forget()


def forget():
    for name in [name for name in sys.modules if name.split(".")[0] == "eoh"]:
        del sys.modules[name]


def script(problem=None, **settings):
    """What the user's script does."""
    from eoh import eoh
    from eoh.utils.getParas import Paras

    given = {
        "problem": problem or Choose(), "llm_api_endpoint": "xxx", "llm_api_key": "xxx", "llm_model": "gpt",
        "ec_pop_size": 3, "ec_n_pop": 2, "exp_n_proc": 1, "eva_timeout": 20,
    }  # fmt: skip
    paras = Paras()
    paras.set_paras(**(given | settings))
    eoh.EVOL(paras).run()


@contextlib.contextmanager
def attached(client):
    attachment = Attachment(client, eoh1.HOOKS)
    try:
        attachment.begin()
        yield attachment
    finally:
        attachment.restore()


def run(client, problem=None, **settings):
    with attached(client):
        script(problem, **settings)
    return client


def recorder(**options):
    return FakeClient(lambda operator, prompt, number: write(prompt, number), **options)


def run_alone(monkeypatch, **settings):
    """The host's own run with the same model; returns what it asked."""
    evolution = importlib.import_module("eoh.methods.eoh.eoh_evolution")
    asked = []

    class Model:
        def __init__(self, *args):
            pass

        def get_response(self, prompt):
            asked.append(prompt)
            return write(prompt, len(asked) - 1)

    with monkeypatch.context() as patch:
        patch.setattr(evolution, "InterfaceLLM", Model)
        patch.setattr("time.sleep", lambda seconds: None)
        script(**settings)
    return asked


def noted(monkeypatch, work):
    """What `work` returns, and (operator, parents, offspring) of every call of the operators, whoever answers it."""
    loop = importlib.import_module("eoh.methods.eoh.eoh")
    calls = []

    class Noting(loop.InterfaceEC):
        def get_algorithm(self, pop, operator):
            parents, offspring = super().get_algorithm(pop, operator)
            shown = [None if some is None else [one["code"] for one in some] for some in parents]
            calls.append((operator, shown, [dict(one) for one in offspring]))
            return parents, offspring

    with monkeypatch.context() as patch:
        patch.setattr(loop, "InterfaceEC", Noting)
        return work(), calls


def files(folder):
    return {path.relative_to(folder): path.read_text() for path in sorted(Path(folder).rglob("population_*.json"))}


def stored(folder, generation, individuals):
    """A population file as EoH writes it, but in any order."""
    path = Path(folder) / POPULATION.format(generation)
    path.parent.mkdir(parents=True, exist_ok=True)
    keys = ("algorithm", "code", "objective", "other_inf")
    path.write_text(json.dumps([dict(zip(keys, (*one, None), strict=True)) for one in individuals]))
    return path
