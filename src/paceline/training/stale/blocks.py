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


class Stretch(NamedTuple):
    """Neighbours that the optimizer treats alike."""

    group: int  # of the optimizer
    begin: int
    end: int


# A layer, or several: a weight, and the biases and the like that follow it.
Block = tuple[Stretch, ...]


class Partition(NamedTuple):
    """The blocks of a model, or those of a part of it, and how many numbers of each are looked at."""

    blocks: tuple[Block, ...]
    samples: int


def partition_of(blocks: Sequence[Block]) -> Partition:
    """Of a whole model."""
    return Partition(tuple(blocks), min(SAMPLES // len(blocks), max(map(_size, blocks))) if blocks else 0)


def blocks_of(layout: Layout, spec: OptimizerSpec) -> list[Block]:
    """In the order of the layout. Parameters that the optimizer does not have are in none."""
    group_of = {name: number for number, (names, _) in enumerate(spec.groups) for name in names}
    blocks: list[Block] = []
    begin = 0
    for entry in layout.parameters:
        group, end = group_of.get(entry.name), begin + entry.size
        if group is not None and entry.size:
            stretch = Stretch(group, begin, end)
            if blocks and len(entry.shape) < 2:
                blocks[-1] = _joined(blocks[-1], (stretch,))
            else:
                blocks.append((stretch,))
        begin = end
    sizes = [_size(block) for block in blocks]
    pairs = [left + right for left, right in pairwise(sizes)]
    while len(blocks) > MOST_BLOCKS:
        at = pairs.index(min(pairs))
        blocks[at : at + 2] = [_joined(blocks[at], blocks[at + 1])]
        sizes[at : at + 2] = [pairs[at]]
        pairs[max(0, at - 1) : at + 2] = [left + right for left, right in pairwise(sizes[max(0, at - 1) : at + 2])]
    return blocks


def _size(block: Block) -> int:
    return sum(stretch.end - stretch.begin for stretch in block)


def _joined(left: Block, right: Block) -> Block:
    """Both, with the stretches where they meet as one if they can be."""
    last, first = left[-1], right[0]
    if (last.group, last.end) == (first.group, first.begin):
        return (*left[:-1], Stretch(last.group, last.begin, first.end), *right[1:])
    return (*left, *right)


class Chunk(NamedTuple):
    """Where a part of the parameters belongs."""

    block: int
    group: int


class Chunks:
    """Where to cut a flat tensor so that every part lies in one stretch of one block."""

    def __init__(self, blocks: Sequence[Block], size: int) -> None:
        self.parts: list[Chunk | None] = []  # None: in no block
        self.sizes: list[int] = []
        at = 0
        for number, block in enumerate(blocks):
            for stretch in block:
                self._add(None, stretch.begin - at)
                self._add(Chunk(number, stretch.group), stretch.end - stretch.begin)
                at = stretch.end
        self._add(None, size - at)

    def _add(self, part: Chunk | None, size: int) -> None:
        for begin in range(0, size, CHUNK):
            self.parts.append(part)
            self.sizes.append(min(size - begin, CHUNK))

    def of(self, flat: Tensor) -> Sequence[Tensor]:
        return torch.split(flat, self.sizes)


def sample_positions(partition: Partition) -> Tensor:
    """Equally many numbers of every block, evenly spread: one row per block. Of a small one the same more than once."""
    size = partition.samples
    return torch.stack([_positions(block)[(torch.arange(size) * _size(block)) // size] for block in partition.blocks])


def _positions(block: Block) -> Tensor:
    return torch.cat([torch.arange(stretch.begin, stretch.end) for stretch in block])
