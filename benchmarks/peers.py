"""Push and pull of paceline and its peers, side by side in one run; and training with a slow worker.

    python benchmarks/peers.py [--mxnet-python PATH | --make-mxnet-venv DIR] [--repeat 3] [--quick] [--peers ray,mxnet]
    python benchmarks/peers.py --throughput [--repeat 3] [--quick]
An iteration of a worker: hand in a gradient of so many float32, get the updated parameters back into the model. Two
workers at a time, which compute nothing. A figure is a worker's elapsed time over its iterations, the mean of both.
Peers take turns, each in processes of its own; the table has the median over the turns, the least in parentheses, and
how many times as long as paceline's local runtime under ASP the median is.
docs/peers.md says what each peer is and is not.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from peer.measuring import Row, Settings
from peer.mxnet_kvstore import PACKAGES, make_environment, try_environment
from peer.processes import adopt_orphans, run_peer

SIZES = (1_000, 1_000_000, 10_000_000)
SAMPLES = 8 * 4 * 60
LIMIT = 600.0  # seconds for one peer's turn
BASE = "paceline local, asp"
SLOW_BASE = "DDP"

PUSH_AND_PULL = {  # name: module and function
    "limits": ("limits", "measure"),
    "loopback": ("loopback", "measure"),
    "local": ("paceline_local", "measure"),
    "paceline-on-ray": ("paceline_on_ray", "on_one_node"),
    "paceline-on-three": ("paceline_on_ray", "on_three_nodes"),
    "ray": ("ray_pattern", "on_one_node"),
    "ray-on-three": ("ray_pattern", "on_three_nodes"),
    "mxnet": ("mxnet_kvstore", "measure"),
    "collectives": ("collectives", "measure"),
}
THROUGHPUT = {
    "local": ("throughput", "on_paceline"),
    "paceline-on-ray": ("paceline_on_ray", "with_a_slow_worker"),
    "ddp": ("throughput", "on_ddp"),
    "ray": ("ray_training", "measure"),
}

RAY = ("Ray's pattern, one node, worker calls", "Ray's pattern, one node, as documented")
RAY_ON_THREE = ("Ray's pattern, three nodes, worker calls", "Ray's pattern, three nodes, as documented")
MXNET = ("MXNet dist_async", "MXNet dist_async, unix sockets")
MEMORY = ("bare add_ + copy_, one process",)
# Ours, with any number of shards; theirs, of which the fastest counts; the least of theirs / ours at each size.
GOALS: tuple[tuple[str, tuple[str, ...], tuple[float | None, ...]], ...] = (
    ("paceline local, asp", RAY, (8, 8, 3)),
    ("paceline local, asp", MXNET, (5, 8, 8)),
    ("paceline local, asp", MEMORY, (None, None, 0.8)),
    ("paceline on Ray, one node, shared memory", RAY, (8, 8, 3)),
    ("paceline on Ray, one node, shared memory", MXNET, (5, 8, 8)),
    ("paceline on Ray, one node, shared memory", MEMORY, (None, None, 0.8)),
    ("paceline on Ray, one node, TCP", MXNET[:1], (5, 2.5, 2.5)),
    ("paceline on Ray, one node, TCP", ("raw loopback echo",), (0.6, 0.6, 0.6)),
    ("paceline on Ray, three nodes, TCP", RAY_ON_THREE, (5, 5, 3)),
)

Figures = dict[str, dict[int, list[float]]]


def take_turns(peers: dict[str, tuple[str, str]], settings: Settings, repeat: int) -> tuple[Figures, dict[str, str]]:
    """The figures of every peer by size, one of each turn; and of those that failed, the first error."""
    figures: Figures = {}
    errors: dict[str, str] = {}
    for turn in range(repeat):
        for name, (module, function) in peers.items():
            print(f"turn {turn + 1} of {repeat}: {name}", file=sys.stderr, flush=True)
            for row in run_peer(name, module, function, settings, LIMIT):
                if row.figure is not None:
                    figures.setdefault(row.peer, {}).setdefault(row.parameters, []).append(row.figure)
                else:
                    errors.setdefault(*_failure(row))
    return figures, errors


def _failure(row: Row) -> tuple[str, str]:
    at = f", {row.parameters:,} parameters" if row.parameters else ""
    return row.peer + at, row.error or "no error was told"


def summary(figures: Figures) -> list[dict[str, Any]]:
    return [
        {"peer": peer, "parameters": size, "median": statistics.median(found), "least": min(found), "all": found}
        for peer, by_size in figures.items()
        for size, found in by_size.items()
    ]


def print_times(figures: Figures, sizes: tuple[int, ...]) -> None:
    print(f"\nms per iteration of a worker: median (least), and the median over that of {BASE}")
    width = max(map(len, figures), default=0)
    print(" " * width + "".join(f"{size:>26,}" for size in sizes))
    base = figures.get(BASE, {})
    for peer, by_size in figures.items():
        cells = []
        for size in sizes:
            found = by_size.get(size)
            if found is None:
                cells.append("-")
                continue
            median = statistics.median(found)
            ratio = f"{median / statistics.median(base[size]):7.2f}x" if size in base else ""
            cells.append(f"{_milliseconds(median)} ({_milliseconds(min(found))}){ratio}")
        print(f"{peer:<{width}}" + "".join(f"{cell:>26}" for cell in cells))


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 1 else f"{seconds * 1e3:.0f}"


def compared(figures: Figures) -> list[dict[str, Any]]:
    """How paceline stands against what it set out to reach: theirs over ours, by the medians."""
    medians = {
        (peer, size): statistics.median(found) for peer, sizes in figures.items() for size, found in sizes.items()
    }
    rows: list[dict[str, Any]] = []
    for prefix, peers, goals in GOALS:
        for ours in (peer for peer in figures if peer == prefix or peer.startswith(f"{prefix}, ")):
            for size, goal in zip(SIZES, goals, strict=True):
                theirs = {peer: medians[peer, size] for peer in peers if (peer, size) in medians}
                if goal is not None and theirs and (ours, size) in medians:
                    fastest = min(theirs, key=theirs.__getitem__)
                    ratio = theirs[fastest] / medians[ours, size]
                    rows.append({"ours": ours, "theirs": fastest, "parameters": size, "ratio": ratio, "goal": goal})
    return rows


def print_compared(rows: list[dict[str, Any]]) -> None:
    print("\nhow many times as long the peer takes, and the goal")
    for row in rows:
        verdict = "reached" if row["ratio"] >= row["goal"] else "missed"
        names = f"{row['ours']:<52} {row['theirs']:<42} {row['parameters']:>11,}"
        print(f"{names} {row['ratio']:>7.2f} {row['goal']:>5g}  {verdict}")


def print_rates(figures: Figures) -> None:
    print(f"\nsamples per second, one of four workers four times slower: median (most), and over {SLOW_BASE}")
    rates = {peer: next(iter(by_size.values())) for peer, by_size in figures.items()}
    base = statistics.median(rates[SLOW_BASE]) if SLOW_BASE in rates else None
    for peer, found in rates.items():
        ratio = f"{statistics.median(found) / base:>8.2f}x" if base else ""
        print(f"{peer:<32} {statistics.median(found):>8.0f} ({max(found):.0f}){ratio}")


def facts() -> dict[str, Any]:
    processor = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    versions = {package: _version(package) for package in ("torch", "ray", "numpy")}
    return {"cores": os.cpu_count(), "processor": processor, "python": platform.python_version(), **versions}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--throughput", action="store_true", help="train with a slow worker instead")
    parser.add_argument("--out", type=Path, help="benchmarks/results/peers.json or peers_throughput.json")
    parser.add_argument("--repeat", type=int, default=3, help="turns of every peer")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--seconds", type=float, default=1.5, help="that one measurement should take, about")
    parser.add_argument("--peers", help=f"some of {', '.join({**PUSH_AND_PULL, **THROUGHPUT})}")
    parser.add_argument("--mxnet-python", help="the interpreter of an environment that has MXNet")
    parser.add_argument("--make-mxnet-venv", type=Path, metavar="DIR", help=f"make one with {' and '.join(PACKAGES)}")
    parser.add_argument("--quick", action="store_true", help="one short turn, to see whether everything runs")
    given = parser.parse_args()
    if given.quick:
        given.repeat, given.seconds, given.sizes = 1, 0.1, "1000"
    table = THROUGHPUT if given.throughput else PUSH_AND_PULL
    names = given.peers.split(",") if given.peers else list(table)
    if unknown := set(names) - set(table):
        parser.error(f"no such peers here: {', '.join(sorted(unknown))}; there are {', '.join(table)}")
    given.peers = {name: table[name] for name in names}
    return given


def mxnet_python(given: argparse.Namespace) -> tuple[str | None, str | None]:
    """MXNet's interpreter, or a sentence that says why it is left out."""
    if given.mxnet_python is None and given.make_mxnet_venv is None:
        return None, "MXNet is left out: neither --mxnet-python nor --make-mxnet-venv was given."
    try:
        python = given.mxnet_python or make_environment(given.make_mxnet_venv)
        try_environment(python)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return None, f"MXNet is left out: {error}."
    return python, None


def main() -> None:
    given = arguments()
    python, left_out = mxnet_python(given) if "mxnet" in given.peers else (None, None)
    if left_out:
        print(left_out)
    peers = {name: where for name, where in given.peers.items() if name != "mxnet" or python is not None}
    sizes = tuple(map(int, given.sizes.split(",")))
    settings = Settings(sizes, given.seconds, 8 * 4 * 8 if given.quick else SAMPLES, mxnet_python=python)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    adopt_orphans()
    figures, errors = take_turns(peers, settings, given.repeat)
    result: dict[str, Any] = {**facts(), "turns": given.repeat, "figures": summary(figures), "errors": errors}
    if left_out:
        result["left_out"] = left_out
    if given.throughput:
        result["unit"] = "samples per second"
        print_rates(figures)
    else:
        result["unit"] = "seconds per iteration of a worker, two workers"
        result["compared"] = compared(figures)
        print_times(figures, sizes)
        print_compared(result["compared"])
    for peer, error in errors.items():
        print(f"no figure: {peer}: {error}")
    name = "peers_throughput.json" if given.throughput else "peers.json"
    out = given.out or Path("benchmarks/results", name)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
