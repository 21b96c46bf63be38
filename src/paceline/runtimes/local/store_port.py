"""The port of a local run: carries out commands on the parameter store and on the workers' segments.

A worker's segment is written only while that worker waits, so a pull is one version by construction, without locks. A
gradient stays in its slot until its fate is decided; a worker that goes on before that has its gradient moved aside.
"""

from __future__ import annotations

from torch import Tensor

from paceline.core.messages import ApplyUpdate, DiscardGradient, Gradient, Statistics
from paceline.runtimes.local.messages import Go, Interrupt, Leased
from paceline.runtimes.local.seat import Seat
from paceline.training.aggregation import Aggregation
from paceline.training.data import Unit
from paceline.training.layout import Segment, average, views


class StorePort:
    def __init__(self) -> None:
        self.aggregation: Aggregation | None = None  # once the group has begun
        self.members: dict[int, Seat] = {}
        self.wake_time: float | None = None
        self._replicas: dict[int, Segment] = {}  # of all that ever held the parameters, by the process's index

    # -- commands --

    def send_parameters(self, worker: int) -> None:
        assert self.aggregation is not None
        seat = self.members[worker]
        self.aggregation.move_aside(Gradient(worker, seat.clock))
        self._pull(seat)
        if seat.reserved is not None:
            seat.send(Leased(seat.reserved))
            seat.reserved = None
        else:
            seat.send(Go(self._next_unit(seat)))

    def _pull(self, seat: Seat) -> None:
        assert self.aggregation is not None and seat.segment is not None
        seat.segment.parameters.copy_(self.aggregation.store.flat)
        seat.held = self.aggregation.store.version
        if seat.worker is not None:
            self.aggregation.enter(seat.worker)
        self._replicas[seat.index] = seat.segment

    def interrupt_worker(self, worker: int) -> None:
        """Its segment must not be written while it computes: it says when it has stopped, and is served then."""
        self.members[worker].send(Interrupt())

    def serve_again(self, seat: Seat, units: int) -> None:
        """An interrupted worker has stopped."""
        assert self.aggregation is not None and seat.worker is not None
        if self.aggregation.ledger is not None:
            self.aggregation.ledger.release(seat.worker, units)
        self._pull(seat)
        seat.send(Go(self._next_unit(seat)))

    def apply_update(self, command: ApplyUpdate) -> Statistics | None:
        assert self.aggregation is not None
        return self.aggregation.apply(command)

    def discard_gradient(self, command: DiscardGradient) -> None:
        assert self.aggregation is not None
        self.aggregation.discard(command)

    def wake_at(self, time: float) -> None:
        self.wake_time = time

    # -- work --

    def lease(self, seat: Seat) -> Unit | None:
        """The next unit of what this process asks for."""
        if self.aggregation is None or self.aggregation.ledger is None or seat.work is None or seat.leaving:
            return None
        assert seat.worker is not None
        part = seat.index if seat.work.sharding == "static" else None
        return self.aggregation.ledger.lease(seat.worker, seat.work.batch_size, part)

    def _next_unit(self, seat: Seat) -> Unit | None:
        """What comes along with parameters; nothing, if the process still has some, as with two steps per batch."""
        assert self.aggregation is not None and seat.worker is not None
        ledger = self.aggregation.ledger
        return None if ledger is None or ledger.leased_by(seat.worker) else self.lease(seat)

    def drop(self, seat: Seat, samples: int, units: int) -> None:
        assert self.aggregation is not None
        if seat.worker is not None:  # who was sent away gave its units back
            self.aggregation.drop(seat.worker, samples, units)

    def leave(self, worker: int, reason: str) -> None:
        assert self.aggregation is not None
        del self.members[worker]
        self.aggregation.leave(worker, reason)

    # -- the model --

    def replicas(self, without: Seat | None = None) -> list[Segment]:
        """Of everybody who ever trained: their buffers make the average."""
        return [each for index, each in self._replicas.items() if without is None or index != without.index]

    def model_state(self) -> dict[str, Tensor]:
        """What state_dict() of the model would be: the store's parameters, and the average of the workers' buffers."""
        assert self.aggregation is not None
        store = self.aggregation.store
        replicas = self.replicas()
        tensors = {name: each.clone() for name, each in views(store.flat, store.layout.parameters).items()}
        tensors |= average([replica.others for replica in replicas], store.layout.averaged)
        return {key: tensors[name] for key, name in store.layout.keys}
