"""A Ray cluster of several nodes on this machine, for as long as it is needed: nodes that may be killed and frozen."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

from paceline.runtimes.ray_cluster.connection import imported_ray

DIRECTORY = "RAY_TMPDIR"  # where Ray keeps its files, and the address of the cluster that this machine belongs to
OTHERS = 2  # nodes beside the head, which nobody kills: with it goes all that Ray knows
CPUS = 8  # of each, as far as Ray knows: actors shall find a place, however many died and are not forgotten yet
FORGOTTEN = {"health_check_period_ms": 500}  # Ray forgets a node that was killed after three seconds instead of sixteen


class OwnNodes:
    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._others: list[Any] = []
        self.replenish()

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def replenish(self) -> None:
        """All nodes are there, also in place of those that were killed."""
        known = {node["NodeID"] for node in self._cluster.global_state.node_table() if node["Alive"]}
        for node in list(self._others):
            if node.node_id not in known or not node.remaining_processes_alive():
                self._others.remove(node)
                self._cluster.remove_node(node, allow_graceful=False)
        while len(self._others) < OTHERS:
            self._others.append(self._cluster.add_node(num_cpus=CPUS))

    @property
    def raylets(self) -> list[int]:
        """The process of each node but the head that has started all others there."""
        return [node.all_processes["raylet"][0].process.pid for node in self._others]


@contextlib.contextmanager
def own_nodes() -> Iterator[OwnNodes]:
    """It writes its address nowhere: whoever looks for the cluster of this machine finds the one that was there."""
    imported_ray()
    from ray.cluster_utils import Cluster

    with _own_directory():
        head = {"num_cpus": CPUS, "include_dashboard": False, "_system_config": FORGOTTEN}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            yield OwnNodes(cluster)
        finally:
            cluster.shutdown()


@contextlib.contextmanager
def _own_directory() -> Iterator[None]:
    before, directory = os.environ.get(DIRECTORY), tempfile.mkdtemp(prefix="paceline-ray-")
    os.environ[DIRECTORY] = directory
    try:
        yield
    finally:
        del os.environ[DIRECTORY]
        if before is not None:
            os.environ[DIRECTORY] = before
        shutil.rmtree(directory, ignore_errors=True)
