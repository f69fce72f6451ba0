"""A cluster of two nodes, both on this machine and on its loopback device; this process has joined it."""

import os
import shutil
import tempfile
from contextlib import contextmanager

from ttc_esopt.engines.replica_cluster import HOME, ray_module


@contextmanager
def two_nodes(cpus):
    """Gives the module `ray`, and a function that ends the second node."""
    os.environ["RAY_TMPDIR"] = place = tempfile.mkdtemp(prefix="ray-")  # short, as paths of sockets must be
    ray = ray_module(alone=True)
    from ray.cluster_utils import Cluster

    node = {"num_cpus": cpus, "num_gpus": 0, "object_store_memory": 80 << 20, "node_ip_address": HOME}
    made = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    second = made.add_node(**node)
    ray.init(address=made.address, ignore_reinit_error=True, log_to_driver=False, logging_level="ERROR")
    try:
        yield ray, lambda: made.remove_node(second, allow_graceful=False)
    finally:
        ray.shutdown()
        made.shutdown()
        del os.environ["RAY_TMPDIR"]
        shutil.rmtree(place, ignore_errors=True)
