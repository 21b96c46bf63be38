"""Reads a CSV of recorded iteration times: columns worker, iteration, seconds."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from paceline.core.errors import ConfigurationError

COLUMNS = ("worker", "iteration", "seconds")


def read_iteration_times(path: Path) -> dict[int, tuple[float, ...]]:
    """Each worker's times in the order of their iterations; ConfigurationError names the line that is wrong."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as problem:
        raise ConfigurationError(f"{path}: cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: is not a text file") from None
    rows = csv.DictReader(text.splitlines(), skipinitialspace=True)
    try:
        return _times(rows, path)
    except csv.Error as problem:
        raise ConfigurationError(f"{path}, line {rows.reader.line_num}: {problem}") from None


def _times(rows: csv.DictReader[str], path: Path) -> dict[int, tuple[float, ...]]:
    missing = [column for column in COLUMNS if column not in (rows.fieldnames or ())]
    if missing:
        raise ConfigurationError(
            f"{path}, line 1: no column {', '.join(missing)}; the first line must name worker, iteration and seconds"
        )
    times: dict[int, dict[int, float]] = {}
    for row in rows:
        where = f"{path}, line {rows.line_num}"
        worker, iteration = (_whole(row[column], column, where) for column in COLUMNS[:2])
        own = times.setdefault(worker, {})
        if iteration in own:
            raise ConfigurationError(f"{where}: iteration {iteration} of worker {worker} is there twice")
        own[iteration] = _seconds(row["seconds"], where)
    if not times:
        raise ConfigurationError(f"{path}: has no rows; one row per worker and iteration is needed")
    return {worker: tuple(own[iteration] for iteration in sorted(own)) for worker, own in sorted(times.items())}


def _whole(text: str | None, column: str, where: str) -> int:
    try:
        value = int(text or "")
    except ValueError:
        value = -1
    if value < 0:
        raise ConfigurationError(f"{where}: {column} is {text or 'missing'}; it must be a whole number from 0")
    return value


def _seconds(text: str | None, where: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ConfigurationError(f"{where}: seconds is {text or 'missing'}; it must be a number above 0")
    return value
