"""Turns what a run left behind into files that other programs open: a trace for ui.perfetto.dev, CSV, Parquet.

What can be read is exported, also of a run that goes on, was killed, or whose files are damaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from paceline.core.errors import ConfigurationError
from paceline.core.messages import Record
from paceline.experiment.configuration import CHECKPOINTS
from paceline.experiment.run_lock import somebody_is_at
from paceline.recording.lines import lines_of
from paceline.recording.observer import Observer
from paceline.recording.perfetto import PerfettoTrace
from paceline.recording.progress_log import Evaluation, Failure, Line, Logged, Measurement, read_line
from paceline.recording.table_files import PART, TableFiles, replaceable
from paceline.recording.tables import OF_A_TRACE, TraceTables, metrics_tables
from paceline.recording.trace import Trace, UnreadableTraceError, trace_in

TABLES = (*OF_A_TRACE, "measurements", "evaluations", "logged", "failures")
SUFFIX = ".perfetto-trace"


class Exporter:
    """The run in this directory, or of this trace. Export as often as you like; then `problem` and `note` are known."""

    def __init__(self, run: Path) -> None:
        """ConfigurationError if there is nothing to export."""
        path = trace_in(run) if run.is_dir() else run
        if path.is_file() and path.stat().st_size == 0:
            raise ConfigurationError(
                f"{path}: is empty: its run has not begun, or ended before; there is nothing to export"
            )
        self.directory = run if run.is_dir() else None
        self.name = (run if run.is_dir() else run.parent).resolve().name
        self.problem = ""  # why it is not all of the run: damage
        self._last = 0.0
        self._trace = Trace(path, allow_cut_off=True)
        self._metrics = self._read_metrics()
        if next(self._records(), None) is None:
            raise ConfigurationError(
                self.problem or f"{path}: nothing has happened in its run; there is nothing to export"
            )

    @property
    def note(self) -> str:
        """About a run that did not come to its end; "": it did, or `problem` says more."""
        if self.problem or not self._trace.cut_off:
            return ""
        going_on = self.directory is not None and somebody_is_at(self.directory)
        why = "the run goes on" if going_on else "the run was killed, or its process is on another machine"
        return f"{why}: exported is what is in its trace, the first {self._last:.1f} s"

    def export_perfetto(self, path: Path, *, force: bool = False) -> None:
        replaceable(path, force=force)
        part = path.with_name(path.name + PART)
        try:
            with part.open("wb") as file:
                title = f"{self.name} ({self._trace.header.policy})"
                perfetto = PerfettoTrace(title, file.write, self._checkpoints())
                self._tell(perfetto)
                perfetto.close(self._end)
            part.replace(path)
        except OSError as problem:
            raise ConfigurationError(f"{path}: cannot be written: {problem.strerror}; give another name") from None
        finally:
            part.unlink(missing_ok=True)

    def export_tables(self, files: TableFiles) -> None:
        """Tables that would have no row are left out, but for those of the trace."""
        policy = self._trace.header.policy
        try:
            for name, columns in OF_A_TRACE.items():
                files.begin(name, columns)
            tables = TraceTables(policy, files.give)
            self._tell(tables)
            tables.close(self._end)
            for name, (columns, rows) in metrics_tables(self._metrics, policy).items():
                if rows:
                    files.begin(name, columns)
                    for row in rows:
                        files.give(name, row)
            files.close()
        except OSError as problem:
            raise ConfigurationError(
                f"{files.directory}: cannot be written: {problem.strerror}; give another directory"
            ) from None
        finally:
            files.abandon()

    # -- reading --

    def _tell(self, observer: Observer) -> None:
        for record in self._records():
            observer.observe(record)
        for line in self._metrics:
            match line:
                case Measurement():
                    observer.measured(line)
                case Evaluation():
                    observer.evaluated(line)
                case Logged():
                    observer.logged(line)
                case Failure():
                    observer.worker_failed(line)
                case _:
                    pass

    def _records(self) -> Iterator[Record]:
        """Up to the first that cannot be read."""
        self._last = 0.0
        try:
            for record in self._trace:
                self._last = record.now
                yield record
        except UnreadableTraceError as damage:
            self.problem = f"{damage}; only what is before it, {self._last:.1f} s, can be exported"

    def _read_metrics(self) -> list[Line]:
        found: list[Line] = []
        path = None if self.directory is None else self.directory / "metrics.jsonl"
        if path is None or not path.is_file():
            return found  # of a simulation
        for number, line in enumerate(lines_of(path), start=1):
            if line.endswith(b"\n"):
                try:
                    found.append(read_line(line))
                except (msgspec.DecodeError, UnicodeDecodeError) as damage:
                    self.problem = f"{path}, line {number}: not a whole line: {damage}; such lines are left out"
        return found

    @property
    def _end(self) -> float:
        return self._last if self._trace.end is None else max(self._trace.end, self._last)

    def _checkpoints(self) -> set[int]:
        """After which updates there is one now; older ones are gone, and nothing tells of them."""
        directory = None if self.directory is None else self.directory / CHECKPOINTS
        if directory is None or not directory.is_dir():
            return set()
        return {int(path.name) for path in directory.iterdir() if path.name.isdecimal()}
