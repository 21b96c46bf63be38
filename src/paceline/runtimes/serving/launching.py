"""Processes as the server knows them, and what it asks of whoever starts them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from paceline.lifecycle.messages import GroupEvent
from paceline.runtimes.serving.channel import Channel
from paceline.runtimes.serving.holding import Elsewhere
from paceline.runtimes.serving.last_words import last_words
from paceline.runtimes.serving.loop import Loop

LAUNCHED_BY_A_WORKER = 78  # exit code of a process whose main module launches a run while it is imported


class Process(Protocol):
    """A process as the server knows it: as of multiprocessing, whoever its parent is."""

    @property
    def pid(self) -> int | None: ...
    @property
    def exitcode(self) -> int | None: ...
    @property
    def cause(self) -> str:
        """Why it ended, in words."""

    def kill(self) -> None: ...


@dataclass(eq=False)
class Started:
    """A process and all that its launcher holds of it."""

    index: int
    process: Process
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


class Launches(Protocol):
    """Starts processes, and sees that they end."""

    grace: float  # seconds that processes have to end by themselves

    @property
    def elsewhere(self) -> Elsewhere | None:
        """The processes that hold the parameters; None: the server does."""

    def attach(self, loop: Loop, connected: Callable[[Started], None]) -> None:
        """The loop that serves the run begins. `connected`: to be called with a worker whose channel can be read from
        now on, if it could not when it was started."""

    @property
    def is_ready(self) -> bool:
        """Whether a process that is asked for now is started at once."""

    @property
    def imports(self) -> str:
        """The name of the file that every process imports; empty: there is none."""

    def has_begun(self, started: Started) -> bool:
        """Whether there is a process yet."""

    @property
    def lacks(self) -> str:
        """Why there is none yet for some that were asked for; empty: there will be in a moment."""

    def start_worker(self, index: int) -> Started: ...

    def start_evaluator(self) -> Started | None: ...

    def look(self, now: float) -> Iterable[GroupEvent]:
        """Called a few times a second: what happened to processes that the loop does not see."""

    def pause(self, seconds: float) -> None:
        """The server itself stood still for so long."""

    def close(self, started: Started) -> int | None:
        """Let go of everything that belongs to a process, which is ended if it has not. Returns its exit code."""
