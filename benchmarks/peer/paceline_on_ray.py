"""paceline on Ray: the same `launch` as on one machine, with `cluster=paceline.RayCluster(...)`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import local_throughput
from local_throughput import FACTOR, PADDED

import paceline
from peer.measuring import Row, Settings, attempt
from peer.paceline_local import launched
from peer.ray_nodes import one_node, three_nodes
from peer.throughput import BATCH, POLICIES, WORKERS, parameters

SHARDS = (1, 2, 4)
MISSING = "not available: this paceline has no RayCluster"


def on_one_node(settings: Settings) -> Iterator[Row]:
    """Workers and shards on one host: through shared memory, and through TCP where it is asked for."""
    name, resources = "paceline on Ray, one node", {"CPU": 1.0}
    if not hasattr(paceline, "RayCluster"):
        yield from (Row(name, size, None, MISSING) for size in settings.sizes)
        return
    with one_node(connect=False) as address:
        yield from paceline_on_ray(f"{name}, shared memory", address, settings, resources)
        yield from paceline_on_ray(f"{name}, TCP", address, settings, resources, transport="tcp")


def on_three_nodes(settings: Settings) -> Iterator[Row]:
    """Each worker on a node of its own. The nodes share this host, so TCP has to be asked for."""
    name, resources = "paceline on Ray, three nodes", {"CPU": 1.0, "worker": 1.0}
    if not hasattr(paceline, "RayCluster"):
        yield from (Row(name, size, None, MISSING) for size in settings.sizes)
        return
    with three_nodes(connect=False) as address:
        yield from paceline_on_ray(f"{name}, TCP", address, settings, resources, transport="tcp")


def paceline_on_ray(
    name: str, address: str, settings: Settings, resources_per_worker: dict[str, float], **options: Any
) -> Iterator[Row]:
    for shards in SHARDS:
        for size in settings.sizes:
            measure = partial(_launched_there, size, settings, address, resources_per_worker, shards, options)
            yield attempt(f"{name}, {shards} shard{'s' * (shards > 1)}", size, measure)


def _launched_there(
    size: int, settings: Settings, address: str, resources: dict[str, float], shards: int, options: dict[str, Any]
) -> float:
    cluster = paceline.RayCluster(address=address, resources_per_worker=resources, servers=shards, **options)
    return launched(size, settings, "asp", cluster=cluster)


def with_a_slow_worker(settings: Settings) -> Iterator[Row]:
    """Training throughput, as throughput.py measures it on one machine."""
    if not hasattr(paceline, "RayCluster"):
        yield Row("paceline on Ray", parameters(), None, MISSING)
        return
    with one_node(connect=False) as address:
        for policy in POLICIES:
            yield attempt(f"paceline on Ray, {policy}", parameters(), partial(_trained, policy, address, settings))


def _trained(policy: str, address: str, settings: Settings) -> float:
    ran = paceline.launch(
        partial(local_throughput.train, samples=settings.samples, batch=BATCH),
        workers=WORKERS,
        policy=policy,
        speed=f"constant:seconds={PADDED}",
        slowdown={WORKERS - 1: FACTOR},
        cluster=paceline.RayCluster(address=address, resources_per_worker={"CPU": 1}, servers=1),
    )
    return ran.samples / ran.seconds
