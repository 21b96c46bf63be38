"""The flat parameters, cut into blocks that have a curvature of their own, and into chunks that fit into a cache."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.training.layout import Layout
from paceline.training.optimizers import OptimizerSpec

MOST_BLOCKS = 32
CHUNK = 1_048_576  # numbers: few enough for a cache, and many enough that calling torch costs little
SAMPLES = 4_096  # numbers that are looked at, of all blocks together


class Block(NamedTuple):
    """A stretch of the parameters: a weight, or several, and the biases that follow."""

    group: int  # of the optimizer
    begin: int
    end: int


def blocks_of(layout: Layout, spec: OptimizerSpec) -> list[Block]:
    """In the order of the layout. Parameters that the optimizer does not have are in none."""
    group_of = {name: number for number, (names, _) in enumerate(spec.groups) for name in names}
    blocks: list[Block] = []
    begin = 0
    for entry in layout.parameters:
        group, end = group_of.get(entry.name), begin + entry.size
        if group is not None:
            last = blocks[-1] if blocks else None
            if last is not None and len(entry.shape) < 2 and (last.group, last.end) == (group, begin):
                blocks[-1] = Block(group, last.begin, end)
            else:
                blocks.append(Block(group, begin, end))
        begin = end
    while len(blocks) > MOST_BLOCKS:
        merged = _merge_smallest(blocks)
        if merged is None:
            break
        blocks = merged
    return blocks


def _merge_smallest(blocks: list[Block]) -> list[Block] | None:
    """Make one of the two neighbours that are smallest together; None: no two are neighbours in one group."""
    pairs = [
        (right.end - left.begin, at)
        for at, (left, right) in enumerate(pairwise(blocks))
        if left.group == right.group and left.end == right.begin
    ]
    if not pairs:
        return None
    _, at = min(pairs)
    whole = Block(blocks[at].group, blocks[at].begin, blocks[at + 1].end)
    return [*blocks[:at], whole, *blocks[at + 2 :]]


class Chunks:
    """Where to cut a flat tensor so that every part lies in one block; None: in no block."""

    def __init__(self, blocks: Sequence[Block], size: int) -> None:
        self.blocks: list[int | None] = []  # of each part
        self._sizes: list[int] = []
        at = 0
        for number, block in enumerate(blocks):
            self._add(None, block.begin - at)
            self._add(number, block.end - block.begin)
            at = block.end
        self._add(None, size - at)

    def _add(self, block: int | None, size: int) -> None:
        while size > 0:
            self.blocks.append(block)
            self._sizes.append(min(size, CHUNK))
            size -= CHUNK

    def of(self, flat: Tensor) -> Sequence[Tensor]:
        return torch.split(flat, self._sizes)


def sample_positions(blocks: Sequence[Block]) -> Tensor:
    """Equally many numbers of every block, evenly spread: one row per block. Of a small one the same more than once."""
    size = SAMPLES // len(blocks)
    size = min(size, max(block.end - block.begin for block in blocks))
    rows = [block.begin + (torch.arange(size) * (block.end - block.begin)) // size for block in blocks]
    return torch.stack(rows)
