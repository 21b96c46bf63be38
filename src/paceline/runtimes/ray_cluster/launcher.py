"""Starts workers and shards as actors of a Ray cluster. Ray places them; how they speak is not its affair."""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from paceline.core.errors import ConfigurationError
from paceline.runtimes.ray_cluster.actor import ShardActor, WorkerActor
from paceline.runtimes.ray_cluster.connection import connected, imported_ray, own_address
from paceline.runtimes.ray_cluster.found import SERVER, WORKER, actor_name
from paceline.runtimes.ray_cluster.options import RayCluster
from paceline.runtimes.ray_cluster.room import what_lacks
from paceline.runtimes.ray_cluster.watcher import ActorProcess, Watcher, died
from paceline.runtimes.serving.duties import Assignment
from paceline.runtimes.serving.memory import pack
from paceline.runtimes.sockets.connecting import Address
from paceline.runtimes.sockets.remote import Errand, Net, RemoteLauncher, undone
from paceline.training.worker import Worker

PATIENCE = 60.0  # seconds for Ray to place the servers
MOST_STARTS = 4  # of one server


class RayLauncher(RemoteLauncher):
    def __init__(
        self,
        cluster: RayCluster,
        train: Callable[[Worker], None],
        evaluate: Callable[..., Any] | None,
        assignment: Callable[[int], Assignment],
        *,
        elastic: bool = False,
        name: str = "run",
    ) -> None:
        """`name`: what the run is called on the cluster: its directory, if it has one."""
        super().__init__(train, evaluate, assignment, elastic=elastic)
        self._cluster = cluster
        self._names = partial(actor_name, name, socket.gethostname(), secrets.token_hex(4))
        self._starts = itertools.count(1)

    def _open(self, stack: ExitStack) -> Net:
        cluster = self._cluster
        # What a connection of ours brings along is there for all; of one of the user's only our actors get it.
        self._runtime_env = cluster.runtime_env if imported_ray().is_initialized() else None
        self._ray = stack.enter_context(connected(cluster))
        self._parcel = self._ray.put(_content_of((self._train, None)))
        self._watcher = Watcher(self._ray, cluster.resources_per_worker)
        stack.callback(self._watcher.close)
        return Net(
            own_address(self._ray), cluster.transport, cluster.compression, cluster.port_range(), cluster.silence
        )

    @property
    def lacks(self) -> str:
        return self._watcher.lacks

    def _place(self, errand: Errand) -> ActorProcess:
        actor = self._actor(WorkerActor, self._cluster.resources_per_worker, WORKER, errand.assignment.index)
        process = ActorProcess(self._ray, actor)
        self._watcher.watch(process, actor.node.remote(), actor.run.remote(errand, self._parcel))
        return process

    def _start_shards(self, stack: ExitStack) -> Sequence[Address]:
        """They live as long as our connections to them, or until Ray ends them with this process."""
        count, end = self._cluster.servers, time.monotonic() + PATIENCE
        if count == 1:
            return ()
        started = [self._start_shard(number, stack) for number in range(count)]
        addresses = [self._listening(number, started, end, stack) for number in range(count)]
        for actor, _ in started:
            actor.serve.remote()
        return addresses

    def _start_shard(self, number: int, stack: ExitStack) -> tuple[Any, Any]:
        """The actor, and what will be the address at which it listens."""
        ports, cluster = self._cluster.port_range(), self._cluster
        actor = self._actor(ShardActor, cluster.resources_per_server, SERVER, number)
        stack.callback(undone, lambda: self._ray.kill(actor, no_restart=True))
        given = None if ports is None else (ports.start, ports.stop)
        return actor, actor.listen.remote(self.secret, given, cluster.compression)

    def _listening(self, number: int, started: list[tuple[Any, Any]], end: float, stack: ExitStack) -> Address:
        """Where this shard listens. One that dies before it does holds nothing yet: another takes its place, as Ray may
        send the first to a node of which it has not noticed yet that it is gone."""
        for again in reversed(range(MOST_STARTS)):
            try:
                return self._ray.get(started[number][1], timeout=max(0.0, end - time.monotonic()))  # type: ignore[no-any-return]
            except self._ray.exceptions.GetTimeoutError:
                lacks = what_lacks(self._ray, self._cluster.resources_per_server) or "it does not say why"
                raise ConfigurationError(
                    f"Ray did not place {self._cluster.servers} servers within {PATIENCE:g} seconds ({lacks})"
                ) from None
            except self._ray.exceptions.RayError as problem:
                if not again or not died(problem):
                    raise ConfigurationError(f"a server could not be started: {problem}") from None
                started[number] = self._start_shard(number, stack)
        raise AssertionError("the last start returns or raises")

    def _actor(self, kind: type, resources: Mapping[str, float], role: str, number: int) -> Any:
        """One way for all deaths, ours: Ray restarts nothing, and calls nothing twice."""
        wanted = dict(resources)
        options = {
            "name": self._names(role, number, next(self._starts)),
            "num_cpus": wanted.pop("CPU", 0),
            "num_gpus": wanted.pop("GPU", 0),
            "memory": wanted.pop("memory", None),
            "resources": wanted or None,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": "SPREAD",
            "runtime_env": self._runtime_env,
        }
        try:
            return self._ray.remote(kind).options(**options).remote()
        except ValueError as problem:
            hint = "; give the runtime_env to your own ray.init" if self._runtime_env else ""
            raise ConfigurationError(f"Ray does not take what an actor is to have: {problem}{hint}") from None


def _content_of(functions: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A parcel as bytes, which Ray keeps once on every node. No worker imports the main module of this process."""
    descriptor = pack(functions, imports_main=False)
    try:
        return np.fromfile(f"/proc/self/fd/{descriptor}", dtype=np.uint8)
    finally:
        os.close(descriptor)
