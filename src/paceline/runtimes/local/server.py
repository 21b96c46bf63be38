"""The server of a local run: one loop over the pipes of its processes.

It hears what they say, turns it into events, and keeps the group: who enters, who leaves, who has no work. Gradients,
parameters and commands are the port's affair (paceline.runtimes.local.store_port).
"""

from __future__ import annotations

import pickle
import selectors
import time
from collections.abc import Callable, Sequence

from typing_extensions import assert_never

from paceline.core.coordinator import Coordinator
from paceline.core.errors import ConfigurationError, PacelineError
from paceline.core.messages import FINISHED, NO_WORK_LEFT, Gradient, GradientArrived, WorkerJoined, WorkerLeft
from paceline.recording.observer import Observer
from paceline.runtimes.driver import Driver
from paceline.runtimes.local.channel import ClosedError, ShortWait
from paceline.runtimes.local.control import Control
from paceline.runtimes.local.evaluator import Evaluations
from paceline.runtimes.local.gauge import TICK, Gauge
from paceline.runtimes.local.launcher import LAUNCHED_BY_A_WORKER, Launcher
from paceline.runtimes.local.memory import map_segment
from paceline.runtimes.local.messages import (
    Enter,
    Failed,
    Finished,
    Lease,
    Leased,
    Push,
    Restart,
    Skip,
    Stop,
    ToServer,
)
from paceline.runtimes.local.seat import Seat
from paceline.runtimes.local.store_port import StorePort
from paceline.training.aggregation import Aggregation, Arrived
from paceline.training.data import Work, WorkLedger, units_as_numbers
from paceline.training.layout import Layout, averaged_into, difference
from paceline.training.parameters import OptimizerSpec, ParameterStore, warm_up

MOST_REPLACEMENTS = 3  # in a row that die before their first push


class WorkerFailedError(PacelineError):
    """A worker's function raised; the message is its traceback."""


