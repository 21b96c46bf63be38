"""The server of a local run: one loop over the workers' pipes, and the port through which commands become deeds.

A worker's segment is written only while that worker waits, so a pull is one version by construction, and a gradient
stays where it lies until its fate is decided; a worker that goes on before that has its gradient moved aside first.
"""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import msgspec
import torch
from torch import Tensor
from typing_extensions import assert_never

from paceline.core.coordinator import Coordinator
from paceline.core.errors import ConfigurationError, PacelineError
from paceline.core.messages import (
    ApplyUpdate,
    DiscardGradient,
    Gradient,
    GradientArrived,
    Statistics,
    WorkerJoined,
    WorkerLeft,
)
from paceline.runtimes.driver import Driver, Observer
from paceline.runtimes.local.memory import map_segment
from paceline.runtimes.local.messages import (
    Enter,
    Failed,
    Finished,
    Go,
    Interrupt,
    Lease,
    Push,
    Restart,
    Stop,
    ToServer,
    ToWorker,
    Work,
)
from paceline.training.data import WorkLedger
from paceline.training.layout import Segment, difference, views
from paceline.training.parameters import Contribution, OptimizerSpec, ParameterStore, statistics_of


class WorkerFailedError(PacelineError):
    """A worker's function raised; the message is its traceback."""


@dataclass
class Seat:
    """One worker process and, while it is a member, its worker id. A process that comes back gets a new id."""

    index: int
    process: BaseProcess
    pipe: Connection
    descriptor: int
    segment: Segment | None = None
    worker: int | None = None
    clock: int = 0
    held: int = 0  # version of the parameters in its segment
    samples: int = 0  # of its last push
    parked: bool = False  # it asked for work, and there was none; its pipe expects a Work
    gone: bool = False


@dataclass
class Arrived:
    """A gradient without a fate."""

    seat: Seat
    gradient: Tensor
    samples: int
    units: int
    loss: float | None


