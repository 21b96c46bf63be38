"""Processes that have no work left may take their time, unless somebody stopped them with a signal: the run would never
end."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.lifecycle.lifecycle import Lifecycle
from paceline.lifecycle.seats import State
from paceline.runtimes.serving.launching import Started


class StoppedProcesses:
    def __init__(self, lifecycle: Lifecycle, processes: Mapping[int, Started]) -> None:
        self.ended: set[int] = set()  # seats whose process was to be ended for it
        self._lifecycle = lifecycle
        self._processes = processes
        self._since: dict[int, float] = {}  # by seat

    def to_end(self, now: float) -> list[int]:
        """Seats whose process has stood still for too long, when nobody else is waited for."""
        silence, waited_for = self._lifecycle.silence, self._lifecycle.active
        if silence is None or any(seat.state is not State.FINISHING for seat in waited_for):
            return []
        for seat in waited_for:
            if not self._processes[seat.index].stopped:
                self._since.pop(seat.index, None)
            else:
                self._since.setdefault(seat.index, now)
        found = [seat for seat, since in self._since.items() if now - since > silence.patience.least]
        self.ended.update(found)
        return found
