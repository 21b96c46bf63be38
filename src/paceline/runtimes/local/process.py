"""A process of a local run: runs the user's function and speaks with the server for it."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

import msgspec
import torch

from paceline.core.errors import ConfigurationError, PacelineError
from paceline.core.messages import Unit
from paceline.lifecycle.work import Work
from paceline.runtimes.local.channel import Channel, ClosedError
from paceline.runtimes.local.memory import map_segment, pack, path_of, unpack, unpack_from
from paceline.runtimes.local.messages import (
    Enter,
    Evaluate,
    Evaluated,
    Failed,
    Finished,
    Go,
    Interrupt,
    Kept,
    Leased,
    Push,
    Request,
    Restart,
    Skip,
    StateReady,
    StateWanted,
    Stop,
    ToServer,
    ToWorker,
)
from paceline.runtimes.pace import Pace
from paceline.training.layout import Layout, Segment
from paceline.training.optimizers import OptimizerSpec
from paceline.training.worker import Worker, seed_everything
from paceline.training.worker_state import unpacked

PR_SET_PDEATHSIG = 1


class Stopped(BaseException):
    """The server ended the run: unwinds the user's loop. Not an Exception, so that a loop does not swallow it."""


class Descriptors(msgspec.Struct, frozen=True):
    """The ends of the pipes and the pieces of memory that a process inherits."""

    reading: int
    writing: int
    segment: int
    parcel: int


class Assignment(msgspec.Struct, frozen=True):
    """All that one process is told beside what it is to run."""

    index: int
    parent: int  # its process id
    seed: int
    epochs: int | None
    threads: int
    device: str = "cpu"
    not_finite: str = "stop"
    pace: Pace | None = None
    kept: bytes | None = None  # of a run that is resumed: what its worker knew


class PipeLink:
    """The worker's end of the pipes."""

    def __init__(self, channel: Channel[ToWorker, ToServer], segment: int) -> None:
        self._channel = channel
        self._segment = segment
        self._layout: Layout | None = None
        self._interrupted = False
        self._pushed = 0
        self._next: Unit | None = None  # came along with the parameters
        self._keeps = False
        self.enough = False
        self.rates: tuple[float, ...] = ()

    def enter(self, layout: Layout) -> Segment:
        self._layout = layout
        self._channel.short_wait.parameters = layout.parameter_count
        return map_segment(self._segment, layout)

    def begin(self, spec: OptimizerSpec) -> None:
        assert self._layout is not None
        state = None if spec.state is None else pack(spec.state)
        try:
            pickled = pickle.dumps(spec._replace(state=None))
        except Exception as problem:  # pickling runs code of the user's classes, which may raise anything
            raise ConfigurationError(
                f"the optimizer cannot be sent to the server: {problem}; its class, arguments and scheduler must"
                " stand at the top level of a module: functools.partial instead of lambda"
            ) from None
        self.send(Enter(self._layout, pickled, None if state is None else path_of(state)))
        self._wait_for_go()
        if state is not None:
            os.close(state)

    def lease(self, work: Work) -> tuple[Unit | None, bool]:
        if self._next is not None:
            unit, self._next = self._next, None
            return unit, False
        self.send(Request(work))
        while not isinstance(message := self._receive(), Leased):
            assert isinstance(message, Interrupt), message
            self._interrupted = True
        self.rates = message.rates or self.rates
        return message.unit, message.parameters

    @property
    def keeps(self) -> bool:
        return self._keeps

    def keep(self, state: bytes) -> None:
        self.send(Kept(state))

    def push(
        self, samples: int, units: int, loss: float | None, squared_norm: float, absent: tuple[int, ...] = ()
    ) -> None:
        self._read_interrupts()
        if self._interrupted:
            self.send(Restart(samples, units))
        else:
            self._pushed += 1
            self.send(Push(self._pushed, samples, units, loss, squared_norm, absent))
        self._wait_for_go()

    def optimizer_state(self) -> dict[str, Any]:
        self.send(StateWanted())
        while not isinstance(message := self._receive(), StateReady):
            assert isinstance(message, Interrupt), message
            self._interrupted = True
        state: dict[str, Any] = unpack_from(message.path)
        self.send(StateWanted(wanted=False))
        return state

    def skip(self, samples: int, units: int) -> None:
        self.send(Skip(samples, units))
        self._read_interrupts()  # it does not wait for an answer, but shall know when the run is over

    def pause(self, seconds: float) -> None:
        if self._channel.has_message(seconds):
            self._note_interrupt()

    def send(self, message: ToServer) -> None:
        try:
            self._channel.send(message)
        except ClosedError:
            raise Stopped from None

    def _read_interrupts(self) -> None:
        while self._channel.has_message():
            self._note_interrupt()

    def _note_interrupt(self) -> None:
        message = self._receive()
        assert isinstance(message, Interrupt), message
        self._interrupted = True

    def _wait_for_go(self) -> None:
        """An interrupt that comes while the worker waits has nothing to interrupt."""
        while not isinstance(message := self._receive(), Go):
            assert isinstance(message, Interrupt), message
        self._interrupted = False
        self._keeps, self.enough = message.keep, message.enough
        self.rates = message.rates or self.rates
        if message.unit is not None:
            self._next = message.unit

    def _receive(self) -> ToWorker:
        try:
            message = self._channel.receive()
        except ClosedError:
            raise Stopped from None
        if isinstance(message, Stop):
            raise Stopped
        return message


