"""What somebody who looks at a Ray cluster finds of paceline there, and how actors are named so that it is found.

Importing this does not import ray.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import quote, unquote

import msgspec

PREFIX = "paceline"
WORKER, SERVER = "worker", "server"


class RunOnCluster(msgspec.Struct, frozen=True):
    run: str  # its directory; of a run without one, the function that it trains
    host: str  # where it was launched, and where its directory is
    workers: tuple[int, ...]
    servers: tuple[int, ...]  # none: the process that launched the run has the parameters
    unplaced: int  # workers and servers that Ray has not started yet
    nodes: dict[str, int]  # by address: workers and servers of the run; empty where Ray does not tell


class ClusterRuns(msgspec.Struct, frozen=True):
    address: str
    runs: tuple[RunOnCluster, ...]


class ActorSeen(msgspec.Struct, frozen=True):
    name: str
    node: str | None = None
    placed: bool = True


def actor_name(run: str, host: str, launch: str, role: str, number: int, start: int) -> str:
    """`launch`: tells it from others of the same run. `start`: its number among all actors of this launch, because a
    name that was given is free again only when Ray says so."""
    return "/".join(quote(str(part), safe=" ") for part in (PREFIX, run, host, launch, role, number, start))


class Named(NamedTuple):
    run: str
    host: str
    launch: str
    role: str
    number: int


def read_name(name: str) -> Named | None:
    """What `actor_name` was given; None: it is of another program."""
    match [unquote(part) for part in name.split("/")]:
        case [prefix, run, host, launch, role, number, _] if prefix == PREFIX and number.isdecimal():
            return Named(run, host, launch, role, int(number))
        case _:
            return None


def runs_of(actors: Iterable[ActorSeen]) -> tuple[RunOnCluster, ...]:
    """Actors of other programs are none of our business."""
    runs: dict[tuple[str, str, str], list[tuple[str, int, ActorSeen]]] = {}
    for actor in actors:
        if (named := read_name(actor.name)) is not None:
            runs.setdefault((named.run, named.host, named.launch), []).append((named.role, named.number, actor))
    return tuple(_run_of(run, host, members) for (run, host, _), members in sorted(runs.items()))


def _run_of(run: str, host: str, members: list[tuple[str, int, ActorSeen]]) -> RunOnCluster:
    placed = sorted((role, number) for role, number, actor in members if actor.placed)
    nodes = Counter(actor.node for _, _, actor in members if actor.placed and actor.node is not None)
    return RunOnCluster(
        run,
        host,
        tuple(number for role, number in placed if role == WORKER),
        tuple(number for role, number in placed if role == SERVER),
        len(members) - len(placed),
        dict(sorted(nodes.items())),
    )
