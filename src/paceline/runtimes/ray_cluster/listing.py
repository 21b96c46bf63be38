"""Asks a Ray cluster which runs of paceline it holds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from paceline.core.errors import ConfigurationError
from paceline.runtimes.ray_cluster.connection import connected
from paceline.runtimes.ray_cluster.found import PREFIX, ActorSeen, ClusterRuns, runs_of
from paceline.runtimes.ray_cluster.options import RayCluster


@contextlib.contextmanager
def looking_at(address: str) -> Iterator[Callable[[], ClusterRuns]]:
    """What looks at the cluster, as often as it is called."""
    if address == "local":
        raise ConfigurationError("address 'local' would start a new cluster; give auto, or host:6379")
    with connected(RayCluster(address)) as ray:
        yield lambda: ClusterRuns(address, runs_of(_actors(ray)))


def _actors(ray: Any) -> list[ActorSeen]:
    named = {found["name"] for found in ray.util.list_named_actors(all_namespaces=True)}
    ours = sorted(name for name in named if name.startswith(f"{PREFIX}/"))
    known = _known_actors() if ours else {}
    return [known.get(name, ActorSeen(name)) for name in ours]


def _known_actors() -> dict[str, ActorSeen]:
    """By name, where they are."""
    with contextlib.suppress(Exception):  # there is no public way without Ray's dashboard, and at ray:// none at all
        from ray._private.state import state

        return {
            actor["Name"]: ActorSeen(actor["Name"], actor["Address"]["IPAddress"] or None, actor["State"] == "ALIVE")
            for actor in state.actor_table(None).values()
        }
    return {}
