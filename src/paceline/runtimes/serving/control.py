"""How somebody outside reaches a running group: a named pipe in its run directory.

A request is one line of JSON with its kind. The answer is a file, because a pipe has one direction.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import TypeAlias, get_args

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


class Evict(msgspec.Struct, frozen=True, tag=True):
    """This worker is to go at once, and the group to go on without it."""

    worker: int


class Stop(msgspec.Struct, frozen=True, tag=True):
    """The run is to end as after a first Ctrl-C."""


Request: TypeAlias = Scale | Switch | Evict | Stop
KINDS = tuple(kind.__name__ for kind in get_args(Request))


class Scaled(msgspec.Struct, frozen=True, tag=True):
    """It will have so many, within its limits."""

    workers: int


class Switched(msgspec.Struct, frozen=True, tag=True):
    """This policy is in force."""

    policy: str
    before: str  # the one that was; the same: nothing had to be done
    doubt: str = ""  # what the user should know of it


class Evicted(msgspec.Struct, frozen=True, tag=True):
    """It is gone from the group."""

    worker: int
    workers: int  # so many there are now, or will be when all have started


class Stopping(msgspec.Struct, frozen=True, tag=True):
    """The run comes to its end."""

    begun: bool = True  # whether there is anything to save
    ended: bool = False  # it was too quick for an answer


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Nothing has changed."""

    reason: str


Granted: TypeAlias = Scaled | Switched | Evicted | Stopping
Answer: TypeAlias = Granted | Refused


class Asked(msgspec.Struct, frozen=True, array_like=True):
    """A line of the pipe."""

    number: int  # whose answer is whose
    request: Request


class _Unknown(msgspec.Struct, frozen=True, array_like=True):
    """A line that somebody with a newer paceline may have written."""

    number: int
    request: msgspec.Raw


class _Kind(msgspec.Struct, frozen=True):
    type: str


class Control:
    """The running group's side."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / PIPE
        self._directory = directory
        self._rest = b""  # of a line that has not come to its end
        self._clear()
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
                    self._read(line, found)
        return found

    def _read(self, line: bytes, found: list[Asked]) -> None:
        """One that asks for what this version does not know is told so."""
        try:
            found.append(msgspec.json.decode(line, type=Asked))
        except msgspec.ValidationError:
            unknown = msgspec.json.decode(line, type=_Unknown)
            kind = msgspec.json.decode(unknown.request, type=_Kind).type
            if kind not in KINDS:
                self._tell(unknown.number, Refused(f"it is of another version of paceline, and cannot {kind.lower()}"))

    def answer(self, asked: Asked, answer: Answer) -> None:
        self._tell(asked.number, answer)

    def _tell(self, number: int, answer: Answer) -> None:
        write_privately(_answer_to(self._directory, number), msgspec.json.encode(answer) + b"\n")

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._clear()

    def _clear(self) -> None:
        """Take away what is left, also by a run that was killed here."""
        for path in (self._path, *self._directory.glob(f"{ANSWER}.*")):  # some who asked did not wait
            path.unlink(missing_ok=True)


def _answer_to(directory: Path, number: int) -> Path:
    """One file for each request: several may ask at the same time."""
    return directory / f"{ANSWER}.{number}"


def ask(directory: Path, request: Request) -> Granted:
    """Ask the run in this directory for something. ConfigurationError if it refuses, or if there is none."""
    number = time.monotonic_ns()
    try:
        _send(directory, msgspec.json.encode(Asked(number, request)) + b"\n")
    except BrokenPipeError:  # it has just ended
        return _ended(directory, request)
    answer = _answer_to(directory, number)
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        goes_on = (directory / PIPE).exists()
        with contextlib.suppress(FileNotFoundError):
            found: Answer = msgspec.json.decode(answer.read_bytes(), type=Answer)
            answer.unlink(missing_ok=True)
            if isinstance(found, Refused):
                raise ConfigurationError(f"{directory}: {found.reason}")
            return found
        if not goes_on:
            return _ended(directory, request)
        time.sleep(0.02)
    raise ConfigurationError(
        f"{directory}: the run did not answer within {PATIENCE:g} seconds: it is busy, and may still do it, or was"
        f" begun with a paceline that cannot {type(request).__name__.lower()}; config.json says with which"
    )


def _ended(directory: Path, request: Request) -> Stopping:
    """It was too quick for an answer."""
    if isinstance(request, Stop):
        return Stopping(ended=True)
    raise ConfigurationError(f"{directory}: the run came to its end before it answered")


def _send(directory: Path, line: bytes) -> None:
    try:
        descriptor = os.open(directory / PIPE, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as problem:
        if problem.errno in (errno.ENOENT, errno.ENXIO, errno.ENOTDIR):
            raise ConfigurationError(f"{directory}: no run is going on there; `paceline runs` tells which do") from None
        raise ConfigurationError(f"{directory / PIPE}: {problem.strerror}") from None
    try:
        if len(line) > LONGEST:
            raise ConfigurationError(f"{directory}: a request has at most {LONGEST} bytes")
        os.write(descriptor, line)
    except BlockingIOError:
        raise ConfigurationError(f"{directory}: the run is too busy to be asked for anything") from None
    finally:
        os.close(descriptor)
