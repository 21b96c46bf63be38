"""How much memory this process has, whether more of the same would fit, and how freed memory is kept for what comes."""

from __future__ import annotations

import os

import torch

from paceline.core.errors import ConfigurationError

SPARE = 0.9  # of what is free, at most so much is used
KEPT = (1 << 25) - (1 << 16)  # bytes: a little under the longest stretch that the C library may keep


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


def keep_freed_memory() -> None:
    """From now on let the C library keep what is freed, up to twice this much, for what is allocated next.

    A step allocates and frees the same tensors again and again, of megabytes each, and to get them from the system,
    page by page, may take longer than to compute with them. glibc takes the longest stretch that was ever freed, up to
    32 MiB, for the measure of what to keep. This one is never written to, so it costs nothing.
    """
    torch.empty(KEPT, dtype=torch.uint8)
