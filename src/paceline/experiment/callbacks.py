"""What a user's own code hears of a run while it goes on, and how it can end one.

Callbacks run in the launching process, in the loop of the server: while one runs, no push is answered. So one that
takes long is told about, and one that raises ends the run.
"""

from __future__ import annotations

import difflib
import inspect
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from paceline.core.errors import ConfigurationError, PacelineError
from paceline.core.messages import PolicyChanged, Record, UpdateRule, WorkerJoined, WorkerLeft
from paceline.experiment.result import RunResult
from paceline.policies import Policy
from paceline.recording.observer import Observer
from paceline.recording.progress_log import Evaluation, Failure, Logged, Measurement
from paceline.runtimes.serving.server import Server

LONG = 1.0  # seconds that a callback may take before it is told about
LOOKS_LIKE = 0.85  # of two names


class Run:
    """A run, as callbacks see it."""

    def __init__(self, server: Server, began_with: str, directory: Path | None, evaluations: list[Evaluation]) -> None:
        self.began_with = began_with  # the policy
        self.directory = directory  # None: it leaves nothing behind
        self.evaluations = evaluations  # all so far, also of before the run was resumed
        self.failures: list[Failure] = []
        self.measurement: Measurement | None = None  # the latest
        self._server = server
        self._evaluates = False

    @property
    def policy(self) -> str:
        """In force now."""
        coordinator = self._server.lifecycle.coordinator
        changed = coordinator.changed
        return changed.policy if changed is not None and changed.by else str(coordinator.policy)

    @property
    def seconds(self) -> float:
        """Since the group began."""
        return self._server.now if self._server.ended_at is None else self._server.ended_at

    @property
    def samples(self) -> int:
        """Whose gradients became part of an update."""
        if self._server.port.aggregation is not None:
            return self._server.port.store.samples
        return 0 if self.measurement is None else self.measurement.samples

    @property
    def updates(self) -> int:
        if self._server.port.aggregation is not None:
            return self._server.port.store.version
        return 0 if self.measurement is None else self.measurement.updates

    @property
    def workers(self) -> int:
        """How many the group has now."""
        return len(self._server.lifecycle.members)

    def stop(self, reason: str = "a callback stopped it") -> None:
        """End the run: what was learned is evaluated, saved and returned, and `result.stopped` is the reason.

        It is no error, and the run can be resumed. Once training is over, this does nothing. Any thread may call it.
        """
        self._server.requests.stop(str(reason) or "for no reason")

    @property
    def stopped(self) -> str:
        """Why somebody ended it before all was done; empty: nobody did."""
        return self._server.requests.stopped

    def switch(self, policy: Policy | str) -> None:
        """Let another policy take over, as in run.switch("ssp:staleness=3"), with the next message of a worker.

        ConfigurationError, at once, if there is no such policy, or if it cannot work with this group. Nobody is
        restarted, no gradient is lost, and what the optimizer has gathered goes along. Once training is over, or if it
        is in force already, this does nothing.
        """
        self._server.requests.want(policy)

    def evict(self, worker: int) -> None:
        """Send this worker away with the next message: what it computes is lost, and its samples are for others.

        Nobody takes its place. ConfigurationError, at once, if there is no such worker in the group, or if the group
        cannot do without it. Once training is over, this does nothing.
        """
        self._server.requests.want_gone(worker)

    def model_state(self) -> dict[str, Tensor]:
        """A copy of the model as it is now; not in `ended`, whose result has it."""
        if self._server.port.aggregation is None:
            raise ConfigurationError("run.model_state() in `ended`: the model is in result.model_state")
        return self._server.port.model_state()

    def evaluated_state(self) -> dict[str, Tensor]:
        """A copy of the model that was evaluated; only in `evaluated`, because the next one takes its place."""
        if not self._evaluates:
            raise ConfigurationError("run.evaluated_state() can be asked for in `evaluated` only")
        return self._server.evaluated_state()


class Callback:
    """Derive from it, override what you want to hear, and give it to `launch` or `fit`: callbacks=[Mine()].

    All methods are called in the launching process, between two messages of workers: nobody is answered meanwhile. One
    that takes more than a second is told about on stderr. One that raises ends the run: the model is saved, and
    CallbackError names it.
    """

    needs_evaluation = False  # whether a run without `evaluate` is refused

    def started(self, run: Run) -> None:
        """The group begins to train."""

    def measured(self, run: Run, measurement: Measurement) -> None:
        """How far the run is, about four times a second: seconds, samples, epoch, updates, workers, loss, rate."""

    def evaluated(self, run: Run, evaluation: Evaluation) -> None:
        """What an evaluation found: `evaluation.figures`, of the state at `evaluation.samples`."""

    def logged(self, run: Run, logged: Logged) -> None:
        """What a worker reported with `worker.log`: `logged.worker`, `logged.figures`."""

    def policy_changed(self, run: Run, policy: str) -> None:
        """Another policy takes over: `paceline switch`, `run.switch`, or `auto` chose it."""

    def worker_joined(self, run: Run, worker: int) -> None:
        """A worker joins the group, at its beginning or later."""

    def worker_left(self, run: Run, worker: int, reason: str) -> None:
        """A worker leaves the group; at the end of a run the reason is "no work left" or "finished"."""

    def worker_failed(self, run: Run, failure: Failure) -> None:
        """A worker died: who, when, with which exit code or signal, and its last words. `worker_left` follows."""

    def checkpointed(self, run: Run, path: Path) -> None:
        """A checkpoint is whole, and in this directory."""

    def ended(self, run: Run, result: RunResult) -> None:
        """All is written, and the processes have ended; also of a run that failed or was interrupted."""


