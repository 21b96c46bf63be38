"""The group of a real run: how many workers, on which devices, and how slow each is made."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from paceline.core.errors import ConfigurationError
from paceline.core.spec import build
from paceline.runtimes.intervals import patience_of
from paceline.runtimes.iteration_times import read_iteration_times
from paceline.runtimes.pace import Pace
from paceline.runtimes.speeds import SPEEDS, Constant, Recorded, Slowdown, SpeedModel
from paceline.training.choices import LR_SCALINGS, NOT_FINITE, STALE

MOST_PROCESSES = 1024


class Group(msgspec.Struct, frozen=True, omit_defaults=True):
    """`least` and `most`: the range of an elastic group. At most one of intervals, speed and trace."""

    workers: int
    least: int | None = None
    most: int | None = None
    device: str = "auto"
    slowdowns: tuple[Slowdown, ...] = ()
    intervals: tuple[float, ...] | None = None
    speed: str | None = None
    trace: str | None = None
    restart: int = 0  # so many deaths are replaced, in a group of a fixed size
    patience: str = "20s"  # with a worker that is silent

    @property
    def largest(self) -> int:
        """How many workers it may come to have, as far as is known at its beginning."""
        return self.workers if self.most is None else self.most

    def check(
        self, *, epochs: int | None, lr_scaling: str, stale: str, not_finite: str, evaluate_every: int | None
    ) -> None:
        """ConfigurationError if anything about a run with this group is impossible."""
        for what, value in (("workers", self.workers), ("epochs", epochs), ("evaluate_every", evaluate_every)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigurationError(f"{what} is {value}; it must be at least 1")
        if max(self.workers, self.most or 0) > MOST_PROCESSES:
            raise ConfigurationError(
                f"workers is {max(self.workers, self.most or 0)}; at most {MOST_PROCESSES} fit here"
            )
        for what, given, known in (
            ("lr_scaling", lr_scaling, LR_SCALINGS),
            ("stale", stale, STALE),
            ("not_finite", not_finite, NOT_FINITE),
        ):
            if given not in known:
                raise ConfigurationError(f"unknown {what} {given!r}; there are: {', '.join(known)}")
        self._check_range()
        for slowdown in self.slowdowns:
            if not 0 <= slowdown.worker < self.largest:
                raise ConfigurationError(f"slowdown of worker {slowdown.worker}: workers are 0 to {self.largest - 1}")
            if not 1 <= slowdown.factor < math.inf or not 0 <= slowdown.begin < slowdown.until:
                raise ConfigurationError(
                    f"slowdown of worker {slowdown.worker} by {slowdown.factor:g} from {slowdown.begin:g} to"
                    f" {slowdown.until:g}: the factor must be at least 1, and the beginning from 0 and before the end"
                )
        if not isinstance(self.restart, int) or self.restart < 0:
            raise ConfigurationError(f"restart is {self.restart}; it must be a number of deaths, or 0")
        patience_of(self.patience, "patience")
        self.devices()
        self.paces()

    def _check_range(self) -> None:
        for what, value, fits in (
            ("least", self.least, self.least is None or 1 <= self.least <= self.workers),
            ("most", self.most, self.most is None or self.most >= self.workers),
        ):
            if not fits:
                raise ConfigurationError(f"{what} is {value}, and the group begins with {self.workers} workers")

    def threads(self) -> int:
        """Of torch in each process: those of this one, shared among the workers."""
        import torch

        return max(1, torch.get_num_threads() // self.workers)

    def server_threads(self) -> int:
        """Of torch in the server. Idle threads of one process keep cores from another's, so it takes its share only."""
        import torch

        return max(1, torch.get_num_threads() // (self.workers + 1))

    def devices(self) -> Callable[[int], str]:
        """The device of the worker with this index."""
        import torch  # takes a second, and a command that only prints its help shall not wait for it

        if self.device == "auto":
            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
            return lambda index: f"cuda:{index % count}" if count else "cpu"
        try:
            device = torch.device(self.device)
        except RuntimeError:
            raise ConfigurationError(
                f"unknown device {self.device!r}; give cpu, cuda, cuda:1 or the like, or auto"
            ) from None
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ConfigurationError(f"device {self.device!r} was asked for, but there is no CUDA here")
        if device.type == "cuda" and device.index is not None and device.index >= torch.cuda.device_count():
            raise ConfigurationError(f"device {self.device!r} was asked for; there are {torch.cuda.device_count()}")
        if device.type == "cuda" and device.index is None:
            return lambda index: f"cuda:{index % torch.cuda.device_count()}"
        return lambda index: self.device

    def paces(self) -> Callable[[int], Pace | None]:
        """How slow the worker with this index is made. One that joins later is as slow as an earlier one, in turn."""
        given = [way for way in (self.intervals, self.speed, self.trace) if way is not None]
        if len(given) > 1:
            raise ConfigurationError("give emulated speeds at most one way: intervals, a speed, or a trace")
        speeds: list[SpeedModel | None] = [None]
        if self.intervals is not None:
            if len(self.intervals) != self.workers or not all(0 < seconds < math.inf for seconds in self.intervals):
                raise ConfigurationError(
                    f"intervals must be {self.workers} numbers above 0, one per worker; there are {len(self.intervals)}"
                )
            speeds = [Constant(seconds) for seconds in self.intervals]
        elif self.speed is not None:
            speeds = [build(self.speed, SPEEDS, "speed")]
        elif self.trace is not None:
            speeds = [Recorded(times) for times in read_iteration_times(Path(self.trace)).values()]

        def pace(index: int) -> Pace | None:
            speed = speeds[index % len(speeds)]
            slowdowns = tuple(slowdown for slowdown in self.slowdowns if slowdown.worker == index)
            return Pace(speed, slowdowns) if speed is not None or slowdowns else None

        return pace


def group_of(
    workers: int | str | tuple[int, int],
    *,
    slowdown: Mapping[int, float] | None = None,
    speed: str | None = None,
    device: str = "auto",
    restart: int = 0,
    patience: str = "20s",
) -> Group:
    """A group from what `launch` is given."""
    slowdowns = tuple(Slowdown(worker, float(factor)) for worker, factor in (slowdown or {}).items())
    number, least, most = size_of(workers)
    return Group(number, least, most, device, slowdowns, speed=speed, restart=restart, patience=patience)


def size_of(workers: int | str | tuple[int, int]) -> tuple[int, int | None, int | None]:
    """How many workers a group begins with, and its range: of 4, of "2..4", or of (2, 4)."""
    if isinstance(workers, int):
        return workers, None, None
    if isinstance(workers, tuple):
        workers = "..".join(map(str, workers))
    found = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", workers.strip()) if isinstance(workers, str) else None
    if found is None:
        raise ConfigurationError(f"workers {workers!r}: must be a number or a range, as in 4 or 2..4")
    if found[2] is None:
        return int(found[1]), None, None
    least, most = int(found[1]), int(found[2])
    if not 1 <= least <= most:
        raise ConfigurationError(f"workers {workers!r}: a range begins with at least 1, and does not end below that")
    return least, least, most