@dataclass
class LocalServer:
    seats: Sequence[Seat]
    coordinator: Coordinator
    epochs: int
    lr_scaling: str
    statistics: bool
    observers: Sequence[Observer] = ()
    clock: Callable[[], float] = time.monotonic
    store: ParameterStore | None = None
    ledger: WorkLedger | None = None
    _members: dict[int, Seat] = field(default_factory=dict)
    _arrived: dict[Gradient, Arrived] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._driver = Driver(self.coordinator, self, self.observers)
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(ToServer).decode
        self._began = self.clock()
        self._next_worker = len(self.seats)
        self._entering: dict[int, Enter] = {}
        self._wake_at: float | None = None

    @property
    def now(self) -> float:
        return self.clock() - self._began

    def run(self) -> None:
        """Serve until every process has finished."""
        pipes = {seat.pipe: seat for seat in self.seats}
        while pipes:
            timeout = None if self._wake_at is None else max(0.0, self._wake_at - self.now)
            for pipe in wait(list(pipes), timeout):
                seat = pipes[pipe]  # type: ignore[index]
                if not self._hear(seat):
                    del pipes[seat.pipe]
            if self._wake_at is not None and self.now >= self._wake_at:
                self._wake_at = None
                self._driver.wake(self.now)
            self._employ_the_parked()

    def _hear(self, seat: Seat) -> bool:
        """One message of this process; False if it was the last."""
        try:
            message: ToServer = self._decode(seat.pipe.recv_bytes())
        except (EOFError, OSError):
            self._lose(seat, "its process died")
            return False
        match message:
            case Push():
                self._take(seat, message)
            case Lease():
                self._lease(seat, message)
            case Restart(units):
                self._give_back(seat, units)
                self._send(seat, Go())
            case Enter():
                self._enter(seat, message)
            case Finished():
                self._lose(seat, "finished")
                return False
            case Failed(problem):
                raise WorkerFailedError(problem)
            case _:
                assert_never(message)
        return True

    # -- what processes ask for --

    def _enter(self, seat: Seat, message: Enter) -> None:
        """A model arrived. The group begins when the models of all processes that are left are here."""
        self._entering[seat.index] = message
        seat.segment = map_segment(seat.descriptor, message.layout)
        waited_for = [each for each in self.seats if not each.gone and each.index not in self._entering]
        if waited_for or self.store is not None:
            return
        first = min(self._entering)
        layout = self._entering[first].layout
        for index, other in sorted(self._entering.items()):
            if other.layout != layout:
                found = difference(layout, other.layout)
                raise ConfigurationError(f"the model of worker {index} differs from that of worker {first}: {found}")
        spec: OptimizerSpec = pickle.loads(self._entering[first].optimizer)
        segment = self.seats[first].segment
        assert segment is not None
        self.store = ParameterStore(layout, segment.parameters, spec, self.lr_scaling)
        self._began = self.clock()
        for index in sorted(self._entering):
            self._join(self.seats[index], index)

    def _join(self, seat: Seat, worker: int) -> None:
        seat.worker, seat.clock = worker, 0
        self._members[worker] = seat
        self._driver.deliver(WorkerJoined(worker), self.now)

    def _take(self, seat: Seat, push: Push) -> None:
        assert seat.worker is not None and seat.segment is not None
        seat.clock += 1
        seat.samples = push.samples
        gradient = Gradient(seat.worker, seat.clock)
        self._arrived[gradient] = Arrived(seat, seat.segment.gradient, push.samples, push.units, push.loss)
        self._driver.deliver(GradientArrived(gradient, seat.held, push.samples, push.loss), self.now)

    def _lease(self, seat: Seat, asked: Lease) -> None:
        if self.ledger is None:
            self.ledger = WorkLedger(asked.samples, asked.batch_size, self.epochs)
        if (asked.samples, asked.batch_size) != (self.ledger.samples, self.ledger.batch_size):
            raise ConfigurationError(
                f"worker {seat.index} asks for batches of {asked.batch_size} of {asked.samples} samples, the others for"
                f" {self.ledger.batch_size} of {self.ledger.samples}: all must use the same data set and batch size"
            )
        assert seat.worker is not None
        unit = self.ledger.lease(seat.worker)
        if unit is not None:
            self._send(seat, Work(unit))
            return
        # It leaves the group, so that nobody waits for it, but its process stays: work may come back.
        seat.parked = True
        self._leave(seat, "no work left")

    def _employ_the_parked(self) -> None:
        """Give work that came back to a process that has none; when all is done, let them go."""
        parked = [seat for seat in self.seats if seat.parked]
        if not parked or self.ledger is None:
            return
        if self.ledger.returned:
            for seat in parked[: self.ledger.returned]:
                self._next_worker += 1
                self._join(seat, self._next_worker - 1)
        elif not self.ledger.outstanding:
            for seat in parked:
                seat.parked = False
                self._send(seat, Work(None))

    def _leave(self, seat: Seat, reason: str) -> None:
        worker, seat.worker = seat.worker, None
        if worker is None:
            return
        self._driver.deliver(WorkerLeft(worker, reason), self.now)
        waits_for_fate = sum(each.units for each in self._arrived.values() if each.seat is seat)
        if self.ledger is not None and not waits_for_fate:
            self.ledger.give_back(worker)
        del self._members[worker]

    def _lose(self, seat: Seat, reason: str) -> None:
        seat.gone, seat.parked = True, False
        self._leave(seat, reason)
        if reason != "finished" and all(each.gone for each in self.seats):
            raise WorkerFailedError(
                f"worker {seat.index}: {reason}, and it was the last; exit code {seat.process.exitcode}"
            )

    def _give_back(self, seat: Seat, units: int) -> None:
        if self.ledger is not None and seat.worker is not None:
            self.ledger.give_back(seat.worker, units)

    def _send(self, seat: Seat, message: ToWorker) -> None:
        with contextlib.suppress(OSError):  # it is dead; the end of its pipe will say so
            seat.pipe.send_bytes(self._encode(message))

    def stop(self) -> None:
        for seat in self.seats:
            if not seat.gone:
                self._send(seat, Stop())

    # -- the port --

    def send_parameters(self, worker: int) -> None:
        seat = self._members[worker]
        assert seat.segment is not None and self.store is not None
        pending = self._arrived.get(Gradient(worker, seat.clock))
        if pending is not None:
            pending.gradient = pending.gradient.clone()
        seat.segment.parameters.copy_(self.store.flat)
        seat.held = self.store.version
        if seat.parked:
            assert self.ledger is not None
            seat.parked = False
            self._send(seat, Work(self.ledger.lease(worker)))
        else:
            self._send(seat, Go())

    def interrupt_worker(self, worker: int) -> None:
        """Its segment must not be written while it computes: it says when it has stopped, and is served then."""
        self._send(self._members[worker], Interrupt())

    def apply_update(self, command: ApplyUpdate) -> Statistics | None:
        assert self.store is not None
        arrived = [self._arrived.pop(gradient) for gradient in command.gradients]
        weights = command.weights or (1.0,) * len(arrived)
        contributions = [
            Contribution(each.gradient, each.samples, weight, each.loss)
            for each, weight in zip(arrived, weights, strict=True)
        ]
        seen = statistics_of(contributions) if self.statistics else None
        self.store.apply(contributions, self._samples_per_round())
        if self.ledger is not None:
            for gradient, each in zip(command.gradients, arrived, strict=True):
                self.ledger.finish(gradient.worker, each.units)
        return seen

    def _samples_per_round(self) -> float:
        """A full round of the present group: one batch of everybody."""
        latest = [seat.samples for seat in self._members.values() if seat.samples]
        return sum(latest) / len(latest) * len(self._members) if latest else 1.0

    def discard_gradient(self, command: DiscardGradient) -> None:
        arrived = self._arrived.pop(command.gradient)
        if self.ledger is not None:
            self.ledger.give_back(command.gradient.worker, arrived.units)

    def wake_at(self, time: float) -> None:
        self._wake_at = time

    # -- what a run leaves behind --

    def model_state(self) -> dict[str, Tensor]:
        """The parameters, and the buffers averaged over the workers that have them."""
        assert self.store is not None
        state = {name: each.detach().clone() for name, each in self.store.parameters.items()}
        segments = [seat.segment for seat in self.seats if seat.segment is not None]
        mean = sum(segment.buffers for segment in segments) / len(segments)
        return state | views(torch.as_tensor(mean), self.store.layout.buffers)
