"""Ray for a run: start it on this machine or join one, and what is free of it. Ray is imported here, on demand.

Nothing is reported to anyone (RAY_USAGE_STATS_ENABLED=0), there is no dashboard, and a Ray that is started here listens
on the loopback device alone.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from typing import Any

from ttc_esopt.errors import ConfigurationError, EngineError

STORE = 128 << 20  # bytes of shared memory for results: replies are text, exported files travel in pieces
SETTLING = 5.0  # seconds
HOME = "127.0.0.1"
# Ray takes 127.0.0.1 for the outer address of the machine, and listens on all of them, unless this says that there is
# no cluster beyond it. It is read once, when Ray is imported.
ALONE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


def ray_module(alone: bool = False) -> Any:
    """The module `ray`, without usage statistics; `alone`: for a Ray on this machine only.

    Raises ConfigurationError where it is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # those of replicas that were given up
    given = os.environ.get(ALONE)
    if alone and given is None:
        os.environ[ALONE] = "0"
    try:
        import ray
    except ImportError:
        raise ConfigurationError(
            "Replicas and evaluation on a cluster need Ray, which is not installed: pip install 'ttc-esopt[ray]' "
            "(--replicas, --evaluate-on)."
        ) from None
    finally:
        if alone and given is None:
            del os.environ[ALONE]
    return ray


class Cluster:
    """A connection to Ray.

    Parameters
    ----------
    address : str
        Empty: a Ray of its own on this machine, which ends with the run. "auto": the cluster that this machine belongs
        to. Else `host:port` of a cluster's head. A process that has joined a Ray already stays in it.
    cores : int
        Processors that the replicas of a Ray of its own may count on in all, however many there are.

    Raises
    ------
    EngineError
        No cluster answers.
    """

    def __init__(self, address: str, cores: int) -> None:
        self.ray = ray_module(alone=not address)
        self.own = False
        if self.ray.is_initialized():
            return
        given: dict[str, Any] = {"log_to_driver": False, "logging_level": "CRITICAL", "configure_logging": True}
        if not address:
            os.environ.setdefault("RAY_worker_niceness", "0")  # else evaluation takes the processors from replicas
            given |= {
                "address": "local", "num_cpus": max(cores, len(os.sched_getaffinity(0))), "include_dashboard": False,
                "object_store_memory": STORE, "_node_ip_address": HOME,
            }  # fmt: skip
        else:
            given["address"] = address
        try:
            self.ray.init(**given)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            said = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise EngineError(f"Ray {address or 'on this machine'} does not answer: {said} (--ray-address)") from None
        self.own = True

    def gpus(self) -> bool:
        """Whether the cluster has GPUs."""
        return self.ray.cluster_resources().get("GPU", 0) >= 1

    def processors(self) -> int:
        """Of all nodes; of this machine not more than this process may use, whatever Ray was told."""
        here, mine = self.ray.get_runtime_context().get_node_id(), len(os.sched_getaffinity(0))
        counts = {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in self.ray.nodes() if node["Alive"]}
        return sum(min(count, mine) if node == here else count for node, count in counts.items())

    def most(self, need: dict[str, float]) -> int:
        """How many replicas fit into the nodes if nothing else is on them."""
        return _fitting(need, [node["Resources"] for node in self.ray.nodes() if node["Alive"]])

    def room(self, need: dict[str, float], wanted: int) -> int:
        """How many of the replicas that are wanted fit into what is free, each on one node.

        What was freed a moment ago is told late, and waited for a little.
        """
        from ray._private.state import available_resources_per_node  # in public there are sums over all nodes alone

        until = time.monotonic() + SETTLING
        while True:
            fits = _fitting(need, available_resources_per_node().values())
            if fits >= min(wanted, self.most(need)) or time.monotonic() > until:
                return min(fits, wanted)
            time.sleep(0.2)

    def close(self) -> None:
        """Leave; a Ray of its own ends."""
        if self.own:
            self.own = False
            with contextlib.suppress(Exception):  # a Ray that has died cannot end well, and the run need not care
                self.ray.shutdown()


def _fitting(need: dict[str, float], nodes: Iterable[dict[str, float]]) -> int:
    """How many times `need` is there, without a part of it on one node and a part on another."""
    return sum(min(int(node.get(name, 0) // size) for name, size in need.items()) for node in nodes)
