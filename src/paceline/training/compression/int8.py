"""All numbers of a gradient as whole ones from -127 to 127, times a scale for each block of neighbours.

A payload is the scales of all blocks (float32) and then the numbers (int8). A number is rounded up or down at random,
up the more often the nearer the next one is: it is off by less than a scale, and right in the mean. So a small number
beside large ones, which would always be rounded to zero, arrives now and then, and nothing needs to be remembered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.core.spec import parameter
from paceline.training.compression.base import (
    CHUNK,
    Compression,
    Decoder,
    Encoder,
    PayloadError,
    as_bytes,
    chunks,
    finite,
    require_floats,
)
from paceline.training.layout import squared_norm

STEPS = 126.9  # of the largest number of a block: however it is rounded, it is no more than 127
LEAST_SCALE = torch.finfo(torch.float32).tiny  # of a smaller one the inverse is not finite: its block is sent as zeros
MOST_SCALE = torch.finfo(torch.float32).max / 128


@dataclass(frozen=True)
class Int8(Compression):
    """All numbers, as one byte each and a scale for each block of neighbours."""

    block: int = parameter(1024, "numbers that share a scale", least=16, most=CHUNK)

    def largest_bytes(self, size: int, dtype: torch.dtype) -> int:
        return 4 * -(-size // self.block) + size

    def encoder(self, size: int, dtype: torch.dtype, seed: str = "") -> Encoder:
        require_floats("int8", size, dtype)
        return _BlockEncoder(size, dtype, self, seed)

    def decoder(self, size: int, dtype: torch.dtype) -> Decoder:
        require_floats("int8", size, dtype)
        return _BlockDecoder(size, dtype, self)


class _Rows(NamedTuple):
    """Blocks of equal length that are worked on at a time."""

    numbers: slice
    scales: slice
    shape: tuple[int, int]


def _rows(size: int, block: int) -> Iterator[_Rows]:
    """All blocks; the last one may be shorter than the others."""
    whole = size // block
    for blocks in chunks(whole, CHUNK // block):
        numbers = slice(blocks.start * block, blocks.stop * block)
        yield _Rows(numbers, blocks, (blocks.stop - blocks.start, block))
    if rest := size - whole * block:
        yield _Rows(slice(whole * block, size), slice(whole, whole + 1), (1, rest))


@cache
def _thresholds() -> Tensor:
    """Numbers between 0 and 1, evenly spread and in disorder. A stretch that begins anywhere does for a chunk: to draw
    as many anew would take longer than all else."""
    count = 2 * CHUNK
    return (torch.randperm(count, generator=torch.Generator().manual_seed(0)).float() + 0.5) / count


class _BlockEncoder(Encoder):
    def __init__(self, size: int, dtype: torch.dtype, how: Int8, seed: str) -> None:
        super().__init__(size, dtype)
        self._seed = seed
        self._rows = list(_rows(size, how.block))
        self._memory = torch.empty(how.largest_bytes(size, dtype), dtype=torch.uint8)
        begin = len(self._memory) - size
        self._scales = self._memory[:begin].view(torch.float32)
        self._numbers = self._memory[begin:].view(torch.int8)
        self._scratch = torch.empty(min(size, CHUNK), dtype=dtype)

    def encode(self, gradient: Tensor, clock: int) -> list[memoryview]:
        self._examine(gradient)
        random, thresholds = Random(f"{self._seed} {clock}"), _thresholds()
        for rows in self._rows:
            wanted = gradient[rows.numbers].view(rows.shape)
            scales = self._scales[rows.scales]
            scales.copy_(torch.maximum(wanted.amax(1), -wanted.amin(1)) / STEPS)
            scales.masked_fill_(scales < LEAST_SCALE, 0.0)
            inverses = scales.reciprocal().masked_fill_(scales == 0, 0.0)
            rounded = self._scratch[: wanted.numel()].view(rows.shape)
            begin = random.randrange(len(thresholds) - wanted.numel())
            up = thresholds[begin : begin + wanted.numel()].view(rows.shape)
            torch.mul(wanted, inverses[:, None], out=rounded).add_(up).floor_()
            self._numbers[rows.numbers].view(rows.shape).copy_(rounded)
        return [as_bytes(self._memory)]


class _BlockDecoder(Decoder):
    def __init__(self, size: int, dtype: torch.dtype, how: Int8) -> None:
        super().__init__(size, dtype, how.largest_bytes(size, dtype))
        self._rows = list(_rows(size, how.block))

    def decode(self, payload: Tensor, into: Tensor) -> float:
        payload = self._examine(payload, into)
        self._expect(payload, self.largest_bytes)
        begin = self.largest_bytes - self.size
        all_scales, numbers = payload[:begin].view(torch.float32), payload[begin:].view(torch.int8)
        if not ((all_scales >= 0) & (all_scales <= MOST_SCALE)).all():
            raise PayloadError("scales that are not finite, negative or too large")
        norm = 0.0
        for rows in self._rows:
            flat = into[rows.numbers]
            written = flat.view(rows.shape).copy_(numbers[rows.numbers].view(rows.shape))
            written.mul_(all_scales[rows.scales][:, None])
            norm += finite(squared_norm(flat), flat)
        return norm
