"""What a push and a pull cost in the local runtime, beside the memory traffic that cannot be avoided.

    python benchmarks/local_cycles.py [--out FILE.json] [--repeat 3] [--sizes 1000,10000000] [--workers 1,2]
A cycle is optimizer.step() of a worker that computes nothing, under ASP with plain SGD: copy the gradient into the
shared slot and look whether it is finite, tell the server, update there, copy the parameters back. Time per cycle is
the elapsed time over all cycles of all workers. Beside it, with torch alone and in the same run: one gradient copy, one
update and one parameter copy, with one thread and with as many as there are cores. The best of the repetitions counts
on both sides. Memory is that of the server's process, with momentum: what it has alone, and the shared slots.
Then momentum SGD, Nesterov's and AdamW as they are and with stale gradients corrected, alternating. There the gradient
follows the parameters, with noise, so that the loss curves and all parts of the correction have work to do.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import re
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from torch import nn

import paceline
from paceline.recording.observer import Observer
from paceline.recording.progress_log import Measurement
from paceline.training.optimizers import warm_up

SIZES = (1_000, 100_000, 1_000_000, 10_000_000)
WORKERS = (1, 2, 4, 8)
TENSORS, COLUMNS = 4, 10
RATE = 1e-6
CURVATURE = 0.02 / RATE  # momentum bears it with and without the correction, and the correction has work to do
SECONDS = 1.5  # that a measurement should take, about


class Flat(nn.Module):
    """So many parameters, and nothing to compute."""

    def __init__(self, size: int) -> None:
        super().__init__()
        # Matrices: vectors in a row would count as one layer, and could not be spread over several servers.
        shape = size // TENSORS // COLUMNS, COLUMNS
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for _ in range(TENSORS)])


KINDS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, float]]] = {
    "sgd": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "adamw": (torch.optim.AdamW, {}),
}


def cycle(worker: paceline.Worker, size: int, cycles: int, kind: str, curved: bool, into: str) -> None:
    model = Flat(size)
    optimizer_class, arguments = KINDS[kind]
    optimizer = worker.optimizer(model, optimizer_class, lr=RATE, **arguments)
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)

    signs = itertools.cycle((torch.rand(997) < 0.5).float().mul(2).sub(1).unbind())

    def step() -> None:
        if curved:
            noise = next(signs)
            for parameter in parameters:
                assert parameter.grad is not None
                torch.add(noise, parameter.detach(), alpha=CURVATURE, out=parameter.grad)
        first = parameters[0]
        first.grad = None if first.grad is None else first.grad.detach()  # as new as a backward pass would make it
        optimizer.step()

    for _ in range(max(3, cycles // 5)):
        step()
    began = time.monotonic()
    for _ in range(cycles):
        step()
    Path(into, str(worker.index)).write_text(json.dumps([began, time.monotonic()]))


def cycles_per_second(
    size: int, workers: int, kind: str = "sgd", stale: str = "none", *, curved: bool = False
) -> float:
    cycles = max(20, int(SECONDS / (150e-6 + size * 1.2e-9) / workers))
    with tempfile.TemporaryDirectory() as into:
        train = partial(cycle, size=size, cycles=cycles, kind=kind, curved=curved, into=into)
        paceline.launch(train, workers=workers, policy="asp", stale=stale)
        times = [json.loads(path.read_text()) for path in Path(into).iterdir()]
    return sum(cycles / (end - began) for began, end in times)


def unavoidable(size: int, threads: int) -> float:
    """Seconds of one gradient copy, one update and one parameter copy with torch alone."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    gradient, slot, replica = torch.ones(size), torch.zeros(size), torch.zeros(size)
    parameters = nn.Parameter(torch.zeros(size))
    optimizer = torch.optim.SGD([parameters], lr=1e-6)
    parameters.grad = slot
    times = []
    for _ in range(max(10, int(0.3 / (30e-6 + size * 1e-9)))):
        began = time.perf_counter()
        slot.copy_(gradient)
        optimizer.step()
        replica.copy_(parameters.detach())
        times.append(time.perf_counter() - began)
    torch.set_num_threads(before)
    return sorted(times)[len(times) // 2]


class MemoryWatch(Observer):
    """The greatest memory of this process while a run goes on: private, and in the segments that it shares."""

    def __init__(self) -> None:
        self.before = resident()[1]
        self.private = self.segments = 0

    def measured(self, measurement: Measurement) -> None:
        if measurement.updates > 4:
            segments, private = resident()
            self.private = max(self.private, private - self.before)
            self.segments = max(self.segments, segments)


def resident() -> tuple[int, int]:
    """Bytes of this process in memory: in the segments that it shares with its workers, and in all else."""
    sizes, ours = {True: 0, False: 0}, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            ours = "memfd:paceline" in line
        elif line.startswith("Rss:"):
            sizes[ours] += 1024 * int(line.split()[1])
    return sizes[True], sizes[False]


def server_memory(size: int, workers: int, policy: str, velocities: int) -> dict[str, float | str]:
    warm_up()  # torch's own modules are no matter of the size
    watch = MemoryWatch()
    with tempfile.TemporaryDirectory() as into:
        train = partial(cycle, size=size, cycles=60, kind="momentum", curved=False, into=into)
        paceline.launch(train, workers=workers, policy=policy, observers=[watch])
    one = 4 * size
    # Half of a segment is the gradient slot; the other half is the worker's own replica of the model.
    held, allowed = watch.private + watch.segments // 2, one * (1 + velocities + workers)
    return {
        "parameters": size,
        "workers": workers,
        "policy": policy,
        "private_bytes": watch.private,
        "segment_bytes": watch.segments,
        "parameters_state_and_slots_bytes": allowed,
        "ratio": held / allowed,
    }


def corrected(size: int, kind: str, repeat: int) -> dict[str, float | str]:
    """Two workers, as they are and corrected, in turn."""
    rates: dict[str, list[float]] = {"none": [], "auto": []}
    for _ in range(repeat):
        for stale, found in rates.items():
            found.append(cycles_per_second(size, 2, kind, stale, curved=True))
    as_it_is, fixed = (1 / max(rates[stale]) for stale in ("none", "auto"))
    return {
        "parameters": size,
        "optimizer": kind,
        "seconds_per_cycle": as_it_is,
        "corrected_seconds_per_cycle": fixed,
        "ratio": fixed / as_it_is,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=Path("benchmarks/results/local_cycles.json"))
    arguments.add_argument("--repeat", type=int, default=3)
    arguments.add_argument("--sizes", default=",".join(map(str, SIZES)))
    arguments.add_argument("--workers", default=",".join(map(str, WORKERS)))
    given = arguments.parse_args()
    cores = os.cpu_count() or 1
    memory = []
    for policy, velocities in (("bsp", 1), ("asp", 4)):  # first, while this process has nothing that it could use again
        memory.append(server_memory(10_000_000, 4, policy, velocities))
        print(
            f"server memory, 10M parameters, momentum, 4 workers, {policy}: {memory[-1]['ratio']:.2f}x of parameters,"
            f" slots and {'one velocity' if velocities == 1 else 'a velocity per worker'}"
        )
    rows = []
    headings = ("parameters", "workers", "cycles/s", "us/cycle", "x 1 thread", f"x {cores} threads")
    print(" ".join(f"{heading:>11}" for heading in headings))
    for size in map(int, given.sizes.split(",")):
        for workers in map(int, given.workers.split(",")):
            rates, single, several = [], [], []
            for _ in range(given.repeat):
                rates.append(cycles_per_second(size, workers))
                single.append(unavoidable(size, 1))
                several.append(unavoidable(size, cores))
            seconds = 1 / max(rates)
            row = {
                "parameters": size,
                "workers": workers,
                "cycles_per_second": max(rates),
                "all_cycles_per_second": rates,
                "seconds_per_cycle": seconds,
                "unavoidable_1_thread": min(single),
                "unavoidable_all_threads": min(several),
                "ratio_1_thread": seconds / min(single),
                "ratio_all_threads": seconds / min(several),
            }
            rows.append(row)
            print(
                f"{size:>11,} {workers:>11} {max(rates):>11,.0f} {seconds * 1e6:>11,.0f} {row['ratio_1_thread']:>11.2f}"
                f" {row['ratio_all_threads']:>11.2f}",
                flush=True,
            )
    corrections = []
    print(" ".join(f"{heading:>11}" for heading in ("parameters", "optimizer", "us/cycle", "corrected", "x")))
    for size in map(int, given.sizes.split(",")):
        for kind in ("momentum", "nesterov", "adamw"):
            one = corrected(size, kind, given.repeat)
            corrections.append(one)
            times = [f"{one[key] * 1e6:>11,.0f}" for key in ("seconds_per_cycle", "corrected_seconds_per_cycle")]
            print(f"{size:>11,} {kind:>11} {' '.join(times)} {one['ratio']:>11.2f}", flush=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    facts = {"cores": cores, "python": platform.python_version(), "torch": torch.__version__}
    given.out.write_text(
        json.dumps({**facts, "cycles": rows, "corrections": corrections, "memory": memory}, indent=2) + "\n"
    )


if __name__ == "__main__":
    main()
