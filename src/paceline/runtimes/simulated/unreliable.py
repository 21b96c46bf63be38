"""A simulator of processes that die, stand still and repeat themselves, under a server that can be killed itself.

Processes are started as the lifecycle asks for them, as a real runtime does it. What goes wrong is told from outside,
by the seat; one incarnation of the server ends with `crash`, and another goes on from the state that was kept.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence

from paceline.core.coordinator import Coordinator
from paceline.core.messages import UpdateApplied
from paceline.core.questions import Answer, Question
from paceline.lifecycle.lifecycle import Lifecycle
from paceline.lifecycle.messages import (
    BeginGroup,
    EndProcess,
    GiveUp,
    GradientPushed,
    GroupEvent,
    MakeUpdate,
    ProcessDied,
    ProcessFinished,
    StartProcess,
    WorkDropped,
    WorkRequested,
)
from paceline.recording.observer import Observer
from paceline.runtimes.simulated.simulator import NOBODY, Happening, Learns, Simulator, WorkerLoop
from paceline.runtimes.speeds import Draw

STARTING_TIME = 0.5  # of a process, in seconds


class Process(WorkerLoop):
    __slots__ = ("alive", "answers", "due", "factor", "frozen_until", "latest", "slow_until")

    def __init__(self, seat: int, draw: Draw) -> None:
        super().__init__(seat, draw)
        self.alive = True
        self.frozen_until = self.slow_until = -math.inf
        self.factor = 1.0
        self.due: float | None = None  # when its next push arrives; None: it does not compute
        self.answers: deque[GroupEvent] = deque()  # that it gives when it can move again
        self.latest: GradientPushed | None = None


class UnreliableSimulator(Simulator):
    """One incarnation of the server, from the beginning or from a state that was kept."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        coordinator: Coordinator,
        learner: Learns,
        draw: Callable[[int], Draw],
        observers: Sequence[Observer] = (),
        *,
        now: float = 0.0,
        think: Callable[[Question], Answer],
    ) -> None:
        """`draw`: how fast the process at this seat is."""
        super().__init__((), coordinator, observers, learner=learner, time_scale=0.01, lifecycle=lifecycle, think=think)
        self._driver.validate = True
        self._draw = draw
        self.now = now
        self.given_up = ""
        self._has_a_model = False
        self._calls: list[Callable[[], None]] = []

    def start(self) -> None:
        self._driver.start()

    def at(self, time: float, call: Callable[[], None]) -> None:
        """Do this at that time, between two events."""
        self._calls.append(call)
        self._sequence += 1
        heapq.heappush(self._heap, (time, self._sequence, Happening.CALL, NOBODY, len(self._calls) - 1))

    @property
    def processes(self) -> list[Process]:
        """Those that live."""
        return [process for process in self._workers.values() if isinstance(process, Process) and process.alive]

    # -- what goes wrong --

    def kill(self, process: Process) -> None:
        process.alive = False
        process.answers.clear()
        self._fail(process, "killed")

    def freeze(self, process: Process, seconds: float) -> None:
        until = self.now + seconds
        if process.due is not None:
            self._postpone(process, max(0.0, until - max(self.now, process.frozen_until)))
        process.frozen_until = max(process.frozen_until, until)

    def delay(self, process: Process, seconds: float) -> None:
        """Its push is on its way for longer."""
        if process.due is not None:
            self._postpone(process, seconds)

    def slow(self, process: Process, seconds: float, factor: float) -> None:
        process.slow_until, process.factor = self.now + seconds, factor

    def duplicate(self, process: Process) -> None:
        """Its latest push is delivered once more."""
        if process.latest is not None:
            self._deliver(process.latest)

    def crash(self) -> None:
        """The server dies, and everybody with it."""
        self.halt()

    def _postpone(self, process: Process, seconds: float) -> None:
        assert process.due is not None
        process.plan += 1
        process.due += seconds
        self._schedule(process.due, Happening.PUSH, process)

    # -- what happens --

    def _happen(self, happening: Happening, worker: WorkerLoop, plan: int) -> None:
        if happening is Happening.CALL:
            self._calls[plan]()
            return
        if isinstance(worker, Process):
            if not worker.alive:
                return
            if worker.frozen_until > self.now:
                self._schedule(worker.frozen_until, happening, worker)
                return
            if happening is Happening.ANSWER:
                self._speak(worker, worker.answers.popleft())
                self._deliver_answers()
                return
        super()._happen(happening, worker, plan)

    def _push(self, worker: WorkerLoop, now: float) -> None:
        assert isinstance(worker, Process) and self._learner is not None
        self.now = now
        self.pushes += 1
        worker.pushed += 1
        worker.due = None
        samples, loss = self._learner.push(worker.seat)
        worker.latest = GradientPushed(worker.seat, worker.pushed, samples, 1, loss)
        self._deliver(worker.latest)

    def _compute(self, worker: WorkerLoop) -> None:
        assert isinstance(worker, Process)
        begins = max(self.now, worker.frozen_until)
        seconds = worker.draw(worker.iteration, begins)
        worker.iteration += 1
        worker.due = worker.computed_at = begins + seconds * (worker.factor if begins < worker.slow_until else 1.0)
        self._schedule(worker.due, Happening.PUSH, worker)

    def _answer(self, event: WorkRequested | WorkDropped | ProcessFinished) -> None:
        """One that stands still answers when it moves again."""
        process = self._workers[event.seat]
        assert isinstance(process, Process)
        if not isinstance(event, WorkRequested):
            process.due = None
        if process.frozen_until > self.now:
            process.answers.append(event)
            self._schedule(process.frozen_until, Happening.ANSWER, process)
        else:
            self._speak(process, event)

    def _speak(self, process: Process, event: GroupEvent) -> None:
        process.alive = not isinstance(event, ProcessFinished)
        self._answers.append(event)

    # -- the port --

    def start_process(self, command: StartProcess) -> None:
        process = self._workers[command.seat] = Process(command.seat, self._draw(command.seat))
        self._schedule(self.now + STARTING_TIME, Happening.JOIN, process)

    def end_process(self, command: EndProcess) -> None:
        process = self._workers[command.seat]
        if isinstance(process, Process) and process.alive:
            process.alive = False
            process.plan += 1
            process.answers.clear()
            self._answers.append(ProcessDied(command.seat, "it was ended"))

    def begin_group(self, command: BeginGroup) -> None:
        self._has_a_model = True

    def make_update(self, command: MakeUpdate) -> UpdateApplied:
        assert self._has_a_model, "there is no model to update"
        return super().make_update(command)

    def give_up(self, command: GiveUp) -> None:
        self.given_up = command.reason
        self.halt()
