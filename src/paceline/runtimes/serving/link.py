"""A worker's way to the server: messages over a channel, tensors in a segment that both sides see."""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Any

from paceline.core.errors import ConfigurationError
from paceline.core.messages import Unit
from paceline.lifecycle.messages import Place
from paceline.lifecycle.work import Work
from paceline.runtimes.serving.channel import Channel, ClosedError
from paceline.runtimes.serving.memory import map_segment, pack, path_of, pickled, unpack_from
from paceline.runtimes.serving.messages import (
    Enter,
    Go,
    Interrupt,
    Kept,
    Leased,
    Log,
    Push,
    Request,
    Restart,
    Skip,
    StateReady,
    StateWanted,
    Stop,
    ToServer,
    ToWorker,
)
from paceline.training.early import WayAhead
from paceline.training.layout import Layout, Segment
from paceline.training.optimizers import OptimizerSpec


class Stopped(BaseException):
    """The server ended the run: unwinds the user's loop. Not an Exception, so that a loop does not swallow it."""


class ChannelLink:
    """The worker's end."""

    def __init__(self, channel: Channel[ToWorker, ToServer], segment: int) -> None:
        self._channel = channel
        self._segment = segment
        self._layout: Layout | None = None
        self._interrupted = False
        self._pushed = 0
        self._went_on = time.monotonic()
        self._here: deque[Unit] = deque()  # came along with the parameters, or ahead of their use
        self._keeps = False
        self.place = Place()
        self.prefetches = True
        self.enough = False
        self.rates: tuple[float, ...] = ()
        self.ahead: WayAhead | None = None  # both sides see the gradient

    def enter(self, layout: Layout) -> Segment:
        self._layout = layout
        self._channel.short_wait.parameters = layout.parameter_count
        return map_segment(self._segment, layout)

    def begin(self, spec: OptimizerSpec) -> None:
        assert self._layout is not None
        state = None if spec.state is None else pack(spec.state)
        try:
            optimizer = pickled(spec._replace(state=None))
        except Exception as problem:  # pickling runs code of the user's classes, which may raise anything
            raise ConfigurationError(
                f"the optimizer cannot be sent to the server: {problem}; its class, arguments and scheduler must"
                " be such that they can be pickled"
            ) from None
        self.send(Enter(self._layout, optimizer, None if state is None else path_of(state)))
        self._wait_for_go()
        if state is not None:
            os.close(state)

    def lease(self, work: Work) -> tuple[Unit | None, bool]:
        if self._here:
            return self._here.popleft(), False
        self.send(Request(work))
        while not isinstance(message := self._receive(), Leased):
            assert isinstance(message, Interrupt), message
            self._interrupted = True
        self._here.extend(message.ahead)
        self.place = message.place or self.place
        self.rates = message.rates or self.rates
        if message.parameters:
            self._fetch()
        return message.unit, message.parameters

    def take(self) -> Unit | None:
        return self._here.popleft() if self._here else None

    @property
    def keeps(self) -> bool:
        return self._keeps

    def keep(self, state: bytes) -> None:
        self.send(Kept(state))

    def log(self, figures: dict[str, float]) -> None:
        self.send(Log(figures))

    def push(
        self, samples: int, units: int, loss: float | None, squared_norm: float, absent: tuple[int, ...] = ()
    ) -> None:
        self._read_interrupts()
        if self._interrupted:
            if self.ahead is not None:
                self.ahead.drop()
            self.send(Restart(samples, units))
        else:
            self._pushed += 1
            seconds = float(f"{time.monotonic() - self._went_on:.4g}")
            self._hand_in(self._pushed)
            self.send(Push(self._pushed, samples, units, loss, squared_norm, absent, seconds))
        self._wait_for_go()

    def _hand_in(self, number: int) -> None:
        """The gradient lies in the segment: bring it where it has to be, if that is elsewhere."""

    def _fetch(self) -> None:
        """New parameters were announced: bring them into the segment, if they are not there yet."""

    def optimizer_state(self) -> dict[str, Any]:
        self.send(StateWanted())
        while not isinstance(message := self._receive(), StateReady):
            assert isinstance(message, Interrupt), message
            self._interrupted = True
        state: dict[str, Any] = unpack_from(message.path)
        self.send(StateWanted(wanted=False))
        return state

    def skip(self, samples: int, units: int) -> None:
        self.send(Skip(samples, units))
        self._read_interrupts()  # it does not wait for an answer, but shall know when the run is over

    def pause(self, seconds: float) -> None:
        if self._channel.has_message(seconds):
            self._note_interrupt()

    def send(self, message: ToServer) -> None:
        try:
            self._channel.send(message)
        except ClosedError:
            raise Stopped from None

    def _read_interrupts(self) -> None:
        while self._channel.has_message():
            self._note_interrupt()

    def _note_interrupt(self) -> None:
        message = self._receive()
        assert isinstance(message, Interrupt), message
        self._interrupted = True

    def _wait_for_go(self) -> None:
        """An interrupt that comes while the worker waits has nothing to interrupt."""
        while not isinstance(message := self._receive(), Go):
            assert isinstance(message, Interrupt), message
        self._fetch()
        self._went_on = time.monotonic()
        self._interrupted = False
        self._keeps, self.enough = message.keep, message.enough
        self.place = message.place or self.place
        self.rates = message.rates or self.rates
        if message.unit is not None:
            self._here.append(message.unit)
            self._here.extend(message.ahead)

    def _receive(self) -> ToWorker:
        try:
            message = self._channel.receive()
        except ClosedError:
            raise Stopped from None
        if isinstance(message, Stop):
            raise Stopped
        return message
