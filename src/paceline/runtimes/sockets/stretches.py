"""The stretches of a gradient that cross a connection ahead of the message that they belong to.

    frame   STRETCH, length of what stands before the numbers, length of the numbers; whether it is the first of a
            gradient (1 byte) and where it begins (8); the numbers

What has crossed counts for nothing until a message comes that says so, and is whole then or breaks the rules: no two
stretches of one gradient overlap, and together they are all of it. The first of another gradient ends one that no
message came for.
"""

from __future__ import annotations

import struct
from bisect import bisect
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

PLACE = struct.Struct("<?Q")


class Stretches:
    """Parts of a row of bytes, of which no two overlap."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._begins)

    @property
    def are_all(self) -> bool:
        return self._bytes == self._size

    def add(self, begin: int, end: int) -> None:
        """ValueError: it is empty, or beyond the row, or overlaps with another."""
        at = bisect(self._begins, begin)
        if not 0 <= begin < end <= self._size:
            raise ValueError(f"a stretch from {begin} to {end} of {self._size} bytes")
        if (at and self._ends[at - 1] > begin) or (at < len(self._begins) and self._begins[at] < end):
            raise ValueError(f"a stretch from {begin} to {end} overlaps with another")
        self._begins.insert(at, begin)
        self._ends.insert(at, end)
        self._bytes += end - begin

    def gaps(self) -> Iterator[tuple[int, int]]:
        """From where to where there are none."""
        for end, begin in zip([0, *self._ends], [*self._begins, self._size], strict=True):
            if end < begin:
                yield end, begin

    def clear(self) -> None:
        self._begins.clear()
        self._ends.clear()
        self._bytes = 0


class Arriving:
    """Where they arrive."""

    def __init__(self, gradient: memoryview) -> None:
        self._gradient = gradient
        self._here = Stretches(len(gradient))

    def place_for(self, said: bytes, size: int) -> memoryview:
        """Where so many bytes belong; ValueError: nowhere."""
        if len(said) != PLACE.size:
            raise ValueError(f"{len(said)} bytes for the place of a stretch")
        first, begin = PLACE.unpack(said)
        if first:
            self._here.clear()
        self._here.add(begin, begin + size)
        return self._gradient[begin : begin + size]

    def take(self, *, all_of_it: bool) -> None:
        """A message about a gradient is here, and says whether all of it came ahead; ValueError: it did not."""
        if all_of_it and not self._here.are_all:
            raise ValueError("a gradient of which a part is missing")
        self._here.clear()


class Stretch(NamedTuple):
    place: bytes
    numbers: memoryview


class Leaving:
    """Where they leave. One thread says what may go; whoever sends takes it, in this order."""

    def __init__(self, gradient: memoryview) -> None:
        self._gradient = gradient
        self._gone = Stretches(len(gradient))  # or on their way
        self._waiting: deque[Stretch] = deque()
        self._counts = False

    def add(self, begin: int, end: int) -> None:
        """These bytes are final."""
        stretch = Stretch(PLACE.pack(not self._gone, begin), self._gradient[begin:end])
        self._gone.add(begin, end)
        self._waiting.append(stretch)

    @property
    def holds_any(self) -> bool:
        """Whether there is something to drop."""
        return self._counts or bool(self._gone)

    @property
    def counts(self) -> bool:
        """Whether the next message is about a gradient of which some has gone."""
        return self._counts and bool(self._gone)

    def keep(self) -> None:
        """What was added is right, and belongs to the next message."""
        self._counts = True

    def drop(self) -> None:
        """What was added counts for nothing; what has not left yet stays here."""
        self._waiting.clear()
        self._gone.clear()
        self._counts = False

    def taken(self) -> Iterator[Stretch]:
        """Those that wait, which then are the caller's to send."""
        while self._waiting:
            yield self._waiting.popleft()

    def add_the_rest(self) -> None:
        """All of the gradient is final."""
        for begin, end in list(self._gone.gaps()):
            self.add(begin, end)
        self._gone.clear()
        self._counts = False
