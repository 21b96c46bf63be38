"""How much memory this process has, and whether more of the same would fit."""

from __future__ import annotations

import os

from paceline.core.errors import ConfigurationError

SPARE = 0.9  # of what is free, at most so much is used


def resident_bytes() -> int:
    """Of this process; 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def available_bytes() -> int | None:
    """That programs can still have; None where the system does not say."""
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def refuse_if_too_large(each: int, more: int, workers: int) -> None:
    """`each`: bytes that one simulated worker took; `more`: how many are still to come, of so many in all."""
    available = available_bytes()
    if available is None or each * more <= SPARE * available:
        return
    raise ConfigurationError(
        f"{workers} simulated workers do not fit into memory: each has a model, and what its loop loads, about"
        f" {each / 1e9:.2g} GB, and {available / 1e9:.2g} GB are free; take fewer workers, or fewer --processes"
    )
