"""What ElasticBSP's choices are worth: iterations per second against BSP for every objective, monitoring and estimator.

    python benchmarks/elastic_objectives.py [--out FILE.json]
Virtual time: the same command gives the same figures on every machine.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from paceline.experiment import Simulation, simulate
from paceline.policies.intervals import ESTIMATORS
from paceline.zipline import OBJECTIVES

DURATION = 2000.0
GROUPS = {
    "2 workers, 1 : 1.913": Simulation(intervals=(1.0, 1.913), jitter=0.02, duration=DURATION),
    "4 workers, one 3x slower": Simulation(intervals=(1.0, 1.0, 1.0, 3.0), jitter=0.02, duration=DURATION),
    "16 workers, 1.0 .. 1.5": Simulation(
        intervals=tuple(1 + 0.5 * n / 15 for n in range(16)), jitter=0.02, duration=DURATION
    ),
    "16 workers, 1.0 .. 4.0": Simulation(
        intervals=tuple(1 + 3 * n / 15 for n in range(16)), jitter=0.02, duration=DURATION
    ),
    "32 equal workers, noise 0.2": Simulation(workers=32, speed="lognormal:sigma=0.2", duration=DURATION),
}


def gains(variants: dict[str, str]) -> dict[str, dict[str, float]]:
    """Print and return a table of iterations per second against BSP, a row per group."""
    table: dict[str, dict[str, float]] = {}
    print(f"\n{'':<30}" + "".join(f"{name:>16}" for name in variants))
    for group, simulation in GROUPS.items():
        bsp = simulate("bsp", simulation).iterations_per_second
        table[group] = {
            name: simulate(policy, simulation).iterations_per_second / bsp for name, policy in variants.items()
        }
        print(f"{group:<30}" + "".join(f"{gain:>16.3f}" for gain in table[group].values()), flush=True)
    return table


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=Path("benchmarks/results/elastic_objectives.json"))
    given = arguments.parse_args()
    objectives = {
        f"{monitoring} {objective}": f"elastic-bsp:monitoring={monitoring},objective={objective}"
        for monitoring in ("every", "first")
        for objective in OBJECTIVES
    }
    estimators = {name: f"elastic-bsp:interval={name}" for name in ESTIMATORS}
    result = {"objectives": gains(objectives), "estimators": gains(estimators)}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps({"unit": "iterations per second against BSP", **result}, indent=2) + "\n")


if __name__ == "__main__":
    main()
