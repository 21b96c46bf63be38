"""Times in which the server itself stood still: nobody can be blamed for having said nothing meanwhile."""

from __future__ import annotations

from collections.abc import Callable

LONG = 1.0  # seconds


class OwnPauses:
    def __init__(self, usual: float, forgive: Callable[[float], None]) -> None:
        """`usual`: seconds between two looks at the most; `forgive`: called with the seconds of a pause."""
        self._usual, self._forgive = usual, forgive
        self._looked_at = 0.0

    def look(self, now: float) -> None:
        pause = now - self._looked_at - self._usual
        self._looked_at = now
        if pause > LONG:
            self._forgive(pause)