def run_worker(descriptors: Descriptors, assignment: Assignment) -> None:
    """The main function of a worker's process."""
    _prepare(assignment)
    index = assignment.index
    channel: Channel[ToWorker, ToServer] = Channel(descriptors.reading, descriptors.writing, ToWorker)
    link = PipeLink(channel, descriptors.segment)
    pace = None if assignment.pace is None else assignment.pace.start(f"{assignment.seed}/{index}/speed")
    worker = Worker(
        index,
        link,
        seed=assignment.seed,
        epochs=assignment.epochs,
        device=torch.device(assignment.device),
        not_finite=assignment.not_finite,
        pace=pace,
        kept=None if assignment.kept is None else unpacked(assignment.kept),
    )
    try:
        problem = _problem_of(f"worker {index}", lambda: _parcel(descriptors)[0](worker))
        link.send(Finished(worker.unused) if problem is None else problem)
    except Stopped:
        return


def run_evaluator(descriptors: Descriptors, assignment: Assignment) -> None:
    """The main function of the evaluator's process: figures of every state of the model that the server hands over."""
    _prepare(assignment)
    channel: Channel[Evaluate | Stop, Evaluated | Failed] = Channel(
        descriptors.reading, descriptors.writing, Evaluate | Stop
    )

    def serve() -> None:
        evaluate = _parcel(descriptors)[1]
        while isinstance(message := channel.receive(), Evaluate):
            state = map_segment(descriptors.segment, message.layout).state()
            channel.send(Evaluated(_figures(evaluate(state))))

    try:
        problem = _problem_of("the evaluation", serve)
        if problem is not None:
            channel.send(problem)
    except ClosedError:
        return


def _prepare(assignment: Assignment) -> None:
    """It dies with its parent, leaves Ctrl-C to it, and begins with the same random numbers as the others."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != assignment.parent:
        sys.exit(1)  # the parent died before the line above
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(assignment.threads)
    seed_everything(assignment.seed)


def _parcel(descriptors: Descriptors) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The functions of the user: what a worker runs, and what evaluates."""
    try:
        content: tuple[Callable[..., Any], Callable[..., Any]] = unpack(descriptors.parcel)
    except (AttributeError, ImportError) as problem:
        raise ConfigurationError(
            f"a new process cannot find what it is to run: {problem}; it must stand at the top level of a module or a"
            " script, not in another function, a notebook or an interactive session"
        ) from None
    return content


def _problem_of(who: str, act: Callable[[], Any]) -> Failed | None:
    """Do it, and say in words what went wrong: a sentence for our own errors, a traceback for the user's."""
    try:
        act()
    except PacelineError as problem:
        return Failed(str(problem), isinstance(problem, ConfigurationError))
    except ClosedError:
        raise
    except (Exception, SystemExit):
        return Failed(f"{who} raised:\n{traceback.format_exc()}", ends_the_run=False)
    return None


def _figures(found: Any) -> dict[str, float]:
    try:
        if isinstance(found, dict):
            return {str(name): float(value) for name, value in found.items()}
        return {"accuracy": float(found)}
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"the evaluation must return a number or a dict of numbers, not {found!r:.80}"
        ) from None
