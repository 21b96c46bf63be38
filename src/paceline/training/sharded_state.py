"""What the stores of all parts remember, as what one store over the whole remembers, and back.

A checkpoint is always that of a whole store: a run goes on from it with any number of parts, or with one store. Both
ways are exact: a store that goes on makes the same updates, to the bit, as one that never stopped. What comes back
shares no memory with what was given.
"""

from __future__ import annotations

import copy
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.training.layout import Layout
from paceline.training.optimizers import OptimizerSpec
from paceline.training.pieces import Piece, alike, known_of, pieces_of
from paceline.training.sharding import Part

# How what a correction remembers is cut: with the parameters, with the blocks, or not at all. A dictionary of workers
# has `EACH` for all of them.
NUMBERS, BLOCKS, SAME, EACH = "numbers", "blocks", "same", "each"
CORRECTION: dict[str, Any] = {
    "moments": {EACH: (NUMBERS, SAME)},
    "secant": {
        "curvatures": BLOCKS,
        "steepnesses": BLOCKS,
        "means": (BLOCKS, BLOCKS, BLOCKS, BLOCKS),
        "update": BLOCKS,
        "before": {EACH: (BLOCKS, BLOCKS, SAME, BLOCKS, BLOCKS)},
    },
    "noise": {
        "ratios": BLOCKS,
        "first": SAME,
        "round": {"sum": BLOCKS, "squares": BLOCKS, "share": SAME, "squared_shares": SAME},
    },
    "second": NUMBERS,
    "gathered": SAME,
    "gone": SAME,
    "start": (NUMBERS, SAME),
    "since": SAME,
    "of_rounds": SAME,
}
OF_PARTS = ("apart", "missed", "optimizer", "correction")  # all else is the same in every part


class Known(NamedTuple):
    """What an optimizer knows about a piece, which lies where it does in the whole."""

    piece: Piece
    about: Mapping[str, Any]


class Knowledge:
    """All of it, in the order of the parameters."""

    def __init__(self, known: Iterable[Known]) -> None:
        known = list(known)
        self._filled = [own for own in known if own.piece.size]
        self._begins = [own.piece.begin for own in self._filled]
        self._ends = [own.piece.end for own in self._filled]
        self._of_number = {number: own for own in known for number in own.piece.numbers}

    def about(self, piece: Piece) -> dict[str, Any]:
        sources = self.sources(piece)
        if len(sources) == 1 and sources[0].piece == piece:  # whatever the shapes of what is known mean
            return {name: _copied(value) for name, value in sources[0].about.items()}
        return known_of(piece, sources)

    def sources(self, piece: Piece) -> list[Known]:
        """The pieces that this one lies in, or that lie in it."""
        found = self._filled[bisect_right(self._ends, piece.begin) : bisect_left(self._begins, piece.end)]
        return found if piece.size else [self._of_number[piece.numbers[0]]]


def _copied(value: Any) -> Any:
    """A deep copy of a tensor would have all the memory that it is a view of."""
    return value.clone() if isinstance(value, Tensor) else copy.deepcopy(value)


