"""What compressed gradients keep: accuracy at equal samples, beside gradients that cross as they are.

    python benchmarks/compressed_training.py [--out FILE.json] [--seeds 3] [--rounds 60] [--codecs "none,int8"]
Training in virtual time on Fashion-MNIST: every gradient is encoded by its worker's own encoder and decoded before it
is handed in. Mean accuracy over 20 evaluations at equal numbers of samples, at BSP's best rate per optimizer, and the
mean of the last four. Beside the codecs: int8 and topk without error feedback, and int8 that rounds at random, so that
a number is right in the mean, instead of to the nearest.
Results are added to those that the file holds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from statistics import mean, stdev
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from paceline.core.messages import Unit
from paceline.core.spec import build
from paceline.experiment.comparison import Comparison, Trial, run_trial
from paceline.experiment.simulation import Simulation
from paceline.training import learner
from paceline.training.compression import COMPRESSIONS, Encoder
from paceline.training.gradients import Gradients

ROUND, EVALUATIONS, LAST = 512, 20, 4
GROUPS = {
    "4": Simulation(intervals=(1.0, 1.0, 1.0, 4.0), jitter=0.05),
    "16 equal": Simulation(intervals=(1.0,) * 16, jitter=0.05),
}
OPTIMIZERS: dict[str, tuple[str, float | None, float]] = {
    "momentum": ("sgd", 0.9, 0.06),
    "adamw": ("adamw", None, 0.004),
}
POLICIES = ("bsp", "asp")
FORGETTING, UNBIASED = " without feedback", "int8 unbiased"
CODECS = (
    "none",
    "bf16",
    "int8",
    "int8:block=4096",
    f"int8{FORGETTING}",
    UNBIASED,
    "topk:share=0.1",
    "topk:share=0.01",
    f"topk:share=0.01{FORGETTING}",
    "topk:share=0.001",
)


def rounded_at_random(gradient: Tensor, generator: torch.Generator, block: int = 1024) -> None:
    """What int8 would come to if a number were rounded up as often as it is nearer to the next one."""
    for part in gradient.split(block):
        scale = part.abs().max() / 127
        if scale > 0:
            part.div_(scale).add_(torch.rand(part.shape, generator=generator)).floor_().mul_(scale)


class Wire:
    """What a gradient is like when it has crossed."""

    def __init__(self, codec: str) -> None:
        self._codec = codec
        self._feedback = not codec.endswith(FORGETTING)
        self._compression = build(codec.removesuffix(FORGETTING), COMPRESSIONS, "compression")
        self._encoders: dict[int, Encoder] = {}  # by worker
        self.bytes = self.gradients = 0

    def cross(self, worker: int, gradient: Tensor) -> None:
        size, dtype = len(gradient), gradient.dtype
        if worker not in self._encoders:
            self._encoders[worker] = self._compression.encoder(size, dtype)
        encoder = self._encoders[worker]
        if not self._feedback:
            encoder.resume(None)
        payload = b"".join(encoder.encode(gradient))
        self.bytes += len(payload)
        self.gradients += 1
        received = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        self._compression.decoder(size, dtype).decode(received, gradient)


class UnbiasedWire(Wire):
    def __init__(self, seed: int) -> None:
        super().__init__("int8")
        self._generator = torch.Generator().manual_seed(seed)

    def cross(self, worker: int, gradient: Tensor) -> None:
        rounded_at_random(gradient, self._generator)


def measure(codec: str, policy: str, optimizer: str, group: str, rounds: int, seed: int) -> tuple[float, float, float]:
    """Mean accuracy, accuracy at the end, bytes per parameter."""
    kind, momentum, rate = OPTIMIZERS[optimizer]
    simulation, samples = GROUPS[group], rounds * ROUND
    assert simulation.intervals is not None
    comparison = Comparison(
        "fashion-mnist",
        simulation,
        1,
        model="mlp",
        optimizer=kind,
        learning_rate=rate,
        momentum=momentum,
        batch_size=ROUND // len(simulation.intervals),
        evaluate_every=samples // EVALUATIONS,
        test_samples=1_000,
        keep_spans=False,
        train_samples=samples,
    )
    wire = UnbiasedWire(seed) if codec == UNBIASED else Wire(codec)
    parameters = 0

    class Crossing(Gradients):
        def compute(
            self,
            parameters_held: Sequence[Tensor],
            buffers: dict[str, Tensor],
            units: Sequence[Unit],
            into: Tensor,
            worker: int,
        ) -> float:
            nonlocal parameters
            parameters = len(into)
            loss = super().compute(parameters_held, buffers, units, into, worker)
            wire.cross(worker, into)
            return loss

    with patch.object(learner, "Gradients", Crossing):
        outcome = run_trial(comparison, Trial(policy, seed))
    found = [point.accuracy for point in outcome.curve[:EVALUATIONS]]
    found += [0.1] * (EVALUATIONS - len(found))  # it diverged: what guessing comes to
    return mean(found), mean(found[-LAST:]), wire.bytes / max(1, wire.gradients) / parameters


def row_of(key: dict[str, Any], runs: Sequence[tuple[float, float, float]]) -> dict[str, Any]:
    means, lasts, sizes = zip(*runs, strict=True)
    return {
        **key,
        "accuracy": mean(means),
        "spread": stdev(means) if len(means) > 1 else 0.0,
        "last": mean(lasts),
        "bytes_per_parameter": mean(sizes),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=Path("benchmarks/results/compressed_training.json"))
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--rounds", type=int, default=60)
    arguments.add_argument("--policies", default=",".join(POLICIES))
    arguments.add_argument("--groups", default=",".join(GROUPS))
    arguments.add_argument("--optimizers", default=",".join(OPTIMIZERS))
    arguments.add_argument("--codecs", default=",".join(CODECS))
    arguments.add_argument("--processes", type=int, default=1)
    given = arguments.parse_args()
    rows: list[dict[str, Any]] = []
    if given.out.exists():
        rows = json.loads(given.out.read_text())["rows"]
    keys = [
        {"rounds": given.rounds, "optimizer": optimizer, "policy": policy, "group": group, "codec": codec}
        for optimizer in given.optimizers.split(",")
        for policy in given.policies.split(",")
        for group in given.groups.split(",")
        for codec in given.codecs.split(",")
    ]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(given.processes, multiprocessing.get_context("spawn")) as pool:
        runs: list[list[Future[tuple[float, float, float]]]] = [
            [pool.submit(measure, seed=seed, **key) for seed in range(given.seeds)] for key in keys
        ]
        for key, same in zip(keys, runs, strict=True):
            row = row_of(key, [run.result() for run in same])
            rows = [old for old in rows if not key.items() <= old.items()] + [row]
            named = f"{key['optimizer']:<9} {key['policy']:<4} {key['group']:<9} {key['codec']:<33}"
            print(f"{named} {row['accuracy']:.3f} {row['spread']:.3f} {row['last']:.3f}", flush=True)
            given.out.write_text(json.dumps({"seeds": given.seeds, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
