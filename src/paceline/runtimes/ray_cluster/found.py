"""What somebody who looks at a Ray cluster finds of paceline there, and how actors are named so that it is found.

Importing this does not import ray.
"""

from __future__ import annotations

import msgspec

PREFIX = "paceline"
WORKER, SERVER = "worker", "server"


class RunOnCluster(msgspec.Struct, frozen=True):
    name: str
    token: str  # tells it from another run with the same name
    workers: tuple[int, ...]
    servers: tuple[int, ...]  # none: the process that launched the run has the parameters
    nodes: dict[str, int]  # by address: processes of the run; empty where Ray does not tell
    unplaced: int = 0  # workers and servers that wait for room on the cluster


class ClusterRuns(msgspec.Struct, frozen=True):
    address: str
    runs: tuple[RunOnCluster, ...]


def actor_name(run: str, token: str, role: str, number: int, start: int) -> str:
    """`start`: its number among all actors of the run. A name that was given is free again only when Ray says so."""
    return "/".join((PREFIX, run.replace("/", "_"), token, f"{role} {number}", str(start)))


class ActorSeen(msgspec.Struct, frozen=True):
    name: str
    node: str | None = None
    placed: bool = True


def runs_of(actors: list[ActorSeen]) -> tuple[RunOnCluster, ...]:
    """Actors of other programs are none of our business."""
    runs: dict[tuple[str, str], list[tuple[str, int, ActorSeen]]] = {}
    for actor in actors:
        match actor.name.split("/"):
            case [prefix, run, token, role, _] if prefix == PREFIX:
                kind, _, number = role.partition(" ")
                if kind in (WORKER, SERVER) and number.isdecimal():
                    runs.setdefault((run, token), []).append((kind, int(number), actor))
            case _:
                pass
    return tuple(_run_of(name, token, members) for (name, token), members in sorted(runs.items()))


def _run_of(name: str, token: str, members: list[tuple[str, int, ActorSeen]]) -> RunOnCluster:
    nodes: dict[str, int] = {}
    for _, _, actor in members:
        if actor.placed and actor.node is not None:
            nodes[actor.node] = nodes.get(actor.node, 0) + 1
    workers, servers = (
        tuple(sorted(number for kind, number, actor in members if kind == wanted and actor.placed))
        for wanted in (WORKER, SERVER)
    )
    unplaced = sum(not actor.placed for _, _, actor in members)
    return RunOnCluster(name, token, workers, servers, dict(sorted(nodes.items())), unplaced)
