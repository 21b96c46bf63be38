"""The gradient of a segment on its way over a slow wire: encoded by the worker, decoded where it arrives."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.core.spec import build
from paceline.training.compression import COMPRESSIONS, Compression

NONE = "none"


def compression_of(text: str) -> Compression | None:
    """None: gradients travel as they are."""
    return None if text == NONE else build(text, COMPRESSIONS, "compression")


class GradientCodec:
    """Both sides have one, of the same compression and the same stretch; each uses its half."""

    def __init__(self, compression: Compression, gradient: Tensor, seed: str = "") -> None:
        """`gradient`: the stretch of the segment. `seed`: of this worker and this stretch."""
        self._compression, self._gradient, self._seed = compression, gradient, seed
        self._encoder = None if not seed else compression.encoder(gradient.numel(), gradient.dtype, seed)
        self._decoder = None if seed else compression.decoder(gradient.numel(), gradient.dtype)
        most = 0 if self._decoder is None else self._decoder.largest_bytes
        self._payload = torch.empty(most, dtype=torch.uint8)

    def encode(self, clock: int) -> list[memoryview]:
        assert self._encoder is not None
        return [piece.cast("B") for piece in self._encoder.encode(self._gradient, clock)]

    def place_for(self, size: int) -> memoryview:
        """Where so many bytes may be received; ValueError: they are too many."""
        if not 0 <= size <= len(self._payload):
            raise ValueError(f"{size} bytes of a gradient that has {len(self._payload)} at most")
        return self._payload.numpy().data[:size]

    def decode(self, size: int) -> float:
        """What was received becomes the gradient; returns its squared norm."""
        assert self._decoder is not None
        return self._decoder.decode(self._payload[:size], self._gradient)
