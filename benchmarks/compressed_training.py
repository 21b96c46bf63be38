"""What compressed gradients keep: accuracy at equal samples, beside gradients that cross as they are.

    python benchmarks/compressed_training.py [--out FILE.json] [--seeds 3] [--rounds 60] [--codecs "none,int8"]
Training in virtual time on Fashion-MNIST: every gradient is encoded by its worker's own encoder and decoded before it
is handed in. Mean accuracy over 20 evaluations at equal numbers of samples, at BSP's best rate per optimizer, and the
mean of the last four. Beside the codecs: topk without error feedback, and int8 that rounds to the nearest instead of at
random, with error feedback and without. `--loud 1000`: one number in 1,024 crosses that much larger than it is, so that
its neighbours in a block of int8 are small beside it.
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
EPOCH = 117  # rounds that the data is enough for: longer runs see it again
GROUPS = {
    "4": Simulation(intervals=(1.0, 1.0, 1.0, 4.0), jitter=0.05),
    "16 equal": Simulation(intervals=(1.0,) * 16, jitter=0.05),
}
OPTIMIZERS: dict[str, tuple[str, float | None, float]] = {
    "momentum": ("sgd", 0.9, 0.06),
    "adamw": ("adamw", None, 0.004),
    "sgd": ("sgd", 0.0, 0.1),
}
POLICIES = ("bsp", "asp")
LOUD_ONES = slice(500, None, 1024)
FORGETTING, NEAREST = " without feedback", "int8 to the nearest"
CODECS = (
    "none",
    "bf16",
    "int8",
    "int8:block=4096",
    NEAREST,
    f"{NEAREST}{FORGETTING}",
    "topk:share=0.1",
    "topk:share=0.01",
    f"topk:share=0.01{FORGETTING}",
    "topk:share=0.001",
)


class Wire:
    """What a gradient is like when it has crossed."""

    def __init__(self, codec: str, loud: float) -> None:
        self._feedback = not codec.endswith(FORGETTING)
        self._codec = codec.removesuffix(FORGETTING)
        self._loud = loud
        self._encoders: dict[int, Encoder] = {}  # by worker
        self._unsent: dict[int, Tensor] = {}
        self.parameters = self.bytes = self.gradients = 0

    def cross(self, worker: int, gradient: Tensor) -> None:
        self.parameters = len(gradient)
        gradient[LOUD_ONES] *= self._loud
        if self._codec == NEAREST:
            self._round_to_nearest(worker, gradient)
        else:
            self._send(worker, gradient)
        gradient[LOUD_ONES] /= self._loud
        self.gradients += 1

    def _send(self, worker: int, gradient: Tensor) -> None:
        size, dtype = len(gradient), gradient.dtype
        compression = build(self._codec, COMPRESSIONS, "compression")
        if worker not in self._encoders:
            self._encoders[worker] = compression.encoder(size, dtype, str(worker))
        encoder = self._encoders[worker]
        if not self._feedback:
            encoder.resume(None)
        payload = b"".join(encoder.encode(gradient, self.gradients))
        self.bytes += len(payload)
        received = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        compression.decoder(size, dtype).decode(received, gradient)

    def _round_to_nearest(self, worker: int, gradient: Tensor, block: int = 1024) -> None:
        if worker in self._unsent:
            gradient += self._unsent[worker]
        wanted = gradient.clone()
        for part in gradient.split(block):
            scale = part.abs().max() / 127
            if scale > 0:
                part.div_(scale).round_().mul_(scale)
        if self._feedback:
            self._unsent[worker] = wanted - gradient


def measure(
    codec: str, policy: str, optimizer: str, group: str, rounds: int, loud: float, seed: int
) -> tuple[float, float, float]:
    """Mean accuracy, accuracy at the end, bytes per parameter."""
    kind, momentum, rate = OPTIMIZERS[optimizer]
    simulation, epochs = GROUPS[group], -(-rounds // EPOCH)
    assert simulation.intervals is not None
    comparison = Comparison(
        "fashion-mnist",
        simulation,
        epochs,
        model="mlp",
        optimizer=kind,
        learning_rate=rate,
        momentum=momentum,
        batch_size=ROUND // len(simulation.intervals),
        evaluate_every=rounds * ROUND // EVALUATIONS,
        test_samples=1_000,
        keep_spans=False,
        train_samples=rounds // epochs * ROUND,
    )
    wire = Wire(codec, loud)

    class Crossing(Gradients):
        def compute(
            self,
            parameters: Sequence[Tensor],
            buffers: dict[str, Tensor],
            units: Sequence[Unit],
            into: Tensor,
            worker: int,
        ) -> float:
            loss = super().compute(parameters, buffers, units, into, worker)
            wire.cross(worker, into)
            return loss

    with patch.object(learner, "Gradients", Crossing):
        outcome = run_trial(comparison, Trial(policy, seed))
    found = [point.accuracy for point in outcome.curve[:EVALUATIONS]]
    found += [0.1] * (EVALUATIONS - len(found))  # it diverged: what guessing comes to
    return mean(found), mean(found[-LAST:]), wire.bytes / wire.gradients / wire.parameters


def row_of(key: dict[str, Any], runs: Sequence[tuple[float, float, float]]) -> dict[str, Any]:
    means, lasts, sizes = zip(*runs, strict=True)
    return {
        **key,
        "seeds": len(runs),
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
    arguments.add_argument("--loud", type=float, default=1.0)
    arguments.add_argument("--policies", default=",".join(POLICIES))
    arguments.add_argument("--groups", default=",".join(GROUPS))
    arguments.add_argument("--optimizers", default="momentum,adamw")
    arguments.add_argument("--codecs", default=",".join(CODECS))
    arguments.add_argument("--processes", type=int, default=1)
    given = arguments.parse_args()
    rows: list[dict[str, Any]] = []
    if given.out.exists():
        rows = json.loads(given.out.read_text())["rows"]
    shared = {"rounds": given.rounds, "loud": given.loud}
    keys = [
        shared | {"optimizer": optimizer, "policy": policy, "group": group, "codec": codec}
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
            named = f"{key['optimizer']:<9} {key['policy']:<4} {key['group']:<9} {key['codec']:<36}"
            print(f"{named} {row['accuracy']:.3f} {row['spread']:.3f} {row['last']:.3f}", flush=True)
            given.out.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
