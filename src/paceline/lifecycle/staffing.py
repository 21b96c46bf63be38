"""How many processes a group should have, and whether one that died is replaced."""

from __future__ import annotations

MOST_REPLACEMENTS = 3  # in a row that die before anybody pushes


class Staffing:
    def __init__(self, workers: int, least: int | None = None, most: int | None = None, restarts: int = 0) -> None:
        """`least`: never fewer, and those that die are replaced. `restarts`: so many deaths are replaced in a group of
        a fixed size; afterwards, and without either, the others go on alone. `most`: that anybody may ask for."""
        self.wanted = workers
        self._least = least
        self._most = most
        self._room = most  # what a cluster may offer: up to what somebody asked for, once somebody did
        self._restarts = restarts
        self._in_a_row = 0

    @property
    def least(self) -> int:
        """The group must keep so many."""
        return self._least or 1

    def ask_for(self, workers: int) -> None:
        self.wanted = max(self.least, min(workers, self._most or workers))

    def limit_to(self, workers: int) -> None:
        """Somebody asked for so many: it stays at that, whatever a cluster offers."""
        self.ask_for(workers)
        self._room = None if self._most is None else self.wanted

    def may_grow(self, active: int) -> bool:
        """Whether one more may come to so many, where nobody asked for it."""
        return self._room is not None and active < self._room

    def replaces(self, active: int) -> bool:
        """A process died that had work to do, and so many are left: whether another takes its place."""
        if active >= self.wanted or (self._least is None and self._restarts == 0):
            return False
        if self._least is None:
            self._restarts -= 1
        self._in_a_row += 1
        return True

    def stand_in(self) -> None:
        """Another takes the place of those that could not know that there would be more to do."""
        self._in_a_row += 1

    @property
    def hopeless(self) -> bool:
        """Whether those that take somebody's place die as well."""
        return self._in_a_row > MOST_REPLACEMENTS

    def note_push(self) -> None:
        self._in_a_row = 0
