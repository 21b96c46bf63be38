"""Carries gradients to those who are to have them, and stretches of one while its worker still computes the rest.

A whole gradient is sent from where it lies. For stretches that go ahead there is a thread of its own, so that the
backward pass never waits for a wire; it begins with the first of them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from paceline.runtimes.serving.channel import ClosedError
from paceline.runtimes.sockets.channel import SocketChannel
from paceline.runtimes.sockets.places import GRADIENT, bytes_of, places_in
from paceline.runtimes.sockets.stretches import Leaving
from paceline.runtimes.sockets.waiting import ready
from paceline.training.layout import Segment

PATIENCE = 1.0  # seconds between two looks at whether it is all over


class Way(NamedTuple):
    """A connection, and which numbers of the gradient go there."""

    channel: SocketChannel[Any, Any]
    begin: int
    end: int


class Courier:
    def __init__(self, ways: Sequence[Way], segment: Segment) -> None:
        self._ways, self._item = ways, segment.gradient.element_size()
        self._carries_all = sum(way.end - way.begin for way in ways) == segment.layout.parameter_count
        self._leaving = [Leaving(places_in(segment, way.begin, way.end)[GRADIENT]) for way in ways]
        for way, leaving in zip(ways, self._leaving, strict=True):
            way.channel.send_ahead(leaving)
        self._thread: threading.Thread | None = None
        self._called, self._over = threading.Event(), False

    # -- as a worker's gradients ask --

    def send(self, begin: int, end: int) -> None:
        for way, leaving in zip(self._ways, self._leaving, strict=True):
            first, last = max(begin, way.begin) - way.begin, min(end, way.end) - way.begin
            if first < last:
                leaving.add(first * self._item, last * self._item)
        if self._thread is None:
            self._thread = threading.Thread(target=self._carry, daemon=True, name="paceline gradients")
            self._thread.start()
        self._called.set()

    def keep(self) -> None:
        for leaving in self._leaving:
            leaving.keep()

    def drop(self) -> None:
        for way in self._ways:
            way.channel.drop_gradient()

    def lend(self, gradients: Sequence[Tensor]) -> bool:
        """False also where somebody on this host sees the segment, and has nothing sent."""
        if self._carries_all:
            numbers = [bytes_of(gradient) for gradient in gradients]
            for way in self._ways:
                way.channel.lend_gradient(_cut(numbers, way.begin * self._item, way.end * self._item))
        return self._carries_all

    def busy(self) -> float | None:
        return max((seconds for way in self._ways if (seconds := way.channel.busy()) is not None), default=None)

    def close(self) -> None:
        self._over = True
        self._called.set()

    # -- the thread --

    def _carry(self) -> None:
        """Until it is over, or nobody takes anything any more: the worker sees that for itself."""
        try:
            while self._called.wait() and not self._over:
                self._called.clear()
                for way in self._ways:
                    way.channel.flush_stretches()
                while not self._over and (unsent := self._unsent()):
                    for descriptor in ready((), unsent, PATIENCE)[1]:
                        unsent[descriptor].flush_stretches()
        except (ClosedError, OSError, ValueError):
            return

    def _unsent(self) -> dict[int, SocketChannel[Any, Any]]:
        return {way.channel.writing: way.channel for way in self._ways if way.channel.has_unsent}


def _cut(pieces: Sequence[memoryview], begin: int, end: int) -> list[memoryview]:
    """What lies from one byte to another of these pieces, one after another."""
    found, at = [], 0
    for piece in pieces:
        part = piece[max(begin - at, 0) : max(end - at, 0)]
        if len(part):
            found.append(part)
        at += len(piece)
    return found
