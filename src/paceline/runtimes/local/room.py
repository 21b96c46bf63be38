"""Whether this machine has the memory for so many processes, before any of them is started."""

from __future__ import annotations

import contextlib
from pathlib import Path

from paceline.core.errors import ConfigurationError

FIRST = 250 << 20  # bytes of the process that has imported torch, whose pages all others share
EACH = 25 << 20  # bytes that a worker without a model and without data adds to that: benchmarks/start_up.py measures it
MEMORY = Path("/proc/meminfo")
LIMIT, USED = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")


def available_memory() -> int | None:
    """Bytes that new processes may take: of the machine, or of the container if that has less. None: nobody knows."""
    found = []
    with contextlib.suppress(OSError, ValueError, StopIteration):
        line = next(line for line in MEMORY.read_text().splitlines() if line.startswith("MemAvailable:"))
        found.append(int(line.split()[1]) << 10)
    with contextlib.suppress(OSError, ValueError):  # "max": no limit
        found.append(int(LIMIT.read_text()) - int(USED.read_text()))
    return min(found, default=None)


def refuse_if_too_many(workers: int, available: int | None, what: str = "workers") -> None:
    needed = FIRST + workers * EACH
    if available is not None and needed > available:
        most = max(0, (available - FIRST) // EACH)
        raise ConfigurationError(
            f"{workers:,} {what} need at least {needed / 1e9:.1f} GB of memory without any model, and"
            f" {max(0, available) / 1e9:.1f} GB are free: there is room for {most} at most"
        )
