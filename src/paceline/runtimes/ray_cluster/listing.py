"""Asks a Ray cluster which runs of paceline it holds."""

from __future__ import annotations

import contextlib
from contextlib import ExitStack
from typing import Any

from paceline.core.errors import ConfigurationError
from paceline.runtimes.ray_cluster.connection import connected
from paceline.runtimes.ray_cluster.found import PREFIX, ActorSeen, ClusterRuns, runs_of
from paceline.runtimes.ray_cluster.options import RayCluster

ALIVE, DEAD = "ALIVE", "DEAD"


class ClusterReader:
    """Connected to the cluster within its `with` block."""

    def __init__(self, address: str) -> None:
        if address == "local":
            raise ConfigurationError("address 'local' would start a new cluster; give auto, or host:6379")
        self._address = address
        self._stack = ExitStack()

    def __enter__(self) -> ClusterReader:
        self._ray = self._stack.enter_context(connected(RayCluster(self._address)))
        return self

    def __exit__(self, *problem: object) -> None:
        self._stack.close()

    def look(self) -> ClusterRuns:
        named = {found["name"] for found in self._ray.util.list_named_actors(all_namespaces=True)}
        ours = {name for name in named if name.startswith(f"{PREFIX}/")}
        known = {actor.name: actor for actor in _placed_actors()} if ours else {}
        seen = [known.get(name, ActorSeen(name)) for name in sorted(ours)]
        return ClusterRuns(self._address, runs_of(seen))


def _placed_actors() -> list[ActorSeen]:
    """Where actors are, as far as this release of Ray tells it without its dashboard."""
    with contextlib.suppress(Exception):  # there is no public way; a client at ray:// has none at all
        from ray._private.state import state

        found = state.actor_table(None).values()
        return [_seen(actor) for actor in found if str(actor.get("Name", "")).startswith(f"{PREFIX}/")]
    return []


def _seen(actor: dict[str, Any]) -> ActorSeen:
    node = actor.get("Address", {}).get("IPAddress") or None
    return ActorSeen(actor["Name"], node, placed=actor.get("State") == ALIVE)
