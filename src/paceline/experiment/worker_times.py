"""Iteration times of workers, from a word such as 3x1.0,1x4.0 or from a run that there was."""

from __future__ import annotations

import re
from pathlib import Path

from paceline.core.errors import ConfigurationError, TraceError
from paceline.core.messages import WorkerJoined
from paceline.recording.iteration_times import iteration_times
from paceline.recording.trace import Trace, trace_in

NUMBER = r"[0-9.eE+-]+?"


def described_times(text: str, what: str) -> tuple[float, ...]:
    """3x1.0,1x4.0: three workers that need a second for an iteration, and one that needs four."""
    times: list[float] = []
    for part in text.split(","):
        found = re.fullmatch(rf"\s*(?:(\d{{1,6}})x)?({NUMBER})\s*", part)
        if found is None:
            raise ConfigurationError(f"{what} {text}: must be a number, or groups with their times: 3x1.0,1x4.0")
        try:
            times.extend([float(found[2])] * int(found[1] or 1))
        except ValueError:
            raise ConfigurationError(f"{what} {text}: {found[2]!r} is not a number") from None
    return tuple(times)


def recorded_times(run: Path) -> dict[int, tuple[float, ...]]:
    """The times of a run's processes, from when each was given parameters to its push."""
    trace = Trace(trace_in(run) if run.is_dir() else run, allow_cut_off=True)
    process_of = {
        record.event.worker: record.event.worker if record.event.process is None else record.event.process
        for record in trace
        if isinstance(record.event, WorkerJoined)
    }
    times: dict[int, list[float]] = {}
    for worker, recording in iteration_times(trace).workers().items():
        times.setdefault(process_of.get(worker, worker), []).extend(recording.times)
    if not times:
        raise TraceError(f"{trace.path}: nobody pushed anything, so there are no iteration times in it")
    return {process: tuple(times[process]) for process in sorted(times)}
