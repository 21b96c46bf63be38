"""What a long run leaves on the disk and takes in memory: bytes per push of the trace, plain and compressed, and how
much the launcher's memory grows from a thousand pushes to a million.

    python benchmarks/long_runs.py [--out FILE.json] [--pushes 1000000]
Two real workers with a model of a thousand parameters push as fast as they can, under ASP, with a run directory.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from paceline import launch
from paceline.core.messages import GradientArrived, Record
from paceline.recording.observer import Observer
from paceline.recording.trace import trace_in
from paceline.training.worker import Worker

SAMPLES, BATCH = 20_000, 1


def train(worker: Worker) -> None:
    model = nn.Linear(1_000, 1, bias=False)
    optimizer = worker.optimizer(model, torch.optim.SGD, lr=1e-9)
    gradient = torch.ones_like(model.weight)
    for _ in worker.batches(TensorDataset(torch.zeros(SAMPLES, 1)), batch_size=BATCH):
        model.weight.grad = gradient
        optimizer.step(1.0)


class Memory(Observer):
    """Of this process, at every thousandth push, then more and more rarely."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}
        self._pushes, self._next = 0, 1_000

    def observe(self, record: Record) -> None:
        if isinstance(record.event, GradientArrived):
            self._pushes += 1
            if self._pushes == self._next:
                pages = int(Path("/proc/self/statm").read_text().split()[1])
                self.seen[self._pushes] = pages * 4096
                self._next *= 10 if self._next < 100_000 else 2


def measure(pushes: int, compressed: bool) -> dict[str, object]:
    memory = Memory()
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory) / "run"
        result = launch(
            partial(train),
            workers=2,
            policy="asp",
            epochs=max(1, pushes // SAMPLES),
            run_dir=run_dir,
            compress_trace=compressed,
            checkpoint_every="60s",
            observers=[memory],
        )
        size = trace_in(run_dir).stat().st_size
        others = sum(file.stat().st_size for file in run_dir.glob("*.json*") if file != trace_in(run_dir))
    return {
        "compressed": compressed,
        "pushes": result.summary.pushes,
        "seconds": round(result.seconds, 1),
        "trace_bytes_per_push": round(size / result.summary.pushes, 1),
        "other_bytes_per_second": round(others / result.seconds),
        "memory_mb_by_pushes": {pushes: round(used / 1e6, 1) for pushes, used in memory.seen.items()},
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--out", type=Path)
    arguments.add_argument("--pushes", type=int, default=1_000_000)
    given = arguments.parse_args()
    found = [measure(given.pushes, compressed) for compressed in (False, True)]
    text = json.dumps(found, indent=2)
    print(text)
    if given.out is not None:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
