"""Loading beside computing: seconds per step and time to the first batch, plain PyTorch and paceline in the same run.

    python benchmarks/data_loading.py [--out FILE.json] [--repeat 3] [--steps 60]
A data set that needs 20 ms for a batch and a model that needs 20 ms for a step, both by sleeping, so that a machine
with few or busy cores does not matter; around the sleep there is a real step of a small model. One after the other they
take 40 ms, side by side 20 ms. Contenders take turns, and the median of each is what counts:
- plain: a DataLoader in the launching process;
- paceline: `worker.batches(dataset, num_workers=...)`, one worker;
- paceline, DataLoader: `worker.batches(loader)`, which takes the loader apart.
The time to the first batch is taken from the call that makes the loader to its first batch, where that is used.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import paceline

BATCH = 8
SECONDS = 0.02  # for a batch, and for a step
PROCESSES = (0, 1, 2)


class SlowData(Dataset[tuple[Tensor, int]]):
    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, int]]:
        time.sleep(SECONDS * len(indices) / BATCH)
        return [(torch.full((32,), float(index)), index % 2) for index in indices]

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.__getitems__([index])[0]


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2))


def measured(batches: Callable[[], Iterable[Any]], net: nn.Module, optimizer: Any, ours: bool) -> dict[str, float]:
    began = time.perf_counter()
    times = []
    for x, y in batches():
        times.append(time.perf_counter())
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        time.sleep(SECONDS)
        optimizer.step(*[loss][: int(ours)])
    return {"first": times[0] - began, "step": (times[-1] - times[1]) / (len(times) - 2)}


def plain(samples: int, processes: int) -> dict[str, float]:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    loader = partial(DataLoader, SlowData(samples), batch_size=BATCH, shuffle=True, num_workers=processes)
    return measured(loader, net, optimizer, ours=False)


def train(worker: paceline.Worker, samples: int, processes: int, loader: bool, into: str) -> None:
    net = model()
    optimizer = worker.optimizer(net, torch.optim.SGD, lr=0.01)

    def batches() -> Iterable[Any]:
        data = SlowData(samples)
        if loader:
            return worker.batches(DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=processes))
        return worker.batches(data, BATCH, num_workers=processes)

    Path(into).write_text(json.dumps(measured(batches, net, optimizer, ours=True)))


def ours(samples: int, processes: int, loader: bool = False) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        into = Path(directory) / "measured.json"
        paceline.launch(
            partial(train, samples=samples, processes=processes, loader=loader, into=str(into)), workers=1, device="cpu"
        )
        found: dict[str, float] = json.loads(into.read_text())
        return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/data_loading.json"))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    samples = options.steps * BATCH
    contenders: dict[str, Callable[[], dict[str, float]]] = {}
    for processes in PROCESSES:
        contenders[f"plain, {processes} loader processes"] = partial(plain, samples, processes)
        contenders[f"paceline, {processes} loader processes"] = partial(ours, samples, processes)
    contenders["paceline, DataLoader with 2"] = partial(ours, samples, 2, True)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    for _ in range(options.repeat):
        for name, run in contenders.items():
            found[name].append(run())
    results = {
        name: {figure: statistics.median(run[figure] for run in runs) for figure in ("first", "step")}
        for name, runs in found.items()
    }
    print(f"{'':32} first batch  per step")
    for name, result in results.items():
        print(f"{name:32} {result['first'] * 1e3:8.1f} ms {result['step'] * 1e3:6.1f} ms")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    facts = {"cores": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__}
    load = os.getloadavg()[0]
    content = {**facts, "load": load, "steps": options.steps, "seconds": results, "runs": found}
    options.out.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
