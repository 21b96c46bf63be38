"""Ray's pattern with a real model, and one of four workers four times slower: synchronous and asynchronous."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import local_throughput
import numpy as np
import ray
import torch
import torch.nn.functional as F
from local_throughput import FACTOR, PADDED

from peer.measuring import Row, Settings, attempt
from peer.ray_nodes import one_node
from peer.ray_pattern import tensor
from peer.throughput import BATCH, WORKERS, parameters


def measure(settings: Settings) -> Iterator[Row]:
    with one_node():
        for name, loop in (("synchronous", synchronous), ("asynchronous", asynchronous)):
            yield attempt(f"Ray's pattern, {name}", parameters(), partial(trained, loop, settings.samples))


class Server:
    """As Ray documents it: sums what it gets, steps, returns all weights."""

    def __init__(self) -> None:
        self.model = local_throughput.model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    def apply_gradients(self, *gradients: list[np.ndarray]) -> list[np.ndarray]:
        for parameter, parts in zip(self.model.parameters(), zip(*gradients, strict=True), strict=True):
            parameter.grad = tensor(parts[0] if len(parts) == 1 else np.stack(parts).sum(axis=0))
        self.optimizer.step()
        return self.weights()

    def weights(self) -> list[np.ndarray]:
        return [parameter.detach().numpy() for parameter in self.model.parameters()]


class Worker:
    def __init__(self, index: int, samples: int) -> None:
        self.net = local_throughput.model()
        self.data = local_throughput.dataset(samples)
        order = torch.randperm(samples, generator=torch.Generator().manual_seed(0))[index::WORKERS]
        self.batches, self.next = order.split(BATCH), 0
        self.seconds = PADDED * (FACTOR if index == WORKERS - 1 else 1.0)

    def ready(self) -> None:
        """Returns when the worker has been made."""

    def compute_gradients(self, weights: list[np.ndarray]) -> list[np.ndarray]:
        began = time.monotonic()
        with torch.no_grad():
            for parameter, array in zip(self.net.parameters(), weights, strict=True):
                parameter.copy_(tensor(array))
        indices = self.batches[self.next % len(self.batches)]
        self.next += 1
        x, y = (samples[indices] for samples in self.data.tensors)
        self.net.zero_grad()
        F.cross_entropy(self.net(x), y).backward()
        time.sleep(max(0.0, began + self.seconds - time.monotonic()))
        return [parameter.grad.numpy() for parameter in self.net.parameters() if parameter.grad is not None]


def trained(loop: Callable[[Any, list[Any], int], None], samples: int) -> float:
    server = ray.remote(Server).options(num_cpus=1).remote()
    workers = [ray.remote(Worker).options(num_cpus=1).remote(index, samples) for index in range(WORKERS)]
    ray.get([worker.ready.remote() for worker in workers])
    ray.get(server.weights.remote())
    began = time.monotonic()
    loop(server, workers, samples // BATCH)
    rate = samples / (time.monotonic() - began)
    for actor in (server, *workers):
        ray.kill(actor)
    return rate


def synchronous(server: Any, workers: list[Any], batches: int) -> None:
    weights = server.weights.remote()
    for _ in range(batches // len(workers)):
        gradients = [worker.compute_gradients.remote(weights) for worker in workers]
        weights = server.apply_gradients.remote(*gradients)
    ray.get(weights)


def asynchronous(server: Any, workers: list[Any], batches: int) -> None:
    weights = server.weights.remote()
    gradients = {worker.compute_gradients.remote(weights): worker for worker in workers}
    for _ in range(batches):
        (ready,), _ = ray.wait(list(gradients))
        worker = gradients.pop(ready)
        weights = server.apply_gradients.remote(ready)
        gradients[worker.compute_gradients.remote(weights)] = worker
    ray.get(weights)
