"""What the server waits for: whatever has a file descriptor, each with the function that is called when it is ready.

Nothing that it calls may wait. What a pipe does not take at once is written when it can be.
"""

from __future__ import annotations

import contextlib
import selectors
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from paceline.runtimes.serving.channel import Channel, ClosedError, ShortWait

Ready: TypeAlias = list[tuple[selectors.SelectorKey, int]]


class HasFileno(Protocol):
    def fileno(self) -> int: ...


class Loop:
    def __init__(self) -> None:
        self.interrupted = False  # may be set at any time, by a signal: nothing is called any more
        self.short_wait = ShortWait()
        self.busy = 0.0  # seconds that it did not wait
        self._selector = selectors.DefaultSelector()
        self._new: Ready = []
        self._forgotten: set[int] = set()  # descriptors, in this turn
        self._soon: list[Callable[[], None]] = []  # to be called in the next turn
        self._posted: dict[int, Channel[Any, Any]] = {}  # by descriptor: what has something to send after this turn

    def watch(self, source: int | HasFileno, call: Callable[[], None]) -> None:
        """Call this when the source can be read."""
        self._selector.register(source, selectors.EVENT_READ, call)

    def forget(self, source: int | HasFileno) -> None:
        """Watch it no more. It must still be open, or never have been: a process may end before it calls."""
        if (source if isinstance(source, int) else source.fileno()) < 0:
            return
        with contextlib.suppress(KeyError):  # its end was seen before
            self._forgotten.add(self._selector.unregister(source).fd)

    def send(self, channel: Channel[Any, Any], message: Any) -> None:
        """Without waiting for the other side. If it is dead, its end will say so."""
        try:
            channel.send(message)
        except ClosedError:
            return
        self._write_the_rest(channel)

    def post(self, channel: Channel[Any, Any], frame: bytes) -> None:
        """As send, together with all else that is posted to it in this turn: a call of the system each would take
        longer than a decision."""
        with contextlib.suppress(ClosedError):
            channel.post(frame)
        self._posted[channel.writing] = channel

    def _deliver_posts(self) -> None:
        posted, self._posted = self._posted, {}
        for channel in posted.values():
            with contextlib.suppress(ClosedError):
                channel.flush()
            self._write_the_rest(channel)

    def _write_the_rest(self, channel: Channel[Any, Any]) -> None:
        if channel.has_unsent and channel.writing not in self._selector.get_map():
            self._selector.register(channel.writing, selectors.EVENT_WRITE, lambda: self._flush(channel))

    def _flush(self, channel: Channel[Any, Any]) -> None:
        with contextlib.suppress(ClosedError):
            channel.flush()
        if not channel.has_unsent:
            self.forget(channel.writing)

    def forget_channel(self, channel: Channel[Any, Any]) -> None:
        self.forget(channel)
        self.forget(channel.writing)

    def soon(self, call: Callable[[], None]) -> None:
        """Call this in the next turn, which then waits for nothing."""
        self._soon.append(call)

    def turn(self, patience: float) -> None:
        """Wait for so many seconds at the most, and call the functions of whatever is ready."""
        self._forgotten.clear()
        soon, self._soon = self._soon, []
        for call in soon:
            call()
        if self._posted:  # between two turns
            self._deliver_posts()
        ready = self._ready(0.0 if soon else patience)
        begun = time.perf_counter()
        for key, _ in ready:
            # An earlier call of this turn may have closed what a later one is about.
            if not self.interrupted and key.fd not in self._forgotten:
                key.data()
        if self._posted:
            self._deliver_posts()
        self.busy += time.perf_counter() - begun

    def _ready(self, patience: float) -> Ready:
        if self.short_wait.pays_off(self._anything_new):
            return self._new
        return self._selector.select(patience)

    def _anything_new(self) -> bool:
        self._new = self._selector.select(0)
        return bool(self._new)

    def close(self) -> None:
        self._selector.close()
