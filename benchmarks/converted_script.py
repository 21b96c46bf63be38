"""Throughput of a plain script beside the same script converted, with one worker, loader processes included.

    python benchmarks/converted_script.py [--out FILE.json] [--repeat 5] [--epochs 3] [--loaders 2] [--samples 4096]
Both run the same loop (CNN with BatchNorm, AdamW, a schedule that steps with every batch, clipping) over the same data,
in a new process each, taking turns. Time is taken by the loop itself: from before its first batch, so that starting the
loader processes counts, to after its last step. The goal is a ratio of 0.95.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

import paceline

BATCH = 32


@dataclass(frozen=True)
class Job:
    samples: int
    epochs: int
    loaders: int


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """Synthetic pictures, shifted and made noisy as they are read, as training scripts do."""

    def __init__(self, samples: int) -> None:
        self.pictures = torch.randn(samples, 1, 28, 28, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        shifted = torch.roll(self.pictures[index], (index % 5 - 2, index % 3 - 1), (1, 2))
        return shifted + 0.1 * torch.randn(1, 28, 28), index % 10


def made(job: Job) -> tuple[Any, ...]:
    model = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 49, 256), nn.ReLU(), nn.Linear(256, 10)),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, job.epochs * job.samples // BATCH)
    loader = DataLoader(Pictures(job.samples), BATCH, shuffle=True, num_workers=job.loaders)
    return model, optimizer, loader, scheduler


def loop(model: nn.Module, optimizer: Any, loader: Any, scheduler: Any, job: Job, into: str) -> None:
    began, trained = time.monotonic(), 0
    for _ in range(job.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            trained += len(x)
    assert trained == job.epochs * job.samples
    Path(into).write_text(str(trained / (time.monotonic() - began)))


def train(worker: paceline.Worker, job: Job, into: str) -> None:
    loop(*worker.prepare(*made(job), scheduler_every="batch"), job, into)


def plain(job: Job, into: str) -> None:
    """As a script of its own: in a process that multiprocessing spawned, loader processes would be spawned as well."""
    words = [f"--samples={job.samples}", f"--epochs={job.epochs}", f"--loaders={job.loaders}", f"--plain={into}"]
    subprocess.run([sys.executable, __file__, *words], check=True)


def converted(job: Job, into: str) -> None:
    paceline.launch(partial(train, job=job, into=into), workers=1, epochs=job.epochs, device="cpu")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=Path("benchmarks/results/converted_script.json"))
    arguments.add_argument("--repeat", type=int, default=5)
    arguments.add_argument("--samples", type=int, default=4096)
    arguments.add_argument("--epochs", type=int, default=3)
    arguments.add_argument("--loaders", type=int, default=2)
    arguments.add_argument("--plain", help="train plainly, and write samples per second into this file")
    given = arguments.parse_args()
    job = Job(given.samples, given.epochs, given.loaders)
    if given.plain is not None:
        loop(*made(job), job, given.plain)
        return
    rates: dict[str, list[float]] = {"plain": [], "converted": []}
    with tempfile.TemporaryDirectory() as directory:
        into = str(Path(directory, "rate"))
        for turn in range(given.repeat):
            order = (plain, converted) if turn % 2 == 0 else (converted, plain)
            for run in order:
                run(job, into)
                rates[run.__name__].append(float(Path(into).read_text()))
                print(f"{run.__name__:<10} {rates[run.__name__][-1]:8.0f} samples/s", flush=True)
    ratios = [ours / theirs for ours, theirs in zip(rates["converted"], rates["plain"], strict=True)]
    result = {
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "samples": job.samples,
        "batch": BATCH,
        "epochs": job.epochs,
        "loader_processes": job.loaders,
        "samples_per_second": rates,
        "ratios": ratios,
        "median_ratio": statistics.median(ratios),
    }
    print(f"converted / plain: {result['median_ratio']:.2f} (median of {given.repeat})")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
