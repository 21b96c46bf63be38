"""Starts processes of many light workers each, and shards, as plain processes of this machine."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from paceline.runtimes.serving.duties import Assignment
from paceline.runtimes.sockets.connecting import Address
from paceline.runtimes.sockets.remote import Errand, Net, RemoteLauncher, RemoteProcess
from paceline.runtimes.sockets.shard import Shard

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["torch", "paceline.runtimes.sockets.sharded_link"])


def be_a_shard(secret: bytes, make: Callable[..., Shard], tell: Any) -> None:
    shard = make("127.0.0.1", secret)
    tell.send(shard.address)
    tell.close()
    shard.serve()


class PlainLauncher(RemoteLauncher):
    """Shards in plain processes; who the workers are is a subclass's to say."""

    def __init__(
        self,
        *arguments: Any,
        servers: int,
        transport: str,
        shard: Callable[[int], Callable[..., Shard]] = lambda number: Shard,
        **options: Any,
    ) -> None:
        """`shard`: what makes the shard with this number."""
        super().__init__(*arguments, **options)
        self._servers, self._transport, self._make_shard = servers, transport, shard
        self.grace = 1.0

    def _open(self, stack: ExitStack) -> Net:
        return Net("127.0.0.1", self._transport, silence=60.0)

    def _start_shards(self, stack: ExitStack) -> Sequence[Address]:
        addresses = []
        for number in range(self._servers if self._servers > 1 else 0):
            here, there = context.Pipe(duplex=False)
            process = self.begin(stack, be_a_shard, self.secret, self._make_shard(number), there)
            there.close()
            assert process.is_alive()
            addresses.append(here.recv())
            here.close()
        return addresses

    def begin(self, stack: ExitStack, target: Callable[..., None], *arguments: Any) -> Any:
        """A process that ends with the run."""
        process = context.Process(target=target, args=arguments, daemon=True)
        process.start()
        stack.callback(process.join)
        stack.callback(process.kill)
        return process


class PlainProcess(RemoteProcess):
    """A worker with a process of its own."""

    placed = True

    def __init__(self, process: Any) -> None:
        super().__init__()
        self._process = process
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        self._process.join()
        self.end("its process died", self._process.exitcode)

    def destroy(self) -> None:
        self._process.kill()


class LightProcess(RemoteProcess):
    """One of many in a process that ends with the run."""

    placed = True

    def destroy(self) -> None:
        """There is nothing of its own."""


class CrowdLauncher(PlainLauncher):
    def __init__(
        self,
        be_many: Callable[[Sequence[Errand], int], None],
        parameters: int,
        *,
        workers: int,
        processes: int,
        **net: Any,
    ) -> None:
        super().__init__(lambda worker: None, None, _assignment, **net)
        self._be_many, self._parameters = be_many, parameters
        self._workers, self._processes = workers, min(processes, workers)
        self._errands: list[Errand] = []

    def _place(self, errand: Errand) -> RemoteProcess:
        self._errands.append(errand)
        if len(self._errands) == self._workers:
            for first in range(self._processes):
                self.begin(self._stack, self._be_many, self._errands[first :: self._processes], self._parameters)
        return LightProcess()


def _assignment(index: int) -> Assignment:
    return Assignment(index, seed=0, epochs=None, threads=1)
