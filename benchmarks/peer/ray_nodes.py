"""Ray clusters that live as long as a measurement: one node, and three on this host that send each other bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray.cluster_utils import Cluster

STORE = 1024**3  # bytes of a node's object store, several times what is in flight
CPUS = 8  # logical ones: placement shall not depend on how many cores there are


@contextmanager
def one_node(*, connect: bool = True) -> Iterator[str]:
    """Its address. `connect` makes this process a driver of it; paceline connects by itself."""
    with _cluster([{"server": 1, "worker": 8}], connect) as address:
        yield address


@contextmanager
def three_nodes(*, connect: bool = True) -> Iterator[str]:
    """The server's node, and two with a place for one worker each."""
    with _cluster([{"server": 1}, {"worker": 1}, {"worker": 1}], connect) as address:
        yield address


@contextmanager
def _cluster(nodes: list[dict[str, float]], connect: bool) -> Iterator[str]:
    cluster = Cluster()
    try:
        for resources in nodes:
            cluster.add_node(
                num_cpus=CPUS,
                resources=resources,
                object_store_memory=STORE,
                include_dashboard=False,
            )
        if connect:
            ray.init(address=cluster.address, log_to_driver=False)
        yield cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()
