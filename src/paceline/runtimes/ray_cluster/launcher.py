"""Starts workers as actors of a Ray cluster, lets them in when they call, and leaves nothing behind.

The server of the run is this process. An evaluation, if there is one, runs beside it, as in a local run.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from paceline.core.errors import ConfigurationError
from paceline.lifecycle.messages import DepartureRequested, GroupEvent
from paceline.runtimes.local.launcher import GRACE, Launcher
from paceline.runtimes.ray_cluster.actor import Errand, ShardActor, WorkerActor
from paceline.runtimes.ray_cluster.connection import connected, own_address
from paceline.runtimes.ray_cluster.options import RayCluster
from paceline.runtimes.ray_cluster.watcher import ActorProcess, Watcher
from paceline.runtimes.serving.duties import Assignment
from paceline.runtimes.serving.holding import Elsewhere
from paceline.runtimes.serving.launching import Started
from paceline.runtimes.serving.loop import Loop
from paceline.runtimes.serving.memory import create, pack
from paceline.runtimes.serving.messages import ToServer
from paceline.runtimes.sockets.channel import SegmentChannel, SocketChannel
from paceline.runtimes.sockets.connecting import Address, connect
from paceline.runtimes.sockets.handshake import Caller
from paceline.runtimes.sockets.link import WORKER
from paceline.runtimes.sockets.listener import Listener, Visitor
from paceline.runtimes.sockets.shard import SERVER
from paceline.runtimes.sockets.shard_messages import PARCELS, FromShard
from paceline.runtimes.sockets.shards import ShardChannel, Shards
from paceline.training.worker import Worker

CONNECTION_BROKE = "its connection broke"
SECRET = 32  # bytes
PATIENCE = 60.0  # seconds for Ray to place the servers


class RayLauncher:
    """The processes of one run. Leave its `with` block, and all of them have ended."""

    def __init__(
        self,
        cluster: RayCluster,
        train: Callable[[Worker], None],
        evaluate: Callable[..., Any] | None,
        assignment: Callable[[int], Assignment],
    ) -> None:
        self.grace = GRACE
        self._cluster = cluster
        self._train, self._assignment = train, assignment
        self._beside = None if evaluate is None else Launcher(train, evaluate, assignment)
        self._secret = secrets.token_bytes(SECRET)
        self._started: dict[int, Started] = {}  # by seat
        self._expected: set[int] = set()  # seats that have not called yet
        self._departing: set[int] = set()
        self._stack = ExitStack()
        self.elsewhere: Elsewhere | None = None
        self._shards: tuple[Address, ...] = ()
        self._shard_actors: list[Any] = []
        self._connected: Callable[[Started], None] = lambda started: None

    def __enter__(self) -> RayLauncher:
        with self._stack:
            self._ray = self._stack.enter_context(connected(self._cluster))
            if self._beside is not None:
                self._stack.enter_context(self._beside)
            self._parcel = self._ray.put(_content_of((self._train, None)))
            address = own_address(self._ray)
            self._listener = Listener(
                address, self._secret, self._wanted, self._let_in, ports=self._cluster.port_range()
            )
            self._stack.callback(self._listener.close)
            self._watcher = Watcher(self._ray)
            self._stack.callback(self._watcher.close)
            if self._cluster.servers > 1:
                self._start_shards()
            self._actor_class = self._ray.remote(WorkerActor)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *problem: object) -> None:
        with self._stack:
            for started in self._started.values():
                started.channel.close()
            end = time.monotonic() + self.grace
            for started in self._started.values():
                _wait_for(started, max(0.0, end - time.monotonic()))
            for started in list(self._started.values()):
                self.close(started)
            for actor in self._shard_actors:
                self._ray.kill(actor, no_restart=True)

    def _start_shards(self) -> None:
        """They live as long as our connections to them, or until Ray ends them with this process."""
        kind = self._ray.remote(ShardActor)
        options = {**_placed(self._cluster.resources_per_server), "runtime_env": self._cluster.runtime_env}
        self._shard_actors = [kind.options(**options).remote() for _ in range(self._cluster.servers)]
        ports = self._cluster.port_range()
        given = None if ports is None else (ports.start, ports.stop)
        addresses = [actor.listen.remote(self._secret, given) for actor in self._shard_actors]
        self._shards = tuple(self._answers(addresses))
        for actor in self._shard_actors:
            actor.serve.remote()
        channels = []
        for number, address in enumerate(self._shards):
            channel: ShardChannel = SocketChannel(FromShard, patient=False, parcels=PARCELS)
            channel.connect(connect(address, Caller(SERVER, number), self._secret), shared=False)
            self._stack.callback(channel.close)
            channels.append(channel)
        self.elsewhere = Shards(channels)

    def _answers(self, asked: Sequence[Any]) -> list[Any]:
        try:
            return list(self._ray.get(list(asked), timeout=PATIENCE))
        except self._ray.exceptions.GetTimeoutError:
            raise ConfigurationError(
                f"Ray did not place {len(asked)} servers within {PATIENCE:g} seconds: does the cluster have"
                f" {self._cluster.resources_per_server or 'room'} for each?"
            ) from None

    # -- as the server asks --

    def attach(self, loop: Loop, connected: Callable[[Started], None]) -> None:
        self._connected = connected
        self._listener.attach(loop)
        if self._beside is not None:
            self._beside.attach(loop, connected)

    @property
    def is_ready(self) -> bool:
        return True

    @property
    def imports(self) -> str:
        return ""

    def start_worker(self, index: int) -> Started:
        errand = Errand(
            self._assignment(index), self._listener.address, self._shards, self._secret, self._cluster.transport
        )
        actor = self._actor_class.options(**self._options()).remote()
        placed, run = actor.node.remote(), actor.run.remote(errand, self._parcel)
        process = ActorProcess(self._ray, actor)
        segment = create()
        channel: SegmentChannel[ToServer, Any] = SegmentChannel(
            ToServer, segment, patient=False, sharded=bool(self._shards)
        )
        channel.on_close = lambda: process.end(CONNECTION_BROKE)
        started = Started(index, process, channel, segment, process.ended, create())
        self._started[index] = started
        self._expected.add(index)
        self._watcher.watch(process, placed, run)
        return started

    def _options(self) -> dict[str, Any]:
        return {**_placed(self._cluster.resources_per_worker), "runtime_env": self._cluster.runtime_env}

    def start_evaluator(self) -> Started | None:
        return None if self._beside is None else self._beside.start_evaluator()

    def look(self, now: float) -> Iterable[GroupEvent]:
        self._listener.look()
        silent_since = time.monotonic() - self._cluster.silence
        for started in self._started.values():
            channel, process = started.channel, started.process
            assert isinstance(channel, SocketChannel) and isinstance(process, ActorProcess)
            if channel.connected and channel.heard_at < silent_since and process.exitcode is None:
                process.end(f"no sign of life for {self._cluster.silence:g} seconds: its node may be frozen")
        yield from self._departures()

    def _departures(self) -> Iterator[GroupEvent]:
        """Of workers whose node is drained."""
        draining = self._watcher.draining
        for index, started in self._started.items() if draining else ():
            node = started.process.node  # type: ignore[attr-defined]
            if node in draining and index not in self._departing:
                self._departing.add(index)
                yield DepartureRequested(index)

    def close(self, started: Started) -> int | None:
        if self._started.get(started.index) is not started:
            assert self._beside is not None
            return self._beside.close(started)
        del self._started[started.index]
        self._expected.discard(started.index)
        process = started.process
        assert isinstance(process, ActorProcess)
        exit_code = process.exitcode
        started.channel.close()
        process.kill()
        process.close()
        os.close(started.descriptor)
        os.close(started.words)
        return exit_code

    # -- callers --

    def _wanted(self, caller: Caller) -> bool:
        """Each is let in once: one that was given up, or is there already, is not."""
        return caller.role == WORKER and caller.number in self._expected

    def _let_in(self, visitor: Visitor) -> None:
        if visitor.caller.number not in self._expected:  # given up since it said hello
            visitor.connection.close()
            return
        self._expected.discard(visitor.caller.number)
        started = self._started[visitor.caller.number]
        shared = visitor.connection.family == socket.AF_UNIX
        if shared:
            os.dup2(visitor.memory, started.descriptor, inheritable=False)
            os.close(visitor.memory)
        assert isinstance(started.channel, SocketChannel)
        started.channel.connect(visitor.connection, shared=shared)
        self._connected(started)


def _placed(resources: Mapping[str, float]) -> dict[str, Any]:
    """One way for all deaths, ours: Ray restarts nothing, and calls nothing twice."""
    wanted = dict(resources)
    return {
        "num_cpus": wanted.pop("CPU", 0),
        "num_gpus": wanted.pop("GPU", 0),
        "memory": wanted.pop("memory", None),
        "resources": wanted or None,
        "max_restarts": 0,
        "max_task_retries": 0,
        "scheduling_strategy": "SPREAD",
    }


def _wait_for(started: Started, seconds: float) -> None:
    if started.process.exitcode is None:
        select.select([started.ended], [], [], seconds)


def _content_of(functions: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A parcel as bytes, which Ray keeps once on every node. No worker imports the main module of this process."""
    descriptor = pack(functions, imports_main=False)
    try:
        return np.fromfile(f"/proc/self/fd/{descriptor}", dtype=np.uint8)
    finally:
        os.close(descriptor)
