"""A model's trained parameters, cut into parts: each for a parameter store of its own, in a process of its own.

A part is a stretch of the flat parameters. A `ParameterStore(part.layout, part.of(initial), part.spec, options,
part.partition)` that is given the same stretch of the same gradients does to it what one store over the whole does:

- To the last bit with parameters of float32 or float64, whatever the optimizer, with and without a correction of stale
  gradients, and however long the pieces and chunks are that a store walks through. That takes processors of one kind:
  torch and the libraries below it round as suits a processor.
- Parameters of bfloat16 or float16 alone: where an update has several gradients, numbers near the ends of a part may
  be rounded in another way, because torch's sum is rounded in another way near the end of a tensor.
- An optimizer of the user's own sees a part of its tensors. If one tensor's step depends on another's gradient (a norm
  of all of them, say) the result is another one.

Statistics of parts add up to those of the whole, see `merged_statistics`. An optimizer that begins with a state does so
in a store over the whole, whose state() is then split (paceline.training.sharded_state): how many rounds that state
stands for hangs on all parameters.

Parts begin where a block of the correction begins (paceline.training.stale.blocks: a weight with its biases; of a model
with more than 32 layers, several). Each part has its blocks from the whole, so what is known of a block stays true
however the model is cut. No tensor is cut: a model that is one large tensor is one part.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor, nn

from paceline.core.messages import Statistics
from paceline.training.layout import Layout
from paceline.training.optimizers import OptimizerSpec, make_optimizer
from paceline.training.stale.blocks import Block, Partition, Stretch, blocks_of, partition_of


class Part(NamedTuple):
    begin: int  # in the flat parameters
    end: int
    first: int  # number of its first parameter
    layout: Layout  # of its parameters alone
    spec: OptimizerSpec  # all groups, some of them without a parameter; a state to begin with is left out
    partition: Partition  # of the whole's blocks, those that lie here

    def of(self, flat: Tensor) -> Tensor:
        """Its stretch, no copy."""
        return flat[self.begin : self.end]

    def numbers(self, whole: Sequence[int]) -> tuple[int, ...]:
        """Of these parameters those that are here, by their numbers here: `absent`, for one."""
        count = len(self.layout.parameters)
        return tuple(number - self.first for number in whole if 0 <= number - self.first < count)


def parts_of(layout: Layout, spec: OptimizerSpec, shards: int) -> tuple[Part, ...]:
    """About equally large ones, `shards` of them or as many as there are blocks. The same in every process.

    One part: the optimizer is one of the user's own, and a group without parameters is too much for it.
    """
    partition = partition_of(blocks_of(layout, spec))
    begins = [0, *(block[0].begin for block in partition.blocks[1:])]  # what nobody trains is with what comes before
    sizes = [end - begin for begin, end in pairwise([*begins, layout.parameter_count])]
    marks = _cut(tuple(sizes), max(1, min(shards, len(sizes))))
    numbers = _numbers_at(layout, begins)
    parts = tuple(
        _part(layout, spec, partition, (first, last), (numbers[first], (*numbers, None)[last]))
        for first, last in pairwise(marks)
    )
    return parts if len(parts) == 1 or all(_works(part.spec, spec) for part in parts) else parts_of(layout, spec, 1)


def _cut(sizes: tuple[int, ...], parts: int) -> tuple[int, ...]:
    """From where to where each part goes, so that the largest is as small as can be."""
    until = tuple(accumulate(sizes, initial=0))

    @cache
    def best(end: int, parts: int) -> tuple[int, int, tuple[int, ...]]:
        """Of the first ones: size of the largest part, sum of squares, marks."""
        if parts == 1:
            return until[end], until[end] ** 2, (0, end)
        found = []
        for begin in range(parts - 1, end):
            largest, squares, marks = best(begin, parts - 1)
            size = until[end] - until[begin]
            found.append((max(largest, size), squares + size**2, (*marks, end)))
        return min(found)

    return best(len(sizes), parts)[2]


def _numbers_at(layout: Layout, begins: Sequence[int]) -> list[int]:
    """The numbers of the parameters that begin there; empty ones at the same place are with what comes before."""
    at = accumulate((entry.size for entry in layout.parameters), initial=0)
    places = {
        begin: number for number, (begin, entry) in enumerate(zip(at, layout.parameters, strict=False)) if entry.size
    }
    return [0, *(places[begin] for begin in begins[1:])]


def _part(
    layout: Layout, spec: OptimizerSpec, whole: Partition, blocks: tuple[int, int], numbers: tuple[int, int | None]
) -> Part:
    """`blocks`, `numbers`: the first of the blocks and of the parameters in it, and the first ones that are not."""
    before, entries = layout.parameters[: numbers[0]], layout.parameters[slice(*numbers)]
    begin = sum(entry.size for entry in before)
    names = {entry.name for entry in entries}
    return Part(
        begin,
        begin + sum(entry.size for entry in entries),
        numbers[0],
        Layout(entries, (), (), held_as=_name_of(layout.dtype) if layout.mixed else None),
        spec._replace(
            groups=[([name for name in group if name in names], options) for group, options in spec.groups], state=None
        ),
        Partition(tuple(_moved(block, -begin) for block in whole.blocks[slice(*blocks)]), whole.samples),
    )


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _moved(block: Block, by: int) -> Block:
    return tuple(Stretch(stretch.group, stretch.begin + by, stretch.end + by) for stretch in block)


def _works(part: OptimizerSpec, whole: OptimizerSpec) -> bool:
    """Whether the optimizer can be made and can step where groups have lost all their parameters. torch's own can."""
    pairs = zip(part.groups, whole.groups, strict=True)
    lost = [bool(before) and not left for (left, _), (before, _) in pairs]
    if not any(lost) or part.kind.__module__.startswith("torch.optim"):
        return True
    left = [(group, nn.Parameter(torch.zeros(1, 1))) for group, (names, _) in enumerate(part.groups) if names]
    try:
        make_optimizer(part, left).step()
    except Exception:  # of whatever kind: it is the user's own code, and in one part it need not go through this
        return False
    return True


def merged_statistics(seen: Sequence[Statistics | None]) -> Statistics | None:
    """What one store over the whole would have seen, from what those of all parts saw of one update; each must have
    looked up the norms of its own stretches (`squared_norm=None` in its contributions). None: one could not say.

    Norms and variances add up. The size of a step is the same everywhere, but with Adam's kind: there it is measured,
    and the mean of the parts' own, by the size of their gradients, is near that of the whole, and not the same.
    """
    known = [own for own in seen if own is not None]
    if len(known) < len(seen):
        return None
    variances = [own.variance for own in known if own.variance is not None]
    return msgspec.structs.replace(
        known[0],
        squared_norm=sum(own.squared_norm for own in known),
        variance=sum(variances) if variances else None,
        learning_rate=_step_size(known),
    )


def _step_size(seen: Sequence[Statistics]) -> float | None:
    sizes = [(own.learning_rate, own.squared_norm) for own in seen if own.learning_rate is not None]
    if len({size for size, _ in sizes}) < 2:
        return sizes[0][0] if sizes else None
    norm = sum(norm for _, norm in sizes)
    if norm == 0:
        return sum(size for size, _ in sizes) / len(sizes)
    return sum(size * (own / norm) for size, own in sizes)
