"""Notices which gradients are final as soon as the backward pass has made them, and lets them go ahead of their push.

Nobody knows when a loop is done with a gradient: it may clip, scale, or add another backward pass to it. So this learns
from the loop, and from the wire:

    LEARNS    sends nothing ahead, and looks whether gradients stay what they were when they were made
      ▶ SENDS   after some steps in a row in which they did, if each of these could have ended sooner by enough
      ▶ RESTS   after one in which a gradient changed, or where too little is to gain, or nobody knows how much
    SENDS     sends ahead
      ▶ LEARNS  after a term: the wire may be another one
      ▶ RESTS   after a step in which a gradient changed
    RESTS     has no hook on any parameter, and costs nothing
      ▶ LEARNS  after some steps, twice as many each time

Whatever is sent ahead is compared, byte for byte, with what the loop hands in at last; where they differ, all of the
gradient is sent with the push, as if nothing had happened.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Collection, Sequence
from enum import Enum, auto
from functools import partial
from typing import Any, Protocol
from weakref import ref

import torch
from torch import Tensor

PIECE = 1 << 18  # bytes that go at once: a layer that has fewer waits for the next one
STEADY_STEPS = 4  # of LEARNS
TERM = 500  # steps of SENDS
RESTS = 16, 1 << 10  # steps of RESTS: at first, and at most
LEAST_GAIN = 1e-2  # seconds of a step that must be to gain
LEAST_SHARE = 0.05  # of a step that must be to gain
LEAST_GAIN_PER_PARAMETER = 1e-4  # and so many seconds more: about ten times what sending its gradient ahead costs

_compare = ctypes.CDLL(None).memcmp
_compare.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t


class WayAhead(Protocol):
    """How gradients get to a server that does not see the segment; stretches of them ahead of their push. None of these
    waits."""

    def send(self, begin: int, end: int) -> None:
        """These numbers of it are there, and stay until the push, or until they are dropped."""

    def keep(self) -> None:
        """What was sent is right: with the push only the rest has to follow."""

    def drop(self) -> None:
        """What was sent counts for nothing."""

    def lend(self, gradients: Sequence[Tensor]) -> bool:
        """The next push takes the whole gradient from these, one after another, and not from the segment; they stay as
        they are until it returns. False: it has to lie in the segment."""

    def busy(self) -> float | None:
        """For how many seconds the wire has carried something so far; None: nobody knows."""


class Stage(Enum):
    LEARNS = auto()
    SENDS = auto()
    RESTS = auto()


class Experience:
    """Which stage the steps of a loop have led to."""

    def __init__(self, least_gain: float) -> None:
        self.stage = Stage.LEARNS
        self._least_gain = least_gain
        self._steps = 0  # of this stage
        self._rest = RESTS[0]

    def note(self, steady: bool, gain: float | None = None) -> None:
        """Of one step: whether gradients stayed as they were made, and how many seconds sooner it could have ended;
        None: not known."""
        self._steps += 1
        if self.stage is Stage.RESTS:
            if self._steps >= self._rest:
                self._rest = min(2 * self._rest, RESTS[1])
                self._enter(Stage.LEARNS)
        elif not steady or (self.stage is Stage.LEARNS and gain is not None and gain < self._least_gain):
            self._enter(Stage.RESTS)
        elif self.stage is Stage.LEARNS and self._steps >= STEADY_STEPS:
            self._enter(Stage.RESTS if gain is None else Stage.SENDS)
        elif self.stage is Stage.SENDS and self._steps >= TERM:
            self._rest = RESTS[0]
            self._enter(Stage.LEARNS)

    def _enter(self, stage: Stage) -> None:
        self.stage, self._steps = stage, 0


class EarlyGradients:
    def __init__(
        self,
        parameters: Sequence[Tensor],
        slots: Sequence[Tensor],
        way: WayAhead,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`slots`: where each parameter's gradient lies in the segment, one after another."""
        self._parameters, self._slots, self._way, self._clock = parameters, slots, way, clock
        self._begins = [0]
        for slot in slots:
            self._begins.append(self._begins[-1] + slot.numel())
        self.experience = Experience(LEAST_GAIN + LEAST_GAIN_PER_PARAMETER * len(parameters))
        self._made: dict[int, tuple[ref[Tensor], int]] = {}  # since the last step, by number; and how often written
        self._again = False  # whether one was made twice since then
        self._began = 0.0  # when the first of them was made
        self._busy: float | None = None  # how long the wire had been at the last step
        self._settled = 0.0  # when that was
        self._gathered: dict[int, Tensor] = {}  # gradients that are not in their slots yet
        self._bytes = 0  # of these
        self._sent: set[int] = set()
        self._hooks: list[Any] = []
        self._hook()

    def _hook(self) -> None:
        """On all parameters, unless it rests."""
        if self.experience.stage is Stage.RESTS:
            for hook in self._hooks:
                hook.remove()
            self._hooks.clear()
        elif not self._hooks:
            for number, parameter in enumerate(self._parameters):
                hook = parameter.register_post_accumulate_grad_hook(partial(self._note, number))  # type: ignore[no-untyped-call]
                self._hooks.append(hook)

    def _note(self, number: int, parameter: Tensor) -> None:
        gradient = parameter.grad
        if gradient is None:
            return
        if not self._made:
            self._began = self._clock()
        elif number in self._made:
            self._again = True
        self._made[number] = ref(gradient), gradient._version
        if self.experience.stage is Stage.SENDS and not self._again and self._fits(number, gradient):
            self._gathered[number] = gradient
            self._bytes += gradient.nbytes
            if self._bytes >= PIECE:
                self._send()

    def _fits(self, number: int, gradient: Tensor) -> bool:
        return crosses_as_it_is(gradient, self._slots[number].dtype)

    def _send(self) -> None:
        if not self._sent:
            self._way.drop()  # of a gradient that was never pushed
        numbers = sorted(self._gathered)
        slots, gradients = [self._slots[one] for one in numbers], [self._gathered[one] for one in numbers]
        torch._foreach_copy_(slots, gradients)
        self._sent.update(numbers)
        self._forget_gathered()
        for first, last in _neighbours(numbers):
            if self._begins[first] < self._begins[last + 1]:
                self._way.send(self._begins[first], self._begins[last + 1])

    def _forget_gathered(self) -> None:
        self._gathered.clear()
        self._bytes = 0

    def settle(self, *, scaled: bool = False) -> Collection[int]:
        """The gradients are handed in now. Returns the numbers of the parameters whose gradients are in their slots and
        on their way; none: all are to be sent. `scaled`: what is to be sent are not the gradients themselves."""
        if self.experience.stage is Stage.RESTS:
            self.experience.note(True)
            self._hook()
            return ()
        steady = not scaled and not self._again and self._are_as_made() and self._are_as_sent()
        sent, self._sent = self._sent, set()
        if sent and steady:
            self._way.keep()
        elif sent:
            self._way.drop()
        self.experience.note(steady, self._gain())
        self._hook()
        self._made.clear()
        self._again = False
        self._forget_gathered()
        return sent if steady else ()

    def _gain(self) -> float | None:
        """Seconds for which the wire was busy since the last step, and could have been while gradients were made; none,
        if they are next to nothing beside the step."""
        before, self._busy = self._busy, self._way.busy() if self.experience.stage is Stage.LEARNS else None
        since, self._settled = self._settled, self._clock()
        if before is None or self._busy is None:
            return None
        gain = min(self._busy - before, self._settled - self._began)
        return gain if gain >= LEAST_SHARE * (self._settled - since) else 0.0

    def _are_as_made(self) -> bool:
        """As far as torch knows."""
        made = self._made
        for number, parameter in enumerate(self._parameters):
            gradient = parameter.grad
            if (gradient is not None) != (number in made):
                return False
            if gradient is not None and (made[number][0]() is not gradient or made[number][1] != gradient._version):
                return False
        return True

    def _are_as_sent(self) -> bool:
        """Truly: a loop may have written to `gradient.data`, or by NumPy, which torch does not count."""
        for number in self._sent:
            slot, gradient = self._slots[number], self._parameters[number].grad
            if gradient is None or slot.nbytes != gradient.nbytes or not self._fits(number, gradient):
                return False
            if _compare(slot.data_ptr(), gradient.data_ptr(), slot.nbytes):
                return False
        return True


def crosses_as_it_is(gradient: Tensor, dtype: torch.dtype) -> bool:
    """Whether its bytes are those that cross."""
    return (
        gradient.dtype == dtype
        and gradient.layout == torch.strided
        and gradient.is_contiguous()
        and not gradient.requires_grad
    )


def _neighbours(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """The first and the last of each row of numbers that follow one another."""
    rows: list[tuple[int, int]] = []
    for number in numbers:
        if rows and rows[-1][1] + 1 == number:
            rows[-1] = rows[-1][0], number
        else:
            rows.append((number, number))
    return rows
