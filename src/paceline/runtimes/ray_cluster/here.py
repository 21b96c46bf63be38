"""The processes of a run on a Ray cluster whose nodes are all on this machine, for whoever sends them signals."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from paceline.core.errors import ConfigurationError
from paceline.runtimes.ray_cluster.connection import connected
from paceline.runtimes.ray_cluster.found import read_name
from paceline.runtimes.ray_cluster.options import RayCluster
from paceline.runtimes.ray_cluster.own_nodes import OwnNodes, own_nodes

LOCAL = "local"


class ActorHere(NamedTuple):
    role: str
    number: int
    pid: int  # 0: it has no process yet


class ClusterHere:
    def __init__(self, ray: Any, nodes: OwnNodes | None) -> None:
        """`nodes`: of a cluster that was made for this; None: it is somebody else's, and its nodes are left alone."""
        self.address = str(ray.get_runtime_context().gcs_address)
        self.nodes = nodes
        refuse_other_hosts(ray.nodes())

    def actors_of(self, run_dir: Path) -> list[ActorHere]:
        """The workers and servers of this run that are there or will be, as Ray knows them."""
        from ray._private.state import state  # there is no public way without Ray's dashboard

        run, found = str(run_dir.resolve()), []
        for actor in state.actor_table(None).values():
            named = read_name(actor["Name"])
            if named is not None and named.run == run and actor["State"] != "DEAD":
                found.append(ActorHere(named.role, named.number, int(actor["Pid"]) if actor["State"] == "ALIVE" else 0))
        return sorted(found)


@contextlib.contextmanager
def cluster_here(address: str) -> Iterator[ClusterHere]:
    """A cluster of this machine: at `local` a new one, with several nodes."""
    if "://" in address:
        raise ConfigurationError(
            f"{address}: processes are killed by their ids, which Ray does not tell there; give host:6379, or local"
        )
    with contextlib.ExitStack() as stack:
        nodes = stack.enter_context(own_nodes()) if address == LOCAL else None
        reached = address if nodes is None else nodes.address
        yield ClusterHere(stack.enter_context(connected(RayCluster(reached), quiet=True)), nodes)


def refuse_other_hosts(nodes: list[Any]) -> None:
    here = socket.gethostname()
    for node in nodes:
        if node["Alive"] and node["NodeManagerHostname"] != here:
            raise ConfigurationError(
                f"the cluster has a node on {node['NodeManagerHostname']}, and processes can only be killed on this"
                f" machine ({here}): take a cluster whose nodes are all here, as --address local makes one"
            )
