"""How somebody outside reaches a running group: a named pipe in its run directory.

A request is one line, the number of workers that are wanted. The answer is a file, because a pipe has one direction.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path

from paceline.core.errors import ConfigurationError
from paceline.recording.lines import write_privately

PIPE, ANSWER = "control", "control.answer"
PATIENCE = 5.0  # seconds to wait for the answer


class Control:
    """The running group's side."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / PIPE
        self._answer = directory / ANSWER
        self.close()
        os.mkfifo(self._path, 0o600)
        # Open in both directions, so that it never reads as ended when a writer goes away.
        self._descriptor: int | None = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        assert self._descriptor is not None
        return self._descriptor

    def requests(self) -> list[int]:
        with contextlib.suppress(BlockingIOError):
            lines = os.read(self.fileno(), 4096).split()
            return [int(line) for line in lines if line.isdigit() and int(line) > 0]
        return []

    def acknowledge(self, workers: int) -> None:
        """Say how many it will be."""
        unfinished = self._answer.with_suffix(".unfinished")
        write_privately(unfinished, f"{workers}\n".encode())
        unfinished.rename(self._answer)

    def close(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            os.close(self.fileno())
            self._descriptor = None
        for path in (self._path, self._answer):
            path.unlink(missing_ok=True)


def request(directory: Path, workers: int) -> int:
    """Ask the run in this directory for so many workers. Returns how many it will have, within its limits."""
    try:
        descriptor = os.open(directory / PIPE, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as problem:
        if problem.errno in (errno.ENOENT, errno.ENXIO, errno.ENOTDIR):
            raise ConfigurationError(f"{directory}: no run is going on there") from None
        raise ConfigurationError(f"{directory / PIPE}: {problem.strerror}") from None
    answer = directory / ANSWER
    answer.unlink(missing_ok=True)
    try:
        os.write(descriptor, f"{workers}\n".encode())
    finally:
        os.close(descriptor)
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if answer.exists():
            return int(answer.read_text())
        time.sleep(0.02)
    raise ConfigurationError(f"{directory}: the run did not answer within {PATIENCE:g} seconds")
