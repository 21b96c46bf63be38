"""What limits 1,000 workers: shards that a group needs, and the pace that it keeps, from measured constants.

    python benchmarks/decisions.py && python benchmarks/scale.py [--out FILE.json] [--workers 1000] [--memory 64]

Measured here, in processor time of one thread: bytes through a TCP connection on loopback, adding a gradient, copying
parameters. What words and decisions cost is taken from benchmarks/results/decisions.json. The rest is computed: the
first table by arithmetic, the second by simulation in virtual time, with queues before server, shards and wires.
docs/scale.md explains both.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from paceline.experiment.capacity import Costs, Group, demand, durations_of, shards_needed, simulated_pace
from paceline.experiment.simulation import Simulation
from paceline.runtimes.simulated.costly import Durations

NUMBERS = 2_500_000  # 10 MB: beyond the caches, as a shard's part is
REPEATS = 10
GBIT = 1e9 / 8
SIZES = (1_000_000, 10_000_000, 100_000_000)
PACES = (0.1, 0.5, 5.0)
WIRES = (10, 100)
SHARDS = (1, 2, 4, 8, 16)
POLICIES = ("asp", "ssp", "elastic-bsp", "bsp")
ITERATIONS = 20  # of a worker that nothing holds up, in a simulation


def least(call: Callable[[], float]) -> float:
    return min(call() for _ in range(REPEATS))


def timed(call: Callable[[], Any]) -> float:
    begin = time.thread_time()
    call()
    return time.thread_time() - begin


def bytes_costs() -> tuple[float, float]:
    """Seconds per byte of whoever receives, and of whoever sends; on loopback the sender does some of both."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        near = socket.create_connection(door.getsockname())
        far, _ = door.accept()
    content, place = memoryview(bytearray(4 * NUMBERS)), memoryview(bytearray(4 * NUMBERS))

    def receive() -> None:
        at = 0
        while at < len(place):
            at += far.recv_into(place[at:])

    def both() -> tuple[float, float]:
        received: list[float] = []
        thread = threading.Thread(target=lambda: received.append(timed(receive)))
        thread.start()
        sent = timed(lambda: near.sendall(content))
        thread.join()
        return received[0], sent

    measured = [both() for _ in range(REPEATS)]
    near.close()
    far.close()
    return tuple(min(column) / len(content) for column in zip(*measured, strict=True))  # type: ignore[return-value]


def costs_of(decisions: dict[str, Any], wire: float, memory: float) -> Costs:
    """Under ASP, where every push is an update; over TCP, of the largest group that was measured in every way."""
    torch.set_num_threads(1)
    received, sent = bytes_costs()
    parameters, gradient = torch.zeros(NUMBERS), torch.ones(NUMBERS)
    copy = least(lambda: timed(lambda: parameters.copy_(gradient))) / (4 * NUMBERS)
    update = least(lambda: timed(lambda: parameters.add_(gradient, alpha=-1e-6))) / NUMBERS

    def costs_by_size(rows: list[dict[str, Any]]) -> dict[int, float]:
        return {row["workers"]: 1 / row["per_cpu_second"] for row in rows if row["policy"] == "asp"}

    by_way = {int(way[4:]): costs_by_size(rows) for way, rows in decisions["sockets"].items() if way[:4] == "tcp:"}
    size = max(set.intersection(*(set(costs) for costs in by_way.values())))
    ways = {shards: costs[size] for shards, costs in by_way.items()}
    alone = costs_by_size(decisions["alone"])[size]
    fewest, most = sorted(ways)[1], sorted(ways)[-1]
    per_shard = max(0.0, (ways[most] - ways[fewest]) / (most - fewest))
    return Costs(
        decision=ways[fewest] - per_shard * fewest,
        per_shard=per_shard,
        words=ways[1] - alone,  # a server that has the parameters does a shard's work as well
        received=received,
        sent=sent + copy,
        update=update,
        wire=wire,
        memory=memory,
    )


