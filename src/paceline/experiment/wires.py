"""How the gradients of a run came to its server, and the same once more for whoever trains it again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from paceline.core.errors import ConfigurationError
from paceline.experiment.configuration import AS_THEY_ARE, Configuration
from paceline.runtimes.sockets.gradient_codec import compression_of
from paceline.training.compression import Compression, Decoder, Encoder

OVER_TCP = "tcp"


def wire_of(run_dir: Path, told: Configuration) -> Callable[[Tensor], None] | None:
    """Does to a gradient what its way to the server did; None: nothing. ConfigurationError if nobody knows what."""
    if told.all_wires == (AS_THEY_ARE,):
        return None
    if len(told.all_wires) > 1:
        raise ConfigurationError(
            f"{run_dir}: was resumed with another compression of its gradients ({', then '.join(told.all_wires)}), and"
            " its trace does not say which of them came how: it cannot be trained again"
        )
    text, _, transport = told.all_wires[0].partition(" by ")
    compression = compression_of(text)
    assert compression is not None
    if not compression.repeatable:
        raise ConfigurationError(
            f"{run_dir}: its gradients were compressed ({text}), and what arrived of them hangs on more than its trace"
            " says: it cannot be trained again; runs with compression none can, and with bf16 and transport tcp"
        )
    if transport != OVER_TCP:
        raise ConfigurationError(
            f"{run_dir}: gradients of workers on other hosts were compressed ({text}), and its trace does not say which"
            " workers these were: it cannot be trained again; with transport tcp all are compressed, and it can"
        )
    return _Wire(compression)


class _Wire:
    """What it leaves of a number hangs on nothing but that number, so that one slice does for those of all shards."""

    def __init__(self, compression: Compression) -> None:
        self._compression = compression
        self._sides: tuple[Encoder, Decoder] | None = None

    def __call__(self, gradient: Tensor) -> None:
        if self._sides is None:
            size, dtype = gradient.numel(), gradient.dtype
            self._sides = self._compression.encoder(size, dtype), self._compression.decoder(size, dtype)
        encoder, decoder = self._sides
        payload = bytearray().join(encoder.encode(gradient, clock=0))
        decoder.decode(torch.frombuffer(payload, dtype=torch.uint8), gradient)
