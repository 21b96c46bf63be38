"""One worker process as the server sees it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from multiprocessing.process import BaseProcess

from paceline.runtimes.local.channel import Channel, ClosedError
from paceline.runtimes.local.messages import ToServer, ToWorker
from paceline.training.data import Unit, Work
from paceline.training.layout import Segment


@dataclass(eq=False)
class Seat:
    """While its process is a member it has a worker id; a process that comes back gets a new one."""

    index: int
    process: BaseProcess
    channel: Channel[ToServer, ToWorker]
    descriptor: int
    segment: Segment | None = None  # once its model is here
    optimizer: bytes = b""  # as it wants it: a pickled OptimizerSpec
    worker: int | None = None
    clock: int = 0
    held: int = 0  # version of the parameters in its segment
    work: Work | None = None  # what it asks for, once it has asked
    reserved: Unit | None = None  # for a process that comes back: the answer to its question
    parked: bool = False  # it asked for work, and there was none; it expects a Leased
    leaving: bool = False  # it is to go as soon as it has handed in what it is at
    gone: bool = False

    def send(self, message: ToWorker) -> None:
        with contextlib.suppress(ClosedError):  # it is dead; the end of its pipe will say so
            self.channel.send(message)
