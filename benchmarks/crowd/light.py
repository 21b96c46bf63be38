"""Workers without a model: one process holds many connections, and pushes on each as soon as it gets its parameters.

It says what a worker says, byte for byte, but computes nothing and copies nothing, so that on two cores the server is
what is measured. Only the beginning goes through the channels of a real worker.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from typing import Any

import msgspec
import torch

from crowd.model import Layers
from paceline.lifecycle.work import Work
from paceline.runtimes.serving.memory import create, map_segment, pickled
from paceline.runtimes.serving.messages import (
    Enter,
    Go,
    HandOver,
    Leased,
    Push,
    Request,
    Running,
    ToServer,
    ToWorker,
)
from paceline.runtimes.sockets import shard_messages as said
from paceline.runtimes.sockets.channel import HEADER, SocketChannel
from paceline.runtimes.sockets.connecting import connect, is_shared
from paceline.runtimes.sockets.handshake import Caller
from paceline.runtimes.sockets.link import WORKER
from paceline.runtimes.sockets.places import GRADIENT, OTHERS, places_in
from paceline.runtimes.sockets.remote import Errand
from paceline.runtimes.sockets.segment_channel import SegmentChannel
from paceline.runtimes.sockets.sharded_link import PARTS
from paceline.training.layout import layout_of
from paceline.training.optimizers import spec_of
from paceline.training.sharding import parts_of

WORK = Work(samples=10**12, batch_size=1)  # never used up
AT_ONCE = 1 << 16
RATE = 1e-6
encode = msgspec.json.Encoder().encode


class Connection:
    """One that is in use: counts the messages that come in, whatever is in them."""

    def __init__(self, channel: SocketChannel[Any, Any], worker: LightWorker) -> None:
        assert channel._connection is not None
        self.socket: socket.socket = channel._connection
        self.worker = worker
        self._in = b""  # the beginning of a frame

    def messages(self) -> int:
        """How many have arrived; -1: the other side is gone."""
        try:
            piece = self.socket.recv(AT_ONCE)
        except BlockingIOError:
            return 0
        except OSError:
            return -1
        if not piece:
            return -1
        self._in += piece
        found = at = 0
        while len(self._in) - at >= HEADER.size:
            _, length, size = HEADER.unpack_from(self._in, at)
            end = at + HEADER.size + length + size
            if end > len(self._in):
                break
            found, at = found + (length > 0), end
        self._in = self._in[at:]
        return found


class LightWorker:
    def __init__(self, errand: Errand, parameters: int) -> None:
        self._errand = errand
        self._model = Layers(parameters)
        self._layout = layout_of(self._model)
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        self._spec = spec_of(self._layout, names, torch.optim.SGD, None, {"lr": RATE})
        self._segment = create()
        self._memory = map_segment(self._segment, self._layout)
        self._shared = is_shared(errand.server, errand.transport)
        self._server: SegmentChannel[ToWorker, ToServer] = SegmentChannel(
            ToWorker, self._segment, patient=True, sharded=bool(errand.shards)
        )
        self._shards: list[SocketChannel[Any, Any]] = []
        self._sends: list[tuple[socket.socket, bool, int, bytes]] = []  # socket, to the server?, parts, tensors
        self.connections: list[Connection] = []
        self._missing = 0  # messages until it may go on
        self.pushed = 0

    def call(self) -> None:
        """Come to the server and the shards, as a worker does until its group begins."""
        errand, index = self._errand, self._errand.assignment.index
        caller, secret = Caller(WORKER, index), errand.secret
        self._server.connect(
            connect(errand.server, caller, secret, shares=self._segment if self._shared else -1), shared=self._shared
        )
        self._server.use(places_in(self._memory))
        self._server.send(Running())
        parts = parts_of(self._layout, self._spec, len(errand.shards)) if errand.shards else []
        assert len(parts) == len(errand.shards), "the model has too few blocks for so many shards"
        for part, address in zip(parts, errand.shards, strict=True):
            shared = is_shared(address, errand.transport)
            shard: SocketChannel[Any, Any] = SocketChannel(said.Parameters, patient=True, parts=PARTS)
            shard.connect(connect(address, caller, secret, shares=self._segment if shared else -1), shared=shared)
            shard.use(places_in(self._memory, part.begin, part.end))
            self._shards.append(shard)
        self._server.send(Enter(self._layout, pickled(self._spec)))

    def begin(self) -> None:
        """The group begins: ask for work, without waiting for it."""
        while not isinstance(message := self._server.receive(), Go):
            assert isinstance(message, HandOver), message
            for shard in self._shards:
                shard.send(said.Model())
        for shard in self._shards:
            shard.receive()
        self._server.send(Request(WORK))

    def take_work(self) -> None:
        """It comes when all have asked."""
        message = self._server.receive()
        assert isinstance(message, Leased) and not message.parameters, message
        for channel in (self._server, *self._shards):
            self.connections.append(Connection(channel, self))
        self._sends = [self._way(shard, said.Here) for shard in self._shards if not shard.shares_memory]
        self._sends.append(self._way(self._server, Push))

    def _way(self, channel: SocketChannel[Any, Any], kind: type) -> tuple[socket.socket, bool, int, bytes]:
        assert channel._connection is not None
        gradient = not channel.shares_memory and (kind is said.Here or not self._shards)
        parts = 0 if channel.shares_memory else (GRADIENT if kind is said.Here else OTHERS | GRADIENT * gradient)
        tensors = b"".join(map(bytes, channel._views(parts)))
        return channel._connection, kind is Push, parts, tensors

    def push(self) -> None:
        self.pushed += 1
        self._missing = len(self.connections)
        push, here = encode(Push(self.pushed, 1, 1, 1.0, 1.0)), encode(said.Here(self.pushed))
        for connection, to_server, parts, tensors in self._sends:
            message = push if to_server else here
            connection.sendall(HEADER.pack(parts, len(message), len(tensors)) + message + tensors)

    def note(self, messages: int) -> None:
        """When everybody has answered it goes on at once."""
        self._missing -= messages
        if not self._missing:
            self.push()  # what comes beyond that is the end of the run


def be_many(errands: Sequence[Errand], parameters: int) -> None:
    """Hold the connections of all these workers until the server ends them."""
    torch.set_num_threads(1)
    workers = [LightWorker(errand, parameters) for errand in errands]
    for step in (LightWorker.call, LightWorker.begin, LightWorker.take_work):
        for worker in workers:
            step(worker)
    connections = {one.socket.fileno(): one for worker in workers for one in worker.connections}
    epoll = select.epoll()
    for descriptor in connections:
        epoll.register(descriptor, select.EPOLLIN)
    for worker in workers:
        worker.push()
    while True:
        for descriptor, _ in epoll.poll():
            connection = connections[descriptor]
            messages = connection.messages()
            if messages < 0:
                return  # the run is over
            try:
                connection.worker.note(messages)
            except OSError:
                return
