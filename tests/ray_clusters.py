"""Ray clusters of tests, on this machine.

Ray gives a node thirty seconds to begin. Two clusters that begin at once may choose the same ports, and on a busy machine
thirty seconds pass: clusters of tests begin one after the other, and one that did not begin is begun again.
"""

import contextlib
import fcntl
import logging
import os
import tempfile
from pathlib import Path

import psutil

MB = 1 << 20
STORE = {"object_store_memory": 100 * MB}
NUM_ATTEMPTS = 3


@contextlib.contextmanager
def ray_cluster(head, nodes=()):
    """A `Cluster` with a head and the nodes that are described; gives it and its nodes beside the head."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    cluster, added = _begun(lambda: _with_nodes(head, nodes))
    try:
        yield cluster, added
    finally:
        cluster.shutdown()


def add_node(cluster, **node):
    """A node more."""
    return _begun(lambda: cluster.add_node(**STORE, **node))


@contextlib.contextmanager
def connected(**where):
    """Ray, connected to a cluster, or with one of its own (`address="local"`)."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    _begun(lambda: ray.init(log_to_driver=False, logging_level=logging.ERROR, **where))
    try:
        yield ray
    finally:
        ray.shutdown()


def _with_nodes(head, nodes):
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**STORE, "include_dashboard": False, **head})
    return cluster, [cluster.add_node(**STORE, **node) for node in nodes]


def _begun(begin):
    with (Path(tempfile.gettempdir()) / "relayrl-tests-ray.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for attempt in range(1, NUM_ATTEMPTS + 1):
            before = set(psutil.Process().children(recursive=True))
            try:
                return begin()
            except Exception as error:
                if "timed out during startup" not in str(error) or attempt == NUM_ATTEMPTS:
                    raise
                logging.getLogger(__name__).warning("attempt %d: %s", attempt, error)
                for process in set(psutil.Process().children(recursive=True)) - before:
                    with contextlib.suppress(psutil.Error):  # gone meanwhile
                        process.kill()
    raise AssertionError("unreachable: the last attempt returns or raises")
