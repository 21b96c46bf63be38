"""What checkpoints cost: samples per second with one every ten seconds, beside a run without, in turn.

    python benchmarks/checkpoints.py [--out FILE.json] [--seconds 30] [--repeat 2] [--every 10s]
A model of 10 million parameters with momentum, two workers under ASP with stale gradients corrected: a checkpoint holds
the parameters and a moment per worker, about 120 MB.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from paceline import launch
from paceline.training.checkpoint import checkpoints_in
from paceline.training.worker import Worker

WIDTH, SAMPLES, BATCH = 3_162, 4_096, 16


def train(worker: Worker, seconds: float) -> None:
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    optimizer = worker.optimizer(model, torch.optim.SGD, lr=1e-4, momentum=0.9)
    data = TensorDataset(torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(0)))
    end = time.monotonic() + seconds
    for (x,) in worker.batches(data, batch_size=BATCH):
        if time.monotonic() > end:
            return
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step(loss)


def samples_per_second(seconds: float, every: str | None) -> tuple[float, int, int]:
    """And how many checkpoints were written, of how many bytes."""
    with tempfile.TemporaryDirectory() as directory:
        result = launch(
            partial(train, seconds=seconds),
            workers=2,
            policy="asp",
            epochs=1_000,
            run_dir=Path(directory) / "run",
            checkpoint_every=every,
            keep=1_000,
        )
        written = checkpoints_in(Path(directory) / "run" / "checkpoints")
        size = sum(file.stat().st_size for file in written[-1].iterdir())
        return result.samples / result.seconds, len(written), size


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=Path("benchmarks/results/checkpoints.json"))
    arguments.add_argument("--seconds", type=float, default=30.0)
    arguments.add_argument("--repeat", type=int, default=2)
    arguments.add_argument("--every", default="10s")
    given = arguments.parse_args()
    rates: dict[str, list[float]] = {"none": [], given.every: []}
    counts, size = [], 0
    for _ in range(given.repeat):
        for every, found in rates.items():
            rate, count, size = samples_per_second(given.seconds, None if every == "none" else every)
            found.append(rate)
            counts.append(count)
            print(f"{every:>8}: {rate:,.0f} samples/s, {count} checkpoints of {size / 1e6:,.0f} MB", flush=True)
    cost = 1 - max(rates[given.every]) / max(rates["none"])
    print(f"one every {given.every} costs {cost:.1%} of the throughput")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    facts = {"samples_per_second": rates, "checkpoints": counts, "bytes": size, "cost": cost}
    given.out.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
