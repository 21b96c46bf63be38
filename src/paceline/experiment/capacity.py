"""How many shards a group needs: what each of its pushes costs the wire, the processors and the memory of a shard.

Everything here is arithmetic on measured constants; docs/scale.md says where they come from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.core.coordinator import Coordinator
from paceline.core.errors import ConfigurationError
from paceline.experiment.foresight import foresee
from paceline.experiment.simulation import Simulation, policy_for, run_end, simulated_workers, worker_speeds
from paceline.runtimes.simulated.costly import CostlySimulator, Durations

NUMBER = 4  # bytes of a float32
MOST_SHARDS = 32  # a model is cut into at most so many blocks (paceline.training.stale.blocks)
DESCRIPTORS_PER_WORKER = 6  # of the server: connection, its copy for writing, segment, last words, both ends of a pipe
HEADROOM = 0.7  # the busiest resource should be busy for at most this share of the time: beyond it queues grow fast


@dataclass(frozen=True)
class Costs:
    """Seconds of a processor, and what a machine has."""

    decision: float  # the server, per push: words and decision, whatever the number of shards
    per_shard: float  # the server, per push and shard: one more to be told and heard
    words: float  # a shard, per push: all that does not hang on the size of the model
    received: float  # a shard, per byte that comes in
    sent: float  # a shard, per byte that goes out, its copy for the worker included
    update: float  # a shard, per number of a gradient
    wire: float  # bytes per second, in each direction, of a shard's host
    memory: float  # bytes of a shard's host


@dataclass(frozen=True)
class Group:
    """What is to be trained: so many workers, each with a gradient of so many numbers in so many seconds."""

    workers: int
    seconds: float
    parameters: int
    bytes_per_number: float = NUMBER  # of a gradient on its way: 1.004 with int8, 2 with bf16
    state: int = 1  # vectors of the optimizer: momentum has 1, AdamW 2
    set_aside: int = 0  # gradients that wait for their fate while their workers go on

    def __post_init__(self) -> None:
        for what in ("workers", "seconds", "parameters", "bytes_per_number"):
            if not 0 < getattr(self, what) < math.inf:
                raise ConfigurationError(f"{what} is {getattr(self, what)!r}; it must be a number above 0")

    @property
    def pushes(self) -> float:
        """Per second, if nothing holds them up."""
        return self.workers / self.seconds


@dataclass(frozen=True)
class Demand:
    """The share of its time for which each resource would be busy (above 1: it cannot keep up), and memory."""

    shards: int
    server: float
    shard: float
    wire_in: float
    wire_out: float
    memory: float  # bytes of one shard
    memory_share: float

    @property
    def busiest(self) -> tuple[str, float]:
        shares = {"server": self.server, "shard": self.shard, "wire in": self.wire_in, "wire out": self.wire_out}
        name = max(shares, key=lambda name: shares[name])
        return name, shares[name]

    @property
    def fits(self) -> bool:
        return self.busiest[1] <= HEADROOM and self.memory_share <= 1


def durations_of(group: Group, costs: Costs, shards: int) -> Durations:
    """What one push and its pull cost each resource, with so many shards."""
    part = group.parameters / shards
    return Durations(
        decision=costs.decision + (costs.per_shard * shards if shards > 1 else 0.0),
        wire_in=part * group.bytes_per_number / costs.wire,
        take_in=costs.words + part * group.bytes_per_number * costs.received,
        update=part * costs.update,
        hand_out=part * NUMBER * costs.sent,
        wire_out=part * NUMBER / costs.wire,
        one_process=shards == 1,
    )


def memory_of(group: Group, shards: int) -> float:
    """Bytes of one shard. For every worker that is not on its host it has a copy of the worker's part of parameters and
    gradient, whatever the policy; a gradient that is set aside is one more."""
    vectors = 2 * group.workers + group.set_aside + 1 + group.state
    return vectors * NUMBER * group.parameters / shards


def demand(group: Group, costs: Costs, shards: int) -> Demand:
    durations, pushes = durations_of(group, costs, shards), group.pushes
    shard = pushes * (durations.take_in + durations.update + durations.hand_out)
    server = pushes * durations.decision
    if durations.one_process:
        server = shard = server + shard
    memory = memory_of(group, shards)
    return Demand(
        shards,
        server,
        shard,
        pushes * durations.wire_in,
        pushes * durations.wire_out,
        memory,
        memory / costs.memory,
    )


def shards_needed(group: Group, costs: Costs, most: int = MOST_SHARDS) -> Demand | None:
    """With the fewest shards that are enough; None: no number up to `most` is."""
    found = (demand(group, costs, shards) for shards in range(1, most + 1))
    return next((one for one in found if one.fits), None)


@dataclass(frozen=True)
class Pace:
    """What a simulated group came to, and the share of the time for which each resource was busy."""

    pushes_per_second: float
    server: float
    shard: float
    wire_in: float
    wire_out: float


def simulated_pace(policy: str, simulation: Simulation, durations: Durations) -> Pace:
    """In virtual time, with queues before server, shards and wires."""
    speeds = worker_speeds(simulation)
    simulator = CostlySimulator(
        simulated_workers(simulation, speeds),
        Coordinator(policy_for(policy, len(speeds))),
        durations=durations,
        time_scale=min(speed.mean for speed in speeds.values()),
        think=foresee,
    )
    seconds = simulator.run(run_end(simulation, speeds))
    queues = simulator.server, simulator.shard, simulator.wire_in, simulator.wire_out
    # What was begun before the end is counted whole, so a share may be a little above 1.
    return Pace(simulator.pushes / seconds, *(queue.busy / seconds for queue in queues))


def descriptors_needed(group: Group) -> int:
    """Of the launching process; what Python, logs and shards have open comes to it."""
    return DESCRIPTORS_PER_WORKER * group.workers
