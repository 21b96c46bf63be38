"""Starts workers and shards as actors of a Ray cluster. Ray places them; how they speak is not its affair."""

from __future__ import annotations

import itertools
import os
import secrets
import socket
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
from paceline.runtimes.ray_cluster.shard_places import ShardPlaces
from paceline.runtimes.ray_cluster.watcher import ActorProcess, Watcher
from paceline.runtimes.serving.duties import Assignment
from paceline.runtimes.serving.memory import pack
from paceline.runtimes.sockets.connecting import Address
from paceline.runtimes.sockets.remote import Errand, Net, RemoteLauncher, undone
from paceline.training.worker import Worker

PATIENCE = 60.0  # seconds for Ray to place the servers


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
        make = partial(self._actor, WorkerActor, self._cluster.resources_per_worker, WORKER, errand.assignment.index)
        process = ActorProcess(self._ray, make, lambda actor: actor.run.remote(errand, self._parcel))
        self._watcher.watch(process)
        return process

    def _start_shards(self, stack: ExitStack) -> Sequence[Address]:
        """They live as long as our connections to them, or until Ray ends them with this process."""
        count, ports = self._cluster.servers, self._cluster.port_range()
        if count == 1:
            return ()
        given = None if ports is None else (ports.start, ports.stop)

        def make(number: int, strategy: Any) -> Any:
            actor = self._actor(ShardActor, self._cluster.resources_per_server, SERVER, number, strategy)
            stack.callback(undone, lambda: self._ray.kill(actor, no_restart=True))
            return actor

        def listen(actor: Any) -> Any:
            return actor.listen.remote(self.secret, given, self._cluster.compression)

        doubts = self._watcher.doubts
        found = ShardPlaces(self._ray, doubts, make, listen).wait(count, PATIENCE)
        if found is None:
            lacks = what_lacks(self._ray, self._cluster.resources_per_server, doubts.nodes) or "it does not say why"
            raise ConfigurationError(f"Ray did not place {count} servers within {PATIENCE:g} seconds ({lacks})")
        for actor, _ in found:
            actor.serve.remote()
        return [address for _, address in found]

    def _actor(self, kind: type, resources: Mapping[str, float], role: str, number: int, strategy: Any) -> Any:
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
            "scheduling_strategy": strategy,
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
