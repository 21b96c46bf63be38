"""Which bytes of a segment are which part of it."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.training.layout import Segment

PARAMETERS, GRADIENT, OTHERS = 1, 2, 4


def places_in(segment: Segment, begin: int = 0, end: int | None = None) -> dict[int, memoryview]:
    """The bytes of the parts of a segment; of parameters and gradient, from one number to another."""
    others = 2 * (segment.gradient.data_ptr() - segment.parameters.data_ptr())
    return {
        PARAMETERS: bytes_of(segment.parameters[begin:end]),
        GRADIENT: bytes_of(segment.gradient[begin:end]),
        OTHERS: bytes_of(segment.memory[others : segment.layout.segment_bytes]),
    }


def bytes_of(tensor: Tensor) -> memoryview:
    """Of one without gaps; they are not copied."""
    return memoryview(tensor.detach().reshape(-1).view(torch.uint8).numpy().data)
