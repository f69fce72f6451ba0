"""A host's problem and programs for it, for the tests of `isolate`."""

import os
import textwrap
import time
import traceback
import types
from pathlib import Path

import pytest

from ttc_esopt.evaluation import sandbox
from ttc_esopt.scaffolds.hosts import isolate
from ttc_esopt.scaffolds.hosts.isolate import Isolation, evaluate

CONFINED = {"seccomp", "landlock"} <= set(sandbox.found().layers)
confined = pytest.mark.skipif(not CONFINED, reason="needs seccomp and landlock")
MODES = ["auto", "limits", "off"]


class Problem:
    """A host's problem: it runs the program and returns a number, and swallows what goes wrong, as hosts do."""

    def __init__(self, *, log=None, show=False, swallow=True):
        self.log, self.show, self.swallow = log, show, swallow

    def evaluate(self, code):
        try:
            module = types.ModuleType("heuristic")
            exec(code, module.__dict__)
            return module.f()
        except Exception as error:
            if not self.swallow:
                raise
            if self.log:
                self.log.debug("failed: %s", error, exc_info=True)
            if self.show:
                traceback.print_exc()
            return None


def program(text):
    return "import os, sys, time, signal\ndef f():\n" + textwrap.indent(textwrap.dedent(text).strip("\n"), "    ")


def outcomes(*codes, problem=None, timeout=10, processes=2, **isolation):
    isolation = Isolation(**{"memory_mb": 512, **isolation})
    function = (problem or Problem()).evaluate
    return evaluate(function, codes, timeout=timeout, processes=processes, isolation=isolation)


def outcome(code, **options):
    return outcomes(code, **options)[0]


def alive(mark):
    """Processes that have the mark in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def children():
    """Process ids of the children of all threads of this process."""
    return {pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


def soon(condition, seconds=10):
    """Whether the condition comes true within the time."""
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path, monkeypatch):
    """No test leaves a child, a scratch folder or an open file behind."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    isolate._offered()
    before, files = children(), len(os.listdir("/proc/self/fd"))
    yield
    assert children() <= before
    assert list(scratch.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) <= files
