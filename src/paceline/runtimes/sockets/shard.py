"""One shard: holds a part of the parameters, takes gradients in, makes updates and sends parameters out, as it is told.

It decides nothing. What the server of the run says is done in the order in which it was said, so that whatever all
shards send a worker for one command is of one version, without any lock.
"""

from __future__ import annotations

import os
import pickle
import socket
import time
import traceback
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import assert_never

from paceline.core.errors import PacelineError
from paceline.runtimes.serving.channel import ClosedError
from paceline.runtimes.serving.loop import Loop
from paceline.runtimes.serving.memory import map_segment, pack, path_of, unpack_from
from paceline.runtimes.sockets import shard_messages as said
from paceline.runtimes.sockets.channel import SocketChannel
from paceline.runtimes.sockets.gradient_codec import NONE, GradientCodec, compression_of
from paceline.runtimes.sockets.handshake import Caller
from paceline.runtimes.sockets.listener import Listener, Visitor
from paceline.runtimes.sockets.places import GRADIENT, PARAMETERS, places_in
from paceline.training.aggregation import Aggregation
from paceline.training.layout import Segment
from paceline.training.memory_use import keep_freed_memory
from paceline.training.parameters import ParameterStore
from paceline.training.sharding import Part, parts_of

SERVER, WORKER = b"d", b"w"
TICK = 1.0  # seconds between two looks at strangers, and between two signs of life
PARTS: Mapping[type, int] = {said.Model: PARAMETERS, said.Here: GRADIENT, said.Parameters: PARAMETERS}


class Held(NamedTuple):
    """This part of what a worker's segment holds."""

    parameters: Tensor
    gradient: Tensor


class _Worker:
    def __init__(self, seat: int, visitor: Visitor) -> None:
        self.seat = seat
        self.shared = visitor.connection.family == socket.AF_UNIX
        self.memory = visitor.memory  # -1: it shares none
        self.channel: SocketChannel[said.WorkerToShard, said.Parameters] = SocketChannel(
            said.WorkerToShard, patient=False, parts=PARTS
        )
        self.channel.connect(visitor.connection, shared=self.shared)
        self.held: Held | None = None  # once it is known what this shard holds

    def close(self) -> None:
        self.channel.close()
        if self.memory >= 0:
            os.close(self.memory)


