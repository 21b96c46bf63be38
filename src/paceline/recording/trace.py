"""The log of a run: one header, one JSON line per event with its commands, one closing line.

Everything that people look at afterwards is computed from this file, and a replay needs nothing else.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from paceline.core.errors import ConfigurationError, PacelineError, TraceError
from paceline.core.messages import Record as Record
from paceline.core.messages import UpdateRule
from paceline.recording.lines import COMPRESSED, LinesWriter, lines_of, write_privately
from paceline.recording.observer import Observer

if TYPE_CHECKING:
    from paceline.recording.progress_log import Measurement

FORMAT = "paceline-trace-1"
FLUSH_EVERY = 1.0  # seconds
NAME = "trace.jsonl"


def trace_in(run_dir: Path) -> Path:
    """Where the trace of a run is, compressed or not, or would be."""
    compressed = run_dir / (NAME + COMPRESSED)
    return compressed if compressed.exists() else run_dir / NAME


def _meant(path: Path) -> str:
    """A hint, if it is a directory of runs that was taken for a run."""
    runs = sorted(found.parent for found in path.parent.glob(f"*/{NAME}*"))
    if runs:
        return f"; there are runs below, the newest is {runs[-1]}"
    return "; is this a run directory?" if path.name == NAME else ""


class Header(msgspec.Struct, frozen=True, omit_defaults=True):
    format: str
    policy: str = ""
    updates: UpdateRule | None = None  # how they are made, in a run that trains


class Closing(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last line: how long the run took, and how many records there must be."""

    end: float
    records: int
    why: str = ""  # it ended before its work was done


class RecordingError(PacelineError):
    """What a run should leave behind cannot be written; the message says where and why."""


class TraceWriter(Observer):
    """Writes a trace as the run goes on. Without `close` it has no closing line and reads as cut off.

    The file is at most a second behind a run that is measured a few times a second, as real runs are: what is written
    goes to disk with every measurement, and with a record that comes a second after the last time.
    """

    def __init__(
        self, path: Path, policy: str, clock: Callable[[], float] = time.monotonic, *, after: int | None = None
    ) -> None:
        """`after`: go on after so many bytes of the file that is there; see `cut_to`."""
        self._path = path
        self.failed = False
        try:
            self._file = LinesWriter(path, append=after is not None)
        except OSError as problem:
            raise ConfigurationError(f"{path}: cannot be written: {problem.strerror}") from None
        self._encoder = msgspec.json.Encoder()
        self._clock = clock
        self._records = 0
        self._header = Header(FORMAT, policy)
        self._goes_on = after is not None
        if after is None:
            self._write_header()
        else:
            lines = lines_of(path)
            self._header = msgspec.json.decode(next(lines), type=Header)
            self._records = sum(1 for _ in lines)
            self._flush()

    @property
    def bytes(self) -> int:
        """That are in the file so far; it may be cut there."""
        try:
            return self._file.end_member()
        except OSError as problem:
            self._fail(problem)

    def begun(self, rule: UpdateRule) -> None:
        """Known before the first record is written: the header is written anew."""
        if self._goes_on:
            if self._header.updates != rule:
                raise ConfigurationError(
                    f"{self._path}: its updates were made with {self._header.updates}, and would go on with {rule}"
                )
            return
        self._file.begin_again()
        self._header = msgspec.structs.replace(self._header, updates=rule)
        self._write_header()

    def _write_header(self) -> None:
        self._write(self._header)
        self._flush()

    def observe(self, record: Record) -> None:
        self._write(record)
        self._records += 1
        if self._clock() >= self._flushed_at + FLUSH_EVERY:
            self._flush()

    def measured(self, measurement: Measurement) -> None:
        self._flush()

    def close(self, end: float, why: str = "") -> None:
        """`why`: before its work was done."""
        self._write(Closing(end, self._records, why))
        if not self.failed:
            try:
                self._file.close()
            except OSError as problem:
                self._fail(problem)

    def _flush(self) -> None:
        self._flushed_at = self._clock()
        if not self.failed:
            try:
                self._file.flush()
            except OSError as problem:
                self._fail(problem)

    def _write(self, line: msgspec.Struct) -> None:
        if not self.failed:
            try:
                self._file.write(self._encoder.encode(line) + b"\n")
            except OSError as problem:
                self._fail(problem)

    def _fail(self, problem: OSError) -> NoReturn:
        """Once: whatever ends the run after this shall not be about the same again."""
        self.failed = True
        with contextlib.suppress(OSError):  # what it still holds cannot be written either
            self._file.close()
        raise RecordingError(f"{self._path}: cannot be written: {problem.strerror}") from None


