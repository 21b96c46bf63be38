"""Notices which gradients are final as soon as the backward pass has made them, and lets them go ahead of their push.

Nobody knows when a loop is done with a gradient: it may clip, scale, or add another backward pass to it. So this learns
from the loop. It sends ahead after some steps in a row in which every gradient stayed what it was when it was made, and
waits twice as long after a step in which one did not. Whatever is sent ahead is compared, byte for byte, with what the
loop hands in at last; where they differ, all of the gradient is sent with the push, as if nothing had happened.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from functools import partial
from typing import NamedTuple, Protocol
from weakref import ref

import torch
from torch import Tensor

PIECE = 1 << 16  # bytes that go at once: a layer that has fewer waits for the next one
STEADY_STEPS = 3  # after which gradients are sent ahead for the first time
MOST_STEPS = 1 << 10  # after which they are, however often they changed before

_compare = ctypes.CDLL(None).memcmp
_compare.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t


class WayAhead(Protocol):
    """How stretches of the gradient in the segment get to the server ahead of their push. None of these waits."""

    def send(self, begin: int, end: int) -> None:
        """These numbers of it are there, and stay until the push, or until they are dropped."""

    def keep(self) -> None:
        """What was sent is right: with the push only the rest has to follow."""

    def drop(self) -> None:
        """What was sent counts for nothing."""


class Patience:
    """How many steps in a row gradients must have stayed what they were."""

    def __init__(self) -> None:
        self._wanted, self._seen = STEADY_STEPS, 0

    @property
    def is_over(self) -> bool:
        return self._seen >= self._wanted

    def note(self, steady: bool) -> None:
        """Of one step."""
        if self.is_over and not steady:
            self._wanted = min(2 * self._wanted, MOST_STEPS)
        self._seen = min(self._seen + 1, self._wanted) if steady else 0


class Made(NamedTuple):
    """A gradient, as it was when the backward pass had made it."""

    gradient: ref[Tensor]
    writes: int

    def is_still(self, gradient: Tensor | None) -> bool:
        return gradient is not None and self.gradient() is gradient and gradient._version == self.writes


class EarlyGradients:
    def __init__(self, parameters: Sequence[Tensor], slots: Sequence[Tensor], way: WayAhead) -> None:
        """`slots`: where each parameter's gradient lies in the segment, one after another."""
        self._parameters, self._slots, self._way = parameters, slots, way
        self._begins = [0]
        for slot in slots:
            self._begins.append(self._begins[-1] + slot.numel())
        self._patience = Patience()
        self._made: dict[int, Made] = {}  # since the last step, by the parameter's number
        self._again = False  # whether one was made twice since then
        self._gathered: dict[int, Tensor] = {}  # gradients that are not in their slots yet
        self._bytes = 0  # of these
        self._sent: set[int] = set()
        for number, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(partial(self._note, number))  # type: ignore[no-untyped-call]

    def _note(self, number: int, parameter: Tensor) -> None:
        gradient = parameter.grad
        if gradient is None:
            return
        self._again = self._again or number in self._made
        self._made[number] = Made(ref(gradient), gradient._version)
        if self._patience.is_over and not self._again and self._fits(number, gradient):
            self._gathered[number] = gradient
            self._bytes += gradient.nbytes
            if self._bytes >= PIECE:
                self._send()

    def _fits(self, number: int, gradient: Tensor) -> bool:
        """Whether its bytes are those that cross."""
        return (
            gradient.dtype == self._slots[number].dtype
            and gradient.layout == torch.strided
            and gradient.is_contiguous()
            and not gradient.requires_grad
        )

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
        steady = not scaled and not self._again and self._are_as_made() and self._are_as_sent()
        sent, self._sent = self._sent, set()
        if sent and steady:
            self._way.keep()
        elif sent:
            self._way.drop()
        self._patience.note(steady)
        self._made.clear()
        self._again = False
        self._forget_gathered()
        return sent if steady else ()

    def _are_as_made(self) -> bool:
        """As far as torch knows."""
        made = self._made
        for number, parameter in enumerate(self._parameters):
            gradient = parameter.grad
            if (gradient is not None) != (number in made):
                return False
            if gradient is not None and not made[number].is_still(gradient):
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


def _neighbours(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """The first and the last of each row of numbers that follow one another."""
    rows: list[tuple[int, int]] = []
    for number in numbers:
        if rows and rows[-1][1] + 1 == number:
            rows[-1] = rows[-1][0], number
        else:
            rows.append((number, number))
    return rows
