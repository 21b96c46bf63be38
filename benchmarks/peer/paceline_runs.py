"""paceline itself: on this machine's own runtime, and on Ray where it has one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from local_cycles import Flat

import paceline
from peer.measuring import Row, Settings, attempt, iterate, result
from peer.ray_nodes import one_node, three_nodes

SHARDS = (1, 2, 4)


def push_and_pull(worker: paceline.Worker, size: int, settings: Settings, into: str, waits: bool) -> None:
    """The loop of a worker that computes nothing: its gradient is ready, as new as a backward pass would make it."""
    model = Flat(size)
    optimizer = worker.optimizer(model, torch.optim.SGD, lr=1e-6)
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)

    def step() -> None:
        for parameter in parameters:
            parameter.grad = None if parameter.grad is None else parameter.grad.detach()
        optimizer.step()

    iterate(step, worker.index, size, settings, into, waits=waits)


def launched(size: int, settings: Settings, policy: str, **options: Any) -> float:
    with tempfile.TemporaryDirectory() as into:
        train = partial(push_and_pull, size=size, settings=settings, into=into, waits=policy == "bsp")
        paceline.launch(train, workers=settings.workers, policy=policy, stale="none", **options)
        return result(into, settings.workers)


def local(settings: Settings) -> Iterator[Row]:
    for size in settings.sizes:
        for policy in ("asp", "bsp"):
            yield attempt(f"paceline local, {policy}", size, partial(launched, size, settings, policy, device="cpu"))


def on_one_node(settings: Settings) -> Iterator[Row]:
    """Workers and shards on one host: through shared memory, and through TCP where it is asked for."""
    if not available():
        yield from missing("paceline on Ray, one node", settings)
        return
    with one_node() as address:
        yield from paceline_on_ray("paceline on Ray, one node, shared memory", address, settings, {"CPU": 1})
        tcp = {"transport": "tcp"}
        yield from paceline_on_ray("paceline on Ray, one node, TCP", address, settings, {"CPU": 1}, **tcp)


def on_three_nodes(settings: Settings) -> Iterator[Row]:
    """Each worker on a node of its own. The nodes share this host, so TCP has to be asked for."""
    if not available():
        yield from missing("paceline on Ray, three nodes", settings)
        return
    with three_nodes() as address:
        each = {"CPU": 1, "worker": 1}
        yield from paceline_on_ray("paceline on Ray, three nodes, TCP", address, settings, each, transport="tcp")


def paceline_on_ray(
    name: str, address: str, settings: Settings, resources_per_worker: dict[str, float], **options: Any
) -> Iterator[Row]:
    for shards in SHARDS:
        for size in settings.sizes:
            cluster = paceline.RayCluster(  # type: ignore[attr-defined]
                address=address, resources_per_worker=resources_per_worker, servers=shards, **options
            )
            measure = partial(launched, size, settings, "asp", cluster=cluster)
            yield attempt(f"{name}, {shards} shard{'s' * (shards > 1)}", size, measure)


def available() -> bool:
    return hasattr(paceline, "RayCluster")


def missing(name: str, settings: Settings) -> Iterator[Row]:
    for size in settings.sizes:
        yield Row(name, size, None, "not available: this paceline has no RayCluster")