def cut_to(path: Path, size: int) -> Path | None:
    """Cut a file of lines to so many bytes, and keep what was after them beside it: work that was lost with a crash.

    A compressed file can be cut where `bytes` of its writer said.
    """
    with path.open("r+b") as file:
        if file.seek(0, os.SEEK_END) < size:
            raise ConfigurationError(f"{path}: is shorter than the checkpoint says: it is of another run")
        file.seek(size)
        lost = file.read()
        file.truncate(size)
    if not lost:
        return None
    for number in itertools.count(1):
        stem, _, suffixes = path.name.partition(".")
        beside = path.with_name(f"{stem}.lost-{number}.{suffixes}")
        if not beside.exists():
            break
    write_privately(beside, lost)
    return beside


class UnreadableTraceError(TraceError, ConfigurationError):
    """There is no whole trace where the user said: wrong input, not a run that went wrong."""


class Trace:
    """A trace file, read lazily: iterating it gives the records; `end` and `records` are known once all were read."""

    def __init__(self, path: Path, *, allow_cut_off: bool = False) -> None:
        """`allow_cut_off`: take a trace whose run was killed; its end is then the time of its last whole record."""
        self.path = path
        self.end: float | None = None
        self.records: int | None = None
        self.cut_off = False  # there is no closing line
        self.why = ""  # the run ended before its work was done
        self._allow_cut_off = allow_cut_off
        try:
            first = next(lines_of(path), b"")
        except OSError as problem:
            raise UnreadableTraceError(f"{path}: cannot be read: {problem.strerror}{_meant(path)}") from None
        try:
            self.header = msgspec.json.decode(first, type=Header)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise UnreadableTraceError(f"{path}, line 1: this is not a paceline trace") from None
        if self.header.format != FORMAT:
            raise UnreadableTraceError(
                f"{path}, line 1: format {self.header.format!r} is unknown here; this paceline reads {FORMAT!r}"
            )

    def __iter__(self) -> Iterator[Record]:
        decoder = msgspec.json.Decoder(Record)
        count, last = 0, 0.0
        lines = lines_of(self.path)
        next(lines)
        for number, line in enumerate(lines, start=2):
            if self._allow_cut_off and not line.endswith(b"\n"):
                break
            if line.startswith(b'{"end"'):
                self._close(line, number, count)
                if next(lines, None) is not None:
                    raise UnreadableTraceError(f"{self.path}, line {number + 1}: there is more after the closing line")
                return
            try:
                record = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as problem:
                raise UnreadableTraceError(f"{self.path}, line {number}: not a whole record: {problem}") from None
            count, last = count + 1, record.now
            yield record
        if not self._allow_cut_off:
            raise UnreadableTraceError(
                f"{self.path}, line {count + 2}: the trace is cut off: its closing line is missing"
            )
        self.end, self.records, self.cut_off = last, count, True

    def _close(self, line: bytes, number: int, count: int) -> None:
        try:
            closing = msgspec.json.decode(line, type=Closing)
        except (msgspec.DecodeError, UnicodeDecodeError) as problem:
            raise UnreadableTraceError(f"{self.path}, line {number}: not a whole closing line: {problem}") from None
        if closing.records != count:
            raise UnreadableTraceError(
                f"{self.path}, line {number}: {closing.records} records were written, {count} are here"
            )
        self.end, self.records, self.why = closing.end, count, closing.why
