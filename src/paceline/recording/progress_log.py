"""What a training run tells while it goes on: how far it is, what evaluations found, what a policy estimated, what the
loops logged, and which workers died.

Kept as metrics.jsonl.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TypeAlias

import msgspec

from paceline.core.errors import ConfigurationError
from paceline.core.messages import Estimates
from paceline.recording.lines import open_private
from paceline.recording.observer import Observer
from paceline.recording.trace import Record, RecordingError


class Measurement(msgspec.Struct, frozen=True, tag=True):
    """How far a run is."""

    seconds: float
    samples: int  # whose gradients became part of an update
    epoch: float | None  # None: the workers bring batches of their own, of which nobody knows the number
    epochs: int | None  # None: as many as other limits allow
    updates: int
    workers: int
    learning_rate: float
    loss: float | None  # a running mean over the latest pushes
    digest: int | None = None  # of the parameters, so that a run that is trained again can be compared on the way
    policy: str = ""  # in force, if it is not the one that the run began with
    chosen_by: str = ""  # a policy that chose it, and may choose another


class Evaluation(msgspec.Struct, frozen=True, tag=True):
    """What the evaluation found on a state of the model, and when training had reached that state."""

    seconds: float
    samples: int
    version: int
    figures: dict[str, float]


def less_is_better(figure: str) -> bool:
    """Of figures of an evaluation by this name; of anything else more is."""
    return figure.endswith(("loss", "error", "perplexity"))


class Choice(msgspec.Struct, frozen=True, tag=True):
    """What a policy chose for the next update, and the estimates that it chose by."""

    seconds: float
    estimates: Estimates


class Logged(msgspec.Struct, frozen=True, tag=True):
    """Figures of a loop's own (`worker.log`): of each the mean over what one worker logged since its line before."""

    seconds: float
    worker: int
    figures: dict[str, float]


class Failure(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A worker that died: its process ended before its work was done, or its function raised."""

    worker: int
    seconds: float
    reason: str  # in words
    exit_code: int | None = None  # of a process that ended by itself
    signal: str = ""  # that killed it, such as SIGKILL
    last_words: str = ""  # the last line of its traceback, or of what it wrote to stderr

    def __str__(self) -> str:
        said = f"; its last words: {self.last_words}" if self.last_words and self.last_words not in self.reason else ""
        return f"worker {self.worker} died after {self.seconds:.1f} s: {self.reason}{said}"


Line: TypeAlias = Measurement | Evaluation | Choice | Logged | Failure


class MetricsWriter(Observer):
    """Appends every line as it comes, so that a run that is killed leaves what it had."""

    def __init__(self, path: Path, every: float = 1.0, *, goes_on: bool = False) -> None:
        """`every`: seconds between two measurements that are kept; `goes_on`: append to what is there."""
        try:
            self._file = open_private(path, append=goes_on, buffering=0)
        except OSError as problem:
            raise ConfigurationError(f"{path}: cannot be written: {problem.strerror}") from None
        self._path = path
        self._failed = False
        self._every = every
        self._next = 0.0

    @property
    def bytes(self) -> int:
        """That are in the file so far."""
        return self._file.tell()

    def measured(self, measurement: Measurement) -> None:
        if measurement.seconds >= self._next:
            self._next = measurement.seconds + self._every
            self._write(measurement)

    def evaluated(self, evaluation: Evaluation) -> None:
        self._write(evaluation)

    def logged(self, logged: Logged) -> None:
        self._write(logged)

    def worker_failed(self, failure: Failure) -> None:
        self._write(failure)

    def observe(self, record: Record) -> None:
        if record.estimates is not None:
            self._write(Choice(record.now, record.estimates))

    def _write(self, line: Line) -> None:
        try:
            if not self._failed:
                self._file.write(msgspec.json.encode(line) + b"\n")
        except OSError as problem:
            self._failed = True  # and not again: the run ends
            raise RecordingError(f"{self._path}: cannot be written: {problem.strerror}") from None

    def close(self) -> None:
        self._file.close()


def read_metrics(path: Path) -> list[Line]:
    """The whole lines of a metrics.jsonl."""
    return [read_line(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def read_line(line: bytes) -> Line:
    written = _decoder().decode(line)
    return written.read() if isinstance(written, _WrittenEvaluation | _WrittenLogged) else written


@cache
def _decoder() -> msgspec.json.Decoder[Measurement | _WrittenEvaluation | Choice | _WrittenLogged | Failure]:
    return msgspec.json.Decoder(Measurement | _WrittenEvaluation | Choice | _WrittenLogged | Failure)


class _WrittenEvaluation(msgspec.Struct, frozen=True, tag="Evaluation"):
    seconds: float
    samples: int
    version: int
    figures: dict[str, float | None]

    def read(self) -> Evaluation:
        return Evaluation(self.seconds, self.samples, self.version, finite_or_nan(self.figures))


class _WrittenLogged(msgspec.Struct, frozen=True, tag="Logged"):
    seconds: float
    worker: int
    figures: dict[str, float | None]

    def read(self) -> Logged:
        return Logged(self.seconds, self.worker, finite_or_nan(self.figures))


def finite_or_nan(figures: Mapping[str, float | None]) -> dict[str, float]:
    """JSON has no number for what is not finite: it comes back as None."""
    return {name: math.nan if value is None else value for name, value in figures.items()}
