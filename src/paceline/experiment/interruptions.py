"""Ctrl-C, or a polite kill, while a run goes on."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from paceline.runtimes.serving.loop import Loop

THE_SAME = 0.5  # seconds in which two signals are one: a terminal and a wrapper may both send it


class Interruptions:
    """Within its `with` block the first ends the run between two messages, and a second one ends it at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.loop: Loop | None = None  # of the run, once there is one; before that, the first is enough
        self._clock = clock
        self._noted = -math.inf
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruptions:
        if threading.current_thread() is threading.main_thread():  # Python lets only this one listen to signals
            self._before = {number: signal.signal(number, self.note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *problem: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if problem[0] is None and self.loop is not None and self.loop.interrupted:
            raise KeyboardInterrupt  # it came when all was done, and nobody has said so

    def note(self, number: int, frame: FrameType | None) -> None:
        now = self._clock()
        if now - self._noted < THE_SAME:
            return
        self._noted = now
        if self.loop is None or self.loop.interrupted:
            raise KeyboardInterrupt
        self.loop.interrupted = True
