"""What a page that follows a run is told: everything at first, and then what has changed.

A run that goes on is read as it grows. One that has ended is read once, as for a report; so is one whose trace is
damaged.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import NamedTuple

import msgspec

from paceline.core.errors import ConfigurationError
from paceline.core.messages import Record
from paceline.dashboard.broadcast import Message
from paceline.experiment.configuration import Configuration, read_configuration
from paceline.experiment.run_list import glance
from paceline.experiment.run_report import read_run
from paceline.experiment.run_seen import Facts, Seen
from paceline.experiment.run_status import RunReader
from paceline.recording.lines import GrowingLines
from paceline.recording.progress_log import read_line
from paceline.recording.status import GOING_ON, KILLED, RUNNING, STOPPED, RunStatus, as_text
from paceline.recording.trace import Trace, trace_in
from paceline.report.contents import Advice, Contents
from paceline.report.followed_page import build
from paceline.report.now_view import now_view
from paceline.report.sections import charts_of, words_of
from paceline.report.status import setting

EVERYTHING = 1 << 62
AT_ONCE = 1 << 22  # bytes of a trace that are in memory
TICK = 1e-4  # seconds; of moments in charts
PICTURE = 200  # curves are told again when they have grown by one part in so many
FIRST_ADVICE = 400  # pushes
TRIES = 3  # at a trace that cannot be followed: it may just be cut, by a run that goes back to a checkpoint
DAMAGED = (ConfigurationError, LookupError, ArithmeticError, ValueError, MemoryError, msgspec.DecodeError)


class Growing:
    """A run that goes on: its files are read on from where they ended before."""

    def __init__(self, directory: Path, price: float | None) -> None:
        self._directory, self._price = directory, price
        self._trace = GrowingLines(trace_in(directory), EVERYTHING)
        self._metrics = GrowingLines(directory / "metrics.jsonl", EVERYTHING)
        self._header = Trace(trace_in(directory)).header
        self._told: Configuration | None = None
        self.seen = Seen(directory, Trace(trace_in(directory)))
        self._advice: Advice | None = None
        self._next_advice = FIRST_ADVICE

    @property
    def was_cut(self) -> bool:
        """It went back to a checkpoint."""
        return self._trace.was_cut or self._metrics.was_cut

    def look(self, status: RunStatus) -> tuple[Contents, float]:
        """What there is by now, and when that is."""
        if self._header.updates is None:
            self._header = Trace(trace_in(self._directory)).header
        if self._told is None:
            with contextlib.suppress(ConfigurationError):  # it may just be written, or be one of a simulation
                self._told = read_configuration(self._directory)
        decode = msgspec.json.Decoder(Record).decode
        while lines := self._trace.new(AT_ONCE):
            for line in lines:
                if line.startswith(b'{"now"'):
                    self.seen.observe(decode(line))
        with contextlib.suppress(FileNotFoundError):
            self.seen.lines += [read_line(line) for line in self._metrics.new() if line]
        end = max(self.seen.end, status.seconds)
        self._ask_for_advice(end)
        facts = Facts(self._directory, self._told, status.state, self._header, self._price)
        course = {"marks": self.seen.course.marks}  # a page is told the rest piece by piece
        return self.seen.contents(end, facts, course, self._advice, []), end

    def _ask_for_advice(self, end: float) -> None:
        """Early, and again whenever the run is twice as long: it takes seconds, for which nobody shall wait."""
        if self.seen.times.pushes >= self._next_advice:
            self._next_advice = 2 * self.seen.times.pushes
            threading.Thread(target=self._be_advised, args=(self.seen.advice(end),), daemon=True).start()

    def _be_advised(self, find: Callable[[], Advice | None]) -> None:
        advice = find()
        if self._advice is None or (advice is not None and advice.until > self._advice.until):
            self._advice = advice


class _Picture(NamedTuple):
    """A run as it was at the last look."""

    contents: Contents
    end: float
    words: dict[str, str]
    charts: list[str]
    controls: Message | None


class RunFeed:
    def __init__(self, directory: Path, price: float | None = None, *, steers: bool = True) -> None:
        """`steers`: whoever sees it may also change it."""
        self._directory, self._price, self._steers = directory, price, steers
        self._reader: RunReader | None = None
        self._growing: Growing | None = None
        self._damaged = 0  # times in a row that its trace could not be followed, though it goes on
        self._still: tuple[object, ...] = ()  # what the run that was read as a whole looked like from outside
        self._picture: _Picture | None = None
        self._problem = ""
        self._points = 0  # of curves that were told

    def look(self) -> Message | None:
        before, growing = self._picture, self._growing
        try:
            status = self._status()
            if not self._has_changed(status):
                return None
            self._picture = self._seen_now(status)
        except (ConfigurationError, OSError) as problem:
            self._picture, self._growing, self._problem = None, None, as_text(problem)
            self._still = ()  # it may be readable again without having changed
            return self.whole()
        if self._growing is None:
            return self.whole()
        # Asked for in any case: it begins where it ended the last time, and the whole is told up to now.
        news = self._news({} if before is None else before.words, self._picture, self._growing)
        return self.whole() if before is None or self._growing is not growing else news

    def whole(self) -> Message:
        picture = self._picture
        if picture is None:
            return {"build": build(), "problem": self._problem}
        course = picture.contents.course
        if self._growing is not None:
            course = self._growing.seen.course.data(picture.end, TICK)
        return {
            "build": build(),
            "whole": True,
            "name": picture.contents.name,
            "policy": picture.contents.summary.policy,
            "words": picture.words,
            "charts": picture.charts,
            "controls": picture.controls,
            "course": course,
            "curves": picture.contents.curves,
        }

    # -- looking --

    def _status(self) -> RunStatus:
        try:
            if self._reader is None:
                self._reader = RunReader(self._directory)
            return self._reader.look()
        except DAMAGED:
            self._reader = None
            return glance(self._directory)

    def _has_changed(self, status: RunStatus) -> bool:
        """A run that goes on always has."""
        if status.state in GOING_ON:
            self._still = ()
            return True
        self._damaged = 0
        files = [path for path in (trace_in(self._directory), self._directory / "metrics.jsonl") if path.exists()]
        marks = [(path.stat().st_mtime_ns, path.stat().st_size) for path in files]
        still = (status.state, *marks, *([] if self._directory.is_dir() else ["gone"]))
        changed, self._still = still != self._still, still
        return changed

    def _seen_now(self, status: RunStatus) -> _Picture:
        found = self._grown(status) if status.state == RUNNING else None
        if found is None:
            self._growing = None
            contents = read_run(self._directory, self._price)
            found = contents, contents.summary.seconds
        contents, end = found
        words = words_of(contents)
        if status.state in (*GOING_ON, STOPPED, KILLED):
            words["now"] = now_view(status, steers=self._steers and status.state in GOING_ON)
        if status.state in GOING_ON:
            words["about"] = escape(", ".join(setting(status)))
        controls = None
        if self._steers and status.state in GOING_ON:
            controls = {"workers": len(status.workers) + status.unseen, "policy": status.policy}
        return _Picture(contents, end, words, sorted(charts_of(contents)), controls)

    def _grown(self, status: RunStatus) -> tuple[Contents, float] | None:
        """None: it cannot be followed, but perhaps be read."""
        if self._damaged >= TRIES:
            return None
        try:
            if self._growing is None or self._growing.was_cut:
                self._growing, self._points = Growing(self._directory, self._price), 0
            found = self._growing.look(status)
        except DAMAGED:
            self._damaged += 1
            return None
        self._damaged = 0
        return found

    def _news(self, before: Mapping[str, str], now: _Picture, growing: Growing) -> Message:
        words = {
            part: now.words.get(part, "") for part in {**before, **now.words} if now.words.get(part) != before.get(part)
        }
        news: Message = {
            "words": words,
            "charts": now.charts,
            "controls": now.controls,
            "course": growing.seen.course.news(now.end, TICK),
        }
        points = len(growing.seen.lines) + growing.seen.course.chosen
        if points > self._points * (1 + 1 / PICTURE):
            news["curves"], self._points = now.contents.curves, points
        return news
