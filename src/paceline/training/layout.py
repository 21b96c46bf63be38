"""Where each tensor of a model lies in one piece of memory.

A worker's segment holds its replica of the trained parameters, one gradient of the same shape, and everything else that
belongs to the model's state: buffers (running means and the like) and frozen parameters. Both sides compute the same
layout from the same description, so that only names, shapes and types ever cross a process border, never tensors.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce

import msgspec
import torch
from torch import Tensor, nn

from paceline.core.errors import ConfigurationError

ALIGNMENT = 64  # bytes: where each part of a segment begins


class Entry(msgspec.Struct, frozen=True):
    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.size * dtype_of(self.dtype).itemsize


class Layout(msgspec.Struct, frozen=True):
    """A model's tensors, in the order of their names in it, and the keys of its state_dict with the tensor of each."""

    parameters: tuple[Entry, ...]  # trained
    others: tuple[Entry, ...]  # buffers and frozen parameters
    keys: tuple[tuple[str, str], ...]  # tied tensors have several keys
    averaged: frozenset[str] = frozenset()  # of the others: the buffers of floating point
    held_as: str | None = None  # the type of the flat numbers, where a part of a model must have that of the whole

    @property
    def dtype(self) -> torch.dtype:
        """Of the flat parameters and gradients: where they are of several types, one that holds them all exactly."""
        if self.held_as is not None:
            return dtype_of(self.held_as)
        return reduce(torch.promote_types, (dtype_of(name) for name in dict.fromkeys(self._dtypes)))

    @property
    def mixed(self) -> bool:
        """Whether the parameters are of several types: those of the whole model."""
        return self.held_as is not None or len(set(self._dtypes)) > 1

    @property
    def _dtypes(self) -> list[str]:
        return [entry.dtype for entry in self.parameters]

    @property
    def parameter_count(self) -> int:
        return sum(entry.size for entry in self.parameters)

    @property
    def segment_bytes(self) -> int:
        parameters = _aligned(self.parameter_count * self.dtype.itemsize)
        return 2 * parameters + sum(_aligned(entry.bytes) for entry in self.others)


def dtype_of(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def layout_of(model: nn.Module) -> Layout:
    """The layout of a model; ConfigurationError if it cannot be held in one piece of memory."""
    trained = [(name, tensor) for name, tensor in model.named_parameters() if tensor.requires_grad]
    if not trained:
        raise ConfigurationError("the model has no parameters that require a gradient: there is nothing to train")
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if nn.parameter.is_lazy(tensor):
            raise ConfigurationError(f"the shape of {name!r} is not known yet (lazy): call the model once first")
    parameters = _entries(trained)
    frozen = [(name, tensor) for name, tensor in model.named_parameters() if not tensor.requires_grad]
    others = [*frozen, *model.named_buffers()]
    names = {id(tensor): name for name, tensor in [*trained, *others]}
    alias = {name: names[id(tensor)] for name, tensor in model.named_parameters(remove_duplicate=False)}
    alias |= {name: names[id(tensor)] for name, tensor in model.named_buffers(remove_duplicate=False)}
    unknown = [key for key in model.state_dict() if key not in alias]
    if unknown:
        raise ConfigurationError(f"the model's state has {unknown[0]!r}, which is no tensor of it")
    keys = tuple((key, alias[key]) for key in model.state_dict())
    averaged = frozenset(name for name, tensor in model.named_buffers() if tensor.is_floating_point())
    return Layout(parameters, _entries(others), keys, averaged)


def _entries(named: Iterable[tuple[str, Tensor]]) -> tuple[Entry, ...]:
    return tuple(Entry(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in named)


def difference(expected: Layout, found: Layout) -> str:
    """In words, the first thing in which two models differ."""
    theirs = {entry.name: entry for entry in found.parameters}
    for entry in expected.parameters:
        other = theirs.get(entry.name)
        if other is None:
            return f"it has no parameter {entry.name!r}"
        if other.shape != entry.shape:
            return f"its parameter {entry.name!r} has shape {other.shape}, not {entry.shape}"
        if other.dtype != entry.dtype:
            return f"its parameter {entry.name!r} is {other.dtype}, not {entry.dtype}"
    extra = theirs.keys() - {entry.name for entry in expected.parameters}
    if extra:
        return f"it has a parameter {min(extra)!r} that the others do not have"
    return "its buffers, its frozen parameters or the order of its parameters differ"


def squared_norm(flat: Tensor) -> float:
    """Of all numbers together. Not finite if one of them is not, or if the squares are too large for their type."""
    if flat.dtype in (torch.float32, torch.float64):
        return float(flat.dot(flat))
    return float(torch.linalg.vector_norm(flat, dtype=torch.float32)) ** 2


def views(flat: Tensor, entries: Iterable[Entry]) -> dict[str, Tensor]:
    """The tensors that lie one after another in a flat one."""
    found, offset = {}, 0
    for entry in entries:
        found[entry.name] = flat[offset : offset + entry.size].view(entry.shape)
        offset += entry.size
    return found


def typed(flat: Tensor, entries: Iterable[Entry]) -> dict[str, Tensor]:
    """The same, each in its own type: views where that is the flat one's, else copies."""
    entries = list(entries)
    found = views(flat, entries)
    return {entry.name: found[entry.name].to(dtype_of(entry.dtype)) for entry in entries}


class Segment:
    """One worker's piece of memory, cut as the layout says. Whoever maps the same bytes sees the same tensors."""

    def __init__(self, layout: Layout, memory: Tensor) -> None:
        """`memory`: bytes, at least layout.segment_bytes of them."""
        size = layout.parameter_count * layout.dtype.itemsize
        second = _aligned(size)
        self.layout = layout
        self.memory = memory
        self.parameters = memory[:size].view(layout.dtype)
        self.gradient = memory[second : second + size].view(layout.dtype)
        self.others: dict[str, Tensor] = {}
        offset = 2 * second
        for entry in layout.others:
            part = memory[offset : offset + entry.bytes].view(dtype_of(entry.dtype))
            self.others[entry.name] = part.view(entry.shape)
            offset += _aligned(entry.bytes)

    def state(self, parameters: Tensor | None = None) -> dict[str, Tensor]:
        """What state_dict() of the model would be, as views where the type allows it; with other parameters than its
        own, if given."""
        flat = self.parameters if parameters is None else parameters
        tensors = typed(flat, self.layout.parameters) | self.others
        return {key: tensors[name] for key, name in self.layout.keys}


def average(replicas: Sequence[Mapping[str, Tensor]], averaged: Collection[str]) -> dict[str, Tensor]:
    """One set of buffers and frozen parameters of many: the means of those named, of the others the first one's."""
    first = replicas[0]
    means: dict[str, Tensor] = {}
    for name, own in first.items():
        # What is the same everywhere stays as it is: the mean of equal numbers is not exact.
        same = name not in averaged or all(torch.equal(own, replica[name]) for replica in replicas[1:])
        means[name] = own.clone() if same else torch.stack([replica[name] for replica in replicas]).mean(0)
    return means


def averaged_into(target: Segment, replicas: Sequence[Mapping[str, Tensor]]) -> None:
    """Give a segment the buffers and frozen parameters of a group."""
    if replicas:
        for name, mean in average(replicas, target.layout.averaged).items():
            target.others[name].copy_(mean)
