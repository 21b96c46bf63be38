"""What a run leaves behind: a directory with its configuration, its trace, its metrics, its summary and its model."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

import paceline
from paceline.core.errors import ConfigurationError
from paceline.core.messages import UpdateRule
from paceline.experiment.configuration import CHECKPOINTS, CONFIGURATION, MODEL, Configuration, read_configuration
from paceline.experiment.run_lock import lock
from paceline.recording.event_file import FILES
from paceline.recording.lines import COMPRESSED, write_privately
from paceline.recording.metrics import RunMetrics, Summary
from paceline.recording.observer import Observer
from paceline.recording.progress_log import MetricsWriter
from paceline.recording.tensorboard import TensorBoard
from paceline.recording.trace import NAME, RecordingError, TraceWriter, cut_to, trace_in
from paceline.runtimes.intervals import Interval
from paceline.runtimes.serving.checkpoints import CheckpointOptions
from paceline.runtimes.serving.control import Control
from paceline.training.checkpoint import Facts, save_state, set_aside_after


def name_of(train: Callable[..., Any]) -> str:
    name = f"{getattr(train, '__module__', '')}.{getattr(train, '__qualname__', type(train).__name__)}"
    return str(getattr(train, "description", name))


LONGEST_WHY = 500  # letters


class RunFiles(Observer):
    """Open for as long as the run goes on. `finish` writes what is known only at its end."""

    makes_reports = True  # tests switch it off: most of them look at something else

    def __init__(
        self, directory: Path, configuration: Configuration, resumed: Facts | None = None, *, anew: bool = False
    ) -> None:
        """`resumed`: the run in this directory goes on from there; what was after it was lost, and is kept aside.

        `anew`: a run that is there already is lost as a whole.
        """
        self.directory = directory
        self._anew = anew
        self._resumed = resumed
        self._configuration = msgspec.structs.replace(configuration, versions=_versions())
        self._policy = configuration.policy
        self._finished = self._has_begun = False
        self.lost: Path | None = None  # where the part of the trace is that the run went back from

    def __enter__(self) -> RunFiles:
        trace, metrics, resumed = trace_in(self.directory), self.directory / "metrics.jsonl", self._resumed
        if self._configuration.compressed and not trace.exists():
            trace = self.directory / (NAME + COMPRESSED)
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = lock(self.directory)
            if resumed is not None or (self._anew and trace.exists()):
                self.lost = cut_to(trace, 0 if resumed is None else resumed.trace_bytes)
                cut_to(metrics, 0 if resumed is None else resumed.metrics_bytes)
                if resumed is not None:
                    set_aside_after(self.directory / CHECKPOINTS, resumed.updates)
            elif trace.exists():
                raise ConfigurationError(
                    f"{self.directory} holds a run already; choose another directory, or go on with it: resume"
                )
            # The trace comes last: where it is, a run has begun.
            self.metrics = MetricsWriter(metrics, goes_on=resumed is not None)
            with ExitStack() as undo:
                undo.callback(self.metrics.close)
                self.control = Control(self.directory)
                undo.callback(self.control.close)
                self.trace = TraceWriter(trace, self._policy, after=None if resumed is None else resumed.trace_bytes)
                undo.pop_all()
        except OSError as problem:
            raise ConfigurationError(f"{self.directory}: cannot be written: {problem.strerror}") from None
        if resumed is not None:
            wires = read_configuration(self.directory).all_wires
            self._configuration = msgspec.structs.replace(self._configuration, wires=wires)
        self._write(CONFIGURATION, self._configuration)
        return self

    def __exit__(self, *problem: object) -> None:
        self.finish(0.0, None)
        self.control.close()
        os.close(self._lock)
        if self._configuration.report and self._has_begun and self.makes_reports:
            from paceline.experiment.run_report import report_at_the_end  # not needed before

            report_at_the_end(self.directory)

    def checkpoint_options(self, every: Interval) -> CheckpointOptions:
        """What is in a checkpoint beside the state of the run: where its files can be cut."""
        configuration = self._configuration

        def facts() -> dict[str, Any]:
            return {
                "policy": configuration.policy,
                "seed": configuration.seed,
                "epochs": configuration.epochs,
                "trace_bytes": self.trace.bytes,
                "metrics_bytes": self.metrics.bytes,
            }

        return CheckpointOptions(self.directory / CHECKPOINTS, every, configuration.keep, facts)

    def begun(self, rule: UpdateRule) -> None:
        self._has_begun = True
        self._write(CONFIGURATION, msgspec.structs.replace(self._configuration, updates=rule))

    def finish(self, end: float, result: tuple[dict[str, Tensor], Summary, int] | None, why: str = "") -> None:
        """`why`: it ended before its work was done."""
        if self._finished:
            return
        self._finished = True
        failed = self.trace.failed
        self.trace.close(end, why)
        self.metrics.close()
        if result is None:
            return
        state, summary, samples = result
        try:
            self._write("summary.json", summary)
            save_state(state, self.directory / MODEL, {"policy": self._policy, "samples": str(samples)})
        except OSError as problem:
            if not failed:  # otherwise it was said
                raise RecordingError(f"{self.directory}: cannot be written: {problem.strerror or problem}") from None

    def _write(self, name: str, content: Any) -> None:
        write_privately(self.directory / name, msgspec.json.format(msgspec.json.encode(content)) + b"\n")


def tensorboards(
    wanted: bool | None, files: RunFiles | None, metrics: RunMetrics, resumed: Facts | None, stack: ExitStack
) -> list[Observer]:
    """Who shows the run in TensorBoard, if anybody does. None: where that is installed, and there is a directory."""
    if files is None:
        if wanted:
            raise ConfigurationError("tensorboard=True writes into the directory of the run; give run_dir as well")
        return []
    if wanted is False or (wanted is None and find_spec("tensorboard") is None):
        return []
    before = any(files.directory.glob(f"{FILES}*"))  # of this run, which is resumed or begins anew
    resumed_at = (0 if resumed is None else resumed.samples) if before else None
    board = TensorBoard(files.directory, metrics, resumed_at=resumed_at)
    stack.callback(board.close)
    return [board]


def _versions() -> dict[str, str]:
    return {"paceline": paceline.__version__, "torch": str(torch.__version__), "python": platform.python_version()}


def fresh_directory(below: Path, name: str) -> Path:
    """A directory that does not exist yet, named after the moment and the run."""
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    for number in range(1, 1000):
        directory = below / (stem if number == 1 else f"{stem}-{number}")
        if not directory.exists():
            return directory
    raise ConfigurationError(f"{below}: too many runs named {stem}")


def in_short(problem: Exception | None) -> str:
    """What went wrong, in a line: the first, and the last of a traceback."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()] if problem is not None else []
    return " ".join(dict.fromkeys([*lines[:1], *lines[-1:]]))[:LONGEST_WHY]
