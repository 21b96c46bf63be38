"""The runs below a directory, each at a glance."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from paceline.core.errors import ConfigurationError
from paceline.experiment.run_status import RunReader, began, directories, is_run
from paceline.recording.status import UNREADABLE, RunStatus

DEPTH = 4
GLANCE = 1 << 18  # bytes that are read of the end of a trace
GLANCE_AT_METRICS = 1 << 20


class Found(NamedTuple):
    runs: list[Path]  # the newest first
    foreign: list[Path]  # directories without a run in them


def find_runs(below: Path) -> Found:
    if not below.is_dir():
        raise ConfigurationError(f"{below}: there is no such directory; `paceline train digits` makes a run in ./runs")
    if is_run(below):
        raise ConfigurationError(f"{below}: is a run itself; see it with `paceline status {below}`")
    found = _found(below, DEPTH)
    return Found(sorted(found.runs, key=lambda run: (began(run), run.name), reverse=True), sorted(found.foreign))


def _found(below: Path, depth: int) -> Found:
    runs: list[Path] = []
    foreign: list[Path] = []
    for directory in directories(below):
        try:
            if is_run(directory):
                runs.append(directory)
                continue
            inside = _found(directory, depth - 1) if depth > 1 else Found([], [])
        except (OSError, ConfigurationError):  # it may not be read, or was just taken away
            inside = Found([], [])
        runs += inside.runs
        foreign += inside.foreign if inside.runs else [directory]
    return Found(runs, foreign)


def newest_run(below: Path) -> Path:
    runs = find_runs(below).runs
    if not runs:
        raise ConfigurationError(f"there is no run below {below}; say which one you mean")
    return runs[0]


def glance(run: Path) -> RunStatus:
    """What can be said of it quickly; if nothing can, why."""
    try:
        return RunReader(run, GLANCE, GLANCE_AT_METRICS).look()
    except (ConfigurationError, OSError) as problem:
        said = str(problem).removeprefix(f"{run}/").removeprefix(f"{run}: ")
        return RunStatus(str(run), UNREADABLE, began(run), problem=said)
