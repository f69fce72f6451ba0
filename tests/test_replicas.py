"""Replicas through Ray, on a cluster of two nodes made here: what is written depends neither on their number nor fate.

Each replica is a process that loads torch, so one engine serves the tests in turn; each sends its weights back first.
"""

import contextlib
import dataclasses
import hashlib
import time
from importlib.util import find_spec

import pytest
from ray_nodes import two_nodes
from stand_in import PROGRAM, Quiet
from tiny_model import make_tiny_model

from ttc_esopt import problems, scaffolds
from ttc_esopt.engines import Request, Sampling, load_engine
from ttc_esopt.engines.replica_units import InUnits, units
from ttc_esopt.errors import ConfigurationError, EngineError
from ttc_esopt.es.noise import NoiseKind
from ttc_esopt.evaluation import Evaluator
from ttc_esopt.runfolder import RunFolder
from ttc_esopt.search import Search
from ttc_esopt.settings import resolve

WORDS = Sampling(temperature=1.0, max_tokens=24)
EARLIER = [3, 4], (1e-4, -2e-4)
STEP = [11, 12, 13], (0.02, -0.01, 0.015)
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray (pip install 'ttc-esopt[ray]')")


def requests(directions=12, plain=6):
    """A batch of directions with two replies each, between requests of the unperturbed model."""
    nudged = [Request(f"def f{i % 3}(x):", i, direction=100 + i // 2, sigma=0.05) for i in range(2 * directions)]
    return [Request("import", 500 + i) for i in range(plain)] + nudged


# work units: no Ray needed


def test_a_unit_holds_so_many_directions_and_all_replies_of_each():
    asked = requests(directions=5, plain=6)
    found = units(asked, 2)
    assert found == [[0, 1, 2, 3], [4, 5], [6, 7, 8, 9], [10, 11, 12, 13], [14, 15]]
    assert sorted(i for part in found for i in part) == list(range(len(asked)))
    slots = [Request("p", i, direction=i // 2) for i in range(6)]  # as the frozen arm has them: no radius
    assert units(slots, 1) == [[0, 1], [2, 3], [4, 5]]


def test_a_batch_of_full_noise_is_written_as_without_units(model):
    engine = load_engine(str(model), noise=NoiseKind("full"), threads=1)
    asked = requests(directions=3, plain=0)
    assert InUnits(engine, 1).generate(asked, WORDS) == engine.generate(asked, WORDS)


def test_who_asks_for_replicas_gets_units_and_who_does_not_gets_whole_batches():
    assert resolve({}).work_unit == 0
    assert resolve({"replicas": 3}).work_unit == 4
    assert resolve({"replicas": 3, "noise": "full"}).work_unit == 1
    assert resolve({"replicas": 3, "work_unit": 7}).work_unit == 7
    with pytest.raises(ConfigurationError, match=r"Expected replicas >= 1, got 0 \(--replicas\)"):
        resolve({"replicas": 0})
    with pytest.raises(ConfigurationError, match="which Ray places, got cuda:1"):
        resolve({"replicas": 2, "device": "cuda:1"})


def test_a_run_of_whole_batches_cannot_be_shared_out_later_and_one_in_units_can(tmp_path):
    whole = RunFolder.create(tmp_path / "whole", resolve({}), "test")
    with pytest.raises(ConfigurationError, match=r"begun with --work-unit N"):
        whole.change_limits({"replicas": 2})
    parts = RunFolder.create(tmp_path / "parts", resolve({"replicas": 2}), "test")
    parts.change_limits({"replicas": 1})
    again = RunFolder.open(tmp_path / "parts").settings
    assert (again.replicas, again.work_unit) == (1, 4)


def test_without_ray_the_message_says_what_to_install(model, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'ttc-esopt\[ray\]'"):
        load_engine(str(model), noise=NoiseKind(), replicas=2)


# replicas


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", context=2048)


@pytest.fixture(scope="module")
def cluster():
    """The module `ray`, of a process that has joined two nodes."""
    with two_nodes(cpus=3) as (ray, _):
        yield ray


@contextlib.contextmanager
def taken(ray, *processors):
    """So many processors of each node are somebody else's."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    other = ray.remote(num_cpus=0)(list)
    held = [
        other.options(num_cpus=count, scheduling_strategy=On(node, soft=False)).remote()
        for node, count in zip(nodes, processors, strict=True) if count
    ]  # fmt: skip
    ray.get([one.__ray_ready__.remote() for one in held])
    yield
    for one in held:
        ray.kill(one)


@needs_ray
def test_a_replica_needs_room_on_one_node(cluster, model, monkeypatch):  # first, while the nodes are empty
    from ttc_esopt.engines import replica_fleet
    from ttc_esopt.engines.replica_cluster import Cluster
    from ttc_esopt.engines.replicas import ReplicatedEngine

    monkeypatch.setattr("ttc_esopt.engines.replica_cluster.SETTLING", 1.0)
    two = {"replicas": 2, "threads": 2, "noise": NoiseKind()}
    joined, said = Cluster("", 1), []
    assert joined.room({"CPU": 2.0}, 5) == 2 and joined.room({"CPU": 1.0}, 5) == 5
    with taken(cluster, 2, 0):  # four are free, three of them on one node
        assert joined.room({"CPU": 2.0}, 2) == 1
        monkeypatch.setattr(Cluster, "room", lambda *_: 2)  # as if the other one had been free a moment ago
        monkeypatch.setattr(replica_fleet, "PLACING", 0.0)
        one = ReplicatedEngine(str(model), **two, say=said.append)
        assert one.replicas == 1 and "1 of 2 replicas are at work: each takes 2 CPU" in said[0]
        one.close()
    monkeypatch.undo()
    with taken(cluster, 2, 2), pytest.raises(EngineError, match=r"a node with room for a replica \(2 CPU\), .* free"):
        load_engine(str(model), **two)


@pytest.fixture(scope="module")
def _crew(model, cluster):
    from ttc_esopt.engines.replicas import ReplicatedEngine

    engine = ReplicatedEngine(str(model), replicas=2, noise=NoiseKind.parse("lowrank:1"), threads=1, dtype="float32")
    engine.adopt(NoiseKind("full"), "all", [EARLIER])
    yield engine
    engine.close()


@pytest.fixture
def crew(_crew):
    """The engine as it was in the beginning, after a step of an earlier run, and what it says."""
    _crew.said = []
    _crew.say = _crew.said.append
    _crew.rewind([])
    return _crew


@pytest.fixture(scope="module")
def alone(model):
    """The same in this process."""
    engine = load_engine(str(model), noise=NoiseKind.parse("lowrank:1"), threads=1, dtype="float32", work_unit=4)
    engine.adopt(NoiseKind("full"), "all", [EARLIER])
    return engine


@pytest.fixture(scope="module")
def evaluator():
    """It remembers the programs that come again in every run."""
    problem = problems.load("tsp_construct")
    with Evaluator(problem, instances=problem.instances("train", problem.splits["train"][0])[:2]) as found:
        yield found


def joined(engine, count):
    """Wait until so many are at work."""
    until = time.monotonic() + 60
    while engine.replicas < count:
        assert time.monotonic() < until, engine.said
        engine.generate([Request("a", 0)], Sampling(max_tokens=1))
        time.sleep(0.2)


def prints(engine):
    return set(engine._fleet.all("call", "fingerprint").values())


class Programs:
    """Makes programs of what a random model writes, other ones of other texts: so rewards differ and steps come."""

    def __init__(self, engine):
        self._engine = engine

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def generate(self, asked, sampling, progress=None):
        found = []
        for reply in self._engine.generate(asked, sampling, progress):
            number = int.from_bytes(hashlib.sha256(reply.text.encode()).digest()[:4], "big")
            found.append(dataclasses.replace(reply, text=PROGRAM.format(a=number / 2**33)))
        return found


def search(path, engine, evaluator, tokens=0):
    """A search in a folder, new or begun, as far as `tokens`; the bytes of its files, and the weights at the end."""
    given = {
        "budget": 32,
        "directions": 6,
        "sigma": 0.05,
        "alpha": 0.05,
        "arm": "esopt",
        "max_tokens": 12,
        "init": "model",
    }
    if (path / "run.toml").exists():
        folder = RunFolder.open(path)
        folder.change_limits({"max_tokens_total": tokens})
    else:
        folder = RunFolder.create(path, resolve({**given, "replicas": 2, "max_tokens_total": tokens}), "test")
    engine.rewind([])
    problem = evaluator.problem
    scaffold = scaffolds.build(problem, folder.settings)
    Search(folder, problem, scaffold, Programs(engine), evaluator, Quiet()).run()
    return *((path / name).read_bytes() for name in ("samples.jsonl", "history.jsonl")), engine.fingerprint()


@needs_ray
def test_a_run_writes_the_same_bytes_with_one_and_with_two_and_goes_on_with_another_number(
    tmp_path, crew, alone, evaluator
):
    whole = search(tmp_path / "one", alone, evaluator)
    steps = whole[1].splitlines()
    assert len(steps) >= 2 and all(b'"taken":true' in step.replace(b" ", b"") for step in steps[:-1])
    assert search(tmp_path / "two", crew, evaluator) == whole
    first = search(tmp_path / "scaled", crew, evaluator, tokens=150)
    assert first[0] and whole[0].startswith(first[0]) and first[0] != whole[0]
    assert search(tmp_path / "scaled", alone, evaluator) == whole


@needs_ray
def test_progress_adds_up_and_all_else_is_that_of_one_engine(crew, alone):
    told = []
    replies = crew.generate(requests(), WORDS, told.append)
    assert sum(told) == sum(reply.tokens for reply in replies)
    alone.rewind([])
    for engine in (crew, alone):
        engine.step(*STEP)
    asked, texts = requests(directions=2, plain=2), ["x + 1", "import numpy"] * 3
    assert crew.divergence(asked, texts, WORDS) == alone.divergence(asked, texts, WORDS)
    assert crew.drift(asked[:2], texts[:2], WORDS) == alone.drift(asked[:2], texts[:2], WORDS)
    assert crew.measure([STEP], 0.05) == alone.measure([STEP], 0.05)
    assert crew.fingerprint() == alone.fingerprint() and crew.sha256() == alone.sha256()
    described = crew.describe()
    assert (described["replicas"], described["work_unit"]) == (2, 4) and "ray" in described["versions"]
    assert crew.peak()["peak_mb"] > 1
    with pytest.raises(EngineError, match="reply of at least one token"):
        crew.divergence(asked[:1], [""], WORDS)
    with pytest.raises(EngineError, match="not moved yet"):
        crew.adopt(NoiseKind("full"), "all", [EARLIER])


@needs_ray
def test_a_replica_that_joins_later_takes_all_steps_and_proves_it(crew, alone):
    crew.add_replica()
    crew.step(*STEP)  # while the new one is loading
    joined(crew, 3)
    assert prints(crew) == {crew.fingerprint()}
    assert any(f"has joined with fingerprint {crew.fingerprint()}; 3 are at work" in line for line in crew.said)
    alone.rewind([STEP])
    assert crew.fingerprint() == alone.fingerprint()
    assert crew.generate(requests(), WORDS) == alone.generate(requests(), WORDS)
    assert len({place.node for place in crew._fleet.active}) == 2


@needs_ray
def test_a_replica_killed_in_the_middle_changes_nothing_and_is_replaced(crew, cluster, alone):
    joined(crew, 3)
    alone.rewind([STEP])
    crew.step(*STEP)
    gone = []

    def kill(tokens):
        if not gone:  # a unit has come back: the others are being written
            gone.append(crew._fleet.active[-1])
            cluster.kill(gone[0].actor)

    assert crew.generate(requests(24), WORDS, kill) == alone.generate(requests(24), WORDS)
    with pytest.raises(cluster.exceptions.RayActorError):
        cluster.get(gone[0].actor.written.remote())
    joined(crew, 3)
    assert any(f"{gone[0]} is lost" in line for line in crew.said)
    crew.step(*STEP)
    alone.step(*STEP)
    assert prints(crew) == {alone.fingerprint()} and gone[0] not in crew._fleet.active


@needs_ray
def test_a_replica_with_other_weights_is_found_at_the_next_step(crew, cluster):
    joined(crew, 3)
    odd = crew._fleet.active[1]
    cluster.get(odd.actor.call.remote("step", [99], (0.1,)))
    with pytest.raises(
        EngineError, match=rf"Replicas disagree .*: Replica {odd.number} .* the others have [0-9a-f]{{16}}"
    ):
        crew.step(*STEP)
    crew.rewind([])
    assert prints(crew) == {crew.fingerprint()}


@needs_ray
def test_the_model_is_exported_here_whichever_node_it_is_on(crew, tmp_path):
    crew.step(*STEP)
    for place, name in ((crew._fleet.active[0].node, "near"), ("elsewhere", "far")):
        for one in crew._fleet.active:
            one.node = place
        crew.export(tmp_path / name)
        assert load_engine(str(tmp_path / name), noise=NoiseKind(), threads=1).fingerprint() == crew.fingerprint()


@needs_ray
def test_a_cluster_without_room_is_told_before_anything_is_loaded(cluster, model):
    with pytest.raises(EngineError, match=r"room for a replica \(64 CPU\)"):
        load_engine(str(model), noise=NoiseKind(), replicas=2, threads=64)


@needs_ray
def test_when_all_are_lost_one_that_is_loading_is_waited_for(crew, cluster, alone, monkeypatch):
    monkeypatch.setattr(crew._fleet, "_patience", 0.0)
    joined(crew, 2)
    crew.add_replica()
    (late,) = crew._fleet._joining.values()
    while not crew._fleet._started(late):
        time.sleep(0.02)
    for place in list(crew._fleet.active):
        cluster.kill(place.actor)
    alone.rewind([])
    assert crew.generate(requests(2), WORDS) == alone.generate(requests(2), WORDS)


@needs_ray
def test_when_all_are_lost_the_message_says_how_to_go_on(crew, cluster, monkeypatch):  # last: it ends the engine
    monkeypatch.setattr(crew._fleet, "_patience", 0.0)
    for place in list(crew._fleet.active):
        cluster.kill(place.actor)
    with pytest.raises(EngineError, match="All replicas are lost .*ttc-esopt resume"):
        crew.generate(requests(), WORDS)
