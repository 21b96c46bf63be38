"""The runs that a page may show: those below a directory, or one alone. What did not change is not read again."""

from __future__ import annotations

import threading
from pathlib import Path

from paceline.core.errors import ConfigurationError
from paceline.dashboard.broadcast import Message
from paceline.experiment.run_list import find_runs, glance
from paceline.experiment.run_lock import somebody_is_at
from paceline.recording.status import GOING_ON, RunStatus
from paceline.recording.trace import trace_in
from paceline.report.followed_page import build, name_of, runs_view


class Shelf:
    def __init__(self, below: Path, only: Path | None = None) -> None:
        self.below, self._only = below, only
        self._known: dict[Path, tuple[tuple[object, ...], RunStatus]] = {}
        self._alone = threading.Lock()  # a page and Prometheus may ask at once

    def find(self, name: str) -> Path | None:
        """The run of this name: its path from the directory on. Names are compared, and no path is made of one."""
        return next((run for run in self._runs() if name_of(run, self.below) == name), None)

    def statuses(self) -> list[RunStatus]:
        """Those that go on first, then the newest."""
        with self._alone:
            runs = self._runs()
            found = [self._status(run) for run in runs]
            self._known = {run: self._known[run] for run in runs}
        return sorted(found, key=lambda status: status.state not in GOING_ON)

    def _runs(self) -> list[Path]:
        return find_runs(self.below).runs if self._only is None else [self._only]

    def _status(self, run: Path) -> RunStatus:
        marks = _marks(run)
        known = self._known.get(run)
        if known is None or known[0] != marks or known[1].state in GOING_ON:
            known = self._known[run] = marks, glance(run)
        return known[1]


def _marks(run: Path) -> tuple[object, ...]:
    found: list[object] = [somebody_is_at(run)]
    for path in (trace_in(run), run / "metrics.jsonl"):
        try:
            about = path.stat()
            found.append((about.st_mtime_ns, about.st_size))
        except OSError:
            found.append(None)
    return tuple(found)


class ShelfFeed:
    """What a page about all runs is told."""

    def __init__(self, shelf: Shelf, token: str) -> None:
        self._shelf, self._token = shelf, token
        self._view = self._problem = ""

    def look(self) -> Message | None:
        before = self._view, self._problem
        try:
            self._view = runs_view(self._shelf.statuses(), self._shelf.below, self._token)
            self._problem = ""
        except ConfigurationError as problem:  # what was there is still shown
            self._problem = str(problem)
        return self.whole() if (self._view, self._problem) != before else None

    def whole(self) -> Message:
        return {"build": build(), "words": {"runs": self._view}, "problem": self._problem}
