"""Waits until Ray has placed the shards of a run, and gives another place to those whose node does not answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from paceline.core.errors import ConfigurationError
from paceline.runtimes.ray_cluster.doubts import Doubts
from paceline.runtimes.ray_cluster.watcher import DEATHS, MOST_LIVES, MOVED_AFTER, NODES_EVERY, cause_of
from paceline.runtimes.sockets.connecting import Address
from paceline.runtimes.sockets.remote import undone


class Place(NamedTuple):
    actor: Any
    address: Any  # what Ray will answer with it
    avoids: frozenset[str]
    asked_at: float
    lives: int


class ShardPlaces:
    def __init__(self, ray: Any, doubts: Doubts, make: Callable[[int, Any], Any], listen: Callable[[Any], Any]) -> None:
        """`make`: asks Ray for the shard of this number, by this strategy. `listen`: asks it for its address."""
        self._ray, self._doubts, self._make, self._listen = ray, doubts, make, listen
        self._waiting: dict[int, Place] = {}
        self._found: dict[int, tuple[Any, Address]] = {}

    def wait(self, count: int, seconds: float) -> list[tuple[Any, Address]] | None:
        """So many actors, and where they listen; None: they were not all there in time."""
        for number in range(count):
            self._ask(number)
        end = time.monotonic() + seconds
        while self._waiting:
            left = end - time.monotonic()
            if left <= 0:
                return None
            answers = [place.address for place in self._waiting.values()]
            done, _ = self._ray.wait(answers, num_returns=1, timeout=min(NODES_EVERY, left), fetch_local=False)
            if not done:
                self._move_misplaced()
            for number in [number for number, place in self._waiting.items() if place.address in done]:
                self._take(number)
        return [self._found[number] for number in range(count)]

    def _ask(self, number: int) -> None:
        before = self._waiting.get(number)
        if before is not None:
            undone(lambda: self._ray.kill(before.actor, no_restart=True))
        actor = self._make(number, self._doubts.strategy)
        lives = 1 if before is None else before.lives + 1
        self._waiting[number] = Place(actor, self._listen(actor), self._doubts.nodes, time.monotonic(), lives)

    def _take(self, number: int) -> None:
        place = self._waiting[number]
        try:
            address = self._ray.get(place.address)
        except self._ray.exceptions.RayError as problem:
            if cause_of(problem) not in DEATHS or place.lives >= MOST_LIVES:
                raise ConfigurationError(f"a server could not be started: {problem}") from None
            self._doubts.look()
            self._ask(number)
            return
        self._found[number] = place.actor, address
        del self._waiting[number]

    def _move_misplaced(self) -> None:
        self._doubts.look()
        for number, place in list(self._waiting.items()):
            if time.monotonic() > place.asked_at + MOVED_AFTER and self._doubts.differ_from(place.avoids):
                self._ask(number)
