"""Starts the processes of a local run, and leaves nothing behind, however the run ends."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing import reduction, resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

from paceline.core.errors import ConfigurationError
from paceline.runtimes.local.channel import Channel
from paceline.runtimes.local.evaluator import Evaluator
from paceline.runtimes.local.memory import create, pack
from paceline.runtimes.local.messages import FromEvaluator, ToServer
from paceline.runtimes.local.process import Assignment, Descriptors, run_evaluator, run_worker
from paceline.runtimes.local.seat import Seat
from paceline.training.worker import Worker

GRACE = 5.0  # seconds that processes have to end by themselves
PROCESS_NAME = "paceline worker"
LAUNCHED_BY_A_WORKER = 78  # exit code of a process whose main module launches a run while it is imported


class Inherited:
    """A file descriptor that arrives in the new process as the number that it has there."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        return _detach, (reduction.DupFd(self._descriptor),)


def _detach(duplicate: Any) -> int:
    return int(duplicate.detach())


def refuse_inside_a_worker() -> None:
    """A new process imports the user's script; if that launches again, end it: the server says why, once."""
    if multiprocessing.current_process().name.startswith(PROCESS_NAME):
        os._exit(LAUNCHED_BY_A_WORKER)


@dataclass
class _Started:
    process: BaseProcess
    channel: Channel[Any, Any]
    segment: int


@dataclass
class Launcher:
    """The processes of one run. Leave its `with` block, and all of them have ended."""

    train: Callable[[Worker], None]
    evaluate: Callable[..., Any] | None
    assignment: Callable[[int], Assignment]
    _parcel: int = -1
    _started: list[_Started] = field(default_factory=list)

    def __enter__(self) -> Launcher:
        self._parcel = pack((self.train, self.evaluate))
        return self

    def __exit__(self, *problem: object) -> None:
        for each in self._started:
            each.channel.close()
        end = time.monotonic() + GRACE
        for each in self._started:
            _end(each.process, max(0.0, end - time.monotonic()))
            os.close(each.segment)
        os.close(self._parcel)

    def start_worker(self, index: int) -> Seat:
        started = self._start(run_worker, f"{PROCESS_NAME} {index}", self.assignment(index), ToServer)
        return Seat(index, started.process, started.channel, started.segment)

    def start_evaluator(self) -> Evaluator | None:
        if self.evaluate is None:
            return None
        started = self._start(run_evaluator, f"{PROCESS_NAME}: evaluator", self.assignment(0), FromEvaluator)
        return Evaluator(started.process, started.channel, started.segment)

    def _start(self, main: Callable[..., None], name: str, assignment: Assignment, incoming: Any) -> _Started:
        to_server, to_process = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
        segment = create()
        inherited = (to_process[0], to_server[1], segment, self._parcel)
        context = multiprocessing.get_context("spawn")
        process = context.Process(
            target=_main, args=(main, [Inherited(each) for each in inherited], assignment), name=name, daemon=True
        )
        started = _Started(process, Channel(to_server[0], to_process[1], incoming), segment)
        self._started.append(started)
        try:
            with _without_interrupts():
                process.start()
        except RuntimeError as problem:
            raise ConfigurationError(f"no process could be started: {problem}") from None
        finally:
            os.close(to_process[0])
            os.close(to_server[1])
        return started


def _main(main: Callable[..., None], descriptors: list[int], assignment: Assignment) -> None:
    # A daemon for its launcher, whose end then waits for nobody, but free to have processes of its own, as loaders do.
    multiprocessing.current_process().daemon = False
    main(Descriptors(*descriptors), assignment)


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """A new process inherits this: a Ctrl-C goes to the whole terminal, and only the launcher shall answer it."""
    resource_tracker.ensure_running()  # here, because it would lift the block below when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(process: BaseProcess, patience: float) -> None:
    if process.pid is None:
        return
    process.join(patience)
    if process.is_alive():
        process.kill()
        process.join()
    process.close()
