"""A worker as an actor of Ray. Ray calls `run` once, and sees its process end; all else goes over a socket of our own.

A plain class, made an actor where it is used: one that is decorated would be sent to every node by value.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec
import numpy as np
import torch

from paceline.core.errors import ConfigurationError
from paceline.runtimes.ray_cluster.connection import own_address
from paceline.runtimes.serving.duties import begin, work
from paceline.runtimes.serving.memory import filled, unpack
from paceline.runtimes.sockets.connecting import Address
from paceline.runtimes.sockets.remote import Errand
from paceline.runtimes.sockets.shard import Shard


class ShardActor:
    """A shard, which lives until the server's connection to it ends."""

    def listen(self, secret: bytes, ports: tuple[int, int] | None, compression: str) -> Address:
        import ray

        self._shard = Shard(own_address(ray), secret, None if ports is None else range(*ports), compression)
        return self._shard.address

    def serve(self) -> None:
        self._shard.serve()


class WorkerActor:
    def node(self) -> str:
        """The id of the node that it was placed on."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def run(self, errand: Errand, parcel: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        """Train until there is nothing left to do. `parcel`: the functions of the user, with their tensors."""
        assignment = errand.assignment
        if assignment.device == "auto":
            assignment = msgspec.structs.replace(assignment, device=_device())
        begin(assignment)

        def find() -> Any:
            descriptor = filled(memoryview(parcel))  # type: ignore[arg-type]
            try:
                return unpack(descriptor)[0]
            except (AttributeError, ImportError) as problem:
                raise ConfigurationError(
                    f"a worker on another host cannot find what it is to run: {problem}; bring your code there with"
                    " RayCluster(runtime_env={'working_dir': '.'}), or install it on every node"
                ) from None
            finally:
                os.close(descriptor)

        with errand.linked() as link:
            work(assignment, link, find)


def _device() -> str:
    """Ray shows a worker only the GPUs that it was given."""
    return "cuda:0" if torch.cuda.is_available() else "cpu"
