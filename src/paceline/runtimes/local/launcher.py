"""Starts the processes of a local run, and leaves nothing behind, however the run ends."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from paceline.core.errors import ConfigurationError
from paceline.lifecycle.messages import GroupEvent
from paceline.runtimes.local.forking import NewProcess, ZygoteHandle, zygote
from paceline.runtimes.local.process import EVALUATOR, WORKER, Letter
from paceline.runtimes.local.surroundings import Surroundings, imported_packages, name_of_main, surroundings
from paceline.runtimes.serving.channel import Channel
from paceline.runtimes.serving.duties import Assignment
from paceline.runtimes.serving.launching import LAUNCHED_BY_A_WORKER, Started
from paceline.runtimes.serving.loop import Loop
from paceline.runtimes.serving.memory import create, filled, pack
from paceline.runtimes.serving.messages import FromEvaluator, ToServer
from paceline.training.worker import Worker

GRACE = 5.0  # seconds that processes have to end by themselves
KILLED_WITHIN = 1.0  # seconds in which a process that was killed is seen to have ended


def refuse_inside_a_worker() -> None:
    """A new process imports the user's script; if that launches again, end it: the server says why, once."""
    if multiprocessing.current_process().name.startswith((WORKER, EVALUATOR)):
        os._exit(LAUNCHED_BY_A_WORKER)


@dataclass
class Launcher:
    """The processes of one run. Leave its `with` block, and all of them have ended."""

    train: Callable[[Worker], None]
    evaluate: Callable[..., Any] | None
    assignment: Callable[[int], Assignment]
    grace: float = GRACE
    _parcel: int = -1
    _zygote: ZygoteHandle | None = None
    _surroundings: Surroundings | None = None
    _started: dict[Started, NewProcess] = field(default_factory=dict)

    def __enter__(self) -> Launcher:
        self._surroundings = surroundings()
        self._zygote = zygote()  # it imports torch while the rest is prepared here
        self._zygote.want(imported_packages())
        self._parcel = pack((self.train, self.evaluate), imports_main=bool(self._surroundings.main))
        return self

    def __exit__(self, *problem: object) -> None:
        for started in self._started:
            started.channel.close()
        end = time.monotonic() + self.grace
        for process in self._started.values():
            process.join(max(0.0, end - time.monotonic()))
        self._kill(list(self._started.values()))
        for started in list(self._started):
            self.close(started)
        os.close(self._parcel)

    @property
    def elsewhere(self) -> None:
        """The server holds the parameters."""

    def attach(self, loop: Loop, connected: Callable[[Started], None]) -> None:
        """Its processes are connected from the beginning."""
        loop.watch(self.zygote, self.zygote.hear)

    @property
    def is_ready(self) -> bool:
        return self.zygote.is_ready

    @property
    def imports(self) -> str:
        return name_of_main()

    def has_begun(self, started: Started) -> bool:
        return started.process.pid is not None

    @property
    def lacks(self) -> str:
        return ""

    def look(self, now: float) -> Iterable[GroupEvent]:
        return ()

    def pause(self, seconds: float) -> None:
        """It measures no silence of its own."""

    @property
    def zygote(self) -> ZygoteHandle:
        assert self._zygote is not None
        return self._zygote

    def start_worker(self, index: int) -> Started:
        return self._start(self.assignment(index), ToServer)

    def start_evaluator(self) -> Started | None:
        if self.evaluate is None:
            return None
        return self._start(self.assignment(0), FromEvaluator, evaluates=True)

    def close(self, started: Started) -> int | None:
        """Let go of everything that belongs to a process, which is ended if it has not. Returns its exit code."""
        process = self._started.pop(started)
        started.channel.close()
        self._kill([process])
        exit_code = process.exitcode
        process.close()
        os.close(started.descriptor)
        os.close(started.words)
        return exit_code

    def _kill(self, processes: list[NewProcess]) -> None:
        """And see that they have ended. Where the zygote has no time for that, its own end is that of all."""
        left = [process for process in processes if process.exitcode is None]
        for process in left:
            process.kill()
        end = time.monotonic() + KILLED_WITHIN
        for process in left:
            process.join(max(0.0, end - time.monotonic()))
        if any(process.exitcode is None for process in left):
            self.zygote.end()
            for process in left:
                process.join()

    def _start(self, assignment: Assignment, incoming: Any, *, evaluates: bool = False) -> Started:
        assert self._surroundings is not None
        letter = pickle.dumps(Letter(evaluates, assignment, self._surroundings))
        with _room_for_descriptors():
            to_server, to_process = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
            segment, words, sealed = create(), create(), filled(letter)
            given = [1, 2, sealed, to_process[0], to_server[1], segment, self._parcel, words]
            process = self.zygote.start(given)
        for descriptor in (to_process[0], to_server[1], sealed):
            os.close(descriptor)
        channel: Channel[Any, Any] = Channel(to_server[0], to_process[1], incoming, patient=False)
        started = Started(assignment.index, process, channel, segment, process.ended, words)
        self._started[started] = process
        return started


@contextmanager
def _room_for_descriptors() -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        if problem.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise ConfigurationError(
            f"no process could be started: {problem.strerror}; `ulimit -n` says how many, and raises the limit"
        ) from None
