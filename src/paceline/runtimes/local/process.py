"""A worker's process: runs the user's function and speaks with the server for it."""

from __future__ import annotations

import contextlib
import ctypes
import pickle
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import torch

from paceline.core.errors import PacelineError
from paceline.runtimes.local.memory import map_segment
from paceline.runtimes.local.messages import (
    Enter,
    Failed,
    Finished,
    Go,
    Interrupt,
    Lease,
    Push,
    Restart,
    Stop,
    ToServer,
    ToWorker,
    Work,
)
from paceline.training.data import Unit
from paceline.training.layout import Layout, Segment
from paceline.training.parameters import OptimizerSpec
from paceline.training.worker import Worker

PR_SET_PDEATHSIG = 1


class Stopped(BaseException):
    """The server ended the run: unwinds the user's loop. Not an Exception, so that a loop does not swallow it."""


class PipeLink:
    """The worker's end of the pipe."""

    def __init__(self, pipe: Connection, descriptor: int) -> None:
        self._pipe = pipe
        self._descriptor = descriptor
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(ToWorker).decode
        self._entry: tuple[Layout, OptimizerSpec] | None = None

    def enter(self, layout: Layout, spec: OptimizerSpec) -> Segment:
        self._entry = (layout, spec)
        return map_segment(self._descriptor, layout)

    def begin(self) -> None:
        assert self._entry is not None
        layout, spec = self._entry
        self.send(Enter(layout, pickle.dumps(spec)))
        self._wait(Go)

    def lease(self, samples: int, batch_size: int) -> Unit | None:
        self.send(Lease(samples, batch_size))
        work: Work = self._wait(Work)
        return work.unit

    def push(self, samples: int, units: int, loss: float | None) -> None:
        interrupted = False
        while self._pipe.poll():
            interrupted = isinstance(self._receive(), Interrupt) or interrupted
        self.send(Restart(units) if interrupted else Push(samples, units, loss))
        self._wait(Go)

    def send(self, message: ToServer) -> None:
        try:
            self._pipe.send_bytes(self._encode(message))
        except OSError:
            raise Stopped from None

    def _wait(self, kind: type[Any]) -> Any:
        """The next message of this kind. An interrupt that comes while the worker waits has nothing to interrupt."""
        while not isinstance(message := self._receive(), kind):
            assert isinstance(message, Interrupt), message
        return message

    def _receive(self) -> ToWorker:
        try:
            message: ToWorker = self._decode(self._pipe.recv_bytes())
        except (EOFError, OSError):
            raise Stopped from None
        if isinstance(message, Stop):
            raise Stopped
        return message


def run_worker(
    index: int,
    train: Callable[[Worker], None],
    pipe: Connection,
    descriptor: int,
    *,
    seed: int,
    slowdown: float,
    threads: int,
) -> None:
    """The main function of a worker's process. It dies with its parent, and leaves Ctrl-C to it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    link = PipeLink(pipe, descriptor)
    try:
        train(Worker(index, link, seed=seed, slowdown=slowdown))
        link.send(Finished())
    except Stopped:
        return
    except PacelineError as problem:
        _report(link, str(problem))
    except Exception:
        _report(link, f"worker {index} raised:\n{traceback.format_exc()}")


def _report(link: PipeLink, problem: str) -> None:
    with contextlib.suppress(Stopped):
        link.send(Failed(problem))
