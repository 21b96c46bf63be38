"""One process at a run directory at a time, and how others see that there is one."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from paceline.core.errors import ConfigurationError

TRIES, PAUSE = 5, 0.02  # seconds; who only looks holds the lock for microseconds


def lock(directory: Path) -> int:
    """Held for as long as this process lives: two at the same run would write over each other."""
    descriptor = os.open(directory, os.O_RDONLY)
    for attempt in range(1, TRIES + 1):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if attempt < TRIES:
                time.sleep(PAUSE)
    os.close(descriptor)
    raise ConfigurationError(f"{directory}: another process is at this run")


def somebody_is_at(directory: Path) -> bool:
    """Whether a process goes on with the run in this directory."""
    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # let go at once, with the descriptor
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(descriptor)
    return False
