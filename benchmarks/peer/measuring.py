"""How one measurement is taken, the same for every peer: warm up, meet, count iterations, tell the result.

Standard library only: it also runs under the interpreter of MXNet's environment.
Workers meet through files in a directory: each peer starts its processes in its own way, and all are on one machine.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

LEAST, MOST = 8, 5_000  # iterations of a measurement
PATIENCE = 60.0  # seconds to wait for the other workers


@dataclass(frozen=True)
class Settings:
    """What a peer is asked to measure."""

    sizes: tuple[int, ...]
    seconds: float  # that one measurement should take, about
    samples: int  # to train in a measurement of throughput
    workers: int = 2
    mxnet_python: str | None = None

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Settings:
        given = json.loads(path.read_text())
        return cls(**{**given, "sizes": tuple(given["sizes"])})


@dataclass(frozen=True)
class Row:
    """One figure of one peer: seconds per iteration of a worker, or samples per second; or why there is none."""

    peer: str
    parameters: int
    figure: float | None
    error: str | None = None


def attempt(peer: str, parameters: int, measure: Callable[[], float]) -> Row:
    """A measurement that fails is a row with its error, and the next one goes on."""
    try:
        return Row(peer, parameters, measure())
    except Exception as error:
        traceback.print_exc()
        return Row(peer, parameters, None, _first_line(error))


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def warm_ups(size: int) -> int:
    """Enough for buffers, object stores and connections to have been used once."""
    return 100 if size <= 10_000 else 20 if size <= 1_000_000 else 10


def iterate(step: Callable[[], object], index: int, size: int, settings: Settings, into: str, *, waits: bool) -> None:
    """Time `step` in this worker while all others do the same, and write the seconds per iteration into a file.

    All workers do the same number of iterations, which follows from the slowest one's warm-up. `waits` says that a step
    waits for the other workers' steps; otherwise the first to finish goes on until the last one has, so that nobody is
    measured alone.
    """
    times = []
    for _ in range(warm_ups(size)):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    _tell(into, "warm", index, statistics.median(times))
    slowest = max(_all_told(into, "warm", settings.workers))
    iterations = min(MOST, max(LEAST, int(settings.seconds / slowest)))
    began = time.perf_counter()
    for _ in range(iterations):
        step()
    _tell(into, "result", index, (time.perf_counter() - began) / iterations)
    while not waits and not _is_told(into, "result", settings.workers):
        step()


def rows_of(run: Callable[[str], object], cases: list[tuple[str, int]], workers: int) -> Iterator[Row]:
    """The rows of several cases (a name and a size) that one group of processes measures, one after the other.

    `run(into)` starts the group and returns when it has ended. What it measured before it failed counts.
    """
    problem = "the group ended without a figure"
    with tempfile.TemporaryDirectory() as into:
        try:
            run(into)
        except Exception as error:
            traceback.print_exc()
            problem = _first_line(error)
        for name, size in cases:
            found = case(into, name, size)
            if is_measured(found, workers):
                yield Row(name, size, result(found, workers))
            else:
                yield Row(name, size, None, problem)


def case(into: str, name: str, size: int) -> str:
    """The directory in which the workers meet for this case."""
    directory = Path(into, f"{name} {size}")
    directory.mkdir(exist_ok=True)
    return str(directory)


def is_measured(into: str, workers: int) -> bool:
    return _is_told(into, "result", workers)


def result(into: str, workers: int) -> float:
    """Seconds per iteration: the mean of the workers that `iterate` measured."""
    return statistics.mean(_all_told(into, "result", workers, patience=0.0))


def _tell(into: str, what: str, index: int, value: float) -> None:
    unfinished = Path(into, f"{what}.{index}.unfinished")
    unfinished.write_text(repr(value))
    unfinished.rename(Path(into, f"{what}.{index}"))


def _is_told(into: str, what: str, workers: int) -> bool:
    return all(os.path.exists(f"{into}/{what}.{index}") for index in range(workers))


def _all_told(into: str, what: str, workers: int, patience: float = PATIENCE) -> list[float]:
    until = time.monotonic() + patience
    while not _is_told(into, what, workers):
        if time.monotonic() > until:
            raise RuntimeError(f"not all of the {workers} workers wrote their {what} within {patience:g} s")
        time.sleep(0.0005)
    return [float(Path(into, f"{what}.{index}").read_text()) for index in range(workers)]
