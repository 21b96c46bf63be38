"""Workers that somebody else starts: lets them in when they call, sees that they live, and fences those given up.

Who places them, and how they are ended, is a subclass's to say. An evaluation, if there is one, runs beside the server,
as in a local run.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import msgspec

from paceline.core.errors import ConfigurationError
from paceline.lifecycle.messages import DepartureRequested, GroupEvent, RoomOffered
from paceline.runtimes.local.launcher import GRACE, Launcher
from paceline.runtimes.serving.channel import ClosedError
from paceline.runtimes.serving.duties import Assignment
from paceline.runtimes.serving.holding import Elsewhere
from paceline.runtimes.serving.launching import Started
from paceline.runtimes.serving.loop import Loop
from paceline.runtimes.serving.memory import create
from paceline.runtimes.serving.messages import ToServer
from paceline.runtimes.sockets.channel import SocketChannel
from paceline.runtimes.sockets.connecting import Address, connect
from paceline.runtimes.sockets.gradient_codec import NONE, compression_of
from paceline.runtimes.sockets.handshake import Caller, RefusedError
from paceline.runtimes.sockets.link import WORKER, SocketLink
from paceline.runtimes.sockets.listener import Listener, Visitor
from paceline.runtimes.sockets.segment_channel import SegmentChannel
from paceline.runtimes.sockets.shard import SERVER
from paceline.runtimes.sockets.shard_messages import PARCELS, FromShard
from paceline.runtimes.sockets.sharded_link import linked
from paceline.runtimes.sockets.shards import ShardChannel, Shards
from paceline.runtimes.sockets.waiting import ready
from paceline.training.worker import Worker

CONNECTION_BROKE = "its connection broke"
SECRET = 32  # bytes


class Errand(msgspec.Struct, frozen=True):
    """All that a worker is told beside what it is to run."""

    assignment: Assignment
    server: Address
    shards: tuple[Address, ...]  # none: the server holds the parameters
    secret: bytes
    transport: str
    compression: str

    def linked(self) -> AbstractContextManager[SocketLink]:
        """The way to the server, and to the shards."""
        return linked(self.server, self.shards, self.assignment.index, self.secret, self.transport, self.compression)


class Net(msgspec.Struct, frozen=True):
    """How processes of a run reach each other."""

    host: str = "127.0.0.1"  # of the server, as the others see it
    transport: str = "auto"
    compression: str = NONE  # of gradients on their way to another host
    ports: range | None = None
    silence: float = 8.0  # seconds without a sign of life after which a worker's host counts as frozen


class RemoteProcess(ABC):
    """A process that somebody else started, as the server knows it."""

    pid: int | None = None  # of another host, maybe: nobody here may send it a signal

    def __init__(self) -> None:
        self.cause = ""
        self.exitcode: int | None = None
        self.placed = False  # whether it has a place
        self.called = False  # whether it has called the server; before that it may be given another place
        self.leaves = ""  # why its place will be gone soon; empty: it will not
        self.ended, self._tell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._lock = threading.Lock()

    def end(self, cause: str, exit_code: int = 1) -> None:
        """It has ended, or is as good as dead. The first cause counts; any thread may call this."""
        with self._lock:
            if self.exitcode is None:
                self.cause, self.exitcode = cause, exit_code
                os.close(self._tell)

    def kill(self) -> None:
        """Its end is seen at once: nobody waits for a host that does not answer."""
        self.destroy()
        self.end("it was ended")

    @abstractmethod
    def destroy(self) -> None:
        """End it, without waiting for that."""

    def wait(self, seconds: float) -> None:
        if self.exitcode is None:
            ready([self.ended], seconds=seconds)

    def close(self) -> None:
        self.end("the run is over", 0)
        os.close(self.ended)


class RemoteLauncher(ABC):
    """The processes of one run. Leave its `with` block, and all of them have ended."""

    def __init__(
        self,
        train: Callable[[Worker], None],
        evaluate: Callable[..., Any] | None,
        assignment: Callable[[int], Assignment],
        *,
        elastic: bool = False,
    ) -> None:
        """`elastic`: the group takes what room there is, within its limits."""
        self.grace = GRACE
        self._shard_group: Shards | None = None
        self.secret = secrets.token_bytes(SECRET)
        self._train, self._assignment, self._elastic = train, assignment, elastic
        self._beside = None if evaluate is None else Launcher(train, evaluate, assignment)
        self._net = Net()
        self._started: dict[int, Started] = {}  # by seat
        self._expected: set[int] = set()  # seats that have not called yet
        self._sent_off: set[int] = set()
        self._stack = ExitStack()
        self._shards: tuple[Address, ...] = ()
        self._connected: Callable[[Started], None] = lambda started: None

    def __enter__(self) -> RemoteLauncher:
        with self._stack:
            self._net = self._open(self._stack)
            if self._beside is not None:
                self._stack.enter_context(self._beside)
            self._listener = Listener(self._net.host, self.secret, self._wanted, self._let_in, ports=self._net.ports)
            self._stack.callback(self._listener.close)
            self._connect_shards(self._start_shards(self._stack))
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *problem: object) -> None:
        with self._stack:
            for started in self._started.values():
                started.channel.close()
            end = time.monotonic() + self.grace
            for started in self._started.values():
                _process_of(started).wait(max(0.0, end - time.monotonic()))
            for started in list(self._started.values()):
                self.close(started)

    # -- what a subclass says --

    @abstractmethod
    def _open(self, stack: ExitStack) -> Net:
        """Get ready to start processes; what is to be undone in the end goes onto the stack."""

    @abstractmethod
    def _start_shards(self, stack: ExitStack) -> Sequence[Address]:
        """Start the processes that hold the parameters; none: the server does. They listen when this returns."""

    @abstractmethod
    def _place(self, errand: Errand) -> RemoteProcess:
        """Start a worker, without waiting for it."""

    # -- as the server asks --

    def attach(self, loop: Loop, connected: Callable[[Started], None]) -> None:
        self._connected = connected
        self._listener.attach(loop)
        if self._beside is not None:
            self._beside.attach(loop, connected)

    @property
    def elsewhere(self) -> Elsewhere | None:
        return self._shard_group

    @property
    def is_ready(self) -> bool:
        return True

    @property
    def imports(self) -> str:
        return ""

    def has_begun(self, started: Started) -> bool:
        return _process_of(started).placed

    @property
    def lacks(self) -> str:
        return ""

    def start_worker(self, index: int) -> Started:
        net, segment = self._net, create()
        errand = Errand(
            self._assignment(index),
            self._listener.address,
            self._shards,
            self.secret,
            net.transport,
            net.compression,
        )
        process = self._place(errand)
        channel: SegmentChannel[ToServer, Any] = SegmentChannel(
            ToServer,
            segment,
            patient=False,
            sharded=bool(self._shards),
            compression=compression_of(net.compression),
        )
        channel.on_close = lambda: process.end(CONNECTION_BROKE)
        started = self._started[index] = Started(index, process, channel, segment, process.ended, create())
        self._expected.add(index)
        return started

    def start_evaluator(self) -> Started | None:
        return None if self._beside is None else self._beside.start_evaluator()

    def look(self, now: float) -> Iterable[GroupEvent]:
        self._listener.look()
        if self._shard_group is not None:
            self._shard_group.look()
        frozen_since = time.monotonic() - self._net.silence
        for index, started in list(self._started.items()):
            channel, process = _channel_of(started), _process_of(started)
            if channel.connected and channel.heard_at < frozen_since and process.exitcode is None:
                process.end(f"no sign of life for {self._net.silence:g} seconds: its host may be frozen")
            if process.leaves and index not in self._sent_off:
                self._sent_off.add(index)
                yield DepartureRequested(index, process.leaves)
        if self._elastic and not self._expected:
            yield RoomOffered()  # one is always on its way: it comes as soon as there is a place for it

    def pause(self, seconds: float) -> None:
        """The server itself stood still for so long: that nothing was heard meanwhile is nobody's fault."""
        for started in self._started.values():
            _channel_of(started).heard_at += seconds
        if self._shard_group is not None:
            self._shard_group.pause(seconds)

    def close(self, started: Started) -> int | None:
        if self._started.get(started.index) is not started:
            assert self._beside is not None
            return self._beside.close(started)
        del self._started[started.index]
        self._expected.discard(started.index)
        process = _process_of(started)
        exit_code = process.exitcode
        started.channel.close()
        process.destroy()
        process.close()
        os.close(started.descriptor)
        os.close(started.words)
        return exit_code

    # -- callers --

    def _wanted(self, caller: Caller) -> bool:
        """Each is let in once: one that was given up, or is there already, is not."""
        return caller.role == WORKER and caller.number in self._expected

    def _let_in(self, visitor: Visitor) -> None:
        shared = visitor.connection.family == socket.AF_UNIX
        if not self._wanted(visitor.caller) or shared != (visitor.memory >= 0):
            visitor.close()  # given up since it said hello
            return
        self._expected.discard(visitor.caller.number)
        started = self._started[visitor.caller.number]
        _process_of(started).called = True
        if shared:
            os.dup2(visitor.memory, started.descriptor, inheritable=False)
            os.close(visitor.memory)
        with contextlib.suppress(ClosedError):  # it is gone again, which is seen elsewhere
            _channel_of(started).connect(visitor.connection, shared=shared)
        self._connected(started)

    def _connect_shards(self, addresses: Sequence[Address]) -> None:
        channels = []
        for number, address in enumerate(addresses):
            channel: ShardChannel = SocketChannel(FromShard, patient=False, parcels=PARCELS)
            try:
                connection = connect(address, Caller(SERVER, number), self.secret)
            except (OSError, RefusedError) as problem:
                raise ConfigurationError(
                    f"shard {number} cannot be reached at {address}: {problem}; its node must let this one in"
                ) from None
            channel.connect(connection, shared=False)
            self._stack.callback(channel.close)
            channels.append(channel)
        self._shards = tuple(addresses)
        if channels:
            self._shard_group = Shards(channels)


def _process_of(started: Started) -> RemoteProcess:
    assert isinstance(started.process, RemoteProcess)
    return started.process


def _channel_of(started: Started) -> SocketChannel[Any, Any]:
    assert isinstance(started.channel, SocketChannel)
    return started.channel


def undone(call: Callable[[], object]) -> None:
    """Call it, whatever comes of it: of something that may be gone already."""
    with contextlib.suppress(Exception):
        call()
