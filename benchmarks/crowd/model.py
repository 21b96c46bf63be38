"""A small model in several blocks, so that it can be spread over shards: a model of vectors alone is one block."""

from __future__ import annotations

import torch
from torch import nn

BLOCKS = 8


class Layers(nn.Module):
    """So many parameters, and nothing to compute."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(1, size // BLOCKS)) for _ in range(BLOCKS)])
