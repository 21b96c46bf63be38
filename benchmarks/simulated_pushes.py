"""Pushes per second of the simulator, per policy and number of workers, and the memory that they take.

Each cell runs in a process of its own, so that memory is its own too. Run it with `make benchmark`, or
    python benchmarks/simulated_pushes.py [--out FILE.json]
Compare ratios within one run: the machine may be shared.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path

from paceline.experiment import Simulation, simulate
from paceline.policies import POLICIES

WORKERS = (10, 16, 1_000, 10_000)
LEAST_PUSHES = 200_000
PUSHES_PER_WORKER = 30
REPEATS = 3


def measure(policy: str, workers: int) -> dict[str, float]:
    """One cell, in this process: the best of a few runs, and the peak memory above an idle interpreter's."""
    idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pushes = max(LEAST_PUSHES, workers * PUSHES_PER_WORKER)
    intervals = tuple(1 + 0.5 * worker / workers for worker in range(workers))
    simulation = Simulation(intervals=intervals, pushes=pushes)
    seconds = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        simulate(policy, simulation)
        seconds.append(time.perf_counter() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "pushes_per_second": pushes / min(seconds),
        "extra_megabytes": (peak - idle) / 1024,
        "megabytes": peak / 1024,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=Path("benchmarks/results/simulated_pushes.json"))
    arguments.add_argument("--cell", nargs=2, metavar=("POLICY", "WORKERS"), help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.cell:
        print(json.dumps(measure(given.cell[0], int(given.cell[1]))))
        return
    cells: dict[str, dict[int, dict[str, float]]] = {}
    print(
        f"{'policy':<12}"
        + "".join(f"{f'n={workers:,}':>12}" for workers in WORKERS)
        + "   cost 10,000 / 10   MB at 10,000"
    )
    for policy in POLICIES:
        row = cells[policy] = {}
        for workers in WORKERS:
            command = [sys.executable, __file__, "--cell", policy, str(workers)]
            row[workers] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        speeds = [row[workers]["pushes_per_second"] for workers in WORKERS]
        print(
            f"{policy:<12}"
            + "".join(f"{speed:>12,.0f}" for speed in speeds)
            + f"{speeds[0] / speeds[-1]:>19.2f}{row[WORKERS[-1]]['megabytes']:>15.0f}"
        )
    given.out.parent.mkdir(parents=True, exist_ok=True)
    machine = {"python": platform.python_version(), "processor": platform.machine()}
    given.out.write_text(json.dumps({"machine": machine, "unit": "pushes per second", "cells": cells}, indent=2) + "\n")


if __name__ == "__main__":
    main()
