"""Times in which the server itself stood still: nobody can be blamed for having said nothing meanwhile."""

from __future__ import annotations

from collections.abc import Callable

LONG = 1.0  # seconds


class OwnPauses:
    def __init__(self, usual: float, forgive: Callable[[float], None]) -> None:
        """`usual`: seconds between two looks at the most; `forgive`: called with the seconds of a pause."""
        self._usual, self._forgive = usual, forgive
        self._looked_at: float | None = None

    def look(self, now: float) -> None:
        before, self._looked_at = self._looked_at, now
        pause = 0.0 if before is None else now - before - self._usual
        if pause > LONG:
            self._forgive(pause)
