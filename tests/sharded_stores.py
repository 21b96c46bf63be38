"""Parameter stores over the parts of a model, or one over the whole, driven by the same script."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from fake_link import flat_of
from torch import Tensor, nn

from paceline.core.messages import DataOpened, Statistics
from paceline.training.choices import AS_USUAL, UpdateOptions
from paceline.training.layout import Layout, layout_of
from paceline.training.optimizers import OptimizerSpec, spec_of
from paceline.training.parameters import ParameterStore
from paceline.training.sharded_state import merged_state, split_state
from paceline.training.sharding import Part, merged_statistics, parts_of
from paceline.training.updates import Contribution

STALE = UpdateOptions(may_be_stale=True)
OPENED = DataOpened(samples=40, epochs=3, total=120, rounds=15)
Shapes = Sequence[tuple[int, ...]]
LAYERS: Shapes = ((7, 5), (13,), (), (3, 3, 3), (129, 17), (31,), (0, 2), (1, 1), (40, 11), (11,), (9, 30))
GROUPS: Sequence[int | None] = (0, 1, 1, None, 2)


class Tensors(nn.Module):
    def __init__(self, shapes: Shapes = LAYERS, dtypes: Sequence[torch.dtype] = (torch.float32,)) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        for number, shape in enumerate(shapes):
            tensor = torch.randn(shape, generator=generator).to(dtypes[number % len(dtypes)])
            self.register_parameter(f"p{number}", nn.Parameter(tensor))


class Push(NamedTuple):
    worker: int
    seed: int  # of its gradient
    samples: int
    weight: float
    version: int
    absent: tuple[int, ...]


class Update(NamedTuple):
    pushes: tuple[Push, ...]
    samples_per_round: int
    departed: tuple[int, ...]


def described(
    model: nn.Module, kind: Any, groups: Sequence[int | None] = (), **arguments: Any
) -> tuple[Layout, OptimizerSpec]:
    """`groups`: the number of each parameter's group, again and again; None: of none."""
    layout, names = layout_of(model), {id(parameter): name for name, parameter in model.named_parameters()}
    if not groups:
        return layout, spec_of(layout, names, kind, None, arguments)
    of_each = list(enumerate(model.parameters()))
    count = 1 + max(group for group in groups if group is not None)
    members = [[each for at, each in of_each if groups[at % len(groups)] == group] for group in range(count)]
    own = [{"params": each, "lr": arguments["lr"] / (number + 1)} for number, each in enumerate(members)]
    return layout, spec_of(layout, names, kind, own, arguments)


def script(updates: int, *, seed: int = 0, parameters: int = 0, begin: int = 0) -> list[Update]:
    """Updates of several gradients and of one, of whole rounds and of less, stale and not; a worker joins late, one
    leaves. `parameters`: of so many each may be absent."""
    chance = random.Random(seed)
    found = []
    for version in range(begin, begin + updates):
        pushes = []
        missing = tuple(number for number in range(parameters) if chance.random() < 0.3)
        for worker in chance.sample(range(3 if version < 3 else 4), chance.choice([1, 1, 2, 3])):
            more = tuple(number for number in range(parameters) if chance.random() < 0.2)
            lag = min(version, chance.randrange(3))
            absent = tuple(sorted({*missing, *more}))
            weight = chance.choice([1.0, 1.0, 0.7])
            pushes.append(
                Push(worker, chance.randrange(10**6), chance.choice([4, 4, 7]), weight, version - lag, absent)
            )
        found.append(Update(tuple(pushes), chance.choice([4, 12]), (1,) if version == 5 else ()))
    return found


class Stores:
    """`shards` None: one store that knows of no parts."""

    def __init__(
        self,
        layout: Layout,
        initial: Tensor,
        spec: OptimizerSpec,
        shards: int | None,
        options: UpdateOptions = AS_USUAL,
    ) -> None:
        self._made_of = layout, initial, spec
        self._options = options
        self.parts = parts_of(layout, spec, shards or 1)
        if shards is None:
            self.stores = [ParameterStore(layout, initial, spec, options)]
        else:
            self.stores = [
                ParameterStore(part.layout, part.of(initial), part.spec, options, part.partition) for part in self.parts
            ]
        self.history = [self.flat]

    @property
    def flat(self) -> Tensor:
        return torch.cat([store.flat for store in self.stores])

    def open(self) -> None:
        for store in self.stores:
            store.open(OPENED)

    def play(
        self, updates: Sequence[Update], *, statistics: bool = False, may_be_stale: bool | None = None
    ) -> list[Statistics | None]:
        return [self.apply(update, statistics=statistics, may_be_stale=may_be_stale) for update in updates]

    def apply(self, update: Update, *, statistics: bool = False, may_be_stale: bool | None = None) -> Statistics | None:
        pairs = zip(self.parts, self.stores, strict=True)
        seen = [
            store.apply(
                [self._contribution(push, part, store) for push in update.pushes],
                update.samples_per_round,
                departed=update.departed,
                statistics=statistics,
                may_be_stale=may_be_stale,
            )
            for part, store in pairs
        ]
        self.history.append(self.flat)
        return merged_statistics(seen)

    def _contribution(self, push: Push, part: Part, store: ParameterStore) -> Contribution:
        layout, initial, _ = self._made_of
        noise = torch.randn(initial.numel(), generator=torch.Generator().manual_seed(push.seed)).to(layout.dtype)
        gradient = self.history[push.version] + 0.3 * noise  # a curvature that a correction can find
        at = 0
        for number, entry in enumerate(layout.parameters):
            if number in push.absent:
                gradient[at : at + entry.size] = 0
            at += entry.size
        return Contribution(
            part.of(gradient).clone(),
            push.samples,
            push.weight,
            0.5 + push.worker,
            worker=push.worker,
            version=push.version,
            staleness=store.version - push.version,
            pulled=part.of(self.history[push.version]).clone(),
            absent=part.numbers(push.absent),
        )

    def state(self) -> dict[str, Any]:
        return merged_state(self.parts, [store.state() for store in self.stores])

    def resumed(self, shards: int | None) -> Stores:
        """Others that go on from here."""
        others = Stores(*self._made_of, shards, self._options)
        flat, states = self.flat, split_state(self.state(), others.parts)
        for part, store, state in zip(others.parts, others.stores, states, strict=True):
            store.resume(part.of(flat), state)
        others.history = list(self.history)
        return others


def pair_of(
    model: nn.Module, layout: Layout, spec: OptimizerSpec, shards: int, options: UpdateOptions = AS_USUAL
) -> tuple[Stores, Stores]:
    """One store over the whole, and as many as asked for."""
    return (
        Stores(layout, flat_of(model), spec, None, options),
        Stores(layout, flat_of(model), spec, shards, options),
    )


def same(one: Any, other: Any) -> bool:
    """Whether two states are the same to the bit."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
