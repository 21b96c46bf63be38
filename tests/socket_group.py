"""Runs whose workers and shards are plain processes that call over sockets: all of a cluster but who places them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest.mock import patch

from paceline.experiment import training
from paceline.runtimes.serving.duties import begin, work
from paceline.runtimes.sockets.connecting import Address
from paceline.runtimes.sockets.remote import Errand, Net, RemoteLauncher, RemoteProcess
from paceline.runtimes.sockets.shard import Shard

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["torch", "paceline.runtimes.sockets.sharded_link", "paceline.experiment.training"])


def be_a_worker(errand: Errand, train: Callable[..., None]) -> None:
    begin(errand.assignment)
    with errand.linked() as link:
        work(errand.assignment, link, lambda: train)


def be_a_shard(secret: bytes, compression: str, tell: Any) -> None:
    shard = Shard("127.0.0.1", secret, None, compression)
    tell.send(shard.address)
    tell.close()
    shard.serve()


class PlainProcess(RemoteProcess):
    def __init__(self, process: Any) -> None:
        super().__init__()
        self._process = process
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        self._process.join()
        self.end("its process died", self._process.exitcode)

    def destroy(self) -> None:
        if self._process.is_alive():
            with suppress(ProcessLookupError):  # its end is known a moment later
                os.kill(self._process.pid, signal.SIGKILL)


class PlainLauncher(RemoteLauncher):
    def __init__(
        self, *arguments: Any, transport: str, servers: int, silence: float, compression: str, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self.transport, self.servers, self.silence, self.compression = transport, servers, silence, compression
        self.workers: dict[int, Any] = {}  # processes, by seat
        self.shards: list[Any] = []

    def _open(self, stack: ExitStack) -> Net:
        return Net("127.0.0.1", self.transport, self.compression, None, self.silence)

    def _start_shards(self, stack: ExitStack) -> Sequence[Address]:
        addresses = []
        for _ in range(self.servers if self.servers > 1 else 0):
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=be_a_shard, args=(self.secret, self.compression, there), daemon=True)
            process.start()
            there.close()
            addresses.append(here.recv())
            here.close()
            self.shards.append(process)
            stack.callback(process.join)
            stack.callback(process.kill)
        return addresses

    def _place(self, errand: Errand) -> RemoteProcess:
        process = context.Process(target=be_a_worker, args=(errand, self._train), daemon=True)
        process.start()
        self.workers[errand.assignment.index] = process
        return PlainProcess(process)


@contextmanager
def over_sockets(
    transport: str = "tcp", servers: int = 1, silence: float = 8.0, compression: str = "none"
) -> Iterator[list[PlainLauncher]]:
    """Whatever is launched in here runs over sockets; yields the launchers."""
    launchers: list[PlainLauncher] = []

    def launcher_for(
        cluster: Any, train: Any, evaluate: Any, assignment: Any, *, elastic: bool, name: str
    ) -> PlainLauncher:
        launcher = PlainLauncher(
            train,
            evaluate,
            assignment,
            elastic=elastic,
            transport=transport,
            servers=servers,
            silence=silence,
            compression=compression,
        )
        launchers.append(launcher)
        return launcher

    try:
        with patch.object(training, "launcher_for", launcher_for):
            yield launchers
    finally:
        for process in [process for launcher in launchers for process in launcher.workers.values()]:
            process.kill()
            process.join(10)
