"""Time and memory of every barrier search, side by side in one run: JSON, a table, and a plot like the journal paper's.

    python benchmarks/barrier_search.py [--out DIRECTORY] [--quick]
Compare ratios within one run: the machine may be shared.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np

from paceline.experiment.reproduction.search_times import PUBLISHED, SIZES, authors_data, seconds_of
from paceline.zipline import search
from paceline.zipline.operations import Operations
from paceline.zipline.rows import as_rows
from paceline.zipline.scans import zipline, zipline_opt, zipline_opt_bs

WORKERS = (10, 30, 100, 300, 1_000, 3_000, 10_000)
LOOKAHEADS = (15, 150)
ALGORITHMS = ("full-grid-scan", "grid-scan", "zipline", "zipline-opt", "zipline-opt-bs", "sweep")
MOST_SECONDS = 20.0  # an algorithm that would take longer for the next size is left out from there on


def extra_megabytes(workers: int, lookahead: int) -> float:
    """Peak memory of one sweep beyond its input."""
    points = authors_data(workers, lookahead)
    search(points)
    tracemalloc.start()
    search(points)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


def measure(sizes: tuple[int, ...]) -> dict[str, dict[str, float]]:
    cells: dict[str, dict[str, float]] = {}
    for lookahead in LOOKAHEADS:
        print(f"\nR = {lookahead}, milliseconds\n{'n':>8}" + "".join(f"{name:>16}" for name in ALGORITHMS))
        last: dict[str, tuple[int, float]] = {}
        for workers in sizes:
            points = authors_data(workers, lookahead)
            line = f"{workers:>8,}"
            for name in ALGORITHMS:
                before, took = last.get(name, (workers, 0.0))
                if took * (workers / before) ** 2 > MOST_SECONDS and name != "sweep":
                    line += f"{'-':>16}"
                    continue
                seconds = seconds_of(points, name)
                last[name] = (workers, seconds)
                cells.setdefault(name, {})[f"n={workers},R={lookahead}"] = seconds
                line += f"{seconds * 1e3:>16,.3f}"
            print(line, flush=True)
    return cells


def skewed(workers: int, lookahead: int) -> dict[str, float]:
    """Seconds of `sweep` on data that its buckets do not suit."""
    random = np.random.default_rng(0)
    shape = (workers, lookahead)
    straggler = authors_data(workers, lookahead).astype(float)
    straggler[0] *= 10_000
    lockstep = 1000.0 * np.arange(1, lookahead + 1) + random.random(shape)
    clusters = np.sort(random.choice([0, 1e3, 2e4, 3e5, 1e6], shape) + random.random(shape), axis=1)
    data = {
        "one worker 10,000x slower": straggler,
        "rounds in lockstep, jitter of a thousandth": lockstep,
        "identical rows": np.tile(np.arange(lookahead) * 1.5, (workers, 1)),
        "five clusters": clusters,
        "exp(60 U)": np.sort(np.exp(60 * random.random(shape)), axis=1),
    }
    print(f"\nsweep on skewed data, n = {workers:,}, R = {lookahead}, milliseconds")
    found = {name: seconds_of(points, "sweep") for name, points in data.items()}
    for name, seconds in found.items():
        print(f"{name:<46}{seconds * 1e3:>10,.1f}")
    return found


def operations() -> dict[str, dict[str, float]]:
    """How many elements the published searches look at, sorting apart: no clock is involved."""
    counted: dict[str, dict[str, float]] = {}
    print("\nelements looked at, R = 15, as multiples of R n^2 and of R n log2 n")
    for workers in (100, 200, 500, 1_000, 2_000):
        rows = as_rows(authors_data(workers, 15))
        line = f"{workers:>8,}"
        for function in (zipline, zipline_opt, zipline_opt_bs):
            seen = Operations()
            function(rows, seen)
            square, logarithm = seen.count / (15 * workers**2), seen.count / (15 * workers * math.log2(workers))
            counted.setdefault(function.__name__, {})[f"n={workers}"] = seen.count
            line += f"   {function.__name__} {square:.3f} {logarithm:.2f}"
        print(line)
    return counted


def plot(cells: dict[str, dict[str, float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(LOOKAHEADS), figsize=(11, 4.5), sharey=True)
    for axis, lookahead in zip(axes, LOOKAHEADS, strict=True):
        for name in ALGORITHMS:
            found = {n: cells[name].get(f"n={n},R={lookahead}") for n in WORKERS}
            known = [(n, seconds * 1e3) for n, seconds in found.items() if seconds is not None]
            axis.plot(*zip(*known, strict=True), marker="o", linewidth=2.5 if name == "sweep" else 1.2, label=name)
        axis.set(xscale="log", yscale="log", xlabel="workers n", title=f"R = {lookahead}")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("milliseconds per search")
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments.add_argument("--quick", action="store_true", help="up to 1,000 workers")
    given = arguments.parse_args()
    sizes = tuple(n for n in WORKERS if n <= 1_000) if given.quick else WORKERS
    cells = measure(sizes)
    largest = sizes[-1]
    ours = cells["sweep"]
    facts = {
        "sweep against zipline, n=1000 R=150": cells["zipline"]["n=1000,R=150"] / ours["n=1000,R=150"],
        "sweep against zipline-opt-bs, n=1000 R=150": cells["zipline-opt-bs"]["n=1000,R=150"] / ours["n=1000,R=150"],
        f"sweep, extra megabytes, n={largest} R=150": extra_megabytes(largest, 150),
    }
    if not given.quick:
        facts["sweep, growth n=1000 to n=10000, R=150"] = ours["n=10000,R=150"] / ours["n=1000,R=150"]
    for name, value in facts.items():
        print(f"{name}: {value:,.1f}")
    counted = operations()
    hard = skewed(largest, 150)
    processor = subprocess.run(["lscpu"], capture_output=True, text=True, check=False).stdout
    models = [line.split(":")[1].strip() for line in processor.splitlines() if "Model name" in line]
    published = {
        name: {
            f"n={n},R={r}": microseconds / 1e6 for (n, r), microseconds in zip(SIZES, row, strict=True) if microseconds
        }
        for name, row in PUBLISHED.items()
    }
    result = {
        "machine": f"{(*models, platform.machine())[0]}, Python {platform.python_version()}, numpy {np.__version__}",
        "unit": "seconds per search, best of several",
        "seconds": cells,
        "published seconds (C++, 2.4 GHz Xeon E5-2620 v3)": published,
        "facts": facts,
        "elements looked at, R=15": counted,
        f"seconds of sweep on skewed data, n={largest} R=150": hard,
    }
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "barrier_search.json").write_text(json.dumps(result, indent=2) + "\n")
    plot(cells, given.out / "barrier_search.svg")


if __name__ == "__main__":
    sys.exit(main())
