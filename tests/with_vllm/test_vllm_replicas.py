"""Replicas with vLLM in them: the same weights as one engine's, also after a loss, and greedily the same replies."""

import contextlib
import json
import os
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from test_vllm_engine import GREEDY, SIGMA
from two_ranks import ARGS, STEPS

from ttc_esopt.engines import Request
from ttc_esopt.engines.replica_units import InUnits
from ttc_esopt.es.noise import NoiseKind

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray (pip install 'ttc-esopt[ray]')")


def requests():
    return [Request(f"def f{i % 3}(x):", i, direction=20 + i // 2, sigma=SIGMA) for i in range(12)]


def children_of(pid):
    """Processes that this one has started, and they in turn."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            found += [int(stat.parent.name)] if parent == pid else []
    return found + [one for child in found for one in children_of(child)]


@pytest.fixture(scope="module")
def crew(folder):
    from ttc_esopt.engines.replicas import ReplicatedEngine

    said = []
    engine = ReplicatedEngine(
        str(folder), engine="vllm", noise=NoiseKind.parse("lowrank:1"), replicas=2, work_unit=2, threads=1,
        engine_args=json.dumps(ARGS), say=said.append,
    )  # fmt: skip
    engine.said = said
    yield engine
    engine.close()


def test_replicas_are_the_same_model_as_one_and_write_the_same(crew, opened, tmp_path):
    one, oracle = InUnits(opened(), 2), opened(engine="transformers")
    assert crew.replicas == 2 and crew.describe()["engine"] == "vllm"
    for step in STEPS:
        for engine in (crew, one, oracle):
            engine.step(*step)
        assert crew.fingerprint() == one.fingerprint() == oracle.fingerprint()
    assert crew.sha256() == oracle.sha256()
    told = []
    replies = crew.generate(requests(), GREEDY, told.append)
    assert [reply.text for reply in replies] == [reply.text for reply in one.generate(requests(), GREEDY)]
    assert sum(told) == sum(reply.tokens for reply in replies)
    crew.export(tmp_path / "out", "100KB")
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 1
    assert opened(engine="transformers", model=tmp_path / "out").fingerprint() == oracle.fingerprint()


def test_a_killed_replica_leaves_nothing_behind_and_is_replaced(crew, opened):
    one, oracle = InUnits(opened(), 2), opened(engine="transformers")
    for engine in (crew, one, oracle):
        engine.rewind(STEPS)
    gone = crew._fleet.active[-1]
    pid = int(gone.where.rpartition(" ")[2])
    family = [pid, *children_of(pid)]
    crew._ray.kill(gone.actor)
    replies = crew.generate(requests(), GREEDY)
    assert [reply.text for reply in replies] == [reply.text for reply in one.generate(requests(), GREEDY)]
    until = time.monotonic() + 120
    while crew.replicas < 2 or any(os.path.exists(f"/proc/{one}") for one in family):
        assert time.monotonic() < until, (crew.said, family)
        crew.generate([Request("a", 0)], GREEDY)
        time.sleep(0.2)
    crew.step(*STEPS[0])
    oracle.step(*STEPS[0])
    assert crew.fingerprint() == oracle.fingerprint() and gone not in crew._fleet.active
    assert any("has joined with fingerprint" in line for line in crew.said)