class Shard:
    def __init__(self, host: str, secret: bytes, ports: range | None = None, compression: str = NONE) -> None:
        self._compression = compression
        self._loop = Loop()
        self._listener = Listener(host, secret, self._wanted, self._let_in, ports=ports)
        self._listener.attach(self._loop)
        self.address = self._listener.address
        self._server: SocketChannel[said.ToShard, said.FromShard] | None = None
        self._workers: dict[int, _Worker] = {}  # by seat
        self._commands: deque[said.ToShard] = deque()
        self._begin: said.Begin | None = None
        self._part: Part | None = None
        self._aggregation: Aggregation | None = None
        self._forgotten: set[int] = set()  # seats: one that was given up is never let in again
        self._showed_life = 0.0  # by time.monotonic
        self._over = False

    def serve(self) -> None:
        """Until the server goes."""
        keep_freed_memory()
        torch.set_num_threads(1)  # idle threads of one process keep cores from another's
        try:
            while not self._over:
                self._loop.turn(TICK)
                self._listener.look()
                self._show_life()
        except PacelineError as problem:
            self._tell(said.Problem(str(problem), wrong_input=True))
        except Exception:  # whatever a user's optimizer or schedule raises
            self._tell(said.Problem(traceback.format_exc()))
        finally:
            self._close()

    def _close(self) -> None:
        for worker in self._workers.values():
            worker.close()
        if self._server is not None:
            self._server.close()
        self._listener.close()
        self._loop.close()

    def _show_life(self) -> None:
        now = time.monotonic()
        if now >= self._showed_life + TICK:
            self._showed_life = now
            self._tell(said.Alive())

    # -- who comes --

    def _wanted(self, caller: Caller) -> bool:
        if caller.role == SERVER:
            return self._server is None
        return caller.role == WORKER and caller.number not in (self._workers.keys() | self._forgotten)

    def _let_in(self, visitor: Visitor) -> None:
        if not self._wanted(visitor.caller):
            visitor.close()
        elif visitor.caller.role == SERVER:
            server = self._server = SocketChannel(said.ToShard, patient=False, parcels=said.PARCELS)
            server.connect(visitor.connection, shared=False)
            self._loop.watch(server, self._hear_server)
        else:
            seat = visitor.caller.number
            worker = self._workers[seat] = _Worker(seat, visitor)
            self._tell(said.Connected(seat, worker.shared))
            if self._part is not None:
                self._seat(worker)

    def _seat(self, worker: _Worker) -> None:
        """Where its parameters and gradients lie; nothing is read of it before that is known."""
        assert self._part is not None and self._begin is not None
        part = self._part
        if worker.shared:
            whole = map_segment(worker.memory, self._begin.layout)
            worker.held = Held(part.of(whole.parameters), part.of(whole.gradient))
        else:
            own = Segment(part.layout, torch.zeros(max(1, part.layout.segment_bytes), dtype=torch.uint8))
            worker.held = Held(own.parameters, own.gradient)
            worker.channel.use(places_in(own))
            compression = compression_of(self._compression)
            if compression is not None:
                worker.channel.encode_gradients(GradientCodec(compression, own.gradient))
        self._loop.watch(worker.channel, lambda: self._hear_worker(worker))

    def _tell(self, message: said.FromShard) -> None:
        if self._server is not None:
            self._loop.send(self._server, message)

    # -- what is said --

    def _hear_worker(self, worker: _Worker) -> None:
        try:
            messages = worker.channel.received()
        except ClosedError:
            self._loop.forget_channel(worker.channel)  # the server will see it, too, and say what follows
            worker.channel.close()  # also of one that broke the rules: it shall not wait for an answer
            return
        for message in messages:
            match message:
                case said.Model():
                    self._take_model(worker)
                case said.Here(number):
                    assert self._server is not None
                    self._loop.post(self._server, self._server.framed(said.Have(worker.seat, number)))
                case _:
                    assert_never(message)

    def _hear_server(self) -> None:
        assert self._server is not None
        try:
            self._commands.extend(self._server.received())
        except ClosedError:
            self._over = True
            return
        self._obey()

    def _obey(self) -> None:
        while self._commands and (self._begin is None or self._aggregation is not None or self._restores()):
            self._carry_out(self._commands.popleft())

    def _restores(self) -> bool:
        return isinstance(self._commands[0], said.Restore | said.Forget)

    def _carry_out(self, command: said.ToShard) -> None:
        if isinstance(command, said.Begin):
            self._prepare(command)
        elif isinstance(command, said.Forget):
            self._forget(command.seat)
        elif isinstance(command, said.Restore):
            flat, state, pending = unpack_from(command.parcel)
            store = self._make_store(flat)
            store.resume(flat, state)
            assert self._aggregation is not None
            self._aggregation.resume(pending)
        else:
            assert self._aggregation is not None
            self._carry_on(command, self._aggregation)

    def _carry_on(self, command: Any, aggregation: Aggregation) -> None:
        assert self._part is not None
        match command:
            case said.HandIn(seat, absent):
                held = self._held(seat)
                aggregation.hand_in(seat, held.gradient, None, held.parameters, self._part.numbers(absent))
            case said.Update(update):
                made = aggregation.make_update(update)
                if aggregation.wants_statistics(update):
                    self._tell(said.Made(made.version, made.statistics))
            case said.SetAside(gradient, seat, version):
                aggregation.set_aside(gradient, seat, version)
            case said.Discard(gradient, seat):
                aggregation.discard(gradient, seat)
            case said.HandOut(seat):
                self._held(seat).parameters.copy_(aggregation.store.flat)
                self._loop.send(self._workers[seat].channel, said.Parameters(aggregation.store.version))
            case said.Open(opened):
                aggregation.store.open(opened)
            case said.Feed(value):
                aggregation.store.feed(value)
            case said.Show(everything, pending):
                self._show(aggregation, everything, pending)

    def _held(self, seat: int) -> Held:
        held = self._workers[seat].held
        assert held is not None
        return held

    def _show(self, aggregation: Aggregation, everything: bool, pending: Any) -> None:
        store = aggregation.store
        content = (store.flat, store.state(), aggregation.kept(pending)) if everything else (store.flat, None, None)
        parcel = pack(content)
        try:
            self._tell(said.Shown(path_of(parcel), store.version))
        finally:
            os.close(parcel)

    def _forget(self, seat: int) -> None:
        self._forgotten.add(seat)
        worker = self._workers.pop(seat, None)
        if worker is not None:
            self._loop.forget_channel(worker.channel)
            worker.close()
            if self._aggregation is not None:
                self._aggregation.forget(seat)

    # -- the beginning --

    def _prepare(self, begin: said.Begin) -> None:
        self._begin = begin
        spec = pickle.loads(begin.optimizer)
        self._part = parts_of(begin.layout, spec, begin.parts)[begin.part]
        for worker in self._workers.values():
            self._seat(worker)

    def _take_model(self, worker: _Worker) -> None:
        assert self._begin is not None and worker.held is not None
        if worker.seat == self._begin.first and self._aggregation is None:
            self._make_store(worker.held.parameters)
            self._obey()

    def _make_store(self, flat: Tensor) -> ParameterStore:
        assert self._part is not None and self._begin is not None
        part, options = self._part, self._begin.options
        store = ParameterStore(part.layout, flat, part.spec, options, part.partition)
        self._aggregation = Aggregation(store, statistics=self._begin.statistics)
        self._tell(said.Begun(store.rule_for(statistics=self._begin.statistics)))
        return store
