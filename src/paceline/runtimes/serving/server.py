"""The server of a run: one loop that moves bytes.

Messages of processes become events of the lifecycle, and the port carries out what follows from them. What is decided
here is only when to measure, when to evaluate, and when the run is over.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence

from torch import Tensor
from typing_extensions import assert_never

from paceline.core.coordinator import Coordinator
from paceline.core.errors import ConfigurationError
from paceline.core.messages import FigureFound, UpdateRule
from paceline.lifecycle.lifecycle import Lifecycle
from paceline.lifecycle.messages import (
    BatchesSkipped,
    EndRequested,
    GradientPushed,
    GroupEvent,
    ModelArrived,
    ProcessDied,
    ProcessFinished,
    WorkDropped,
    WorkRequested,
)
from paceline.lifecycle.resumption import resume
from paceline.lifecycle.seats import State
from paceline.lifecycle.silence import Patience
from paceline.lifecycle.work import NO_LIMIT, Limit
from paceline.recording.observer import Observer
from paceline.recording.progress_log import Evaluation, Logged, finite_or_nan
from paceline.runtimes.driver import Driver
from paceline.runtimes.serving.channel import ClosedError
from paceline.runtimes.serving.checkpoints import CheckpointOptions, Checkpoints
from paceline.runtimes.serving.control import Control
from paceline.runtimes.serving.evaluator import EvaluationFailedError, Evaluations
from paceline.runtimes.serving.failures import complain_of_unused_batches, died, raised, refuse_launch_by_a_worker
from paceline.runtimes.serving.gauge import TICK, Gauge
from paceline.runtimes.serving.launching import Launches, Started
from paceline.runtimes.serving.looking import Looks
from paceline.runtimes.serving.loop import Loop
from paceline.runtimes.serving.messages import (
    Enter,
    Failed,
    Finished,
    Kept,
    Log,
    Push,
    Request,
    Restart,
    Running,
    Skip,
    StateWanted,
    ToServer,
)
from paceline.runtimes.serving.own_pauses import OwnPauses
from paceline.runtimes.serving.port import ProcessPort, WorkerFailedError, WorkerFailedWarning
from paceline.runtimes.serving.requests import ChoosePolicy, Requests
from paceline.runtimes.serving.starting import Start
from paceline.runtimes.serving.stopped import StoppedProcesses
from paceline.runtimes.serving.thinking import Thinking
from paceline.training.checkpoint import Checkpoint
from paceline.training.choices import AS_USUAL, UpdateOptions


class Server:
    def __init__(
        self,
        launcher: Launches,
        coordinator: Coordinator,
        *,
        workers: int,
        least: int | None = None,
        most: int | None = None,
        epochs: int | None = 1,
        limit: Limit = NO_LIMIT,
        budget: float | None = None,
        updates: UpdateOptions = AS_USUAL,
        statistics: bool = False,
        evaluate_every: int | None = None,
        observers: Sequence[Observer] = (),
        control: Control | None = None,
        choose: ChoosePolicy | None = None,
        thinker: Callable[[], Sequence[str]] | None = None,
        checkpoints: CheckpointOptions | None = None,
        resumed: Checkpoint | None = None,
        restarts: int = 0,
        patience: Patience | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Most as in Lifecycle. `budget`: seconds until the run is to end. `choose`: finds another policy. `thinker`:
        the command of a process that answers what a policy asks. `resumed`: what it goes on from."""
        self.lifecycle = Lifecycle(
            coordinator,
            range(workers) if resumed is None else (),
            least=least,
            most=most,
            epochs=epochs,
            limit=limit,
            restarts=restarts,
            patience=patience,
        )
        if resumed is not None:
            resume(self.lifecycle, resumed.facts.lifecycle)
            for seat in self.lifecycle.seats.values():
                seat.forgot = seat.index not in resumed.training["workers"]
            if least is None:
                self.lifecycle.staffing.wanted = workers
        self.loop = Loop()
        self._launcher = launcher
        self._gauge = Gauge(observers, epochs)
        self._thinking = Thinking(self.loop, thinker)
        self.port = ProcessPort(
            self.lifecycle,
            launcher,
            self.loop,
            updates=updates,
            statistics=statistics,
            started=self._watch,
            begun=self._note_begin,
            ask=lambda asked: self._thinking.ask(self.requests.completed(asked)),
            rule_under=lambda follow: self.requests.rule_under(follow),
            resumed=resumed,
        )
        self._start = Start(self.lifecycle, launcher, self.port.processes, clock())
        self.ended_at: float | None = None
        self.evaluation_problem = ""  # why the last state could not be evaluated
        self._driver = Driver(self.lifecycle, self.port, observers)
        self._budget, self._clock = budget, clock
        self.requests = Requests(self.lifecycle, self.port, control, choose, largest=most or workers)
        self._began: float | None = None
        # Of a run that is resumed; its start does not count.
        self._before = 0.0 if resumed is None else resumed.facts.seconds
        self._own_pauses = OwnPauses(TICK, self._forgive)
        self._hears_last_words = self._somebody_ended = False  # the second: meanwhile
        self._unused: dict[int, int] = {}  # by seat: batches that it took without ever calling step
        self._stopped = StoppedProcesses(self.lifecycle, self.port.processes)
        self._looks = Looks(TICK, launcher, self._stopped, self.port)
        self._evaluations = Evaluations(launcher, self.loop, self._note_evaluation, evaluate_every)
        self._checkpoints: Checkpoints | None = None
        if checkpoints is not None:
            self._checkpoints = Checkpoints(checkpoints, self.lifecycle, self.port, self._gauge.tell_checkpoint)
        if resumed is not None:
            facts, work = resumed.facts, resumed.facts.lifecycle.samples.work
            if evaluate_every is None and work is not None:
                self._evaluations.every = work.epoch_samples  # nobody asks for work: it comes along with parameters
            self._evaluations.resumed_at(facts.samples)
            if self._checkpoints is not None:
                self._checkpoints.resumed_at(facts.seconds, facts.samples, facts.updates)

    @property
    def now(self) -> float:
        """Seconds since the group began."""
        return self._before if self._began is None else self._clock() - self._began

    # -- the loop --

    def run(self) -> None:
        """Serve until every process has finished, somebody wants to stop, or the loop is interrupted."""
        self._launcher.attach(self.loop, self._watch_channel)
        self.port.attach(self._handle, self._deliver)
        self._thinking.attach(self._deliver)
        self._driver.start()
        self._evaluations.start()
        self.requests.attach(
            self.loop, self._deliver, lambda: self.ended_at is not None, lambda: self._hears_last_words
        )
        while not (self.loop.interrupted or self.requests.stopped or self.lifecycle.done):
            self._turn(self._patience())
            self._look_at_the_clock()
        self._thinking.close()
        self._hear_last_words()
        self._finish_updates()
        if self.requests.stopped:
            self._dismiss_all()
        self.ended_at = self.now
        if self.port.aggregation is not None:
            complain_of_unused_batches(self._unused, trained=self.port.store.version > 0)
            self._gauge.measure(self.port.store, self.lifecycle, self.ended_at)
            self._evaluate_the_last(self.ended_at)

    def _hear_last_words(self) -> None:
        """Somebody ends the run: let everybody push once more, and tell what only it knows, so that the run can go on
        another time. An interruption ends that, and so does a while, or a process that ends: all may be told to."""
        interrupted = self.loop.interrupted
        if not (interrupted or self.requests.stopped) or self._checkpoints is None or self.port.aggregation is None:
            return
        self.loop.interrupted, self._hears_last_words = False, True
        self._checkpoints.ask_for_last_words(self.now)
        while not (self.loop.interrupted or self.lifecycle.over or self._checkpoints.has_last_words(self.now)):
            self._turn(TICK)
        self._finish_updates()
        self.loop.interrupted = interrupted or (self.loop.interrupted and not self._somebody_ended)

    def _finish_updates(self) -> None:
        while self._driver.busy and not self.loop.interrupted:
            self._turn(TICK)

    def _dismiss_all(self) -> None:
        """The last state is evaluated yet, and nobody shall change it meanwhile."""
        for process in self.port.processes.values():
            self.loop.forget(process.ended)
            self.loop.forget(process.channel)
        self.port.stop_all()

    def _patience(self) -> float:
        times = [time for time in (self.port.wake_time, self._budget) if time is not None]
        return max(0.0, min([TICK, *(time - self.now for time in times)]))

    def _look_at_the_clock(self) -> None:
        now = self.now
        self.requests.look()
        self._own_pauses.look(self._clock())  # also before the group begins
        if (wake := self.port.wake_time) is not None and now >= wake:
            self.port.wake_time = None
            self._driver.wake(now)
        for event in self._looks.at(self._clock(), now):
            self._deliver(event)
        if self._budget is not None and now >= self._budget:
            self._budget = None
            self._deliver(EndRequested())
        if self.port.aggregation is None:
            if line := self._start.news(self._clock()):
                self._gauge.starting(line)
        else:
            self._evaluations.ask_if_due(self.port.store, self.port.replicas, now)
            self._gauge.measure_if_due(self.port.store, self.lifecycle, now)
            if self._checkpoints is not None and not self._driver.busy:
                self._checkpoints.look(now)

    def _forgive(self, pause: float) -> None:
        self._launcher.pause(pause)
        if self.lifecycle.silence is not None:
            self.lifecycle.silence.pause(pause)

    def _evaluate_the_last(self, ended_at: float) -> None:
        """Nobody trains any more, so this may wait."""
        while not self.loop.interrupted:
            if self._evaluations.last_is_known(self.port.store, self.port.replicas, ended_at):
                return
            if self.lifecycle.silence is not None:
                self._evaluations.end_if_stopped(self.now, self.lifecycle.silence.patience.least)
            self._turn(TICK)

    def _note_begin(self, rule: UpdateRule) -> None:
        if self.port.store.wants_figures and not self._evaluations.exist:
            raise ConfigurationError("ReduceLROnPlateau goes by what evaluations find: give launch an evaluate=")
        self._gauge.begin(rule, self.lifecycle.coordinator.changed)

    def evaluated_state(self) -> dict[str, Tensor]:
        """A copy of the state that was evaluated last, while its figures are told."""
        return self._evaluations.state()

    def _note_evaluation(self, evaluation: Evaluation) -> None:
        store = self.port.store
        if store.wants_figures and (figure := store.figure_of(evaluation.figures)) is not None:
            store.feed(figure.value)
            self._deliver(FigureFound(*figure))
        self._gauge.tell(evaluation)
        if self._checkpoints is not None:
            self._checkpoints.evaluated(evaluation, self._evaluations.state)

    def _turn(self, patience: float) -> None:
        """An evaluation that fails ends the run; where nobody trains any more, the result is there all the same."""
        try:
            self.loop.turn(patience)
        except EvaluationFailedError as problem:
            if self.ended_at is None and (self.lifecycle.members or not self.lifecycle.begun):
                raise
            self.evaluation_problem = str(problem)
            self._evaluations.give_up()

    def stop(self) -> None:
        """Tell everybody that is still there that the run is over."""
        if self.port.aggregation is not None:
            self._gauge.measure(self.port.store, self.lifecycle, self.now)
        else:
            self._launcher.grace = 0.0  # they have nothing to finish
        self.port.stop_all()
        self._thinking.close()
        self.loop.close()

    def keep_the_last(self) -> None:
        """Write how the run ended as a checkpoint, and wait until it is written. A run that failed leaves the one that
        it had: of what went wrong nobody wants to go on."""
        if self._checkpoints is not None:
            self._checkpoints.close(None if self._driver.busy else self.ended_at)

    def close(self) -> None:
        """Let go of all shared memory: of the model there is nothing to ask for any more."""
        self._evaluations.close()
        self.port.close()

    # -- what processes say --

    def _watch(self, process: Started) -> None:
        if process.channel.fileno() >= 0:
            self._watch_channel(process)
        self.loop.watch(process.ended, lambda: self._note_end(process))

    def _watch_channel(self, process: Started) -> None:
        self.loop.watch(process.channel, lambda: self._receive(process))

    def _receive(self, process: Started) -> None:
        try:
            messages = process.channel.received()
        except ClosedError:
            self.loop.forget(process.channel)  # its process has ended, or is about to: that is seen elsewhere
            return
        for message in messages:
            if self.port.is_complete(process.index, message):
                self._handle(process.index, message)

    def _handle(self, seat: int, message: ToServer) -> None:
        match message:
            case Push():
                self._push(seat, message)
            case Request(work):
                self._deliver(WorkRequested(seat, work))
                self._evaluations.every = self._evaluations.every or work.epoch_samples
            case Running() | Kept() | Log() | StateWanted():
                self._take_word(seat, message)
            case Skip(samples, units):
                self._deliver(BatchesSkipped(seat, samples, units))
            case Restart(samples, units):
                self.port.take_note(seat)
                self._deliver(WorkDropped(seat, samples, units))
            case Enter(layout, optimizer, state):
                self.port.take_model(seat, layout, optimizer, state)
                self._deliver(ModelArrived(seat))
            case Finished(unused):
                self._unused[seat] = unused
                self._deliver(ProcessFinished(seat))
            case Failed():
                self._fail(seat, message)
            case _:
                assert_never(message)

    def _take_word(self, seat: int, message: Running | Kept | Log | StateWanted) -> None:
        """What nothing has to be decided about."""
        match message:
            case Running():
                self._start.running.add(seat)
            case Kept(state):
                self.port.take_word(seat, state)
            case Log(figures):
                worker = self.lifecycle.seats[seat].worker
                self._gauge.tell_logged(Logged(self.now, worker, finite_or_nan(figures)))
            case StateWanted(wanted):
                self.port.hand_over_state(seat, wanted)
            case _:
                assert_never(message)

    def _push(self, seat: int, push: Push) -> None:
        known = self.lifecycle.seats[seat]  # what it pushed before it knew that it is sent away lies nowhere
        if push.number > known.pushed and self.lifecycle.begun and known.state is not State.DISMISSED:
            self.port.meter.push(seat, push.seconds, self.lifecycle.computes_for(known, self.now))
            self.port.take_gradient(seat, push.squared_norm, push.absent)
            self.port.take_note(seat)
            self._gauge.note_loss(push.loss)
        self._deliver(GradientPushed(seat, push.number, push.samples, push.units, push.loss))

    def _fail(self, seat: int, failed: Failed) -> None:
        """An error of the user's own in one worker is the end of that worker; if it was the last, of the run."""
        problem, others = failed.problem, [other for other in self.lifecycle.active if other.index != seat]
        counts = self.lifecycle.seats[seat].state is not State.DISMISSED  # or nobody waits for it, however it ends
        if counts and (failed.ends_the_run or not others or not self.lifecycle.begun):
            raise ConfigurationError(problem) if failed.wrong_input else WorkerFailedError(problem)
        failure = raised(self.lifecycle.seats[seat].worker, self.now, problem)
        if counts:
            warnings.warn(f"{problem}The others go on.", WorkerFailedWarning, stacklevel=2)
            self._gauge.tell_failure(failure)
        self._deliver(ProcessDied(seat, failure.reason))

    def _note_end(self, process: Started) -> None:
        """The process itself has ended, whatever children of it still hold its pipes."""
        seat = process.index
        if self._hears_last_words and self.lifecycle.seats[seat].state is not State.DISMISSED:
            self._somebody_ended = self.loop.interrupted = True
            return
        self._receive(process)  # its last words
        refuse_launch_by_a_worker(exit_code := process.process.exitcode)
        state = self.lifecycle.seats[seat].state
        if state is not State.GONE:
            if state is not State.DISMISSED and seat not in self._stopped.ended:
                worker = self.lifecycle.seats[seat].worker
                self._gauge.tell_failure(died(worker, self.now, process.process.cause, exit_code, process.last_words))
            self._deliver(ProcessDied(seat, process.process.cause))
        self.loop.forget(process.ended)
        self._driver.when_idle(lambda: self.port.close_process(seat))

    def _deliver(self, event: GroupEvent) -> None:
        self._driver.deliver(event, self.now)
        if self._began is None and self.lifecycle.begun:
            self._began = self._clock() - self._before
