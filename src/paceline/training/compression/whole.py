"""All numbers of a gradient, as they are or as bfloat16."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.training.compression.base import Compression, Decoder, Encoder, as_bytes, chunks, finite, require_floats
from paceline.training.layout import squared_norm


@dataclass(frozen=True)
class Uncompressed(Compression):
    """All numbers, as they are."""

    repeatable = True

    def largest_bytes(self, size: int, dtype: torch.dtype) -> int:
        return size * dtype.itemsize

    def encoder(self, size: int, dtype: torch.dtype, seed: str = "") -> Encoder:
        return _SameEncoder(size, dtype)

    def decoder(self, size: int, dtype: torch.dtype) -> Decoder:
        return _WholeDecoder(size, dtype, dtype)


@dataclass(frozen=True)
class BFloat16(Compression):
    """All numbers, rounded to 8 bits of precision: two bytes each, and the range of float32."""

    repeatable = True

    def largest_bytes(self, size: int, dtype: torch.dtype) -> int:
        return size * torch.bfloat16.itemsize

    def encoder(self, size: int, dtype: torch.dtype, seed: str = "") -> Encoder:
        require_floats("bf16", size, dtype)
        return _RoundingEncoder(size, dtype)

    def decoder(self, size: int, dtype: torch.dtype) -> Decoder:
        require_floats("bf16", size, dtype)
        return _WholeDecoder(size, dtype, torch.bfloat16)


class _SameEncoder(Encoder):
    """The payload is the gradient's own memory: nobody may write there until it is sent."""

    def encode(self, gradient: Tensor, clock: int) -> list[memoryview]:
        self._examine(gradient, torch.finfo(self.dtype).max)
        return [as_bytes(gradient)]


class _RoundingEncoder(Encoder):
    def __init__(self, size: int, dtype: torch.dtype) -> None:
        super().__init__(size, dtype)
        self._rounded = torch.empty(size, dtype=torch.bfloat16)

    def encode(self, gradient: Tensor, clock: int) -> list[memoryview]:
        self._examine(gradient)
        self._rounded.copy_(gradient)
        return [as_bytes(self._rounded)]


class _WholeDecoder(Decoder):
    def __init__(self, size: int, dtype: torch.dtype, sent: torch.dtype) -> None:
        super().__init__(size, dtype, size * sent.itemsize)
        self._sent = sent

    def decode(self, payload: Tensor, into: Tensor) -> float:
        payload = self._examine(payload, into)
        self._expect(payload, self.largest_bytes)
        numbers, norm = payload.view(self._sent), 0.0
        for chunk in chunks(self.size):
            written = into[chunk].copy_(numbers[chunk])
            norm += finite(squared_norm(written), written)
        return norm
