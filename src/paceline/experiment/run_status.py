"""Reads what a run tells, from its directory alone: that costs the run nothing, and works after its end."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from itertools import islice
from pathlib import Path
from typing import TypeVar

import msgspec

from paceline.core.errors import ConfigurationError
from paceline.core.messages import DataOpened, Record
from paceline.experiment.configuration import CHECKPOINTS, CONFIGURATION, MODEL, Configuration, read_configuration
from paceline.experiment.run_lock import somebody_is_at
from paceline.recording.lately import Lately
from paceline.recording.lines import GrowingLines, lines_of
from paceline.recording.progress_log import Evaluation, Failure, Measurement, read_line
from paceline.recording.status import (
    FINISHED,
    GOING_ON,
    KILLED,
    RUNNING,
    STARTING,
    STOPPED,
    CheckpointStatus,
    RunStatus,
)
from paceline.recording.trace import Closing, Header, Trace, UnreadableTraceError, trace_in

LATELY = 30.0  # seconds that the figures of a run that goes on are over
MOST_OF_TRACE = 16 << 20  # bytes that are read of its end
EVALUATIONS = 3  # that are told
OPENED_WITHIN = 5_000  # lines: the data set is opened when the first workers have joined
T = TypeVar("T")
TOLD = (b'{"type":"Measurement"', b'{"type":"Evaluation"', b'{"type":"Failure"')


def is_run(directory: Path) -> bool:
    return trace_in(directory).is_file() or (directory / CONFIGURATION).is_file()


class RunReader:
    """The run in one directory. `look` as often as you like: only what is new is read."""

    def __init__(self, directory: Path, most: int = MOST_OF_TRACE, most_of_metrics: int = 1 << 40) -> None:
        """ConfigurationError if there is no run, or one that this paceline cannot read."""
        if not directory.is_dir():
            wrong = "is a file; give the directory of a run" if directory.exists() else "there is no such directory"
            raise ConfigurationError(f"{directory}: {wrong}")
        if not is_run(directory):
            below = sorted((path for path in directories(directory) if is_run(path)), key=began)
            hint = f"; there are runs below, the newest is {below[-1]}" if below else ""
            raise ConfigurationError(f"{directory}: is not a run directory{hint}")
        self.directory = directory
        self._most, self._most_of_metrics = most, most_of_metrics
        self._begin(somebody_is_at(directory))

    def _begin(self, held: bool) -> None:
        self._held = held
        self._configuration = self._configured()
        self._trace = GrowingLines(trace_in(self.directory), self._most)
        self._metrics = GrowingLines(self.directory / "metrics.jsonl", self._most_of_metrics)
        self._header: Header | None = None
        self._lately: Lately | None = None
        self._closing: Closing | None = None
        self._opened: DataOpened | None = None
        self._measurement: Measurement | None = None
        self._evaluations: deque[Evaluation] = deque(maxlen=EVALUATIONS)
        self._failures: list[Failure] = []

    def _configured(self) -> Configuration | None:
        if not (self.directory / CONFIGURATION).exists():
            return None
        try:
            return read_configuration(self.directory)
        except ConfigurationError:
            if self._held:  # it is being written
                return None
            raise

    def look(self, now: float | None = None) -> RunStatus:
        """`now`: seconds since 1970; None: as the clock says."""
        held = somebody_is_at(self.directory)
        if held != self._held or self._trace.was_cut or self._metrics.was_cut:
            self._begin(held)
        self._read_trace()
        self._read_metrics()
        return self._status(time.time() if now is None else now)

    # -- reading --

    def _read_trace(self) -> None:
        path = trace_in(self.directory)
        if self._header is None or self._header.updates is None:
            try:
                self._header = Trace(path, allow_cut_off=True).header
                self._configuration = self._configured()
            except UnreadableTraceError:
                if not path.exists() or (self._held and path.stat().st_size == 0):
                    return  # it has not begun
                raise
        lines = self._trace.new()
        if self._lately is None:
            self._lately = Lately(LATELY if self._held else None, from_the_start=self._trace.from_the_start)
        decoder = msgspec.json.Decoder(Record)
        for line in lines:
            if line.startswith(b'{"now"'):
                self._lately.observe(_decoded(decoder, line, path))
            elif line.startswith(b'{"end"'):
                self._closing = _decoded(msgspec.json.Decoder(Closing), line, path)
        self._opened = self._lately.opened or self._opened
        if self._opened is None and not self._trace.from_the_start:
            self._opened = _opened_in(path)

    def _read_metrics(self) -> None:
        try:
            lines = self._metrics.new()
        except FileNotFoundError:  # of a simulation, or one that has not begun
            return
        for line in lines:
            if line.startswith(TOLD):
                try:
                    told = read_line(line)
                except (msgspec.DecodeError, UnicodeDecodeError) as problem:
                    raise ConfigurationError(f"{self.directory / 'metrics.jsonl'}: is damaged: {problem}") from None
                match told:
                    case Measurement():
                        self._measurement = told
                    case Evaluation():
                        self._evaluations.append(told)
                    case Failure():
                        self._failures.append(told)
                    case _:
                        pass

    # -- telling --

    def _status(self, clock: float) -> RunStatus:
        lately = self._lately or Lately(None, from_the_start=True)
        configuration, measurement = self._configuration, self._measurement
        state = self._state(lately)
        seconds = max(lately.now, 0.0 if measurement is None else measurement.seconds)
        if self._closing is not None:
            seconds = max(seconds, self._closing.end)
        rule = None if self._header is None else self._header.updates
        if lately.changed is not None and lately.changed.updates is not None:
            rule = lately.changed.updates
        first = self._first_policy()
        policy, by = first, ""
        if lately.changed is not None:
            policy, by = lately.changed.policy, lately.changed.by
        elif measurement is not None and measurement.policy:
            policy, by = measurement.policy, measurement.chosen_by
        members = lately.workers(seconds, ended=state not in GOING_ON)
        present = 0 if measurement is None or state not in GOING_ON else measurement.workers
        samples, asked = self._samples(lately), self._samples_asked()
        rate = lately.rate(seconds)
        return RunStatus(
            run=str(self.directory),
            state=state,
            began=began(self.directory),
            policy=policy,
            began_with="" if policy == first else first,
            chosen_by=by,
            optimizer="" if rule is None else rule.optimizer,
            correction="" if rule is None or (policy != first and lately.changed is None) else rule.correction,
            cluster=_cluster_of(configuration),
            workers_asked=None if configuration is None else configuration.group.workers,
            seconds=seconds,
            samples=samples,
            samples_asked=asked,
            updates=self._updates(lately),
            samples_per_second=rate,
            seconds_left=self._seconds_left(samples, asked, rate, seconds) if state == RUNNING else None,
            since=lately.since(seconds),
            workers=members,
            unseen=max(0, present - len(members)) if not self._trace.from_the_start else 0,
            measurement=measurement,
            evaluations=tuple(self._evaluations),
            failures=tuple(self._failures),
            checkpoint=_checkpoint_in(self.directory, clock),
            why="" if self._closing is None or state != STOPPED else self._closing.why,
        )

    def _state(self, lately: Lately) -> str:
        if self._held:
            return RUNNING if lately.records else STARTING
        if self._closing is None:
            return KILLED
        # A simulation ends when its time is over, with everybody at work.
        return FINISHED if lately.came_to_its_end or self._configuration is None else STOPPED

    def _first_policy(self) -> str:
        if self._configuration is not None:
            return self._configuration.policy
        return "" if self._header is None else self._header.policy

    def _samples(self, lately: Lately) -> int:
        """Of a run that ended in order its model tells; else what was measured last, and what the trace has after it.
        0 also where nobody knows: without measurements the end of a trace does not tell."""
        if self._trace.from_the_start:
            return lately.total
        if self._closing is not None and (told := _samples_of(self.directory / MODEL)) is not None:
            return told
        if self._measurement is None:
            return 0
        return self._measurement.samples + lately.applied_after(self._measurement.seconds)

    def _updates(self, lately: Lately) -> int:
        if lately.updates is not None:
            return lately.updates
        return 0 if self._measurement is None else self._measurement.updates

    def _samples_asked(self) -> int | None:
        if self._opened is not None and self._opened.total is not None:
            return self._opened.total
        return None if self._configuration is None else self._configuration.samples

    def _seconds_left(self, samples: int, asked: int | None, rate: float, seconds: float) -> float | None:
        """What ends first: the samples at this pace, or the time that was given."""
        ends = [max(0, asked - samples) / rate] if asked is not None and rate > 0 else []
        if self._configuration is not None and self._configuration.budget is not None:
            ends.append(max(0.0, self._configuration.budget - seconds))
        return min(ends, default=None)


def _decoded(decoder: msgspec.json.Decoder[T], line: bytes, path: Path) -> T:
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise UnreadableTraceError(f"{path}: not a whole record: {problem}") from None


def _opened_in(path: Path) -> DataOpened | None:
    for line in islice(lines_of(path), OPENED_WITHIN):
        if b'"DataOpened"' in line:
            with contextlib.suppress(msgspec.DecodeError):
                event = msgspec.json.decode(line, type=Record).event
                return event if isinstance(event, DataOpened) else None
    return None


def _samples_of(model: Path) -> int | None:
    """What the file of a model says about how many samples it has learned; None: nothing."""
    try:
        with model.open("rb") as file:
            header = file.read(min(int.from_bytes(file.read(8), "little"), 1 << 26))
        return int(msgspec.json.decode(header)["__metadata__"]["samples"])
    except (OSError, msgspec.DecodeError, KeyError, TypeError, ValueError):
        return None


def _cluster_of(configuration: Configuration | None) -> str:
    if configuration is None:
        return ""
    cluster = configuration.cluster
    if cluster is None:
        return "this machine"
    return f"Ray at {cluster.address}, " + ("1 server" if cluster.servers == 1 else f"{cluster.servers} servers")


def _checkpoint_in(directory: Path, clock: float) -> CheckpointStatus | None:
    try:
        found = [path for path in (directory / CHECKPOINTS).iterdir() if path.name.isdecimal()]
        newest = max(found, key=lambda path: int(path.name), default=None)
        if newest is not None:
            return CheckpointStatus(int(newest.name), max(0.0, clock - newest.stat().st_mtime))
    except OSError:  # there is none, or it was just replaced by the next
        pass
    return None


def began(directory: Path) -> float:
    """As its name says, if a command chose it; else when its configuration was last written."""
    with contextlib.suppress(ValueError, OverflowError):
        return time.mktime(time.strptime(directory.name[:15], "%Y%m%d-%H%M%S"))
    for path in (directory / CONFIGURATION, trace_in(directory), directory):
        with contextlib.suppress(OSError):
            return path.stat().st_mtime
    return 0.0


def directories(below: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(below) if entry.is_dir()]
    except OSError as problem:
        raise ConfigurationError(f"{below}: cannot be read: {problem.strerror}") from None
