"""A user of LLM4AD: a problem, a model with a key, settings; on the stand-in in `llm4ad_double`, or on a checkout."""

from __future__ import annotations

import glob
import json
import os
import re
import sys
from pathlib import Path

import pytest
from fake_client import FakeClient

from ttc_esopt.scaffolds.hosts.attachment import Attachment
from ttc_esopt.scaffolds.hosts.llm4ad import HOOKS

DOUBLE = Path(__file__).parent / "llm4ad_double"
CHECKOUT = os.environ.get("TTC_ESOPT_LLM4AD")
TEMPLATE = '''
import math

def value(a: float, b: float) -> float:
    """Say a number.
    Args:
        a: one
    """
    return a
'''
SAMPLES = 16  # that `eoh` makes, the first 4 of them an initial population if they are valid


@pytest.fixture(scope="module", params=["double", "checkout"])
def host(request):
    """The package llm4ad, imported before anything is patched."""
    if request.param == "checkout":
        if not CHECKOUT:
            pytest.skip("TTC_ESOPT_LLM4AD names no checkout of LLM4AD")
        pytest.importorskip("pytz")
    folder = str(DOUBLE) if request.param == "double" else CHECKOUT
    _forget()
    sys.path.insert(0, folder)
    import llm4ad.base
    import llm4ad.method.eoh.resume
    import llm4ad.tools.profiler

    yield llm4ad
    sys.path.remove(folder)
    _forget()


def _forget():
    for name in [name for name in sys.modules if name.partition(".")[0] == "llm4ad"]:
        del sys.modules[name]


@pytest.fixture
def attach(host, tmp_path, monkeypatch):
    """Attach a client until the next one comes or the test is over; the current folder is an empty one."""
    monkeypatch.chdir(tmp_path)
    attached = []

    def attach(client):
        while attached:
            attached.pop().restore()
        if client is not None:
            attached.append(Attachment(client, HOOKS))
            attached[-1].begin()
        return client

    yield attach
    attach(None)


def says(operator, prompt, number):
    """A heuristic of its own for each reply."""
    return f"{{idea {number}}}\n\ndef value(a, b):\n    return {number} - a * 0\n"


def client(writer=says, **options):
    return FakeClient(writer, **{"directions": 4, **options})


def problem(host, shift=0, **settings):
    class Problem(host.base.Evaluation):
        def evaluate_program(self, program_str, callable_func, **kwargs):
            return callable_func(3.0, 4.0) + shift

    return Problem(TEMPLATE, "Say a number.", **{"timeout_seconds": 20, **settings})


def eoh(host, evaluation=None, profiler="EoHProfiler", **settings):
    class Paid(host.base.LLM):
        def __init__(self):
            super().__init__()
            self.key = "sk-secret"

        def draw_sample(self, prompt, *args, **kwargs):
            raise AssertionError("the user's own model was asked")

    if isinstance(profiler, str):
        kind = getattr(host.method.eoh, profiler, None) or host.tools.profiler.ProfilerBase
        profiler = kind(log_dir="logs", log_style="simple")
    settings = {"max_sample_nums": SAMPLES, "max_generations": None, "pop_size": 4, **settings}
    return host.method.eoh.EoH(Paid(), evaluation or problem(host), profiler, **settings)


def results(client):
    """What was told of each candidate, in the order of asking."""
    return [one["result"] for one in client.candidates]


def objectives(client):
    return [one["objective"] for one in results(client)]


def stored(pattern):
    """Files of the host's log folder, by their numbers."""
    found = {int(re.search(r"(\d+)\.json", path)[1]): path for path in glob.glob(f"**/{pattern}", recursive=True)}
    return {number: json.loads(Path(path).read_text()) for number, path in sorted(found.items())}
