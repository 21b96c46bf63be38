"""What Ray knows of a run's actors, asked in a thread of its own: its answers may take seconds when nodes go.

An end is written to a pipe, so that the loop of the server wakes up; all else is looked at when the loop has time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from paceline.runtimes.ray_cluster.connection import draining_nodes
from paceline.runtimes.ray_cluster.room import what_lacks
from paceline.runtimes.sockets.remote import RemoteProcess, undone

PAUSE = 0.2  # seconds between two looks for new actors
NODES_EVERY = 1.0  # seconds between two looks at the nodes
NODE_DIED = "its node is gone"
PROCESS_DIED = "its process died"


class ActorProcess(RemoteProcess):
    """An actor as the server knows its processes."""

    def __init__(self, ray: Any, actor: Any) -> None:
        super().__init__()
        self._ray, self._actor = ray, actor
        self.node: str | None = None  # its id, once it is placed

    def destroy(self) -> None:
        undone(lambda: self._ray.kill(self._actor, no_restart=True))  # Ray may have forgotten it


class Watcher:
    def __init__(self, ray: Any, wanted: Mapping[str, float]) -> None:
        """`wanted`: what Ray sets aside for each worker."""
        self.lacks = ""  # why workers are not placed, in words
        self._ray, self._wanted = ray, wanted
        self._lock = threading.Lock()
        self._runs: dict[Any, ActorProcess] = {}  # by what Ray will answer when it has ended
        self._places: dict[Any, ActorProcess] = {}  # by what Ray will answer when it was placed
        self._all: list[ActorProcess] = []
        self._over = threading.Event()
        self._nodes_at = 0.0
        self._thread = threading.Thread(target=self._watch, name="paceline actors", daemon=True)
        self._thread.start()

    def watch(self, process: ActorProcess, placed: Any, run: Any) -> None:
        with self._lock:
            self._all.append(process)
            self._places[placed] = process
            self._runs[run] = process

    def close(self) -> None:
        self._over.set()
        self._thread.join(timeout=5.0)

    def _watch(self) -> None:
        while not self._over.is_set():
            with self._lock:
                waiting = [*self._places, *self._runs]
            if not waiting:
                self._over.wait(PAUSE)
                continue
            try:
                done, _ = self._ray.wait(waiting, num_returns=1, timeout=PAUSE, fetch_local=False)
                for answer in done:
                    self._take(answer)
                self._look_at_nodes()
            except Exception:  # the connection to Ray ends while this asks: then there is nothing more to see
                if self._over.wait(PAUSE) or not self._ray.is_initialized():
                    return

    def _take(self, answer: Any) -> None:
        with self._lock:
            place, run = self._places.pop(answer, None), self._runs.pop(answer, None)
        try:
            found = self._ray.get(answer)
        except Exception as problem:  # of Ray: the actor died, its node did, or it could not be made
            if run is not None:
                run.end(_cause_of(problem))
            return
        if place is not None:
            place.node, place.placed = found, True
        if run is not None:
            run.end("it came to its end", 0)

    def _look_at_nodes(self) -> None:
        if time.monotonic() > self._nodes_at + NODES_EVERY:
            self._nodes_at = time.monotonic()
            draining = draining_nodes()
            with self._lock:
                self._all = [process for process in self._all if process.exitcode is None]
            for process in self._all:
                process.leaves = process.leaves or process.node in draining
            unplaced = any(not process.placed for process in self._all)
            self.lacks = what_lacks(self._ray, self._wanted) if unplaced else ""


def died(problem: Exception) -> bool:
    """Whether its process or its node died, and not what it was to do raised something."""
    return _cause_of(problem) in (NODE_DIED, PROCESS_DIED) and "creation task" not in str(problem)


def _cause_of(problem: Exception) -> str:
    said = str(problem)
    if "its node has died" in said or "node was terminated" in said:
        return NODE_DIED
    kind = type(problem).__name__
    if kind in ("ActorDiedError", "ActorUnavailableError", "RayActorError"):
        return PROCESS_DIED
    return f"{kind}: {said.strip().splitlines()[-1]}" if said.strip() else kind
