"""Training throughput of the local runtime beside PyTorch's DistributedDataParallel on gloo, in the same run.

    python benchmarks/local_throughput.py [--out FILE.json] [--repeat 3]
Two comparisons, each repeated with the contenders taking turns, and the median of each:
- no straggler: 2 workers, a CNN of one million parameters, batches of 32 synthetic pictures;
- one of 4 workers four times slower: every iteration is padded with sleep to 60 ms (the slow one: 240 ms), the same for
  DDP, so that two cores are enough for four workers.
Samples per second are taken from the first gradient of the group to the last, without starting and ending.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import paceline

PADDED = 0.06  # seconds
FACTOR = 4.0
STRAGGLERS = ("bsp", "ssp", "dssp", "dssp:capped=false", "elastic-bsp", "asp")


def dataset(samples: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.randn(samples, 1, 28, 28, generator=generator), torch.randint(10, (samples,), generator=generator)
    )


def model() -> nn.Module:
    """1.0 million parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 40, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(40 * 49, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


def train(worker: paceline.Worker, samples: int, batch: int) -> None:
    net = model()
    optimizer = worker.optimizer(net, torch.optim.SGD, lr=0.01, momentum=0.9)
    for x, y in worker.batches(dataset(samples), batch_size=batch):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step(loss)


def ours(policy: str, workers: int, samples: int, batch: int, emulated: bool) -> float:
    slow = {"speed": f"constant:seconds={PADDED}", "slowdown": {workers - 1: FACTOR}} if emulated else {}
    result = paceline.launch(
        partial(train, samples=samples, batch=batch), workers=workers, policy=policy, device="cpu", **slow
    )
    return result.samples / result.seconds


def ddp_rank(rank: int, workers: int, samples: int, batch: int, emulated: bool, into: str) -> None:
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    dist.init_process_group("gloo", init_method=f"file://{into}/rendezvous", rank=rank, world_size=workers)
    data = dataset(samples)
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(0))[rank::workers]
    pause = _pause(net, data, batch, PADDED * (FACTOR if rank == workers - 1 else 1.0)) if emulated else 0.0
    dist.barrier()
    began = time.monotonic()
    for indices in order.split(batch):
        time.sleep(pause)
        x, y = (tensor[indices] for tensor in data.tensors)
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        loss.item()
    dist.barrier()
    if rank == 0:
        Path(into, "rate").write_text(str(samples / (time.monotonic() - began)))
    dist.destroy_process_group()


def _pause(net: DistributedDataParallel, data: TensorDataset, batch: int, shall_take: float) -> float:
    """How long to sleep beside the computation, which is measured without the exchange of gradients."""
    x, y = (tensor[:batch] for tensor in data.tensors)
    times = []
    with net.no_sync():
        for _ in range(10):
            started = time.monotonic()
            F.cross_entropy(net(x), y).backward()
            times.append(time.monotonic() - started)
    return max(0.0, shall_take - statistics.median(times))


def ddp(workers: int, samples: int, batch: int, emulated: bool) -> float:
    with tempfile.TemporaryDirectory() as into:
        torch.multiprocessing.spawn(ddp_rank, (workers, samples, batch, emulated, into), nprocs=workers)
        return float(Path(into, "rate").read_text())


def compare(contenders: dict[str, object], repeat: int) -> dict[str, dict[str, object]]:
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeat):
        for name, measure in contenders.items():
            rates[name].append(measure())  # type: ignore[operator]
    base = statistics.median(rates["ddp"])
    found: dict[str, dict[str, object]] = {}
    for name, all_rates in rates.items():
        rate = statistics.median(all_rates)
        found[name] = {"samples_per_second": rate, "against_ddp": rate / base, "all": all_rates}
        print(f"  {name:<20} {rate:>10,.0f} samples/s {rate / base:>8.2f}x", flush=True)
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=Path("benchmarks/results/local_throughput.json"))
    arguments.add_argument("--repeat", type=int, default=3)
    given = arguments.parse_args()
    count = sum(parameter.numel() for parameter in model().parameters())
    print(f"no straggler, 2 workers, {count:,} parameters, batches of 32")
    equal = compare(
        {
            "ddp": partial(ddp, 2, 16_384, 32, False),
            "bsp": partial(ours, "bsp", 2, 16_384, 32, False),
        },
        given.repeat,
    )
    print(f"4 workers, one of them {FACTOR:g}x slower, iterations of {PADDED * 1e3:g} ms")
    samples, batch = 8 * 4 * 60, 8
    unequal = compare(
        {
            "ddp": partial(ddp, 4, samples, batch, True),
            **{policy: partial(ours, policy, 4, samples, batch, True) for policy in STRAGGLERS},
        },
        given.repeat,
    )
    given.out.parent.mkdir(parents=True, exist_ok=True)
    facts = {"cores": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__}
    result = {**facts, "parameters": count, "no_straggler": equal, "one_of_four_slower": unequal}
    given.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
