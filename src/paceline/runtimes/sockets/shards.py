"""The server's side of the shards: what a parameter store does, done by several processes, told in one order.

The server of a run decides, and has no parameters. Every command goes to every shard. What it needs of them is fetched:
the model for an evaluation, and all that a checkpoint holds.
"""

from __future__ import annotations

import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.core.errors import ConfigurationError, PacelineError
from paceline.core.messages import DataOpened, Gradient, Statistics, UpdateApplied, UpdateRule
from paceline.lifecycle.messages import MakeUpdate
from paceline.lifecycle.validation import PortView
from paceline.runtimes.serving.channel import ClosedError
from paceline.runtimes.serving.loop import Loop
from paceline.runtimes.serving.memory import pack, path_of, pickled, unpack_from
from paceline.runtimes.serving.messages import Enter, Push, ToServer
from paceline.runtimes.sockets import shard_messages as said
from paceline.runtimes.sockets.channel import SocketChannel
from paceline.runtimes.sockets.waiting import ready
from paceline.training.choices import UpdateOptions
from paceline.training.layout import Layout, Segment, typed
from paceline.training.optimizers import OptimizerSpec
from paceline.training.parameters import ParameterStore
from paceline.training.rates import Rates, rates_of
from paceline.training.schedule import Figure
from paceline.training.sharded_state import merged_pending, merged_state, split_pending, split_state
from paceline.training.sharding import Part, merged_statistics, parts_of
from paceline.training.update_rules import update_rule, with_doubt

SILENCE = 30.0  # seconds without a sign of life after which a shard is given up: a large update takes a while

ShardChannel = SocketChannel[said.FromShard, said.ToShard]


class ShardLostError(PacelineError):
    """A process that held a part of the parameters is gone, and the part with it."""


