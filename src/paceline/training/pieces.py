"""What the optimizer sees of the flat parameters: pieces, each one tensor to it, and what it knows about each.

Elementwise optimizers see stretches of a group as one tensor, whatever parameters lie there. No stretch is longer than
suits the caches: a step walks over it several times, and AdamW's makes two more of its size, which for a long one is
new memory, page by page, in every step. Where parameters must be told apart after all (one has no gradient, or somebody
asks for the state in torch's format), what is known of stretches is known of what lies in them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from paceline.core.errors import ConfigurationError
from paceline.training.layout import Entry, Layout, dtype_of
from paceline.training.optimizers import ELEMENTWISE, EXACT, OptimizerSpec

OF_A_WHOLE = {"step", "mu_product", "eta", "mu"}  # what elementwise optimizers know, and not of each number
LONGEST = 1 << 18  # numbers in a stretch: with much fewer, calls take longer than the numbers do


class Piece(NamedTuple):
    """A stretch of the flat parameters that the optimizer sees as one tensor."""

    group: int
    begin: int
    size: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    numbers: tuple[int, ...]  # of the parameters in it, whole or in part

    @property
    def end(self) -> int:
        return self.begin + self.size

    def of(self, flat: Tensor) -> Tensor:
        if self.shape == flat.shape:
            return flat
        return flat[self.begin : self.end].view(self.shape)


def pieces_of(layout: Layout, spec: OptimizerSpec, *, apart: bool = False) -> list[Piece]:
    """One piece per parameter; where the optimizer cannot tell the difference, and they are not to be told apart,
    neighbours of one group are joined, and cut again where it suits."""
    group_of = {name: number for number, (names, _) in enumerate(spec.groups) for name in names}
    fused = any(options.get("fused") for options in (spec.arguments, *(own for _, own in spec.groups)))
    begins = _begins(layout)
    pieces: list[Piece] = []
    for number, entry in enumerate(layout.parameters):
        group, dtype, begin = group_of.get(entry.name), dtype_of(entry.dtype), begins[number]
        if group is not None:
            merges = not apart and spec.kind in ELEMENTWISE and dtype in EXACT and not fused
            last = pieces[-1] if pieces else None
            if merges and last is not None and last[0] == group and last[4] == dtype and last.end == begin:
                size = last.size + entry.size
                pieces[-1] = Piece(group, last.begin, size, (size,), dtype, (*last.numbers, number))
            else:
                shape = (entry.size,) if merges else entry.shape
                pieces.append(Piece(group, begin, entry.size, shape, dtype, (number,)))
    if apart or fused or spec.kind not in ELEMENTWISE:
        return pieces
    ends = [*begins[1:], sum(entry.size for entry in layout.parameters)]
    return [part for piece in pieces for part in _cut(piece, list(zip(begins, ends, strict=True)))]


def _begins(layout: Layout) -> list[int]:
    """Where each parameter begins among the flat ones."""
    return list(accumulate((entry.size for entry in layout.parameters), initial=0))[:-1]


def _cut(piece: Piece, places: Sequence[tuple[int, int]]) -> list[Piece]:
    """Into stretches of about the same length. `places`: from where to where every parameter lies."""
    if piece.size <= LONGEST or piece.dtype not in EXACT:
        return [piece]
    count = -(-piece.size // LONGEST)
    marks = [piece.begin + piece.size * part // count for part in range(count + 1)]
    parts = []
    for begin, end in pairwise(marks):
        numbers = tuple(number for number in piece.numbers if _lies_in(places[number], begin, end))
        parts.append(piece._replace(begin=begin, size=end - begin, shape=(end - begin,), numbers=numbers))
    return parts


def _lies_in(place: tuple[int, int], begin: int, end: int) -> bool:
    """Whether a parameter lies in a stretch, be it in part; an empty one does where it only touches it."""
    first, last = place
    return first < end and last > begin if first < last else begin <= first <= end


def tensors_of(pieces: Sequence[Piece], flat: Tensor) -> list[nn.Parameter]:
    """What the optimizer steps: the flat parameters themselves, or copies of another type."""
    return [nn.Parameter(piece.of(flat).to(piece.dtype)) for piece in pieces]


def known_of(part: Piece, pieces: Sequence[tuple[Piece, Mapping[str, Any]]]) -> dict[str, Any]:
    """What an optimizer knows about a part of these pieces, which lie side by side; what it knows of them as a whole,
    as a number of steps, it knows of the part as well. Copies."""
    found: dict[str, Any] = {}
    for name, value in pieces[0][1].items():
        if isinstance(value, Tensor) and value.shape == pieces[0][0].shape and value.dim():
            stretches = [
                about[name].view(-1)[max(0, part.begin - piece.begin) : part.end - piece.begin]
                for piece, about in pieces
            ]
            found[name] = torch.cat(stretches).view(part.shape)
        else:
            found[name] = value.clone() if isinstance(value, Tensor) else copy.copy(value)
    return found


def tell_apart(
    optimizer: torch.optim.Optimizer,
    before: tuple[Sequence[Piece], Sequence[nn.Parameter]],
    after: tuple[Sequence[Piece], Sequence[nn.Parameter]],
) -> None:
    """Let the optimizer see these smaller pieces from now on; it knows about them what it knew about the larger."""
    known = _by_number(optimizer, *before)
    of_no_tensor = {key: about for key, about in optimizer.state.items() if not isinstance(key, Tensor)}
    optimizer.state.clear()
    optimizer.state.update(of_no_tensor)
    for group in optimizer.param_groups:
        group["params"] = []
    for piece, tensor in zip(*after, strict=True):
        optimizer.param_groups[piece.group]["params"].append(tensor)
        about = known_of(piece, known[piece.numbers[0]])
        if about:
            optimizer.state[tensor] = about


def load_exactly(optimizer: torch.optim.Optimizer, kept: Mapping[str, Any]) -> None:
    """Load what its state_dict() was. torch gives all that is known of a parameter the type of that parameter, which
    need not be the one that it had: NAdam multiplies in float32 whatever it trains."""
    optimizer.load_state_dict(dict(kept))
    tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    for index, tensor in enumerate(tensors):
        about = optimizer.state.get(tensor, {})
        for name, value in kept["state"].get(index, {}).items():
            loaded = about.get(name)
            if isinstance(value, Tensor) and isinstance(loaded, Tensor) and loaded.dtype != value.dtype:
                about[name] = value.clone()


def _by_number(
    optimizer: torch.optim.Optimizer, pieces: Sequence[Piece], tensors: Sequence[nn.Parameter]
) -> dict[int, list[tuple[Piece, dict[str, Any]]]]:
    """For every parameter the pieces that it lies in, and what the optimizer knows about them."""
    found: dict[int, list[tuple[Piece, dict[str, Any]]]] = {}
    for piece, tensor in zip(pieces, tensors, strict=True):
        about = dict(optimizer.state.get(tensor, {}))
        for number in piece.numbers:
            found.setdefault(number, []).append((piece, about))
    return found


def state_dict_of(
    optimizer: torch.optim.Optimizer,
    layout: Layout,
    spec: OptimizerSpec,
    pieces: Sequence[Piece],
    tensors: Sequence[nn.Parameter],
) -> dict[str, Any]:
    """What state_dict() of an optimizer of the model's own parameters would be; copies."""
    known = _by_number(optimizer, pieces, tensors)
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
            number = numbers[name]
            about = known_of(parts[number], known[number])
            if about:
                state[place] = about
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
    begins = _begins(layout)
    for piece in pieces:
        parts = [(layout.parameters[number], about.get(number, {})) for number in piece.numbers]
        if not all(alike(parts[0][1], known) for _, known in parts):
            return False
        skipped = piece.begin - begins[piece.numbers[0]]
        found.append({name: _joined(name, parts, piece, skipped) for name in parts[0][1]})
    for tensor, known in zip(tensors, found, strict=True):
        if known:
            optimizer.state[tensor] = known
    return True


def alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two parameters differ only in what is known of each of their numbers."""
    return one.keys() == other.keys() and all(bool(one[name] == other[name]) for name in OF_A_WHOLE & one.keys())


def _joined(name: str, parts: Sequence[tuple[Entry, Mapping[str, Any]]], piece: Piece, skipped: int) -> Any:
    """What is known of all parameters of a piece, as of one; so many numbers of the first come before the piece."""
    first = parts[0][1][name]
    if name in OF_A_WHOLE or not isinstance(first, Tensor):
        return copy.deepcopy(first)
    for entry, known in parts:
        if tuple(known[name].shape) != entry.shape:
            raise ConfigurationError(
                f"the optimizer's state is of another model: {name!r} of {entry.name!r} has shape"
                f" {tuple(known[name].shape)}, not {entry.shape}"
            )
    joined = torch.cat([known[name].detach().reshape(-1).to(piece.dtype) for _, known in parts])
    stretch = joined[skipped : skipped + piece.size].view(piece.shape)
    return stretch if stretch.numel() == joined.numel() else stretch.clone()
