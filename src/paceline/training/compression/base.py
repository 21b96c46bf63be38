"""What every compression has in common: its two sides, what they refuse, and what a worker has not sent yet."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from paceline.core.errors import ConfigurationError, PacelineError
from paceline.training.layout import squared_norm

CHUNK = 1 << 18  # numbers that are worked on at a time: they stay in the cache from one operation to the next
LARGEST = 1e38  # of a number that is sent: no rounding on the way makes it infinite
MOST_NUMBERS = (1 << 31) - 1  # of a slice: a position is sent as four bytes


class PayloadError(PacelineError):
    """Bytes that no encoder of this compression, size and dtype has made."""


class UnsendableError(PacelineError):
    """A gradient that is not finite, or too large, was to be encoded."""


@dataclass(frozen=True)
class Compression(ABC):
    """Both sides are for a slice of `size` numbers; the whole gradient is a slice, too."""

    repeatable: ClassVar[bool] = False  # what arrives of a number hangs on that number alone

    @abstractmethod
    def largest_bytes(self, size: int, dtype: torch.dtype) -> int:
        """Of a payload: the receiver needs no more memory, and refuses to wait for more."""

    @abstractmethod
    def encoder(self, size: int, dtype: torch.dtype, seed: str = "") -> Encoder:
        """One per worker and slice: it may remember. Workers with different seeds round independently."""

    @abstractmethod
    def decoder(self, size: int, dtype: torch.dtype) -> Decoder:
        """One per slice, whatever the number of workers: it remembers nothing."""


class Encoder(ABC):
    def __init__(self, size: int, dtype: torch.dtype) -> None:
        self.size = size
        self.dtype = dtype

    @abstractmethod
    def encode(self, gradient: Tensor, clock: int) -> list[memoryview]:
        """The payload, in pieces that follow each other. They are valid until the next call, and what is sent if the
        same gradient has to be sent again: an encoder may count what it encodes as sent.

        `clock`: the worker's iteration, by which what is random differs from one gradient to the next. The gradient
        stays as it is. UnsendableError if it cannot be sent: then nothing is remembered of it.
        """

    def state(self) -> Tensor | None:
        """What was not sent so far, not as a copy; None: this encoder remembers nothing."""
        return None

    def resume(self, state: Tensor | None) -> None:
        """Take over what another one had not sent. An encoder that remembers nothing gives it up."""
        if state is not None and state.shape != (self.size,):
            raise ConfigurationError(f"what was not sent has shape {tuple(state.shape)}, the gradient ({self.size},)")

    def _examine(self, gradient: Tensor, largest: float = LARGEST) -> None:
        assert gradient.shape == (self.size,) and gradient.dtype == self.dtype and gradient.is_contiguous()
        # Squares of numbers that can be sent may overflow, so this only raises a suspicion.
        if not squared_norm(gradient) <= LARGEST and not float(gradient.abs().max()) <= largest:
            raise UnsendableError(f"a gradient must be finite, and at most {largest:g}, before it is sent")


class RememberingEncoder(Encoder):
    """Error feedback: what a payload leaves out is added to the next gradient (Seide et al. 2014, Karimireddy et al.
    2019). A payload that the receiver drops is not added again: it is lost, as a whole gradient would be."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        super().__init__(size, dtype)
        self._unsent = torch.zeros(size, dtype=dtype)

    def state(self) -> Tensor:
        return self._unsent

    def resume(self, state: Tensor | None) -> None:
        super().resume(state)
        if state is None:
            self._unsent.zero_()
        elif not torch.isfinite(state).all():
            raise ConfigurationError("what was not sent is not finite")
        else:
            self._unsent.copy_(state)


class Decoder(ABC):
    def __init__(self, size: int, dtype: torch.dtype, largest_bytes: int) -> None:
        self.size = size
        self.dtype = dtype
        self.largest_bytes = largest_bytes

    @abstractmethod
    def decode(self, payload: Tensor, into: Tensor) -> float:
        """Write the gradient that these bytes are; returns its squared norm, as layout.squared_norm does.

        PayloadError if they are none: then `into` holds anything, but nothing is written beside it.
        """

    def _examine(self, payload: Tensor, into: Tensor) -> Tensor:
        """The payload, where numbers of any type may begin."""
        assert payload.dim() == 1 and payload.dtype == torch.uint8 and payload.is_contiguous()
        assert into.shape == (self.size,) and into.dtype == self.dtype and into.is_contiguous()
        if len(payload) > self.largest_bytes:
            raise PayloadError(f"a payload of {len(payload)} bytes; it has at most {self.largest_bytes}")
        aligned = payload.data_ptr() % 8 == 0 and payload.storage_offset() % 8 == 0
        return payload if aligned else payload.clone()

    def _expect(self, payload: Tensor, size: int) -> None:
        if len(payload) != size:
            raise PayloadError(f"a payload of {len(payload)} bytes, not of {size}")


def finite(norm: float, numbers: Tensor) -> float:
    """The squared norm of these numbers, if they are finite; else PayloadError."""
    if not math.isfinite(norm) and not torch.isfinite(numbers).all():
        raise PayloadError("numbers that are not finite")
    return norm


def chunks(size: int, step: int = CHUNK) -> Iterator[slice]:
    return (slice(begin, min(begin + step, size)) for begin in range(0, size, step))


def as_bytes(tensor: Tensor) -> memoryview:
    """The same memory."""
    return tensor.view(torch.uint8).numpy().data


def require_floats(name: str, size: int, dtype: torch.dtype) -> None:
    if dtype not in (torch.float32, torch.float64):
        given = str(dtype).removeprefix("torch.")
        raise ConfigurationError(f"compression {name!r} is for float32 and float64 gradients, not {given}; take 'none'")
    if not 1 <= size <= MOST_NUMBERS:
        raise ConfigurationError(f"compression {name!r}: a slice has 1 to {MOST_NUMBERS:,} numbers, not {size:,}")
