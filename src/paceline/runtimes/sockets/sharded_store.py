"""What a parameter store and an aggregation do, done by shards: for whoever asked a ParameterStore before."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paceline.core.messages import DataOpened, Gradient, UpdateApplied, UpdateRule
from paceline.lifecycle.messages import MakeUpdate
from paceline.lifecycle.validation import PortView
from paceline.runtimes.serving.memory import pack, path_of, unpack_from
from paceline.runtimes.sockets import shard_messages as said
from paceline.training.choices import UpdateOptions
from paceline.training.layout import Layout, Segment, typed
from paceline.training.optimizers import OptimizerSpec
from paceline.training.parameters import ParameterStore
from paceline.training.rates import Rates, rates_of
from paceline.training.schedule import Figure
from paceline.training.sharded_state import merged_pending, merged_state, split_pending, split_state
from paceline.training.sharding import Part
from paceline.training.update_rules import update_rule, with_doubt

if TYPE_CHECKING:
    from paceline.runtimes.sockets.shards import Shards


class ShardedStore:
    """What there is to know of the parameters, for whoever asked a ParameterStore before."""

    def __init__(
        self, shards: Shards, layout: Layout, spec: OptimizerSpec, parts: Sequence[Part], options: UpdateOptions
    ) -> None:
        self.layout, self.spec, self.parts = layout, spec._replace(state=None), parts
        self._shards, self._options = shards, options
        self._rates: Rates = rates_of(self.spec)
        self.rule: UpdateRule | None = None
        self._shown: tuple[int, Tensor] | None = None  # the version and its parameters, as they were fetched last

    @property
    def version(self) -> int:
        return self._rates.version

    @property
    def samples(self) -> int:
        return self._rates.samples

    @property
    def epoch_samples(self) -> int | None:
        return self._rates.epoch_samples

    @property
    def rates(self) -> tuple[float, ...]:
        return self._rates.rates

    @property
    def learning_rate(self) -> float:
        return self._rates.learning_rate

    @property
    def digest(self) -> None:
        """Nobody here has the parameters."""

    @property
    def wants_figures(self) -> bool:
        return self._rates.wants_figures

    def figure_of(self, figures: Mapping[str, float]) -> Figure | None:
        return self._rates.figure_of(figures)

    def feed(self, value: float) -> None:
        self._rates.feed(value)
        self._shards.tell(said.Feed(value))

    def open(self, opened: DataOpened) -> None:
        self._rates.open(opened)
        self._shards.tell(said.Open(opened))

    def advance(self, command: MakeUpdate) -> None:
        self._rates.advance([part.arrived.samples for part in command.parts], command.samples_per_round)

    def rule_for(self, may_be_stale: bool | None = None, *, statistics: bool = False) -> UpdateRule:
        """That of the beginning is what the shards say."""
        assert self.rule is not None
        if may_be_stale is None:
            return self.rule
        options = self._options._replace(may_be_stale=may_be_stale)
        rule = update_rule(self.layout, self.spec, self._rates.groups, options)
        return with_doubt(rule, self.spec.kind, statistics=statistics)

    @property
    def flat(self) -> Tensor:
        if self._shown is None or self._shown[0] != self.version:
            self._shown = self.version, torch.cat([content[0] for content in self.fetch(said.Show())])
        return self._shown[1]

    @property
    def parameters(self) -> dict[str, Tensor]:
        return typed(self.flat, self.layout.parameters)

    def fetch(self, show: said.Show) -> list[Any]:
        """What all shards show, at one version."""
        self._shards.tell(show)
        answers = self._shards.ask(said.Shown)
        assert {answer.version for answer in answers} == {self.version}, "shards that differ in their version"
        return [unpack_from(answer.parcel) for answer in answers]

    def state(self) -> dict[str, Any]:
        return self.everything(())[0]

    def everything(self, pending: Iterable[tuple[Gradient, int]]) -> tuple[dict[str, Any], list[Any]]:
        """The state of one store over the whole, and the gradients without a fate."""
        shown = self.fetch(said.Show(True, tuple(pending)))
        self._shown = self.version, torch.cat([flat for flat, _, _ in shown])
        state = merged_state(self.parts, [state for _, state, _ in shown])
        return state, merged_pending(self.parts, [kept for _, _, kept in shown])

    def optimizer_state(self) -> dict[str, Any]:
        state = self.state()
        whole = ParameterStore(self.layout, self.flat, self.spec, self._options)
        whole.resume(self.flat, state)
        return whole.optimizer_state()

    def resume_rates(self, state: Mapping[str, Any]) -> None:
        self._rates.resume(state)


class ShardedAggregation:
    """What an Aggregation does, done by the shards."""

    def __init__(self, shards: Shards, store: ShardedStore, *, statistics: bool) -> None:
        self.store = store
        self.statistics = statistics
        self._shards = shards
        self._set_aside: dict[Gradient, None] = {}

    def hand_in(
        self,
        seat: int,
        gradient: Tensor,
        squared_norm: float | None = None,
        pulled: Tensor | None = None,
        absent: tuple[int, ...] = (),
    ) -> None:
        """It is with the shards already."""
        self._shards.tell(said.HandIn(seat, absent))

    def set_aside(self, gradient: Gradient, seat: int, version: int) -> None:
        self._set_aside[gradient] = None
        self._shards.tell(said.SetAside(gradient, seat, version))

    def discard(self, gradient: Gradient, seat: int) -> None:
        self._set_aside.pop(gradient, None)
        self._shards.tell(said.Discard(gradient, seat))

    def make_update(self, command: MakeUpdate) -> UpdateApplied | None:
        """Done as soon as it is told, unless somebody wants to know what the gradients were like."""
        for part in command.parts:
            self._set_aside.pop(part.arrived.gradient, None)
        self._shards.tell(said.Update(command))
        self.store.advance(command)
        wanted = self.statistics if command.statistics is None else command.statistics
        return None if wanted else UpdateApplied(command.version, None)

    def hand_out(self, seat: int, segment: Segment) -> None:
        self._shards.tell(said.HandOut(seat))

    def forget(self, seat: int) -> None:
        """The shards are told when its connections end."""

    def everything(self, pending: Iterable[tuple[Gradient, int]]) -> tuple[dict[str, Any], list[Any]]:
        return self.store.everything(pending)

    def view(self) -> PortView:
        return PortView(self.store.version, tuple(self._set_aside))


def restore(shards: Shards, store: ShardedStore, resumed: tuple[Tensor, dict[str, Any], list[Any]]) -> None:
    flat, state, pending = resumed
    states, gradients = split_state(state, store.parts), split_pending(pending, store.parts)
    for number, (part, own, held) in enumerate(zip(store.parts, states, gradients, strict=True)):
        parcel = pack((part.of(flat).clone(), own, held))
        try:
            shards.tell_one(number, said.Restore(path_of(parcel)))
        finally:
            os.close(parcel)
    store.resume_rates(state)
