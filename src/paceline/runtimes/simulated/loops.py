"""A simulator of workers that run a user's own loop: they ask for work, push, skip and end as the loop does.

A loop runs to its next stop at the moment at which it is let go. An iteration takes what the worker's speed says, from
there to its push, however many batches it gathers; a batch that is skipped takes as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from paceline.core.coordinator import Coordinator
from paceline.core.messages import DataOpened, Gradient, Unit, UpdateApplied
from paceline.lifecycle.lifecycle import Lifecycle
from paceline.lifecycle.messages import (
    BatchesSkipped,
    BeginGroup,
    Discard,
    Dismiss,
    GradientPushed,
    Interrupt,
    Lease,
    MakeUpdate,
    ModelArrived,
    Place,
    ProcessDied,
    ProcessFinished,
    Release,
    SetAside,
    StartProcess,
    WorkDropped,
    WorkRequested,
)
from paceline.lifecycle.silence import Patience
from paceline.lifecycle.validation import PortView
from paceline.lifecycle.work import NO_LIMIT, Limit
from paceline.recording.observer import Observer
from paceline.runtimes.simulated.simulator import Happening, SimulatedWorker, Simulator, WorkerLoop
from paceline.training.stops import END, PUSH, REQUEST, SKIP, Stop


class RunsLoops(Protocol):
    """What runs the loops and keeps the model (paceline.training.loop_learner)."""

    trained: Callable[[], Sequence[int]]  # the simulator says which workers make up the group

    def start(self, seat: int) -> None:
        """Make its loop, and run it until its model is here."""

    def begin(self, seats: Sequence[int]) -> None: ...

    def open(self, opened: DataOpened) -> None:
        """It is known how much work there is; that may be told again."""

    def pull(self, seat: int, place: Place, *, enough: bool = False) -> None:
        """The worker takes the newest parameters; `place`: its own in the group; `enough`: no more batches of its
        own."""

    def note_buffers(self, seat: int) -> None:
        """Its next work begins."""

    def go_on(self, seat: int, units: Sequence[Unit]) -> Stop:
        """Let its loop run to its next stop, with these units of work."""

    def push(self, seat: int, stop: Stop) -> None:
        """The gradient at which its loop stands is due."""

    def leave(self, seat: int) -> None: ...

    def make_update(self, command: MakeUpdate) -> UpdateApplied: ...

    def set_aside(self, gradient: Gradient, seat: int, version: int) -> None: ...

    def discard(self, gradient: Gradient, seat: int) -> None: ...

    def view(self) -> PortView: ...


class LoopSimulator(Simulator):
    def __init__(
        self,
        workers: Sequence[SimulatedWorker],
        coordinator: Coordinator,
        observers: Sequence[Observer],
        loops: RunsLoops,
        *,
        epochs: int | None,
        limit: Limit = NO_LIMIT,
        patience: Patience | None = None,
        **options: Any,
    ) -> None:
        """`options`: the delays and the scale of time, as in Simulator."""
        together = not any(simulated.joins_at for simulated in workers)  # as real processes begin
        seats = [simulated.worker for simulated in workers]
        lifecycle = Lifecycle(coordinator, seats, epochs=epochs, limit=limit, together=together, patience=patience)
        super().__init__(workers, coordinator, observers, lifecycle=lifecycle, **options)
        self._loops = loops
        self._stops: dict[int, Stop] = {}  # by seat: where its loop stands
        self._interrupted: set[int] = set()  # seats whose next gradient is not wanted
        loops.trained = lambda: self._lifecycle.trained

    # -- what happens --

    def _happen(self, happening: Happening, worker: WorkerLoop, plan: int) -> None:
        if happening is Happening.JOIN:
            self._loops.start(worker.seat)
            self._deliver(ModelArrived(worker.seat))
        else:
            super()._happen(happening, worker, plan)

    def _fail(self, worker: WorkerLoop, reason: str) -> None:
        worker.plan += 1
        self._loops.leave(worker.seat)
        self._deliver(ProcessDied(worker.seat, reason))

    def _push(self, worker: WorkerLoop, now: float) -> None:
        """What its loop stands at is due: a gradient, or a batch that it skips."""
        self.now = now
        stop = self._stops[worker.seat]
        if stop.at == SKIP:
            self._driver.deliver(BatchesSkipped(worker.seat, stop.samples, stop.units), now)
            if worker.seat in self._stops:  # it was not sent away
                self._loops.note_buffers(worker.seat)
                self._go_on(worker)
            self._deliver_answers()
            return
        self.pushes += 1
        worker.pushed += 1
        self._loops.push(worker.seat, stop)
        self._deliver(GradientPushed(worker.seat, worker.pushed, stop.samples, stop.units, stop.loss))

    def _go_on(self, worker: WorkerLoop, unit: Unit | None = None, ahead: Sequence[Unit] = ()) -> None:
        seat = worker.seat
        stop = self._stops[seat] = self._loops.go_on(seat, [*([] if unit is None else [unit]), *ahead])
        if stop.at == REQUEST:
            assert stop.work is not None
            self._answers.append(WorkRequested(seat, stop.work))
        elif stop.at == END:
            self._answers.append(ProcessFinished(seat))
        elif stop.at == PUSH and seat in self._interrupted:
            self._drop(seat)
        else:
            self._compute(worker)

    def _drop(self, seat: int) -> None:
        """Its gradient is not wanted any more, and it waits for new parameters."""
        stop = self._stops[seat]
        self._interrupted.discard(seat)
        if stop.at == SKIP:
            self._answers.append(BatchesSkipped(seat, stop.samples, stop.units))
            self._answers.append(WorkDropped(seat, 0, 0))
        else:
            self._answers.append(WorkDropped(seat, stop.samples, stop.units))

    # -- the port --

    def start_process(self, command: StartProcess) -> None:
        """It stands in for those that failed, and is as fast as the first."""
        first = next(iter(self._workers.values()))
        self._workers[command.seat] = WorkerLoop(command.seat, first.draw)
        self._schedule(self.now, Happening.JOIN, self._workers[command.seat])

    def begin_group(self, command: BeginGroup) -> None:
        self._loops.begin(command.seats)

    def release(self, command: Release) -> None:
        self._loops.pull(command.seat, self._lifecycle.place_of(command.seat), enough=command.enough)
        self._interrupted.discard(command.seat)
        self._go_on(self._workers[command.seat], command.unit, command.ahead)

    def lease(self, command: Lease) -> None:
        if self._lifecycle.samples.opened is not None:
            self._loops.open(self._lifecycle.samples.opened)
        self._go_on(self._workers[command.seat], command.unit, command.ahead)

    def interrupt(self, command: Interrupt) -> None:
        """As for any simulated worker; one that waits for work drops what it makes of it."""
        worker = self._workers[command.seat]
        if self._stops[command.seat].at == REQUEST:
            self._interrupted.add(command.seat)
        elif worker.computed_at >= round(self.now + self._pull_delay, self._digits):
            worker.plan += 1
            self._drop(command.seat)

    def dismiss(self, command: Dismiss) -> None:
        self._workers[command.seat].plan += 1
        self._loops.leave(command.seat)
        self._stops.pop(command.seat, None)
        self._answers.append(ProcessFinished(command.seat))

    def make_update(self, command: MakeUpdate) -> UpdateApplied:
        return self._loops.make_update(command)

    def set_aside(self, command: SetAside) -> None:
        self._loops.set_aside(command.gradient, command.seat, command.version)

    def discard(self, command: Discard) -> None:
        self._loops.discard(command.gradient, command.seat)

    def view(self) -> PortView:
        return self._loops.view()
