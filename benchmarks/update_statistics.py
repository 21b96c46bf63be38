"""What the statistics of an update cost (DBW decides by them) on top of the update itself.

    python benchmarks/update_statistics.py [--out FILE.json] [--quick]
ParameterStore.apply with and without `statistics`, on one thread, by SGD with momentum: the mean of k gradients, whose
norms are known as in a real run, and one optimizer step. Both are measured in turn on the same memory. The machine may
be shared, so the fastest of many counts; the medians stand beside it. Wanted: under 25 % on top.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from pathlib import Path

import torch
from torch import nn

from paceline.training.layout import layout_of, squared_norm
from paceline.training.optimizers import spec_of
from paceline.training.parameters import ParameterStore
from paceline.training.updates import Contribution

SIZES = (100_000, 1_000_000, 10_000_000)
GRADIENTS = (2, 4, 16)
TENSORS = 4
SECONDS = 20.0  # that a row should take, about
QUICK_SECONDS = 0.5
WANTED = 0.25


class Update:
    """One store and k gradients, which are updated with again and again."""

    def __init__(self, size: int, k: int) -> None:
        model = nn.ParameterList([nn.Parameter(torch.zeros(size // TENSORS)) for _ in range(TENSORS)])
        layout = layout_of(model)
        spec = spec_of(layout, {}, torch.optim.SGD, None, {"lr": 1e-6, "momentum": 0.9})
        self.store = ParameterStore(layout, torch.zeros(size), spec)
        generator = torch.Generator().manual_seed(0)
        gradients = [torch.randn(size, generator=generator) for _ in range(k)]
        self.first = gradients[0].clone()  # the mean is formed where the first one lies
        self.contributions = [
            Contribution(gradient, 32, loss=1.0, squared_norm=squared_norm(gradient)) for gradient in gradients
        ]

    def seconds(self, *, with_statistics: bool) -> float:
        self.contributions[0].gradient.copy_(self.first)
        began = time.perf_counter()
        self.store.apply(self.contributions, 32 * len(self.contributions), statistics=with_statistics)
        return time.perf_counter() - began


def measure(size: int, k: int, seconds: float) -> dict[str, float]:
    update = Update(size, k)
    times: dict[bool, list[float]] = {False: [], True: []}
    for with_statistics in (False, True) * 3:
        update.seconds(with_statistics=with_statistics)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[True]) < 10:
        for with_statistics in (False, True, True, False):
            times[with_statistics].append(update.seconds(with_statistics=with_statistics))
    plain, full = min(times[False]), min(times[True])
    median_plain, median_full = (statistics.median(times[wanted]) for wanted in (False, True))
    return {
        "parameters": size,
        "gradients": k,
        "pairs": len(times[True]),
        "seconds": plain,
        "seconds_with_statistics": full,
        "extra": full / plain - 1,
        "median_seconds": median_plain,
        "median_seconds_with_statistics": median_full,
        "median_extra": median_full / median_plain - 1,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=Path("benchmarks/results/update_statistics.json"))
    arguments.add_argument("--quick", action="store_true", help="a short look, less exact")
    given = arguments.parse_args()
    torch.set_num_threads(1)
    rows = []
    print(" ".join(f"{heading:>11}" for heading in ("parameters", "gradients", "us", "us with", "extra", "of medians")))
    for size in SIZES:
        for k in GRADIENTS:
            row = measure(size, k, QUICK_SECONDS if given.quick else SECONDS)
            rows.append(row)
            print(
                f"{size:>11,} {k:>11} {row['seconds'] * 1e6:>11,.0f} {row['seconds_with_statistics'] * 1e6:>11,.0f}"
                f" {row['extra']:>11.1%} {row['median_extra']:>11.1%}",
                flush=True,
            )
    most = max(row["extra"] for row in rows)
    print(f"most: {most:.1%} on top; wanted: under {WANTED:.0%}")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    facts = {"cores": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__, "threads": 1}
    given.out.write_text(json.dumps({**facts, "wanted": WANTED, "most": most, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
