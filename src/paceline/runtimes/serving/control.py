"""How somebody outside reaches a running group: a named pipe in its run directory.

A request is one line of JSON with its kind. The answer is a file, because a pipe has one direction.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import TypeAlias

import msgspec

from paceline.core.errors import ConfigurationError
from paceline.recording.lines import write_privately

PIPE, ANSWER = "control", "control.answer"
PATIENCE = 5.0  # seconds to wait for the answer
LONGEST = 4096  # bytes of a request: a pipe takes so many at once, whoever else writes to it


class Scale(msgspec.Struct, frozen=True, tag=True):
    """The group is to have so many workers."""

    workers: int


class Switch(msgspec.Struct, frozen=True, tag=True):
    """Another policy is to take over."""

    policy: str


Request: TypeAlias = Scale | Switch


class Scaled(msgspec.Struct, frozen=True, tag=True):
    """It will have so many, within its limits."""

    workers: int


class Switched(msgspec.Struct, frozen=True, tag=True):
    """This policy is in force."""

    policy: str
    before: str  # the one that was; the same: nothing had to be done
    doubt: str = ""  # what the user should know of it


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Nothing has changed."""

    reason: str


Answer: TypeAlias = Scaled | Switched | Refused


class Asked(msgspec.Struct, frozen=True, array_like=True):
    """A line of the pipe."""

    number: int  # whose answer is whose
    request: Request


class _Answered(msgspec.Struct, frozen=True, array_like=True):
    number: int
    answer: Answer


class Control:
    """The running group's side."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / PIPE
        self._answer = directory / ANSWER
        self._rest = b""  # of a line that has not come to its end
        self.close()
        os.mkfifo(self._path, 0o600)
        # Open in both directions, so that it never reads as ended when a writer goes away.
        self._descriptor: int | None = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        assert self._descriptor is not None
        return self._descriptor

    def requests(self) -> list[Asked]:
        """Those that came since; what is none is passed over."""
        found: list[Asked] = []
        with contextlib.suppress(BlockingIOError):
            *lines, self._rest = (self._rest + os.read(self.fileno(), LONGEST)).split(b"\n")
            for line in lines:
                with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                    found.append(msgspec.json.decode(line, type=Asked))
        return found

    def answer(self, asked: Asked, answer: Answer) -> None:
        unfinished = self._answer.with_suffix(".unfinished")
        write_privately(unfinished, msgspec.json.encode(_Answered(asked.number, answer)) + b"\n")
        unfinished.rename(self._answer)

    def close(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            os.close(self.fileno())
            self._descriptor = None
        for path in (self._path, self._answer):
            path.unlink(missing_ok=True)


def ask(directory: Path, request: Request) -> Scaled | Switched:
    """Ask the run in this directory for something. ConfigurationError if it refuses, or if there is none."""
    try:
        descriptor = os.open(directory / PIPE, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as problem:
        if problem.errno in (errno.ENOENT, errno.ENXIO, errno.ENOTDIR):
            raise ConfigurationError(f"{directory}: no run is going on there") from None
        raise ConfigurationError(f"{directory / PIPE}: {problem.strerror}") from None
    answer, number = directory / ANSWER, time.monotonic_ns()
    line = msgspec.json.encode(Asked(number, request)) + b"\n"
    try:
        if len(line) > LONGEST:
            raise ConfigurationError(f"{directory}: a request has at most {LONGEST} bytes")
        os.write(descriptor, line)
    finally:
        os.close(descriptor)
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with contextlib.suppress(FileNotFoundError):
            found = msgspec.json.decode(answer.read_bytes(), type=_Answered)
            if found.number == number:
                if isinstance(found.answer, Refused):
                    raise ConfigurationError(f"{directory}: {found.answer.reason}")
                return found.answer
        time.sleep(0.02)
    raise ConfigurationError(f"{directory}: the run did not answer within {PATIENCE:g} seconds")
