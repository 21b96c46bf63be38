"""A process of a local run: runs the user's function and speaks with the server for it."""

from __future__ import annotations

import io
import os
import pickle
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TextIO

import msgspec
import torch

from paceline.core.errors import ConfigurationError, PacelineError
from paceline.core.messages import Unit
from paceline.lifecycle.messages import Place
from paceline.lifecycle.work import Work
from paceline.runtimes.local.channel import Channel, ClosedError
from paceline.runtimes.local.children import let_children_die_with_this
from paceline.runtimes.local.last_words import remember_stderr
from paceline.runtimes.local.memory import map_segment, pack, path_of, pickled, unpack, unpack_from
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
    Log,
    Push,
    Request,
    Restart,
    Running,
    Skip,
    StateReady,
    StateWanted,
    Stop,
    ToServer,
    ToWorker,
)
from paceline.runtimes.local.process_title import show_as
from paceline.runtimes.local.surroundings import Surroundings
from paceline.runtimes.local.their_code import traceback_from_there, with_line
from paceline.runtimes.local.zygote import Given
from paceline.runtimes.pace import Pace
from paceline.training.layout import Layout, Segment
from paceline.training.optimizers import OptimizerSpec
from paceline.training.worker import Worker, seed_everything
from paceline.training.worker_state import unpacked

WORKER, EVALUATOR = "paceline worker", "paceline evaluator"


class Stopped(BaseException):
    """The server ended the run: unwinds the user's loop. Not an Exception, so that a loop does not swallow it."""


class Assignment(msgspec.Struct, frozen=True):
    """All that one process is told beside what it is to run."""

    index: int
    seed: int
    epochs: int | None
    threads: int
    device: str = "cpu"
    not_finite: str = "stop"
    pace: Pace | None = None
    kept: bytes | None = None  # of a run that is resumed: what its worker knew


class Letter(NamedTuple):
    """What a new process reads first."""

    evaluates: bool
    assignment: Assignment
    surroundings: Surroundings

    @property
    def name(self) -> str:
        return EVALUATOR if self.evaluates else f"{WORKER} {self.assignment.index}"


class PipeLink:
    """The worker's end of the pipes."""

    def __init__(self, channel: Channel[ToWorker, ToServer], segment: int) -> None:
        self._channel = channel
        self._segment = segment
        self._layout: Layout | None = None
        self._interrupted = False
        self._pushed = 0
        self._here: deque[Unit] = deque()  # came along with the parameters, or ahead of their use
        self._keeps = False
        self.place = Place()
        self.prefetches = True
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
            optimizer = pickled(spec._replace(state=None))
        except Exception as problem:  # pickling runs code of the user's classes, which may raise anything
            raise ConfigurationError(
                f"the optimizer cannot be sent to the server: {problem}; its class, arguments and scheduler must"
                " be such that they can be pickled"
            ) from None
        self.send(Enter(self._layout, optimizer, None if state is None else path_of(state)))
        self._wait_for_go()
        if state is not None:
            os.close(state)

    def lease(self, work: Work) -> tuple[Unit | None, bool]:
        if self._here:
            return self._here.popleft(), False
        self.send(Request(work))
        while not isinstance(message := self._receive(), Leased):
            assert isinstance(message, Interrupt), message
            self._interrupted = True
        self._here.extend(message.ahead)
        self.place = message.place or self.place
        self.rates = message.rates or self.rates
        return message.unit, message.parameters

    def take(self) -> Unit | None:
        return self._here.popleft() if self._here else None

    @property
    def keeps(self) -> bool:
        return self._keeps

    def keep(self, state: bytes) -> None:
        self.send(Kept(state))

    def log(self, figures: dict[str, float]) -> None:
        self.send(Log(figures))

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
        self.place = message.place or self.place
        self.rates = message.rates or self.rates
        if message.unit is not None:
            self._here.append(message.unit)
            self._here.extend(message.ahead)

    def _receive(self) -> ToWorker:
        try:
            message = self._channel.receive()
        except ClosedError:
            raise Stopped from None
        if isinstance(message, Stop):
            raise Stopped
        return message


def run(given: Given) -> None:
    """The main function of a process that was just forked."""
    for descriptor, stream in ((given.output, sys.stdout), (given.errors, sys.stderr)):
        os.dup2(descriptor, stream.fileno())
        os.close(descriptor)
        _write_lines_to_a_terminal(stream)
    with open(given.letter, "rb") as file:
        letter: Letter = pickle.load(file)
    number = "e" if letter.evaluates else f"w{letter.assignment.index}"
    show_as(letter.name, f"paceline {number}")
    letter.surroundings.take_over(letter.name)
    let_children_die_with_this()
    (_evaluate if letter.evaluates else _work)(given, letter)


def _write_lines_to_a_terminal(stream: TextIO) -> None:
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(line_buffering=stream is sys.stderr or stream.isatty())


def _work(given: Given, letter: Letter) -> None:
    remember_stderr(given.words)
    assignment = letter.assignment
    index = assignment.index
    channel: Channel[ToWorker, ToServer] = Channel(given.reading, given.writing, ToWorker)
    link = PipeLink(channel, given.segment)
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

    def act() -> None:
        train = _functions(given, letter)[0]
        link.send(Running())
        train(worker)

    try:
        problem = _problem_of(f"worker {index}", act)
        worker.send_log()
        link.send(Finished(worker.unused) if problem is None else problem)
    except Stopped:
        return


def _evaluate(given: Given, letter: Letter) -> None:
    """Figures of every state of the model that the server hands over."""
    channel: Channel[Evaluate | Stop, Evaluated | Failed] = Channel(given.reading, given.writing, Evaluate | Stop)

    def serve() -> None:
        evaluate = _functions(given, letter)[1]
        while isinstance(message := channel.receive(), Evaluate):
            state = map_segment(given.segment, message.layout).state()
            channel.send(Evaluated(figures_of(evaluate(state))))

    try:
        problem = _problem_of("the evaluation", serve)
        if problem is not None:
            channel.send(problem)
    except ClosedError:
        return


def _functions(given: Given, letter: Letter) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The functions of the user: what a worker runs, and what evaluates. All begin with the same random numbers."""
    letter.surroundings.import_main()
    torch.set_num_threads(letter.assignment.threads)
    seed_everything(letter.assignment.seed)
    try:
        content: tuple[Callable[..., Any], Callable[..., Any]] = unpack(given.parcel)
    except (AttributeError, ImportError) as problem:
        raise ConfigurationError(
            f"a new process cannot find what it is to run: {problem}; it must stand at the top level of a module or a"
            " script that can be imported"
        ) from None
    return content


def _problem_of(who: str, act: Callable[[], Any]) -> Failed | None:
    """Do it, and say in words what went wrong: a sentence and a line for our own errors, a traceback for the user's."""
    try:
        act()
    except PacelineError as problem:
        return Failed(with_line(problem), isinstance(problem, ConfigurationError))
    except ClosedError:
        raise
    except (Exception, SystemExit) as problem:
        return Failed(f"{who} raised:\n{traceback_from_there(problem)}", ends_the_run=False)
    return None


def figures_of(found: Any) -> dict[str, float]:
    """What an evaluation returned, as names and numbers."""
    try:
        if isinstance(found, dict):
            return {str(name): float(value) for name, value in found.items()}
        return {"accuracy": float(found)}
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"the evaluation must return a number or a dict of numbers, not {found!r:.80}"
        ) from None
