"""What each part of the correction of stale gradients is worth, beside gap damping, which it takes the place of.

    python benchmarks/stale_corrections.py [--out FILE.json] [--seeds 2] [--rounds 30] [--variants "secant,half of it"]
ASP in virtual time on Fashion-MNIST: mean accuracy over 20 evaluations at equal numbers of samples, at three rates per
optimizer and group, of which the middle one is about BSP's best. Variants: BSP; ASP as it is; worker moments alone;
with gap damping (a gradient is divided by 1 + max(0, d / r - 1): d is how far the parameters moved since they were
pulled, r a slow mean of |step| / sqrt(share); after Barkai et al. 2020); with the secant, half of it and twice of it;
with the curvature taken for the same in all directions, or for that of the noise of gradients alone; with one curvature
for all layers; for AdamW the square-root rule in place of a measured ratio of noise; and with contributions that look
other numbers of rounds ahead.
Results are added to those that the file holds.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from paceline.experiment.comparison import Comparison, Trial, run_trial
from paceline.experiment.simulation import Simulation
from paceline.training import parameters
from paceline.training.stale import blocks, correction, rules
from paceline.training.stale.correction import Correction
from paceline.training.stale.noise import Noise
from paceline.training.updates import Contribution

ROUND, EVALUATIONS = 512, 20
GROUPS = {
    "4": Simulation(intervals=(1.0, 1.0, 1.0, 4.0), jitter=0.05),
    "8 equal": Simulation(intervals=(1.0,) * 8, jitter=0.05),
    "16": Simulation(intervals=(1.0,) * 12 + (3.0,) * 4, jitter=0.05),
    "32 equal": Simulation(intervals=(1.0,) * 32, jitter=0.05),
}
OPTIMIZERS: dict[str, tuple[str, float | None, tuple[float, ...]]] = {
    "momentum": ("sgd", 0.9, (0.03, 0.06, 0.12)),
    "nesterov": ("sgd", 0.9, (0.03, 0.06, 0.12)),
    "adamw": ("adamw", None, (0.002, 0.004, 0.008)),
}


class GapDamping(Correction):
    """Worker moments, and gradients made smaller by how far the parameters have moved since."""

    typical = 0.0

    def step(self, contributions: Sequence[Contribution], share: float) -> None:
        damped = []
        for contribution in contributions:
            assert contribution.pulled is not None
            gap = float((self._flat - contribution.pulled).norm())
            factor = 1 / (1 + max(0.0, gap / self.typical - 1)) if self.typical else 1.0
            damped.append(contribution._replace(weight=contribution.weight * factor))
        before = self._flat.clone()
        super().step(damped, share)
        size = float((self._flat - before).norm()) / math.sqrt(share)
        self.typical = self.typical + 0.01 * (size - self.typical) if self.typical else size


class SquareRoot(Noise):
    """All of a gradient is taken for noise."""

    def observe(self, gradient: torch.Tensor, share: float) -> None:
        self.ratios = [min(1.0, share)] * len(self.ratios)


@contextmanager
def taken_back(factor: float) -> Iterator[None]:
    constants = {name: factor * getattr(rules, name) for name in ("TAKEN_BACK", "TAKEN_BACK_ADAPTIVE")}
    with patch.multiple(rules, **constants):
        yield


def of_noise(part: float) -> Any:
    """How far the curvature is that of the noise of gradients."""
    return patch.object(correction, "_of_noise", lambda ratio: part)


@contextmanager
def moments_alone() -> Iterator[None]:
    with taken_back(0.0), of_noise(0.0):
        yield


@contextmanager
def gap_damping() -> Iterator[None]:
    with taken_back(0.0), of_noise(0.0), patch.object(parameters, "Correction", GapDamping):
        yield


@contextmanager
def ahead(rounds: float) -> Iterator[None]:
    def changed(read: Callable[[rules.Group], rules.Rule]) -> Callable[[rules.Group], rules.Rule]:
        return lambda group: read(group)._replace(ahead=rounds)

    with patch.dict(rules.RULES, {kind: changed(read) for kind, read in rules.RULES.items()}):
        yield


LOOKS = {f"{rounds:g} rounds ahead": rounds for rounds in (0.5, 0.75, 1.0, 1.5, 2.0)}
# What not all of the optimizers have a use for.
ONLY = {"square-root rule": ("adamw",)}
VARIANTS: dict[str, Callable[[], Any]] = {
    "worker moments": moments_alone,
    "gap damping": gap_damping,
    "secant": lambda: taken_back(1.0),
    "half of it": lambda: taken_back(0.5),
    "twice of it": lambda: taken_back(2.0),
    "one curvature": lambda: patch.object(blocks, "MOST_BLOCKS", 1),
    "all directions": lambda: of_noise(0.0),
    "noise alone": lambda: of_noise(1.0),
    "square-root rule": lambda: patch("paceline.training.stale.correction.Noise", SquareRoot),
    **{name: partial(ahead, rounds) for name, rounds in LOOKS.items()},
}


def measure(variant: str, model: str, optimizer: str, group: str, rate: float, rounds: int, seed: int) -> float:
    kind, momentum, _ = OPTIMIZERS[optimizer]
    simulation = GROUPS[group]
    assert simulation.intervals is not None
    samples = rounds * ROUND
    comparison = Comparison(
        "fashion-mnist",
        simulation,
        1,
        model=model,
        optimizer=kind,
        learning_rate=rate,
        momentum=momentum,
        nesterov=optimizer == "nesterov",
        batch_size=ROUND // len(simulation.intervals),
        stale="none" if variant in ("bsp", "asp as it is") else "auto",
        evaluate_every=samples // EVALUATIONS,
        test_samples=1_000,
        keep_spans=False,
        train_samples=samples,
    )
    with VARIANTS.get(variant, lambda: taken_back(1.0))():
        outcome = run_trial(comparison, Trial("bsp" if variant == "bsp" else "asp", seed))
    found = [point.accuracy for point in outcome.curve[:EVALUATIONS]]
    return (sum(found) + 0.1 * (EVALUATIONS - len(found))) / EVALUATIONS


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=Path("benchmarks/results/stale_corrections.json"))
    arguments.add_argument("--seeds", type=int, default=2)
    arguments.add_argument("--rounds", type=int, default=30)
    arguments.add_argument("--models", default="mlp,cnn")
    arguments.add_argument("--groups", default=",".join(GROUPS))
    arguments.add_argument("--optimizers", default=",".join(OPTIMIZERS))
    arguments.add_argument("--variants", default=",".join(("bsp", "asp as it is", *VARIANTS)))
    given = arguments.parse_args()
    rows: list[dict[str, Any]] = []
    if given.out.exists():
        rows = json.loads(given.out.read_text())["accuracies"]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), context) as pool:
        for model in given.models.split(","):
            for optimizer in given.optimizers.split(","):
                rates = OPTIMIZERS[optimizer][2]
                for group in given.groups.split(","):
                    print(f"{model}, {optimizer}, {group}: rates {', '.join(map(str, rates))}", flush=True)
                    for variant in given.variants.split(","):
                        if optimizer not in ONLY.get(variant, (optimizer,)):
                            continue
                        runs = [
                            [
                                pool.submit(measure, variant, model, optimizer, group, rate, given.rounds, seed)
                                for seed in range(given.seeds)
                            ]
                            for rate in rates
                        ]
                        cells = [sum(run.result() for run in same) / given.seeds for same in runs]
                        found = dict(zip(map(str, rates), cells, strict=True))
                        key = {"model": model, "optimizer": optimizer, "group": group, "variant": variant}
                        rows = [row for row in rows if not key.items() <= row.items()] + [{**key, **found}]
                        print(f"  {variant:<20} {' '.join(f'{cell:.3f}' for cell in cells)}", flush=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(
        json.dumps({"seeds": given.seeds, "rounds": given.rounds, "accuracies": rows}, indent=2) + "\n"
    )


if __name__ == "__main__":
    main()
