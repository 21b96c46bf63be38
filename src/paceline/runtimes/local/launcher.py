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
from pathlib import Path
from typing import Any

from paceline.core.errors import ConfigurationError
from paceline.runtimes.local.channel import Channel
from paceline.runtimes.local.last_words import last_words
from paceline.runtimes.local.memory import create, pack
from paceline.runtimes.local.messages import FromEvaluator, ToServer
from paceline.runtimes.local.process import Assignment, Descriptors, run_evaluator, run_worker
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


@dataclass(eq=False)
class Started:
    """A process and all that its launcher holds of it."""

    index: int
    process: BaseProcess
    channel: Channel[Any, Any]
    descriptor: int  # of its segment
    ended: int  # can be read when the process has ended, even if children of it still hold its pipes
    words: int = -1  # the memory that holds its last ones

    @property
    def last_words(self) -> str:
        """What it wrote to stderr last."""
        return last_words(self.words) if self.words >= 0 else ""

    @property
    def stopped(self) -> bool:
        """Whether somebody stopped it with a signal."""
        try:
            text = Path(f"/proc/{self.process.pid}/stat").read_text()
        except OSError:
            return False
        return text.rpartition(") ")[2][:1] == "T"  # its name, in brackets, may hold anything


@dataclass
class Launcher:
    """The processes of one run. Leave its `with` block, and all of them have ended."""

    train: Callable[[Worker], None]
    evaluate: Callable[..., Any] | None
    assignment: Callable[[int], Assignment]
    _parcel: int = -1
    _started: dict[Started, None] = field(default_factory=dict)

    def __enter__(self) -> Launcher:
        self._parcel = pack((self.train, self.evaluate))
        return self

    def __exit__(self, *problem: object) -> None:
        for started in self._started:
            started.channel.close()
        end = time.monotonic() + GRACE
        for started in list(self._started):
            self.close(started, max(0.0, end - time.monotonic()))
        os.close(self._parcel)

    def start_worker(self, index: int) -> Started:
        return self._start(run_worker, f"{PROCESS_NAME} {index}", self.assignment(index), ToServer)

    def start_evaluator(self) -> Started | None:
        if self.evaluate is None:
            return None
        return self._start(run_evaluator, f"{PROCESS_NAME}: evaluator", self.assignment(0), FromEvaluator)

    def close(self, started: Started, patience: float = 0.0) -> int | None:
        """Let go of everything that belongs to a process, which is ended if it has not. Returns its exit code."""
        del self._started[started]
        started.channel.close()
        exit_code = _end(started.process, patience)
        for descriptor in (started.descriptor, started.ended, started.words):
            if descriptor >= 0:
                os.close(descriptor)
        return exit_code

    def _start(self, main: Callable[..., None], name: str, assignment: Assignment, incoming: Any) -> Started:
        to_server, to_process = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
        segment, words = create(), create()
        inherited = (to_process[0], to_server[1], segment, self._parcel, words)
        context = multiprocessing.get_context("spawn")
        process = context.Process(
            target=_main, args=(main, [Inherited(number) for number in inherited], assignment), name=name, daemon=True
        )
        channel: Channel[Any, Any] = Channel(to_server[0], to_process[1], incoming, patient=False)
        started = Started(assignment.index, process, channel, segment, -1, words)
        self._started[started] = None
        try:
            with _without_interrupts():
                process.start()
            assert process.pid is not None
            started.ended = os.pidfd_open(process.pid)
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


def _end(process: BaseProcess, patience: float) -> int | None:
    if process.pid is None:
        return None
    process.join(patience)
    if process.is_alive():
        process.kill()
        process.join()
    exit_code = process.exitcode
    process.close()
    return exit_code
