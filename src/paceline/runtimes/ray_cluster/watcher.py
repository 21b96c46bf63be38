"""What Ray knows of a run's actors, asked in a thread of its own: its answers may take seconds when nodes go.

An end is written to a pipe, so that the loop of the server wakes up; all else is looked at when the loop has time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from paceline.runtimes.ray_cluster.connection import draining_nodes
from paceline.runtimes.ray_cluster.doubts import Doubts
from paceline.runtimes.ray_cluster.room import what_lacks
from paceline.runtimes.sockets.remote import RemoteProcess, undone

PAUSE = 0.2  # seconds between two looks for new actors
NODES_EVERY = 1.0  # seconds between two looks at the nodes
NODE_DIED = "its node is gone"
PROCESS_DIED = "its process died"
NODE_DRAINED = "its node is drained, and will be gone"
DEATHS = (NODE_DIED, PROCESS_DIED)
MOVED_AFTER = 3.0  # seconds that one has to begin where it was placed, before a doubt moves it
MOST_LIVES = 5  # of one that dies before it calls


class ActorProcess(RemoteProcess):
    """An actor as the server knows its processes. Until it has called, it may be given another place."""

    def __init__(self, ray: Any, make: Callable[[Any], Any], begin: Callable[[Any], Any]) -> None:
        """`make`: asks Ray for an actor, by this strategy. `begin`: lets it run; returns what is there when it ends."""
        super().__init__()
        self._ray, self._make, self._begin = ray, make, begin
        self._actor: Any = None
        self.node: str | None = None  # its id, once it is placed
        self.avoids: frozenset[str] = frozenset()  # nodes
        self.asked_at = 0.0
        self.lives = 0  # that Ray was asked for

    def ask(self, doubts: Doubts) -> tuple[Any, Any]:
        """Ray for a place, and for another one if there was one before. Returns what is there when it was placed, and
        when it has ended."""
        if self._actor is not None:
            self.destroy()
        self.avoids, self.asked_at, self.placed = doubts.nodes, time.monotonic(), False
        self.lives += 1
        self._actor = self._make(doubts.strategy)
        answers = self._actor.node.remote(), self._begin(self._actor)
        if self.exitcode is not None:  # it was given up meanwhile
            self.destroy()
        return answers

    def is_misplaced(self, doubts: Doubts) -> bool:
        """It waits for a place where a node does not answer, or keeps away from one that answers again."""
        waits = not (self.placed or self.called) and self.exitcode is None
        return waits and time.monotonic() > self.asked_at + MOVED_AFTER and doubts.differ_from(self.avoids)

    @property
    def may_try_again(self) -> bool:
        return not self.called and self.exitcode is None and self.lives < MOST_LIVES

    def destroy(self) -> None:
        undone(lambda: self._ray.kill(self._actor, no_restart=True))  # Ray may have forgotten it


class Watcher:
    def __init__(self, ray: Any, wanted: Mapping[str, float]) -> None:
        """`wanted`: what Ray sets aside for each worker."""
        self.lacks = ""  # why workers are not placed, in words
        self.doubts = Doubts(ray)
        self._ray, self._wanted = ray, wanted
        self._lock = threading.Lock()
        self._runs: dict[Any, ActorProcess] = {}  # by what Ray will answer when it has ended
        self._places: dict[Any, ActorProcess] = {}  # by what Ray will answer when it was placed
        self._all: list[ActorProcess] = []
        self._over = threading.Event()
        self._nodes_at = 0.0
        self._thread = threading.Thread(target=self._watch, name="paceline actors", daemon=True)
        self._thread.start()

    def watch(self, process: ActorProcess) -> None:
        placed, run = process.ask(self.doubts)
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
                self._handle_death(run, cause_of(problem))
            return
        if place is not None:
            place.node, place.placed = found, True
        if run is not None:
            run.end("it came to its end", 0)

    def _handle_death(self, process: ActorProcess, cause: str) -> None:
        """Of one that had not called yet nobody knows: it gets another place."""
        if cause in DEATHS and process.may_try_again and not self._over.is_set():
            self.doubts.look()
            self._move(process)
        else:
            process.end(cause)

    def _move(self, process: ActorProcess) -> None:
        with self._lock:
            for answers in (self._places, self._runs):
                for answer in [answer for answer, whose in answers.items() if whose is process]:
                    del answers[answer]
        placed, run = process.ask(self.doubts)
        with self._lock:
            self._places[placed] = process
            self._runs[run] = process

    def _look_at_nodes(self) -> None:
        if time.monotonic() > self._nodes_at + NODES_EVERY:
            self._nodes_at = time.monotonic()
            draining = draining_nodes()
            with self._lock:
                self._all = [process for process in self._all if process.exitcode is None]
            for process in self._all:
                process.leaves = NODE_DRAINED if process.node in draining else process.leaves
            unplaced = [process for process in self._all if not process.placed]
            if unplaced:
                self.doubts.look()
            for process in unplaced:
                if process.is_misplaced(self.doubts):
                    self._move(process)
            self.lacks = what_lacks(self._ray, self._wanted, self.doubts.nodes) if unplaced else ""


def cause_of(problem: Exception) -> str:
    said = str(problem)
    if "its node has died" in said or "node was terminated" in said:
        return NODE_DIED
    kind = type(problem).__name__
    raised = "creation task" in said  # what it is to begin with fails, and would again elsewhere
    if kind in ("ActorDiedError", "ActorUnavailableError", "RayActorError") and not raised:
        return PROCESS_DIED
    return f"{kind}: {said.strip().splitlines()[-1]}" if said.strip() else kind