METHODS = tuple(name for name, value in vars(Callback).items() if callable(value))


class CallbackError(PacelineError):
    """A callback raised, and the run was ended. `result` is what it had come to; None: it had not begun."""

    result: RunResult | None


def check_callbacks(callbacks: Sequence[Callback], *, evaluates: bool) -> None:
    """ConfigurationError where they cannot do what they are for."""
    if not isinstance(callbacks, list | tuple):
        raise ConfigurationError(f"callbacks is {callbacks!r:.60}; it must be a list, as in [EarlyStopping()]")
    for number, callback in enumerate(callbacks):
        if not isinstance(callback, Callback):
            raise ConfigurationError(
                f"callbacks[{number}] is {callback!r:.60}; it must be an object of a class that derives from"
                " paceline.Callback"
            )
        _refuse_misspelt(callback)
        if callback.needs_evaluation and not evaluates:
            raise ConfigurationError(
                f"{type(callback).__name__} goes by evaluations, and the run has none; give evaluate=, or test data"
            )


def _refuse_misspelt(callback: Callback) -> None:
    """A method that looks like one of ours, and is none, would never be called."""
    for name in dir(type(callback)):
        if name.startswith("_") or name in METHODS or hasattr(Callback, name):
            continue
        meant = difflib.get_close_matches(name.removeprefix("on_"), METHODS, 1, LOOKS_LIKE)
        if meant and _taken_by(getattr(callback, name)) == _taken_by(getattr(callback, meant[0])):
            raise ConfigurationError(
                f"{type(callback).__name__}.{name} would never be called; did you mean {meant[0]}? There are:"
                f" {', '.join(METHODS)}"
            )


def _taken_by(method: Any) -> int | None:
    """How many arguments it takes; None: it cannot be called."""
    try:
        return len(inspect.signature(method).parameters)
    except (TypeError, ValueError):
        return None


def _name_of(callback: Callback, method: str) -> str:
    """As the user knows it: our own classes behind an argument of `launch` have its name."""
    return str(getattr(callback, "told_as", f"{type(callback).__name__}.{method}"))


class CallbackCaller(Observer):
    """Calls what there is to call, and keeps the run from their mistakes."""

    def __init__(self, callbacks: Sequence[Callback], clock: Callable[[], float] = time.monotonic) -> None:
        self.problem: CallbackError | None = None
        self.run: Run | None = None  # once there is one
        self._clock = clock
        self._told: set[str] = set()  # names of those that took long
        self._methods: dict[str, list[tuple[str, Callable[..., None]]]] = {
            method: [
                (_name_of(callback, method), getattr(callback, method))
                for callback in callbacks
                if getattr(type(callback), method) is not getattr(Callback, method) or method in vars(callback)
            ]
            for method in METHODS
        }

    # -- what a run tells its observers --

    def begun(self, rule: UpdateRule) -> None:
        self._call("started")

    def observe(self, record: Record) -> None:
        event = record.event
        if isinstance(event, WorkerJoined):
            self._call("worker_joined", event.worker)
        elif isinstance(event, WorkerLeft):
            self._call("worker_left", event.worker, event.reason)
        elif isinstance(event, PolicyChanged):
            self._call("policy_changed", event.policy)

    def measured(self, measurement: Measurement) -> None:
        assert self.run is not None
        self.run.measurement = measurement
        self._call("measured", measurement)

    def evaluated(self, evaluation: Evaluation) -> None:
        assert self.run is not None
        self.run._evaluates = True
        try:
            self._call("evaluated", evaluation)
        finally:
            self.run._evaluates = False

    def logged(self, logged: Logged) -> None:
        self._call("logged", logged)

    def worker_failed(self, failure: Failure) -> None:
        assert self.run is not None
        self.run.failures.append(failure)
        self._call("worker_failed", failure)

    def checkpointed(self, path: Path) -> None:
        self._call("checkpointed", path)

    # -- the end --

    def end(self, result: RunResult | None) -> None:
        """Also after a callback raised: the others may have something to close."""
        before, self.problem = self.problem, None
        if result is not None:
            for method in self._methods["ended"]:
                self._call_one(*method, result)
        self.problem = before or self.problem
        if self.problem is not None:
            self.problem.result = result

    # -- calling --

    def _call(self, method: str, *arguments: Any) -> None:
        for name, call in self._methods[method]:
            if self.problem is None:
                self._call_one(name, call, *arguments)

    def _call_one(self, name: str, call: Callable[..., None], *arguments: Any) -> None:
        assert self.run is not None
        began = self._clock()
        try:
            call(self.run, *arguments)
        except Exception as problem:
            said = str(problem) if isinstance(problem, PacelineError) else f"{type(problem).__name__}: {problem}"
            found = CallbackError(f"callback {name} raised: {said}")
            found.__cause__ = problem
            self.problem = self.problem or found
            self.run.stop(str(found))
        took = self._clock() - began
        if took > LONG and name not in self._told:
            self._told.add(name)
            print(
                f"paceline: callback {name} took {took:.1f} s, and all workers that pushed meanwhile waited for it;"
                " long work belongs into a thread",
                file=sys.stderr,
                flush=True,
            )
