"""The first work of those who begin together.

They get it in the order of their seats, once each has asked, pushed something, or left: so it does not hang on who was
first, and a run in which nobody is ahead is the same each time. One whose first gradient is made of several batches
asks again, and again all are answered together; from its first push on it is known how many it needs, and they come
along with the parameters.
"""

from __future__ import annotations

from collections.abc import Iterable

from paceline.lifecycle.seats import Seat, State


class Opening:
    def __init__(self) -> None:
        self._opening: dict[int, Seat] = {}  # they have not pushed anything yet
        self._asking: dict[int, Seat] = {}

    def begin(self, seats: Iterable[Seat]) -> None:
        self._opening = {seat.index: seat for seat in seats}

    def ask(self, seat: Seat) -> None:
        """It asks for work, and is answered with the others; after the opening at once."""
        self._asking[seat.index] = seat

    def push(self, seat: Seat) -> None:
        """Its first gradient is done."""
        self._opening.pop(seat.index, None)

    def answered(self) -> list[Seat]:
        """Those that get an answer now, in order."""
        if not self._asking:
            return []
        awaited = (seat for seat in self._opening.values() if seat.index not in self._asking)
        if any(seat.state is State.MEMBER for seat in awaited):
            now = [index for index in self._asking if index not in self._opening]
        else:
            now = list(self._asking)
        return [self._asking.pop(index) for index in sorted(now)]
