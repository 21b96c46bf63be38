"""The server's side of the shards: what a parameter store does, done by several processes, told in one order.

The server of a run decides, and has no parameters. Every command goes to every shard. What it needs of them is fetched:
the model for an evaluation, and all that a checkpoint holds.
"""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor

from paceline.core.errors import ConfigurationError, PacelineError
from paceline.core.messages import Statistics, UpdateApplied
from paceline.runtimes.serving.channel import ClosedError
from paceline.runtimes.serving.loop import Loop
from paceline.runtimes.serving.memory import pickled
from paceline.runtimes.serving.messages import Enter, Push, ToServer
from paceline.runtimes.sockets import shard_messages as said
from paceline.runtimes.sockets.channel import SocketChannel
from paceline.runtimes.sockets.sharded_store import ShardedAggregation, ShardedStore, restore
from paceline.runtimes.sockets.waiting import ready
from paceline.training.choices import UpdateOptions
from paceline.training.layout import Layout
from paceline.training.optimizers import OptimizerSpec
from paceline.training.sharding import merged_statistics, parts_of

SILENCE = 30.0  # seconds without a sign of life after which a shard is given up: a large update takes a while
SEEN_TOGETHER = 1.0  # seconds within which the ends of processes on one node are seen
SILENCE_OF_BOTH = 5.0  # of a shard, when the last worker is given up

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
        """All of them. What is said in one turn of the loop goes out together."""
        if self._loop is None:
            for number in range(self.used):
                self.tell_one(number, message)
            return
        frame = self.channels[0].framed(message)
        for channel in self.channels[: self.used]:
            self._loop.post(channel, frame)

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
            restore(self, store, resumed)
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

    def _look_at(self, numbers: Iterable[int], silence: float | None = None) -> None:
        silence = SILENCE if silence is None else silence
        for number in numbers:
            if self.channels[number].heard_at < time.monotonic() - silence:
                raise self._lost(number, f"no sign of life for {silence:g} seconds")

    def look_closely(self) -> None:
        """Nobody trains any more. If a shard is gone as well, that is why: one node may have held both, and one of the
        ends is seen first."""
        end = time.monotonic() + SEEN_TOGETHER
        while (left := end - time.monotonic()) > 0:
            numbers = {self.channels[number].fileno(): number for number in range(self.used)}
            for descriptor in ready(numbers, seconds=left)[0]:
                self._heard.extend((numbers[descriptor], message) for message in self._read(numbers[descriptor]))
        self._look_at(range(self.used), SILENCE_OF_BOTH)

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
