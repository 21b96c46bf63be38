"""What the optimizer sees of the flat parameters: pieces, each one tensor to it, and what it knows about each.

Elementwise optimizers see whole stretches of a group as one tensor. Where parameters must be told apart after all (one
has no gradient, or somebody asks for the state in torch's format), what is known of a stretch is known of its parts.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from paceline.core.errors import ConfigurationError
from paceline.training.layout import Entry, Layout, dtype_of
from paceline.training.optimizers import ELEMENTWISE, EXACT, OptimizerSpec


class Piece(NamedTuple):
    """A stretch of the flat parameters that the optimizer sees as one tensor."""

    group: int
    begin: int
    size: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    numbers: tuple[int, ...]  # of the parameters in it

    def of(self, flat: Tensor) -> Tensor:
        if self.shape == flat.shape:
            return flat
        return flat[self.begin : self.begin + self.size].view(self.shape)


def pieces_of(layout: Layout, spec: OptimizerSpec, *, apart: bool = False) -> list[Piece]:
    """One piece per parameter; neighbours of one group are one piece where the optimizer cannot tell the difference,
    unless they are to be told apart."""
    group_of = {name: number for number, (names, _) in enumerate(spec.groups) for name in names}
    fused = any(options.get("fused") for options in (spec.arguments, *(own for _, own in spec.groups)))
    pieces: list[Piece] = []
    begin = 0
    for number, entry in enumerate(layout.parameters):
        group, dtype = group_of.get(entry.name), dtype_of(entry.dtype)
        if group is not None:
            merges = not apart and spec.kind in ELEMENTWISE and dtype in EXACT and not fused
            last = pieces[-1] if pieces else None
            if merges and last is not None and last[0] == group and last[4] == dtype and last[1] + last[2] == begin:
                size = last.size + entry.size
                pieces[-1] = Piece(group, last.begin, size, (size,), dtype, (*last.numbers, number))
            else:
                shape = (entry.size,) if merges else entry.shape
                pieces.append(Piece(group, begin, entry.size, shape, dtype, (number,)))
        begin += entry.size
    return pieces


def tensors_of(pieces: Sequence[Piece], flat: Tensor) -> list[nn.Parameter]:
    """What the optimizer steps: the flat parameters themselves, or copies of another type."""
    return [nn.Parameter(piece.of(flat).to(piece.dtype)) for piece in pieces]


def parts_of(known: Mapping[str, Any], piece: Piece, part: Piece) -> dict[str, Any]:
    """What an optimizer knows about a piece, of a part of it: numbers of the whole are the part's as well."""
    begin = part.begin - piece.begin
    found: dict[str, Any] = {}
    for name, value in known.items():
        if isinstance(value, Tensor) and value.shape == piece.shape and value.dim():
            found[name] = value.view(-1)[begin : begin + part.size].view(part.shape).clone()
        else:
            found[name] = value.clone() if isinstance(value, Tensor) else copy.copy(value)
    return found


def tell_apart(
    optimizer: torch.optim.Optimizer,
    before: tuple[Sequence[Piece], Sequence[nn.Parameter]],
    after: tuple[Sequence[Piece], Sequence[nn.Parameter]],
) -> None:
    """Let the optimizer see these smaller pieces from now on; it knows about them what it knew about the larger."""
    known = [(piece, dict(optimizer.state.get(tensor, {}))) for piece, tensor in zip(*before, strict=True)]
    whole = {number: (piece, about) for piece, about in known for number in piece.numbers}
    optimizer.state.clear()
    for group in optimizer.param_groups:
        group["params"] = []
    for piece, tensor in zip(*after, strict=True):
        optimizer.param_groups[piece.group]["params"].append(tensor)
        larger, about = whole[piece.numbers[0]]
        if about:
            optimizer.state[tensor] = parts_of(about, larger, piece)


def state_dict_of(
    optimizer: torch.optim.Optimizer,
    layout: Layout,
    spec: OptimizerSpec,
    pieces: Sequence[Piece],
    tensors: Sequence[nn.Parameter],
) -> dict[str, Any]:
    """What state_dict() of an optimizer of the model's own parameters would be; copies."""
    known = {number: (piece, tensor) for piece, tensor in zip(pieces, tensors, strict=True) for number in piece.numbers}
    numbers = {entry.name: number for number, entry in enumerate(layout.parameters)}
    parts = {part.numbers[0]: part for part in pieces_of(layout, spec, apart=True)}
    state: dict[int, dict[str, Any]] = {}
    groups = []
    place = 0
    for (names, _), group in zip(spec.groups, optimizer.param_groups, strict=True):
        groups.append(
            {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}
            | {"params": list(range(place, place + len(names)))}
        )
        for name in names:
            piece, tensor = known[numbers[name]]
            about = optimizer.state.get(tensor)
            if about:
                state[place] = parts_of(about, piece, parts[numbers[name]])
            place += 1
    return {"state": state, "param_groups": groups}


def load_state(
    optimizer: torch.optim.Optimizer,
    layout: Layout,
    spec: OptimizerSpec,
    pieces: Sequence[Piece],
    tensors: Sequence[nn.Parameter],
) -> bool:
    """Begin with what another optimizer knew: its state_dict is in the description.

    False: it knew different things about parameters that are one piece, so they must be told apart.
    """
    given = spec.state
    if not (isinstance(given, Mapping) and isinstance(given.get("state"), Mapping)):
        raise ConfigurationError("worker.optimizer(state=...) takes the state_dict() of an optimizer")
    names = [name for names, _ in spec.groups for name in names]
    if any(place not in range(len(names)) for place in given["state"]):
        raise ConfigurationError(
            f"the optimizer's state is of {len(given['state'])} parameters, and the model trains {len(names)}"
        )
    numbers = {entry.name: number for number, entry in enumerate(layout.parameters)}
    about = {numbers[names[place]]: known for place, known in given["state"].items()}
    found: list[dict[str, Any]] = []
    for piece in pieces:
        parts = [(layout.parameters[number], about.get(number, {})) for number in piece.numbers]
        if not all(_alike(parts[0][1], known) for _, known in parts):
            return False
        found.append({name: _joined(name, parts, piece) for name in parts[0][1]})
    for tensor, known in zip(tensors, found, strict=True):
        if known:
            optimizer.state[tensor] = known
    return True


def _is_of_each_number(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two parameters differ only in what is known of each of their numbers."""
    if one.keys() != other.keys():
        return False
    common = [name for name, value in one.items() if not (_is_of_each_number(value) or _is_of_each_number(other[name]))]
    return all(bool(one[name] == other[name]) for name in common)


def _joined(name: str, parts: Sequence[tuple[Entry, Mapping[str, Any]]], piece: Piece) -> Any:
    """What is known of all parameters of a piece, as of one."""
    first = parts[0][1][name]
    if not _is_of_each_number(first):
        return first.clone() if isinstance(first, Tensor) else first
    for entry, known in parts:
        if tuple(known[name].shape) != entry.shape:
            raise ConfigurationError(
                f"the optimizer's state is of another model: {name!r} of {entry.name!r} has shape"
                f" {tuple(known[name].shape)}, not {entry.shape}"
            )
    return torch.cat([known[name].detach().reshape(-1).to(piece.dtype) for _, known in parts]).view(piece.shape)
