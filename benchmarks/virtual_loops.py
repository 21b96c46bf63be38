"""What a user's own loop in virtual time costs: memory per simulated worker, and time per push beyond the loop's own.

    python benchmarks/virtual_loops.py [--out FILE.json] [--workers 2 8 32] [--pushes 400]
The model has one million parameters, the batches are small, and torch has one thread. Memory is the peak of a process
of its own, beside what it held right before. Time is that of the processor, beside the same loop in plain PyTorch with
the same number of batches, in the same process.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from paceline.experiment.simulation import Simulation
from paceline.experiment.virtual_loops import OwnLoop, train_loops_virtually
from paceline.training.memory_use import resident_bytes
from paceline.training.worker import Worker

BATCH = 8


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(100, 1000), nn.ReLU(), nn.Linear(1000, 890), nn.ReLU(), nn.Linear(890, 2))


def data(pushes: int) -> TensorDataset:
    x = torch.randn(pushes * BATCH, 100, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x.sum(1) > 0).long())


def measure(workers: int, pushes: int) -> dict[str, float]:
    torch.set_num_threads(1)
    dataset = data(pushes)
    plain(dataset)  # whatever torch loads with its first steps

    def train(worker: Worker) -> None:
        model = net()
        optimizer = worker.optimizer(model, torch.optim.SGD, lr=0.01, momentum=0.9)
        for x, y in worker.batches(dataset, BATCH):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step(loss)

    before = resident_bytes()
    began = time.process_time()
    train_loops_virtually(OwnLoop(lambda: train), "bsp", Simulation(intervals=(1.0,) * workers))
    virtual = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    by_hand = plain(dataset)
    return {
        "workers": workers,
        "megabytes": (peak - before) / 1e6,
        "megabytes_per_worker": (peak - before) / 1e6 / workers,
        "milliseconds_per_push": 1e3 * virtual / pushes,
        "milliseconds_per_step_of_plain_pytorch": 1e3 * by_hand / pushes,
    }


def plain(dataset: TensorDataset) -> float:
    """Seconds of the same batches in plain PyTorch."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    began = time.process_time()
    for begin in range(0, len(dataset), BATCH):
        x, y = dataset[begin : begin + BATCH]
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 8, 32])
    parser.add_argument("--pushes", type=int, default=400)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.workers[0], given.pushes)))
        return
    found = []
    for workers in given.workers:
        asked = [sys.executable, __file__, "--one", "--workers", str(workers), "--pushes", str(given.pushes)]
        found.append(json.loads(subprocess.run(asked, capture_output=True, text=True, check=True).stdout))
        print(json.dumps(found[-1]))
    if given.out is not None:
        given.out.write_text(json.dumps({"parameters": sum(p.numel() for p in net().parameters()), "runs": found}))


if __name__ == "__main__":
    main()
