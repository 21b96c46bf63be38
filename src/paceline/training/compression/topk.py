"""The largest numbers of a gradient and their positions; the others are added to the next gradient.

A payload is the positions (int32, ascending) and then as many numbers (float32). To find exactly the largest ones takes
longer than to send them, so the smallest number that is sent is estimated from a sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.core.spec import parameter
from paceline.training.compression.base import (
    CHUNK,
    Compression,
    Decoder,
    Encoder,
    PayloadError,
    RememberingEncoder,
    UnsendableError,
    as_bytes,
    chunks,
    finite,
    require_floats,
)
from paceline.training.layout import squared_norm

ENTRY = 8  # bytes: a position and a number
SAMPLED_ABOVE = 256  # numbers of the sample that are to be sent: their count is then right to about 6 %
MOST_ABOVE = 1.25  # of the share that was asked for


@dataclass(frozen=True)
class TopK(Compression):
    """The largest numbers with their positions, with error feedback."""

    share: float = parameter(0.01, "of the numbers that are sent", above=0, most=0.5)

    def most(self, size: int) -> int:
        """Numbers in a payload."""
        return min(size, math.ceil(MOST_ABOVE * self.share * size))

    def largest_bytes(self, size: int, dtype: torch.dtype) -> int:
        return ENTRY * self.most(size)

    def encoder(self, size: int, dtype: torch.dtype, seed: str = "") -> Encoder:
        require_floats("topk", size, dtype)
        return _SparseEncoder(size, dtype, self)

    def decoder(self, size: int, dtype: torch.dtype) -> Decoder:
        require_floats("topk", size, dtype)
        return _SparseDecoder(size, dtype, self)


class _SparseEncoder(RememberingEncoder):
    def __init__(self, size: int, dtype: torch.dtype, how: TopK) -> None:
        super().__init__(size, dtype)
        self._most = how.most(size)
        self._positions = torch.empty(self._most, dtype=torch.int32)
        self._values = torch.empty(self._most, dtype=torch.float32)
        self._sizes = torch.empty(min(size, CHUNK), dtype=dtype)
        self._above = torch.empty(min(size, CHUNK), dtype=torch.bool)
        sampled = math.ceil(SAMPLED_ABOVE / how.share)
        self._sample: Tensor | None = None  # None: all numbers
        if sampled < size:
            generator = torch.Generator().manual_seed(0)  # any will do; the same one makes runs repeatable
            self._sample = torch.randint(size, (sampled,), generator=generator).sort().values
        self._rank = max(1, round(how.share * min(sampled, size)))

    def encode(self, gradient: Tensor, clock: int) -> list[memoryview]:
        self._examine(gradient)
        found = self._add_and_select(gradient, self._threshold(gradient))
        if len(found) > self._most:
            sizes = self._unsent.index_select(0, found).abs_()
            found = found[sizes.topk(self._most, sorted=False).indices].sort().values
        wanted, count = self._unsent.index_select(0, found), len(found)
        values = self._values[:count].copy_(wanted)
        if not torch.isfinite(values).all():
            self._unsent.zero_()
            raise UnsendableError("the gradient and what was not sent of others add up to more than float32 holds")
        self._unsent.index_copy_(0, found, wanted.sub_(values))
        return [as_bytes(part) for part in (self._positions[:count].copy_(found), values) if count]

    def _threshold(self, gradient: Tensor) -> float:
        """The smallest number to be sent; zeros never are."""
        wanted = self._at_sample(self._unsent) + self._at_sample(gradient)
        smallest = float(wanted.abs_().topk(self._rank).values[-1])
        return max(smallest, torch.finfo(torch.float32).tiny)

    def _at_sample(self, numbers: Tensor) -> Tensor:
        return numbers if self._sample is None else numbers.index_select(0, self._sample)

    def _add_and_select(self, gradient: Tensor, threshold: float) -> Tensor:
        """Add the gradient to what was not sent; returns the positions that are above the threshold, ascending."""
        found = []
        for chunk in chunks(self.size):
            wanted = self._unsent[chunk].add_(gradient[chunk])
            sizes, above = self._sizes[: len(wanted)], self._above[: len(wanted)]
            torch.ge(torch.abs(wanted, out=sizes), threshold, out=above)
            found.append(np.flatnonzero(above.numpy()) + chunk.start)  # several times as fast as torch.nonzero
        return torch.from_numpy(np.concatenate(found))


class _SparseDecoder(Decoder):
    def __init__(self, size: int, dtype: torch.dtype, how: TopK) -> None:
        super().__init__(size, dtype, how.largest_bytes(size, dtype))

    def decode(self, payload: Tensor, into: Tensor) -> float:
        payload = self._examine(payload, into)
        count, rest = divmod(len(payload), ENTRY)
        if rest:
            raise PayloadError(f"a payload of {len(payload)} bytes, which is no multiple of {ENTRY}")
        positions, values = payload[: 4 * count].view(torch.int32), payload[4 * count :].view(torch.float32)
        if count and not (int(positions[0]) >= 0 and int(positions[-1]) < self.size):
            raise PayloadError(f"positions from {int(positions[0])} to {int(positions[-1])}, of {self.size} numbers")
        if not (positions[1:] > positions[:-1]).all():
            raise PayloadError("positions that do not ascend")
        norm = finite(squared_norm(values), values)
        into.zero_()
        into.index_copy_(0, positions.long(), values.to(self.dtype))
        return norm