class LocalServer:
    def __init__(
        self,
        launcher: Launcher,
        coordinator: Coordinator,
        *,
        workers: int,
        least: int | None = None,
        most: int | None = None,
        epochs: int = 1,
        lr_scaling: str = "linear",
        statistics: bool = False,
        evaluate_every: int | None = None,
        observers: Sequence[Observer] = (),
        control: Control | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`least`: never fewer, and those that die are replaced; None: go on with those that are left.

        `most`: how many somebody outside may ask for.
        """
        self.seats: list[Seat] = []
        self.port = StorePort()
        self.interrupted = False
        self.ended_at: float | None = None
        self._launcher = launcher
        self._driver = Driver(coordinator, self.port, observers)
        self._coordinator = coordinator
        self._workers = workers
        self._least = least
        self._wanted = workers  # the size that the group should have
        self._most = most
        self._epochs = epochs
        self._lr_scaling = lr_scaling
        self._statistics = statistics
        self._control = control
        self._clock = clock
        self._began: float | None = None
        self._next_worker = 0
        self._parked: list[Seat] = []
        self._work: Work | None = None  # what the first worker asked for
        self._selector = selectors.DefaultSelector()
        self._gauge = Gauge(observers, epochs)
        self._evaluations = Evaluations(launcher.start_evaluator, self._selector, self._gauge.tell, evaluate_every)
        self._short_wait = ShortWait()
        self._new: list[tuple[selectors.SelectorKey, int]] = []
        self._replaced = 0  # in a row

    @property
    def now(self) -> float:
        """Seconds since the group began."""
        return 0.0 if self._began is None else self._clock() - self._began

    @property
    def active(self) -> list[Seat]:
        return [seat for seat in self.seats if not seat.gone and not seat.leaving]

    # -- the loop --

    def run(self) -> None:
        """Serve until every process has finished, or `interrupted` is set."""
        for _ in range(self._workers):
            self._add_seat()
        self._evaluations.start()
        warm_up()  # while the processes start
        if self._control is not None:
            self._selector.register(self._control, selectors.EVENT_READ, self._hear_control)
        while not self.interrupted and not all(seat.gone for seat in self.seats):
            for key, _ in self._readable():
                if not self.interrupted:
                    key.data()
            self._look_at_the_clock()
            if self._parked:
                self._employ_the_parked()
        self.ended_at = self.now
        if self.port.aggregation is not None:
            self._gauge.measure(self.port.aggregation, len(self.port.members), self.ended_at)
            store = self.port.aggregation.store
            self._evaluations.finish(store, self.port.replicas, self.ended_at, lambda: self.interrupted)

    def _readable(self) -> list[tuple[selectors.SelectorKey, int]]:
        if self._short_wait.pays_off(self._anything_new):
            return self._new
        return self._selector.select(self._patience())

    def _anything_new(self) -> bool:
        self._new = self._selector.select(0)
        return bool(self._new)

    def _patience(self) -> float:
        wake = self.port.wake_time
        return TICK if wake is None else max(0.0, min(TICK, wake - self.now))

    def _look_at_the_clock(self) -> None:
        now = self.now
        wake = self.port.wake_time
        if wake is not None and now >= wake:
            self.port.wake_time = None
            self._driver.wake(now)
        if self.port.aggregation is not None:
            self._evaluations.ask_if_due(self.port.aggregation.store, self.port.replicas, now)
            self._gauge.measure_if_due(self.port.aggregation, len(self.port.members), now)

    def _add_seat(self) -> None:
        seat = self._launcher.start_worker(self._next_worker)
        self._next_worker += 1
        self.seats.append(seat)
        self._selector.register(seat.channel, selectors.EVENT_READ, lambda: self._hear(seat))

    def _hear(self, seat: Seat) -> None:
        try:
            messages = seat.channel.received()
        except ClosedError:
            messages = None
        if messages is None:
            self._lose(seat, "its process died")
            return
        for message in messages:
            self._heed(seat, message)

    def _heed(self, seat: Seat, message: ToServer) -> None:
        if seat.leaving and seat.worker is None and isinstance(message, Push | Skip | Restart | Lease):
            return  # it was sent away, and said this before it heard so
        match message:
            case Push():
                self._take(seat, message)
            case Lease(work):
                self._lease(seat, work)
            case Skip(samples, units):
                self.port.drop(seat, samples, units)
            case Restart(units):
                self.port.serve_again(seat, units)
            case Enter():
                self._enter(seat, message)
            case Finished():
                self._lose(seat, FINISHED)
            case Failed(problem, wrong_input):
                raise ConfigurationError(problem) if wrong_input else WorkerFailedError(problem)
            case _:
                assert_never(message)
        if seat.leaving and not seat.gone:
            self._dismiss(seat)

    # -- what processes ask for --

    def _enter(self, seat: Seat, message: Enter) -> None:
        """A model arrived. The group begins when the models of all processes that are left are here."""
        seat.segment = map_segment(seat.descriptor, message.layout)
        seat.optimizer = message.optimizer
        if self.port.aggregation is None:
            self._begin_if_all_are_here()
            return
        self._compare(seat, self.port.aggregation.store.layout, "the others'")
        averaged_into(seat.segment, self.port.replicas(without=seat))
        if not seat.leaving:
            self._join(seat, seat.index)

    def _compare(self, seat: Seat, layout: Layout, whose: str) -> None:
        assert seat.segment is not None
        if seat.segment.layout != layout:
            found = difference(layout, seat.segment.layout)
            raise ConfigurationError(f"the model of worker {seat.index} differs from {whose}: {found}")

    def _begin_if_all_are_here(self) -> None:
        ready = self.active
        if not ready or any(seat.segment is None for seat in ready):
            return
        first = ready[0]
        assert first.segment is not None
        for seat in ready[1:]:
            self._compare(seat, first.segment.layout, f"that of worker {first.index}")
        spec: OptimizerSpec = pickle.loads(first.optimizer)
        store = ParameterStore(first.segment.layout, first.segment.parameters, spec, self._lr_scaling)
        self.port.aggregation = Aggregation(store, self._statistics)
        self._short_wait.parameters = store.layout.parameter_count
        self._began = self._clock()
        for seat in ready:
            self._join(seat, seat.index)

    def _join(self, seat: Seat, worker: int) -> None:
        seat.worker, seat.clock = worker, 0
        self.port.members[worker] = seat
        self._driver.deliver(WorkerJoined(worker), self.now)

    def _take(self, seat: Seat, push: Push) -> None:
        aggregation = self.port.aggregation
        if seat.worker is None or seat.segment is None or aggregation is None:
            raise WorkerFailedError(f"worker {seat.index} pushed a gradient after its work was done")
        seat.clock += 1
        self._replaced = 0
        gradient = Gradient(seat.worker, seat.clock)
        arrived = Arrived(seat.segment.gradient, push.samples, push.loss, push.squared_norm)
        units = aggregation.arrive(gradient, arrived, push.units)
        self._gauge.note_loss(push.loss)
        event = GradientArrived(gradient, seat.held, push.samples, push.loss, units_as_numbers(units))
        self._driver.deliver(event, self.now)

    def _lease(self, seat: Seat, work: Work) -> None:
        seat.work = work
        aggregation = self.port.aggregation
        if seat.worker is None or aggregation is None:
            if aggregation is None:
                raise ConfigurationError(
                    f"worker {seat.index} asks for batches before it has a model: call worker.optimizer first"
                )
            seat.send(Leased(None))  # it was told before that there is nothing left
            return
        if self._work is None:
            self._open_ledger(aggregation, work)
        elif (work.samples, work.sharding) != (self._work.samples, self._work.sharding):
            raise ConfigurationError(
                f"worker {seat.index} wants {work.sharding} batches of {work.samples} samples, others"
                f" {self._work.sharding} batches of {self._work.samples}: all must share one data set in one way"
            )
        unit = self.port.lease(seat)
        if unit is not None:
            seat.send(Leased(unit))
        elif aggregation.ledger is not None and aggregation.ledger.leased_by(seat.worker):
            seat.send(Leased(None))  # it gathers batches for one push: this was the last one
        elif not seat.leaving:
            # It leaves the group, so that nobody waits for it, but its process stays: work may come back.
            seat.parked = True
            self._parked.append(seat)
            self._leave(seat, NO_WORK_LEFT)

    def _open_ledger(self, aggregation: Aggregation, work: Work) -> None:
        workers = len(self.active)
        if work.samples < workers:
            raise ConfigurationError(
                f"the data set has {work.samples} samples, fewer than the {workers} workers: take fewer workers"
            )
        self._work = work
        aggregation.ledger = WorkLedger(work.samples, self._epochs, len(self.seats) if work.sharding == "static" else 1)
        for seat in self.seats:
            if seat.gone:
                aggregation.ledger.abandon(seat.index)
        aggregation.store.epoch_samples = work.samples
        if self._evaluations.every is None:
            self._evaluations.every = work.samples

    def _employ_the_parked(self) -> None:
        """Give work that came back to processes that have none; when all is done, let them go."""
        assert self.port.aggregation is not None
        ledger = self.port.aggregation.ledger
        assert ledger is not None
        while self._parked and ledger.available:
            seat = self._parked.pop(0)
            seat.parked = False
            seat.worker = self._next_worker
            seat.reserved = self.port.lease(seat)
            self._next_worker += 1
            self._join(seat, seat.worker)
        if self._parked and not ledger.outstanding:
            for seat in self._parked:
                seat.parked = False
                seat.send(Leased(None))
            self._parked = []

    # -- who leaves --

    def _leave(self, seat: Seat, reason: str) -> None:
        worker, seat.worker = seat.worker, None
        if worker is None:
            return
        self.port.leave(worker, reason)
        self._driver.deliver(WorkerLeft(worker, reason), self.now)

    def _lose(self, seat: Seat, reason: str) -> None:
        """The process has ended, or is about to."""
        self._selector.unregister(seat.channel)
        seat.gone = True
        if seat.parked:
            seat.parked = False
            self._parked.remove(seat)
        aggregation = self.port.aggregation
        if aggregation is not None and aggregation.ledger is not None:
            aggregation.ledger.abandon(seat.index)
        self._leave(seat, reason)
        if seat.leaving:
            return
        if reason != FINISHED:
            self._mourn(seat, reason)
        elif aggregation is None:
            raise WorkerFailedError(
                f"worker {seat.index} finished without a model: `train` must call worker.optimizer(model, ...)"
            )

    def _mourn(self, seat: Seat, reason: str) -> None:
        """A process died: replace it, go on without it, or say why that is impossible."""
        seat.process.join(1.0)
        died = f"worker {seat.index}: {reason} (exit code {seat.process.exitcode})"
        if seat.process.exitcode == LAUNCHED_BY_A_WORKER:
            raise ConfigurationError(
                "a new process imports your script, and the script launches again: put the call of launch or fit under"
                " `if __name__ == '__main__':`"
            )
        if self._least is not None and len(self.active) < self._wanted:
            self._replaced += 1
            if self._replaced > MOST_REPLACEMENTS:
                raise WorkerFailedError(f"{died}; {MOST_REPLACEMENTS} others that took its place died as well")
            self._add_seat()
        elif not self.active:
            raise WorkerFailedError(f"{died}, and it was the last")
        elif self.port.aggregation is None:
            raise WorkerFailedError(f"{died} before the group began")

    def scale(self, workers: int) -> None:
        """Make the group this large: new processes join, the newest ones leave once they handed in their gradient."""
        active = self.active
        self._wanted = workers
        for _ in range(len(active), workers):
            self._add_seat()
        for seat in active[workers:]:
            seat.leaving = True
            waits = seat.worker in self._coordinator.progress.waiting
            if waits or seat.parked or seat.worker is None:
                self._dismiss(seat)
        if self.port.aggregation is None:
            self._begin_if_all_are_here()

    def _dismiss(self, seat: Seat) -> None:
        if seat.parked:
            seat.parked = False
            self._parked.remove(seat)
        self._leave(seat, "the group was made smaller")
        seat.send(Stop())

    # -- from outside --

    def _hear_control(self) -> None:
        assert self._control is not None
        for wanted in self._control.requests():
            self.scale(max(self._least or 1, min(wanted, self._most or wanted)))
            self._control.acknowledge(wanted)

    def stop(self) -> None:
        """Tell everybody that is still there that the run is over."""
        if self.port.aggregation is not None:
            self._gauge.measure(self.port.aggregation, len(self.port.members), self.now)
        self._selector.close()
        for seat in self.seats:
            if not seat.gone:
                seat.send(Stop())
