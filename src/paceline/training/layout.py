"""Where each tensor of a model lies in one flat buffer.

A worker's segment of memory holds its replica of the parameters, one gradient of the same shape, and the model's
buffers (running means and the like). Both sides compute the same layout from the same description, so that only names,
shapes and types ever cross a process border, never tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec
import torch
from torch import Tensor, nn

from paceline.core.errors import ConfigurationError


class Entry(msgspec.Struct, frozen=True):
    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Layout(msgspec.Struct, frozen=True):
    """The trained parameters and the floating-point buffers of a model, in the order of their names in it."""

    dtype: str
    parameters: tuple[Entry, ...]
    buffers: tuple[Entry, ...]

    @property
    def parameter_count(self) -> int:
        return sum(entry.size for entry in self.parameters)

    @property
    def buffer_count(self) -> int:
        return sum(entry.size for entry in self.buffers)

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype = getattr(torch, self.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype

    @property
    def segment_bytes(self) -> int:
        return (2 * self.parameter_count + self.buffer_count) * self.torch_dtype.itemsize


def layout_of(model: nn.Module) -> Layout:
    """The layout of a model; ConfigurationError if it cannot be held in one flat buffer."""
    trained = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
    if not trained:
        raise ConfigurationError("the model has no parameters that require a gradient: there is nothing to train")
    dtypes = {str(each.dtype).removeprefix("torch.") for _, each in trained}
    if len(dtypes) > 1:
        raise ConfigurationError(f"the model has parameters of {' and '.join(sorted(dtypes))}; one type is needed")
    buffers = [(name, each) for name, each in model.named_buffers() if each.is_floating_point()]
    return Layout(dtypes.pop(), _entries(trained), _entries(buffers))


def _entries(named: Iterable[tuple[str, Tensor]]) -> tuple[Entry, ...]:
    return tuple(Entry(name, tuple(each.shape)) for name, each in named)


def difference(expected: Layout, found: Layout) -> str:
    """In words, the first thing in which two models differ."""
    theirs = {entry.name: entry.shape for entry in found.parameters}
    for entry in expected.parameters:
        if entry.name not in theirs:
            return f"it has no parameter {entry.name!r}"
        if theirs[entry.name] != entry.shape:
            return f"its parameter {entry.name!r} has shape {theirs[entry.name]}, not {entry.shape}"
    extra = theirs.keys() - {entry.name for entry in expected.parameters}
    if extra:
        return f"it has a parameter {min(extra)!r} that the others do not have"
    return "its types, its buffers or the order of its parameters differ"


def views(flat: Tensor, entries: Iterable[Entry]) -> dict[str, Tensor]:
    """The tensors that lie one after another in a flat one."""
    found, offset = {}, 0
    for entry in entries:
        found[entry.name] = flat[offset : offset + entry.size].view(entry.shape)
        offset += entry.size
    return found


class Segment:
    """One worker's piece of memory, cut as the layout says. Whoever maps the same bytes sees the same tensors."""

    def __init__(self, layout: Layout, flat: Tensor) -> None:
        count = layout.parameter_count
        self.layout = layout
        self.parameters = flat[:count]
        self.gradient = flat[count : 2 * count]
        self.buffers = flat[2 * count :]

    def bind(self, model: nn.Module) -> None:
        """Make the model live in this segment: its parameters, gradients and buffers become views of it."""
        replica = views(self.parameters, self.layout.parameters)
        gradient = views(self.gradient, self.layout.parameters)
        self.gradient.zero_()
        for name, each in model.named_parameters():
            if each.requires_grad:
                replica[name].copy_(each.detach())
                each.data = replica[name]
                each.grad = gradient[name]
        own = dict(model.named_buffers())
        for name, view in views(self.buffers, self.layout.buffers).items():
            view.copy_(own[name])
            own[name].data = view