class Shards:
    """The connections to all shards; what they say is heard here, and passed on to whom it concerns."""

    def __init__(self, channels: Sequence[ShardChannel]) -> None:
        self.channels = list(channels)
        self._loop: Loop | None = None
        self._redeliver: Callable[[int, ToServer], None] = lambda seat, message: None
        self._deliver: Callable[[UpdateApplied], None] = lambda event: None
        self._links: dict[int, dict[int, bool]] = {}  # by seat and shard: whether they share memory
        self._have: dict[int, dict[int, int]] = {}  # by seat and shard: the latest push that is there
        self._postponed: dict[int, ToServer] = {}  # by seat: what it said, until all that belongs to it is there
        self._made: dict[int, dict[int, Statistics | None]] = {}  # by version and shard
        self._heard: deque[tuple[int, said.FromShard]] = deque()  # and not taken yet, in order
        self.is_lost = False
        self._used: int | None = None  # so many of the shards; None: not known yet

    def attach(
        self, loop: Loop, redeliver: Callable[[int, ToServer], None], deliver: Callable[[UpdateApplied], None]
    ) -> None:
        self._loop, self._redeliver, self._deliver = loop, redeliver, deliver
        for number, channel in enumerate(self.channels):
            loop.watch(channel, lambda number=number: self._hear(number))  # type: ignore[misc]

    def tell(self, message: said.ToShard) -> None:
        for number in range(self.used):
            self.tell_one(number, message)

    def tell_one(self, number: int, message: said.ToShard) -> None:
        channel = self.channels[number]
        try:
            if self._loop is None:
                channel.send(message)
            else:
                self._loop.send(channel, message)
        except (ClosedError, OSError):
            raise self._lost(number) from None

    @property
    def used(self) -> int:
        return len(self.channels) if self._used is None else self._used

    # -- what is heard --

    def _hear(self, number: int) -> None:
        self._heard.extend((number, message) for message in self._read(number))
        self._take_what_was_heard()

    def _take_what_was_heard(self) -> None:
        while self._heard:
            self._take(*self._heard.popleft())

    def _read(self, number: int) -> list[said.FromShard]:
        try:
            return self.channels[number].received()
        except ClosedError:
            raise self._lost(number) from None

    def _take(self, number: int, message: said.FromShard) -> None:
        match message:
            case said.Connected(seat, shared):
                self._links.setdefault(seat, {})[number] = shared
                self._go_on(seat)
            case said.Have(seat, push):
                self._have.setdefault(seat, {})[number] = push
                self._go_on(seat)
            case said.Made(version, statistics):
                made = self._made.setdefault(version, {})
                made[number] = statistics
                if len(made) == self.used:
                    del self._made[version]
                    self._deliver(UpdateApplied(version, merged_statistics([made[part] for part in sorted(made)])))
            case said.Problem(problem, wrong_input):
                self.is_lost = True
                raise ConfigurationError(problem) if wrong_input else PacelineError(f"shard {number}: {problem}")
            case said.Alive():
                pass
            case said.Begun() | said.Shown():
                raise AssertionError(f"nobody asked for {message}")

    def _go_on(self, seat: int) -> None:
        message = self._postponed.get(seat)
        if message is not None and self._is_complete(seat, message):
            del self._postponed[seat]
            self._redeliver(seat, message)

    def is_complete(self, seat: int, message: ToServer) -> bool:
        """Whether all that belongs to it is here; if not, it will be delivered again when it is."""
        if self._is_complete(seat, message):
            return True
        self._postponed[seat] = message
        return False

    def _is_complete(self, seat: int, message: ToServer) -> bool:
        links = self._links.get(seat, {})
        if isinstance(message, Enter):
            return len(links) >= len(parts_of(message.layout, pickle.loads(message.optimizer), len(self.channels)))
        if isinstance(message, Push):
            have = self._have.get(seat, {})
            return all(shared or have.get(number, 0) >= message.number for number, shared in links.items())
        return True

    def begin(
        self,
        layout: Layout,
        spec: OptimizerSpec,
        options: UpdateOptions,
        *,
        statistics: bool,
        first: int,
        hand_over: Callable[[], None],
        has_ended: Callable[[], bool],
        resumed: tuple[Tensor, dict[str, Any], list[Any]] | None,
    ) -> ShardedAggregation:
        """The group begins: with the parameters of this seat, or with those of a checkpoint."""
        if spec.state is not None:
            raise ConfigurationError(
                "worker.optimizer(state=...) is not possible with several servers: RayCluster(servers=1) takes it"
            )
        parts = parts_of(layout, spec, len(self.channels))
        self._used = len(parts)
        store = ShardedStore(self, layout, spec, parts, options)
        optimizer, source = pickled(store.spec, imports_main=False), first if resumed is None else -1
        for number in range(len(parts)):
            begin = said.Begin(layout, optimizer, options, number, len(self.channels), statistics, source)
            self.tell_one(number, begin)
        if resumed is None:
            hand_over()
        else:
            _restore(self, store, resumed)
        store.rule = self.ask(said.Begun, has_ended if resumed is None else None)[0].rule
        return ShardedAggregation(self, store, statistics=statistics)

    def forget(self, seat: int) -> None:
        self._links.pop(seat, None)
        self._have.pop(seat, None)
        self._postponed.pop(seat, None)
        self.tell(said.Forget(seat))

    def ask(self, kind: type[Any], has_ended: Callable[[], bool] | None = None) -> list[Any]:
        """Wait for one answer of this kind from every shard, as long as they live; whatever else they say is taken in
        the loop's next turn, also if nobody says anything more. `has_ended`: whether the one they wait for has."""
        found: dict[int, Any] = {}
        while len(found) < self.used:
            missing = {self.channels[number].fileno(): number for number in range(self.used) if number not in found}
            unsent = {channel.writing: number for number, channel in enumerate(self.channels) if channel.has_unsent}
            readable, writable = ready(missing, unsent, 1.0)
            if has_ended is not None and has_ended():
                raise PacelineError("the first worker ended while its model was taken over: begin again")
            for number in [unsent[descriptor] for descriptor in writable]:
                self._flush(number)
            for number in [missing[descriptor] for descriptor in readable]:
                for message in self._read(number):
                    if isinstance(message, kind):
                        found[number] = message
                    elif isinstance(message, said.Problem):
                        self._take(number, message)
                    else:
                        self._heard.append((number, message))
            self._look_at(missing.values())
        if self._heard and self._loop is not None:
            self._loop.soon(self._take_what_was_heard)
        return [found[number] for number in range(self.used)]

    def _flush(self, number: int) -> None:
        try:
            self.channels[number].flush()
        except ClosedError:
            raise self._lost(number) from None

    def look(self) -> None:
        """A process that stands still keeps its connection, and nothing comes any more."""
        self._look_at(range(self.used))

    def _look_at(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if self.channels[number].heard_at < time.monotonic() - SILENCE:
                raise self._lost(number, f"no sign of life for {SILENCE:g} seconds")

    def pause(self, seconds: float) -> None:
        """Nothing could be heard for so long."""
        for channel in self.channels:
            channel.heard_at += seconds

    def _lost(self, number: int, why: str = "its connection broke") -> ShardLostError:
        self.is_lost = True
        return ShardLostError(f"shard {number}: {why}; the part of the parameters that it held is lost")

    def close(self) -> None:
        for channel in self.channels:
            channel.close()


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


def _restore(shards: Shards, store: ShardedStore, resumed: tuple[Tensor, dict[str, Any], list[Any]]) -> None:
    flat, state, pending = resumed
    states, gradients = split_state(state, store.parts), split_pending(pending, store.parts)
    for number, (part, own, held) in enumerate(zip(store.parts, states, gradients, strict=True)):
        parcel = pack((part.of(flat).clone(), own, held))
        try:
            shards.tell_one(number, said.Restore(path_of(parcel)))
        finally:
            os.close(parcel)
    store.resume_rates(state)