def merged_state(parts: Sequence[Part], states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`states`: what state() of every part's store is, after the same update."""
    first = states[0]
    assert all(state["version"] == first["version"] for state in states), "parts of different versions"
    layout, spec = _whole(parts)
    known = Knowledge(own for pair in zip(parts, states, strict=True) for own in _known(*pair))
    # One part may see its parameters apart and another not, if only one had some without a gradient.
    apart = any(state["apart"] for state in states) or not _joinable(pieces_of(layout, spec), known)
    pieces = pieces_of(layout, spec, apart=apart)
    corrections = [state["correction"] for state in states]
    return {name: copy.deepcopy(value) for name, value in first.items() if name not in OF_PARTS} | {
        "apart": apart,
        "missed": {
            number + part.first: rounds
            for part, state in zip(parts, states, strict=True)
            for number, rounds in state["missed"].items()
        },
        "optimizer": _optimizer_state(first["optimizer"], spec, pieces, known),
        "correction": _merged(corrections, CORRECTION),
    }


def split_state(state: Mapping[str, Any], parts: Sequence[Part]) -> list[dict[str, Any]]:
    """`state`: what state() of a store over the whole is."""
    layout, spec = _whole(parts)
    pieces = pieces_of(layout, spec, apart=state["apart"])
    known = Knowledge(map(Known, pieces, _abouts(state["optimizer"], spec, pieces)))
    corrections = _split(state["correction"], CORRECTION, _Marks(parts))
    return [
        {name: copy.deepcopy(value) for name, value in state.items() if name not in OF_PARTS}
        | {
            "apart": state["apart"],
            "missed": {part.numbers([number])[0]: state["missed"][number] for number in _missed_in(part, state)},
            "optimizer": _optimizer_state(state["optimizer"], spec, _pieces(part, apart=state["apart"]), known),
            "correction": correction,
        }
        for part, correction in zip(parts, corrections, strict=True)
    ]


def _missed_in(part: Part, state: Mapping[str, Any]) -> list[int]:
    return [number for number in state["missed"] if part.numbers([number])]


def _whole(parts: Sequence[Part]) -> tuple[Layout, OptimizerSpec]:
    """Of what the parts were cut; their groups have the names in another order, which makes no difference here."""
    entries = tuple(entry for part in parts for entry in part.layout.parameters)
    spec = parts[0].spec
    names = [[name for part in parts for name in part.spec.groups[group][0]] for group in range(len(spec.groups))]
    groups = [(own, options) for own, (_, options) in zip(names, spec.groups, strict=True)]
    return Layout(entries, (), (), held_as=parts[0].layout.held_as), spec._replace(groups=groups)


# -- the optimizer's own --


def _pieces(part: Part, *, apart: bool) -> list[Piece]:
    """What a part's optimizer sees, and where that lies in the whole."""
    return [
        piece._replace(begin=piece.begin + part.begin, numbers=tuple(number + part.first for number in piece.numbers))
        for piece in pieces_of(part.layout, part.spec, apart=apart)
    ]


def _known(part: Part, state: Mapping[str, Any]) -> list[Known]:
    pieces = _pieces(part, apart=state["apart"])
    return list(map(Known, pieces, _abouts(state["optimizer"], part.spec, pieces)))


def _in_order(spec: OptimizerSpec, pieces: Sequence[Piece]) -> list[int]:
    """Places of the pieces as a state_dict counts them: group by group."""
    return [at for group in range(len(spec.groups)) for at, piece in enumerate(pieces) if piece.group == group]


def _abouts(state_dict: Mapping[str, Any], spec: OptimizerSpec, pieces: Sequence[Piece]) -> list[Mapping[str, Any]]:
    """What a state_dict has about each piece."""
    abouts: list[Mapping[str, Any]] = [{}] * len(pieces)
    for index, at in enumerate(_in_order(spec, pieces)):
        abouts[at] = state_dict["state"].get(index, {})
    return abouts


def _optimizer_state(
    like: Mapping[str, Any], spec: OptimizerSpec, pieces: Sequence[Piece], known: Knowledge
) -> dict[str, Any]:
    """A state_dict of an optimizer that sees these pieces; `like`: one that has the same options."""
    order = _in_order(spec, pieces)
    state = {name: copy.deepcopy(value) for name, value in like["state"].items() if not isinstance(name, int)}
    for index, at in enumerate(order):
        about = known.about(pieces[at])
        if about:
            state[index] = about
    groups = [{**copy.deepcopy(options), "params": []} for options in like["param_groups"]]
    for index, at in enumerate(order):
        groups[pieces[at].group]["params"].append(index)
    others = {name: copy.deepcopy(value) for name, value in like.items() if name not in ("state", "param_groups")}
    return {**others, "state": state, "param_groups": groups}


def _joinable(pieces: Sequence[Piece], known: Knowledge) -> bool:
    """Whether all that is known of what lies in one piece can be known of it."""
    sources = [known.sources(piece) for piece in pieces]
    return all(alike(own[0].about, other.about) for own in sources for other in own[1:])


# -- what the correction remembers --


class _Marks:
    """Where every part ends, in each way of counting."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._ends: dict[str, list[int]] = {
            NUMBERS: [part.end - part.begin for part in parts],
            BLOCKS: [len(part.partition.blocks) for part in parts],
        }
        self.parts = len(parts)

    def cut(self, value: Any, how: str) -> list[Any]:
        if how == SAME or not isinstance(value, Tensor | list):  # nothing has been seen yet
            return [_copied(value) for _ in range(self.parts)]
        stretches = pairwise(accumulate(self._ends[how], initial=0))
        return [_copied(value[begin:end]) for begin, end in stretches]


def _merged(values: Sequence[Any], how: Any) -> Any:
    first = values[0]
    match how:
        case _ if first is None:
            return None
        case dict() if EACH in how:
            return {worker: _merged([value[worker] for value in values], how[EACH]) for worker in first}
        case dict():
            return {name: _merged([value[name] for value in values], how[name]) for name in first}
        case tuple():
            return tuple(_merged(own, part) for *own, part in zip(*values, how, strict=True))
        case _ if how == SAME or not isinstance(first, Tensor | list):
            return _copied(first)
        case _ if isinstance(first, Tensor):
            return torch.cat(list(values))
        case _:
            return [number for value in values for number in value]


def _split(value: Any, how: Any, marks: _Marks) -> list[Any]:
    match how:
        case _ if value is None:
            return [None] * marks.parts
        case dict():
            split = {name: _split(own, how.get(EACH) or how[name], marks) for name, own in value.items()}
            return [{name: own[part] for name, own in split.items()} for part in range(marks.parts)]
        case tuple():
            return list(zip(*(_split(own, part, marks) for own, part in zip(value, how, strict=True)), strict=True))
        case _:
            return marks.cut(value, how)


# -- gradients without a fate --


def merged_pending(parts: Sequence[Part], kept: Sequence[Iterable[Any]]) -> list[Any]:
    """`kept`: what kept(...) of every part's aggregation is, of the same gradients. Their norms are looked up again."""
    copies: dict[tuple[int, ...], Tensor] = {}  # one of each version, as before
    merged = []
    for entries in zip(*kept, strict=True):
        worker, clock = entries[0][:2]
        assert all(entry[:2] == (worker, clock) for entry in entries), "parts of different gradients"
        pulled = [entry[4] for entry in entries]
        if pulled[0] is not None and (key := tuple(map(id, pulled))) not in copies:
            copies[key] = torch.cat(pulled)
        absent = [number + part.first for part, entry in zip(parts, entries, strict=True) for number in entry[5]]
        whole = None if pulled[0] is None else copies[tuple(map(id, pulled))]
        merged.append((worker, clock, torch.cat([entry[2] for entry in entries]), None, whole, tuple(absent)))
    return merged


def split_pending(kept: Iterable[Any], parts: Sequence[Part]) -> list[list[Any]]:
    """`kept`: what kept(...) of an aggregation of whole gradients is. A part looks up the norms of its stretches."""
    split: list[list[Any]] = [[] for _ in parts]
    copies: dict[tuple[int, int], Tensor] = {}
    for worker, clock, gradient, _, pulled, absent in kept:
        for number, part in enumerate(parts):
            if pulled is not None and (number, id(pulled)) not in copies:
                copies[number, id(pulled)] = part.of(pulled).clone()
            own = None if pulled is None else copies[number, id(pulled)]
            split[number].append((worker, clock, part.of(gradient).clone(), None, own, part.numbers(absent)))
    return split
