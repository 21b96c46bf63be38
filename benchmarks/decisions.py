"""Decisions per second: how many pushes a server takes in, decides about and answers.

    python benchmarks/decisions.py [--out FILE.json] [--seconds 4] [--policies asp,bsp] [--workers 2,16]
                                   [--ways tcp:1,tcp:2] [--alone 16,1000]
What is not measured anew stays in the file.

First over real sockets: the server of a run with its loop, its policy, its trace and a model of 1,000 parameters, and
workers that call it by TCP (all bytes travel) or by unix socket (memory is shared, words travel), with the parameters
in the server or on shards. Few processes hold the connections of many workers, and compute nothing. Then the decision
alone, without bytes: the driver with lifecycle, coordinator, policy, metrics and trace, and a port that does nothing.

"per second" is by the clock, and says what this machine did with whatever else ran on it; "per CPU second" is by the
processor time of the server's own process, and says what its loop costs. Each cell runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

from paceline.core.coordinator import Coordinator
from paceline.core.messages import GradientArrived, Record, UpdateApplied
from paceline.experiment.simulation import Simulation, policy_for, simulate
from paceline.lifecycle.lifecycle import Lifecycle
from paceline.lifecycle.messages import GradientPushed, MakeUpdate, ModelArrived, WorkRequested
from paceline.lifecycle.validation import PortView
from paceline.lifecycle.work import Work
from paceline.recording.metrics import RunMetrics
from paceline.recording.observer import Observer
from paceline.recording.trace import TraceWriter
from paceline.runtimes.driver import Driver
from paceline.runtimes.intervals import patience_of

POLICIES = ("asp", "ssp", "elastic-bsp", "bsp")
WORKERS = (2, 16, 64, 256)
ALONE = (16, 64, 256, 1_000, 4_000)
WAYS = (("tcp", 1), ("auto", 1), ("tcp", 2), ("tcp", 4))  # transport, and processes that hold the parameters
PARAMETERS = 1_000
PROCESSES = 2  # that hold the workers' connections
SECONDS = 4.0  # that a cell measures
GOAL = 10_000
PATIENCE = "20s"  # as launch has it


class Rate(NamedTuple):
    decisions: int
    per_second: float
    per_cpu_second: float
    beginning: float = 0.0  # CPU seconds until all have come and asked for work; of the decision alone


class Meter(Observer):
    """Counts decisions about pushes, from when all have warmed up until the time is over."""

    def __init__(self, warm: int, seconds: float) -> None:
        self._warm, self._seconds = warm, seconds
        self.pushes = 0
        self.over = False
        self._began = self._ended = (0, 0.0, 0.0)

    def observe(self, record: Record) -> None:
        if type(record.event) is not GradientArrived:
            return
        self.pushes += 1
        if self.pushes == self._warm:
            self._began = self._now()
        elif self.pushes > self._warm and not self.pushes % 64 and not self.over:
            self._ended = self._now()
            self.over = self._ended[1] >= self._began[1] + self._seconds

    def _now(self) -> tuple[int, float, float]:
        return self.pushes, time.perf_counter(), time.process_time()

    @property
    def rate(self) -> Rate:
        pushes, seconds, cpu = (end - begin for begin, end in zip(self._began, self._ended, strict=True))
        return Rate(int(pushes), pushes / seconds, pushes / cpu)


# -- over sockets --


def over_sockets(policy: str, workers: int, transport: str, servers: int, seconds: float) -> Rate:
    import torch
    from crowd.launching import CrowdLauncher
    from crowd.light import be_many

    from paceline.runtimes.serving.server import Server
    from paceline.training.choices import UpdateOptions

    torch.set_num_threads(1)
    chosen = policy_for(policy, workers)
    meter = Meter(4 * workers, seconds)
    with tempfile.TemporaryDirectory() as into:
        trace = TraceWriter(Path(into) / "trace.jsonl", str(chosen))
        crowd = CrowdLauncher(
            be_many, PARAMETERS, workers=workers, processes=PROCESSES, servers=servers, transport=transport
        )
        with crowd:
            server = Server(
                crowd,
                Coordinator(chosen),
                workers=workers,
                epochs=None,
                updates=UpdateOptions(stale="none", may_be_stale=chosen.applies_stale),
                observers=[RunMetrics(), trace, meter, _Stop(meter, lambda: server)],
                patience=patience_of(PATIENCE, "patience"),
            )
            server.run()
            server.stop()
            server.close()
        trace.close(server.now)
    return meter.rate


class _Stop(Observer):
    def __init__(self, meter: Meter, server: Any) -> None:
        self._meter, self._server = meter, server

    def observe(self, record: Record) -> None:
        if self._meter.over:
            self._server().stop_wanted = True


# -- alone --


class NoPort:
    """Does nothing, and remembers who may go on."""

    def __init__(self) -> None:
        self.free: deque[int] = deque()

    def release(self, command: Any) -> None:
        self.free.append(command.seat)

    lease = release

    def make_update(self, command: MakeUpdate) -> UpdateApplied:
        return UpdateApplied(command.version)

    def ignore(self, command: Any) -> None:
        pass

    start_process = begin_group = interrupt = dismiss = end_process = set_aside = discard = give_up = wake_at = ignore

    def view(self) -> PortView:
        return PortView()


def alone(policy: str, workers: int, seconds: float) -> Rate:
    """All workers are about equally fast: whoever is told to go on pushes after all who were told before."""
    chosen = policy_for(policy, workers)
    work, port, meter = Work(10**12, 1), NoPort(), Meter(4 * workers, seconds)
    lifecycle = Lifecycle(Coordinator(chosen), range(workers), epochs=None, patience=patience_of(PATIENCE, "patience"))
    with tempfile.TemporaryDirectory() as into:
        trace = TraceWriter(Path(into) / "trace.jsonl", str(chosen))
        driver = Driver(lifecycle, port, [RunMetrics(), trace, meter])
        driver.start()
        begun = time.process_time()
        for seat in range(workers):
            driver.deliver(ModelArrived(seat), 0.0)
        port.free.clear()
        for seat in range(workers):
            driver.deliver(WorkRequested(seat, work), 0.0)
        beginning = time.process_time() - begun
        pushed, now, step = [0] * workers, 0.0, 1.0 / workers
        while not meter.over:
            seat = port.free.popleft()
            pushed[seat] += 1
            now += step
            driver.deliver(GradientPushed(seat, pushed[seat], 1, 1, 1.0), now)
        trace.close(now)
    return meter.rate._replace(beginning=beginning)


# -- the table --


def cell(*given: object) -> Rate:
    """Measured in a process of its own."""
    command = [sys.executable, __file__, "--cell", *map(str, given)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=120)
    return Rate(*json.loads(done.stdout.splitlines()[-1]))


def yardstick() -> float:
    """Pushes per CPU second of the simulator with 16 workers under ASP: how fast this machine is just now."""
    simulation = Simulation(workers=16, speed="constant:seconds=1", pushes=100_000)
    begin = time.process_time()
    simulate("asp", simulation)
    return 100_000 / (time.process_time() - begin)


def rows(title: str, policies: list[str], sizes: list[int], seconds: float, *way: object) -> list[dict[str, Any]]:
    print(f"\n{title}: decisions per second (per CPU second of the server)")
    print(f"{'policy':<12}" + "".join(f"{f'n={workers:,}':>20}" for workers in sizes))
    found = []
    for policy in policies:
        print(f"{policy:<12}", end="", flush=True)
        for workers in sizes:
            rate = cell(policy, workers, seconds, *way)
            print(f"{f'{rate.per_second:,.0f} ({rate.per_cpu_second:,.0f})':>20}", end="", flush=True)
            found.append({"policy": policy, "workers": workers, **rate._asdict()})
        print()
    return found


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=Path("benchmarks/results/decisions.json"))
    arguments.add_argument("--seconds", type=float, default=SECONDS, help="that each cell measures")
    arguments.add_argument("--policies", default=",".join(POLICIES))
    arguments.add_argument("--workers", type=numbers, default=list(WORKERS), help="over sockets")
    arguments.add_argument("--alone", type=numbers, default=list(ALONE), help="workers, without bytes")
    arguments.add_argument("--ways", default=",".join(f"{transport}:{servers}" for transport, servers in WAYS))
    arguments.add_argument("--cell", nargs="+", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.cell:
        policy, workers, seconds, *way = given.cell
        measured = (
            over_sockets(policy, int(workers), way[0], int(way[1]), float(seconds))
            if way
            else alone(policy, int(workers), float(seconds))
        )
        print(json.dumps(measured))
        return
    policies = given.policies.split(",")
    pace = yardstick()
    print(
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores;"
        f" the simulator makes {pace:,.0f} pushes per CPU second"
    )
    result: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {"sockets": {}}
    result |= {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "processor": platform.machine()},
        "load": os.getloadavg()[0],
        "simulated_pushes_per_cpu_second": pace,
        "parameters": PARAMETERS,
        "goal": GOAL,
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    if given.alone:
        result["alone"] = rows("the decision alone", policies, given.alone, given.seconds)
        given.out.write_text(json.dumps(result, indent=2) + "\n")
    for way in filter(None, given.ways.split(",") if given.workers else ()):
        transport, servers = way.split(":")
        title = f"{'TCP' if transport == 'tcp' else 'unix sockets and shared memory'}, {servers} server(s)"
        result["sockets"][way] = rows(title, policies, given.workers, given.seconds, transport, servers)
        given.out.write_text(json.dumps(result | least(result["sockets"]), indent=2) + "\n")


def least(sockets: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """Of all that was measured over sockets with 16 workers and more."""
    many = [row for way in sockets.values() for row in way if row["workers"] >= 16]
    found = {f"least_{unit}": min(row[unit] for row in many) for unit in ("per_second", "per_cpu_second") if many}
    for unit, rate in found.items():
        print(f"{unit.replace('_', ' ')} from 16 workers on: {rate:,.0f}; the goal is {GOAL:,}")
    return found


if __name__ == "__main__":
    main()
