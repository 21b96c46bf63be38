"""What the age of gradients costs, over learning rates up to the edge: why `auto` has no price for it.

    python benchmarks/age_of_gradients.py [--seeds 8] [--out FILE.json]
16 workers, from 1 to 2 times as slow, stale gradients corrected, until the mean of 3 evaluations is at 95 %, on
handwritten digits. For every optimizer, rate and policy: samples and seconds that it takes, and its strain: the rate
times the curvature, over a round, as the correction measures it. Virtual time: the same command gives the same figures
on every machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from paceline.experiment.comparison import Comparison, Outcome, Trial, run_trial, time_to
from paceline.experiment.simulation import Simulation
from paceline.training.stale.correction import Correction

ROUND, TARGET, EVALUATIONS, LIMIT = 128, 0.95, 3, 1_500.0
GROUP = Simulation(intervals=tuple(1 + worker / 15 for worker in range(16)), jitter=0.1, duration=LIMIT)
POLICIES = ("bsp", "ssp", "elastic-bsp", "asp", "buffered:size=2", "buffered:size=5")
SETTINGS: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
    "mlp, momentum": ({"momentum": 0.9}, (0.05, 0.2, 0.4, 0.8)),
    "mlp, Nesterov": ({"momentum": 0.9, "nesterov": True}, (0.1, 0.3, 0.6)),
    "mlp, SGD": ({"momentum": 0.0}, (0.8, 1.6, 3.2)),
    "mlp, AdamW": ({"optimizer": "adamw"}, (0.003, 0.01, 0.03)),
    "cnn, momentum": ({"momentum": 0.9, "model": "cnn"}, (0.05, 0.1, 0.2, 0.4)),
}


class Strain:
    """Rate times curvature in the first half of a run: a mean over layers, and over updates by their shares."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []
        step = Correction.step

        def noting(correction: Correction, contributions: Sequence[Any], share: float) -> None:
            step(correction, contributions, share)
            rates = [rule.rate for rule in correction.rules()]
            found = zip(correction._blocks, correction._secant.curvatures, strict=True)
            self.seen.append((share, statistics.fmean(rates[block[0].group] * own for block, own in found)))

        Correction.step = noting  # type: ignore[method-assign]

    def take(self) -> float:
        half, self.seen = self.seen[: (len(self.seen) + 1) // 2], []
        rounds = sum(share for share, _ in half)
        return sum(share * value for share, value in half) / rounds if rounds else 0.0


def comparison(options: dict[str, Any], rate: float) -> Comparison:
    return Comparison(
        "digits",
        GROUP,
        15,
        learning_rate=rate,
        batch_size=ROUND // 16,
        evaluate_every=ROUND,
        stop_at=TARGET,
        stop_mean_of=EVALUATIONS,
        keep_spans=False,
        weight_decay=0.0,
        schedule=False,
        **{"model": "mlp", **options},
    )


def figures(outcomes: Sequence[Outcome], strains: Sequence[float]) -> dict[str, Any]:
    times = [time_to(TARGET, outcome.curve, EVALUATIONS) for outcome in outcomes]
    there = [(time, outcome) for time, outcome in zip(times, outcomes, strict=True) if time is not None]
    found: dict[str, Any] = {"reached": len(there), "strain": round(statistics.fmean(strains), 3)}
    if len(there) == len(outcomes):
        samples = [next(point.samples for point in outcome.curve if point.seconds == time) for time, outcome in there]
        found |= {
            "samples": round(statistics.fmean(samples)),
            "error": round(statistics.stdev(samples) / len(samples) ** 0.5) if len(samples) > 1 else None,
            "seconds": round(statistics.fmean(time for time, _ in there), 2),
        }
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seeds", type=int, default=8)
    arguments.add_argument("--out", type=Path, default=Path("benchmarks/results/age_of_gradients.json"))
    given = arguments.parse_args()
    torch.set_num_threads(1)
    strain, result = Strain(), []
    print(f"{'':<16}{'rate':>6}  {'policy':<18}{'samples':>16}{'seconds':>9}{'strain':>8}")
    for name, (options, rates) in SETTINGS.items():
        for rate in rates:
            for policy in POLICIES:
                outcomes, strains = [], []
                for seed in range(20, 20 + given.seeds):
                    outcomes.append(run_trial(comparison(options, rate), Trial(policy, seed)))
                    strains.append(strain.take())
                found = figures(outcomes, strains)
                result.append({"setting": name, "rate": rate, "policy": policy, **found})
                samples = f"{found['samples']} +- {found['error']}" if "samples" in found else "never"
                seconds = found.get("seconds", "")
                print(f"{name:<16}{rate:>6}  {policy:<18}{samples:>16}{seconds:>9}{found['strain']:>8}", flush=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps({"seeds": given.seeds, "results": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
