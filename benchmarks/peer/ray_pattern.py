"""The parameter server of Ray's documentation: an actor that takes gradients and returns weights.

https://docs.ray.io/en/latest/ray-core/examples/plot_parameter_server.html
There the driver hands each gradient's reference to the server, and the weights' reference to the worker. Beside it a
shorter way, with fewer calls: the worker calls the server itself. Gradients and weights are NumPy
arrays, which Ray's object store maps without a copy; the worker copies the weights into its model, as documented.
Classes are plain, and wrapped where they are used, so that Ray imports them instead of pickling their globals.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
import ray
import torch

from peer.measuring import LEAST, MOST, Row, Settings, attempt, iterate, result, warm_ups
from peer.ray_nodes import STORE, one_node, three_nodes


def tensor(array: np.ndarray) -> torch.Tensor:
    """Of an array that lies in the object store and may not be written to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


def fill_store() -> None:
    """Use this node's object store once: the first use of its memory takes several times as long as all later ones."""
    held = [ray.put(np.ones(STORE // 32, dtype=np.float32)) for _ in range(7)]
    del held


class Server:
    def __init__(self, size: int) -> None:
        self.parameters = torch.zeros(size)

    def apply_gradient(self, gradient: np.ndarray) -> np.ndarray:
        self.parameters.add_(tensor(gradient), alpha=-1e-6)
        return self.parameters.numpy()  # is copied into the store before the next call begins

    def fill_store(self) -> None:
        fill_store()

    def weights(self) -> np.ndarray:
        return self.parameters.numpy()


class Worker:
    def __init__(self, size: int) -> None:
        self.size = size
        self.model = torch.zeros(size)
        self.gradient = np.ones(size, dtype=np.float32)

    def node(self) -> str:
        return ray.get_runtime_context().get_node_id()

    def fill_store(self) -> None:
        fill_store()

    def compute_gradient(self, weights: np.ndarray) -> np.ndarray:
        self.model.copy_(tensor(weights))
        return self.gradient

    def push_and_pull(self, index: int, server: Any, settings: Settings, into: str) -> None:
        def step() -> None:
            self.model.copy_(tensor(ray.get(server.apply_gradient.remote(self.gradient))))

        iterate(step, index, self.size, settings, into, waits=False)


def on_one_node(settings: Settings) -> Iterator[Row]:
    yield from _measure("one node", one_node, settings)


def on_three_nodes(settings: Settings) -> Iterator[Row]:
    yield from _measure("three nodes", three_nodes, settings)


def _measure(where: str, nodes: Callable[[], AbstractContextManager[str]], settings: Settings) -> Iterator[Row]:
    with nodes():
        for size in settings.sizes:
            server, workers = actors(size, settings.workers)
            where_workers_are = set(ray.get([worker.node.remote() for worker in workers]))
            assert len(where_workers_are) == (settings.workers if where == "three nodes" else 1)
            for actor in (server, *workers):
                ray.get(actor.fill_store.remote())
            calls = partial(worker_calls, server, workers, settings)
            yield attempt(f"Ray's pattern, {where}, worker calls", size, calls)
            loop = partial(driver_loop, server, workers, size, settings)
            yield attempt(f"Ray's pattern, {where}, as documented", size, loop)
            for actor in (server, *workers):
                ray.kill(actor)


def actors(size: int, workers: int) -> tuple[Any, list[Any]]:
    server = ray.remote(Server).options(num_cpus=1, resources={"server": 1}).remote(size)
    remote_worker = ray.remote(Worker).options(num_cpus=1, resources={"worker": 1})
    return server, [remote_worker.remote(size) for _ in range(workers)]


def worker_calls(server: Any, workers: list[Any], settings: Settings) -> float:
    with tempfile.TemporaryDirectory() as into:
        ray.get([worker.push_and_pull.remote(index, server, settings, into) for index, worker in enumerate(workers)])
        return result(into, settings.workers)


def driver_loop(server: Any, workers: list[Any], size: int, settings: Settings) -> float:
    """Asynchronous, as documented: whoever has a gradient first gets the new weights first."""
    weights = server.weights.remote()
    gradients = {worker.compute_gradient.remote(weights): worker for worker in workers}

    def rounds(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count * len(workers)):
            (ready,), _ = ray.wait(list(gradients))
            worker = gradients.pop(ready)
            gradients[worker.compute_gradient.remote(server.apply_gradient.remote(ready))] = worker
        return (time.perf_counter() - began) / count

    guess = rounds(warm_ups(size))
    return rounds(min(MOST, max(LEAST, int(settings.seconds / guess))))