def one_server(costs: Costs, decisions: dict[str, Any]) -> Costs:
    """Without shards nobody has to be told: the decision is what it is alone."""
    asp = [row for row in decisions["alone"] if row["policy"] == "asp"]
    return replace(costs, decision=1 / max(asp, key=lambda row: row["workers"])["per_cpu_second"])


def table_of_shards(workers: int, costs: Costs) -> list[dict[str, Any]]:
    print(f"\nshards that {workers:,} workers need, and what is busiest; memory of each shard")
    print(f"{'parameters':>12}{'seconds':>9}{'Gbit/s':>8}{'shards':>8}{'busiest':>18}{'GB each':>9}   with int8")
    rows = []
    for parameters in SIZES:
        for seconds in PACES:
            for wire in WIRES:
                own = replace(costs, wire=wire * GBIT)
                group = Group(workers, seconds, parameters)
                found = shards_needed(group, own)
                packed = shards_needed(replace(group, bytes_per_number=1.004), own)
                shown = found or demand(group, own, 32)
                name, share = shown.busiest
                if shown.memory_share > 1 and share <= 1:
                    name, share = "memory", shown.memory_share
                enough = "> 32" if found is None else f"{found.shards}"
                print(
                    f"{parameters:>12,}{seconds:>9g}{wire:>8}{enough:>8}{f'{name} {share:.0%}':>18}"
                    f"{shown.memory / 1e9:>9.1f}   {'> 32' if packed is None else packed.shards}"
                )
                rows.append({**asdict(group), "wire": wire, "enough": found is not None, **asdict(shown)})
    return rows


def table_of_paces(workers: int, costs: Costs, alone: Costs, parameters: int, seconds: float) -> list[dict[str, Any]]:
    group = Group(workers, seconds, parameters)
    simulation = Simulation(
        workers=workers, speed=f"lognormal:seconds={seconds},sigma=0.2", duration=ITERATIONS * seconds
    )
    print(
        f"\n{workers:,} workers, {parameters:,} parameters, {seconds:g} s per iteration, {costs.wire / GBIT:g} Gbit/s:"
        f" pushes per second as a share of {group.pushes:,.0f}"
    )
    print(f"{'policy':<12}{'no costs':>10}" + "".join(f"{f'S={shards}':>9}" for shards in SHARDS))
    rows = []
    for policy in POLICIES:
        print(f"{policy:<12}", end="", flush=True)
        for shards in (0, *SHARDS):
            own = alone if shards == 1 else costs
            durations = durations_of(group, own, shards) if shards else Durations()
            pace = simulated_pace(policy, simulation, durations)
            print(f"{pace.pushes_per_second / group.pushes:>{9 if shards else 10}.1%}", end="", flush=True)
            rows.append({"policy": policy, "shards": shards, **asdict(pace)})
        print()
    return rows


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=Path("benchmarks/results/scale.json"))
    arguments.add_argument("--decisions", type=Path, default=Path("benchmarks/results/decisions.json"))
    arguments.add_argument("--workers", type=int, default=1_000)
    arguments.add_argument("--parameters", type=float, default=1e6, help="of the simulated group")
    arguments.add_argument("--seconds", type=float, default=0.5, help="per iteration of the simulated group")
    arguments.add_argument("--wire", type=float, default=10, help="Gbit/s of each shard in the simulation")
    arguments.add_argument("--memory", type=float, default=64, help="GB of each shard's host")
    given = arguments.parse_args()
    decisions = json.loads(given.decisions.read_text())
    costs = costs_of(decisions, given.wire * GBIT, given.memory * 1e9)
    for name, value in asdict(costs).items():
        print(f"{name:<10} {value:.3g}")
    shards = table_of_shards(given.workers, costs)
    alone = one_server(costs, decisions)
    paces = table_of_paces(given.workers, costs, alone, int(given.parameters), given.seconds)
    about = {"cores": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__}
    result = {"machine": about, "costs": asdict(costs), "shards": shards, "paces": paces}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
