"""Messages over a pair of pipes: one line of JSON each, and nobody else reads along."""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

In = TypeVar("In")
Out = TypeVar("Out", bound=msgspec.Struct)

AT_ONCE = 1 << 16  # bytes: what a pipe holds


class ClosedError(Exception):
    """The other side is gone."""


class ShortWait:
    """Looks for an answer a few times before falling asleep, where answers have been quick.

    To be woken from sleep on another core takes a hundred microseconds, more than a small model's whole update. A
    side that waited long the last time sleeps at once, so that no core is kept busy by waiting for a slow worker. And
    large models are not worth it: their updates take longer than waking up.
    """

    LONGEST = 500e-6  # seconds: the two wake-ups of a cycle in which the other side sleeps
    TRY_AGAIN = 16  # waits after which it is tried again all the same

    SMALL = 1 << 20  # parameters: an update takes a few hundred microseconds

    def __init__(self) -> None:
        self.parameters = self.SMALL + 1  # of the model; set once it is known
        self._asleep = 0

    def pays_off(self, ready: Callable[[], bool]) -> bool:
        """Whether it is ready within a moment; if not, the caller should fall asleep."""
        if self.parameters > self.SMALL or self._asleep:
            self._asleep = max(0, self._asleep - 1)
            return ready()
        end = time.monotonic() + self.LONGEST
        while not ready():
            if time.monotonic() > end:
                self._asleep = self.TRY_AGAIN
                return False
            os.sched_yield()
        return True


def can_be_read(descriptor: int, seconds: float | None = None) -> bool:
    """Whether there is something to read within so many seconds, be it the end; None: wait for it. By poll, as select
    takes descriptors below 1,024 only, and a worker may have many files open."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if seconds is None else 1_000 * seconds))


class Carried(NamedTuple):
    """Seconds of a wire."""

    out: float  # for which something was on its way to the other side, so far
    gradient: float  # that the latest one took to come in


class Channel(Generic[In, Out]):
    """One end. `incoming` is the type of what arrives here. An end that is not `patient` never waits for the other side
    to read: what the pipe does not hold is kept, until `flush` is called when the pipe can be written again."""

    def __init__(self, reading: int, writing: int, incoming: Any, *, patient: bool = True) -> None:
        self._reading = reading
        self.writing = writing
        self._unsent = b""
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(incoming).decode
        self._waiting: deque[bytes] = deque()  # whole lines that were read
        self._cut_off = b""  # the beginning of a line whose end has not arrived yet
        self.short_wait = ShortWait()
        if reading >= 0:
            os.set_blocking(reading, False)
        if writing >= 0:
            os.set_blocking(writing, patient)

    def fileno(self) -> int:
        return self._reading

    def send(self, message: Out) -> None:
        self._unsent += self._encode(message) + b"\n"
        self.flush()

    def framed(self, message: Out) -> bytes:
        """As it crosses, for `post`. Nothing may belong to it that is not in it."""
        return self._encode(message) + b"\n"

    def post(self, frame: bytes) -> None:
        """Send it with whatever comes next; `flush` sends it."""
        self._unsent += frame

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def flush(self) -> None:
        """Write what the pipe takes."""
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self.writing, self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self._unsent = b""
            raise ClosedError from None

    def receive(self) -> In:
        """The next message; waits for it."""
        if not self.short_wait.pays_off(self._read):
            while not self._waiting:
                can_be_read(self._reading)
                self._read()
        message: In = self._decode(self._waiting.popleft())
        return message

    def received(self) -> list[In]:
        """All that has arrived."""
        self._read()
        messages = [self._decode(line) for line in self._waiting]
        self._waiting.clear()
        return messages

    def has_message(self, timeout: float = 0.0) -> bool:
        """Whether something arrives within so many seconds, be it the end: `receive` then does not wait."""
        try:
            return self._read() or (timeout > 0 and can_be_read(self._reading, timeout))
        except ClosedError:
            return True

    def carried(self) -> Carried | None:
        """None: nothing crosses a wire, or nobody counts."""
        return None

    def _read(self) -> bool:
        """Whether a whole message is here."""
        if self._waiting:
            return True
        try:
            piece = os.read(self._reading, AT_ONCE)
        except BlockingIOError:
            return False
        except OSError:
            piece = b""
        if not piece:
            raise ClosedError
        *lines, self._cut_off = (self._cut_off + piece).split(b"\n")
        self._waiting.extend(lines)
        return bool(lines)

    def close(self) -> None:
        for descriptor in {self._reading, self.writing} - {-1}:
            os.close(descriptor)
        self._reading = self.writing = -1
