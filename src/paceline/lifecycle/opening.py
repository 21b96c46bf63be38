"""The first work of those who begin together.

They get it in the order of their seats, once each has asked, pushed something of its own, or left: so it does not hang
on who was first, and a run in which nobody is ahead is the same each time.
"""

from __future__ import annotations

from collections.abc import Iterable

from paceline.lifecycle.seats import Seat, State


class Opening:
    def __init__(self) -> None:
        self._awaited: dict[int, Seat] = {}  # they have not said anything yet
        self._asking: dict[int, Seat] = {}

    def begin(self, seats: Iterable[Seat]) -> None:
        self._awaited = {seat.index: seat for seat in seats}

    def ask(self, seat: Seat) -> None:
        """It asks for work, and is answered with the others; after the opening at once."""
        self._awaited.pop(seat.index, None)
        self._asking[seat.index] = seat

    def push(self, seat: Seat) -> None:
        """It has batches of its own."""
        self._awaited.pop(seat.index, None)

    def answered(self) -> list[Seat]:
        """Those that get an answer now, in order."""
        if not self._asking or any(seat.state is State.MEMBER for seat in self._awaited.values()):
            return []
        self._awaited.clear()
        asking, self._asking = self._asking, {}
        return [asking[index] for index in sorted(asking)]
