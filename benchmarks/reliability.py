"""What became of runs to which everything happened: writes docs/reliability.md.

    python benchmarks/reliability.py [--real 300] [--virtual 10000] [--ray 0] [--seconds 5]
                                     [--kept FOLDER] [--page FILE.md]
Runs `paceline chaos --json` for the seeds that the folder does not hold yet, two at a time with real processes, and
counts. Interrupted, it goes on where it was. 300 seeds with real processes take about an hour on two cores. The costs
of checkpoints are those of benchmarks/results/checkpoints.json, and of long runs of benchmarks/results/long_runs.json.
With --ray alone only the page's section about Ray clusters is written, and without it that section stays as it is; a
seed there takes half a minute, one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from paceline.experiment.chaos.setting import PATIENCE, kind_of

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
AT_ONCE = 2
SECTION = "## On a Ray cluster\n"
Line = dict[str, Any]


def chaos(seed: int, seeds: int, seconds: float, *, virtual: bool) -> list[str]:
    words = ["chaos", "digits", "--seed", str(seed), "--seeds", str(seeds), "--seconds", f"{seconds:g}", "--json"]
    command = [sys.executable, "-m", "paceline", *words, *(["--virtual"] if virtual else [])]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.splitlines()


def gather(kept: Path, seeds: int, seconds: float, *, virtual: bool) -> list[Line]:
    """All lines, those that were kept and those that were missing."""
    known: dict[int, Line] = {}
    if kept.exists():
        known = {line["seed"]: line for line in map(json.loads, kept.read_text().splitlines())}
    missing = [seed for seed in range(seeds) if seed not in known]
    step = 500 if virtual else 1
    with ThreadPoolExecutor(AT_ONCE) as pool, kept.open("a") as file:
        groups = [missing[begin : begin + step] for begin in range(0, len(missing), step)]
        tasks = [pool.submit(chaos, group[0], group[-1] - group[0] + 1, seconds, virtual=virtual) for group in groups]
        for task in tasks:
            for text in task.result():
                line = json.loads(text)
                known[line["seed"]] = line
                print(text, file=file, flush=True)
    return [known[seed] for seed in range(seeds) if seed in known]


def gather_on_ray(kept: Path, seeds: int, seconds: float) -> list[Line]:
    """The same, on a cluster that is made for all that are missing."""
    known: dict[int, Line] = {}
    if kept.exists():
        known = {line["seed"]: line for line in map(json.loads, kept.read_text().splitlines())}
    first = next((seed for seed in range(seeds) if seed not in known), seeds)
    if first < seeds:
        words = ["chaos", "digits", "--cluster", "ray", "--seed", str(first), "--seeds", str(seeds - first), "--json"]
        command = [sys.executable, "-m", "paceline", *words, "--seconds", f"{seconds:g}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, kept.open("a") as file:
            assert process.stdout is not None
            for text in process.stdout:
                line = json.loads(text)
                known[line["seed"]] = line
                print(text, end="", file=file, flush=True)
    return [known[seed] for seed in range(seeds) if seed in known]


def counts(lines: list[Line]) -> Counter[str]:
    return Counter(kind_of(happened) for line in lines for happened in line["verdict"].get("happened", ()))


def page(real: list[Line], virtual: list[Line], seconds: float) -> str:
    kills = [took for line in real for took in line["verdict"].get("after_kill", ())]
    freezes = [tuple(pair) for line in real for pair in line["verdict"].get("after_freeze", ())]
    ratios = [took / usual for took, usual in freezes if usual]
    checkpoints = json.loads((RESULTS / "checkpoints.json").read_text())
    long_runs = json.loads((RESULTS / "long_runs.json").read_text())
    in_real, in_virtual = counts(real), counts(virtual)
    rows = [f"| {kind} | {in_real[kind]:,} | {in_virtual[kind]:,} |" for kind in sorted(in_real | in_virtual)]
    failed = [line["seed"] for line in real if line["verdict"].get("problem")]
    failed_virtually = [line["seed"] for line in virtual if line["verdict"].get("problem")]
    lives = sum(line["verdict"].get("lives", 1) for line in real)
    policies = ", ".join(sorted({line["setting"]["policy"] for line in real}))
    plain, compressed = long_runs
    memory = plain["memory_mb_by_pushes"]
    first, last = min(memory, key=int), max(memory, key=int)
    bytes_plain, bytes_compressed = plain["trace_bytes_per_push"], compressed["trace_bytes_per_push"]
    kill_figures = f"{median(kills) * 1000:.0f} ms | {max(kills) * 1000:.0f} ms | {len(kills)}"
    waits = [seconds for seconds, _ in freezes]
    return f"""# Reliability: what became of runs to which everything happened

Written by `python benchmarks/reliability.py --real {len(real)} --virtual {len(virtual)} --seconds {seconds:g}`. Any
seed can be repeated with `paceline chaos digits --seed N --seconds {seconds:g}`, in virtual time with `--virtual`.

Policies, chosen by the seed: {policies}. Groups of 2 to 4 workers: of a fixed size, with deaths made up for, elastic.
Patience with silent workers is {PATIENCE:g} s here instead of 20, and a checkpoint is written every second.

## What happened

| | real processes | virtual time |
| :-- | --: | --: |
{chr(10).join(rows)}
| **seeds** | {len(real):,} | {len(virtual):,} |
| **seeds that failed** | {len(failed)} {_names(failed)} | {len(failed_virtually)} {_names(failed_virtually)} |
| **samples lost, or applied twice** | {_none(failed)} | {_none(failed_virtually)} |

A seed fails if a sample is lost or applied twice, if the run is stuck, if a process outlives its launcher, if the
recorded events do not lead to the same commands again, if two layers believe different things after any event, or, with
real processes, if the run, trained again in one process from its trace, does not come to the same weights to the bit.
{len(real):,} runs with real processes had {lives:,} launchers: the others were killed, or nobody was left to go on, and
the run was resumed.

## How long the others wait

| | median | worst | times |
| :-- | --: | --: | --: |
| from `kill -9` of a worker to the next update without it | {kill_figures} |
| from a freeze (SIGSTOP) until the worker is set aside | {median(waits):.2f} s | {max(waits):.2f} s | {len(waits)} |
| the same, in iterations that it usually takes | {median(ratios):.0f} | {max(ratios):.0f} | {len(ratios)} |

Two runs at a time on two cores, with iterations of about 30 ms: the machine was busy. A worker is set aside no sooner
than its patience says ({PATIENCE:g} s here), and after ten times what it usually needs, or twice its longest pause, if
that is more: so a worker that was frozen before is given more time.

## What it costs

{_checkpoint_costs(checkpoints)}

The trace takes {bytes_plain:.0f} bytes per push, compressed (`--compress-trace`) {bytes_compressed:.0f}: a day of 100
pushes per second is {bytes_plain * 8.64e6 / 1e9:.1f} GB or {bytes_compressed * 8.64e6 / 1e9:.2f} GB. The launcher's
memory was {memory[first]:.1f} MB after {int(first):,} pushes and {memory[last]:.1f} MB after {int(last):,}
(`python benchmarks/long_runs.py`).
"""


def section(lines: list[Line], seconds: float) -> str:
    """What the page says about Ray clusters."""
    verdicts = [line["verdict"] for line in lines]
    failed = [line["seed"] for line in lines if line["verdict"].get("problem")]
    happened = counts(lines)
    rows = [f"| {kind} | {happened[kind]:,} |" for kind in sorted(happened)]
    kills = [took for verdict in verdicts for took in verdict.get("after_kill", ())]
    freezes = [took for verdict in verdicts for took, _ in verdict.get("after_freeze", ())]
    shards = [took for verdict in verdicts for took in verdict.get("after_lost_shard", ())]
    wires = Counter(
        (line["setting"]["cluster"]["transport"], line["setting"]["cluster"]["compression"]) for line in lines
    )
    ways = ", ".join(
        f"{transport} with compression {how} ({times})" for (transport, how), times in sorted(wires.items())
    )
    policies = len({line["setting"]["policy"] for line in lines})
    lives, samples = (
        sum(verdict.get(name, usual) for verdict in verdicts) for name, usual in (("lives", 1), ("samples", 0))
    )
    return f"""{SECTION}
Written by `python benchmarks/reliability.py --ray {len(lines)} --seconds {seconds:g}`; any seed again:
`paceline chaos digits --cluster ray --seed N --seconds {seconds:g}`. Three nodes on one machine; 1 to 3 servers, and
another number whenever the launcher was killed and the run resumed. Chosen by the seed: one of {policies} policies, and
the transport: {ways}.

| what happened | times |
| :-- | --: |
{chr(10).join(rows)}
| **seeds** | {len(lines)} |
| **launchers** | {lives} |
| **seeds that failed** | {len(failed)} {_names(failed)} |
| **samples lost, or applied twice, of {samples:,}** | {_none(failed)} |

A seed fails as with real processes on one machine (above), and if an actor of the run or shared memory is left behind.

| how long the others wait | median | worst | times |
| :-- | --: | --: | --: |
| from `kill -9` of a worker to the next update without it | {_waits(kills)} |
| from a freeze (SIGSTOP) until the worker is set aside | {_waits(freezes)} |
| from `kill -9` of a shard until the group begins again from the last checkpoint | {_waits(shards)} |

After a shard's death all processes are started anew, and import torch. Other programs were at work, too: when this was
written, {os.getloadavg()[2]:.0f} processes wanted to run on {os.cpu_count()} cores (mean of 15 minutes).
"""


def _waits(found: list[float]) -> str:
    return f"{median(found):.2f} s | {max(found):.2f} s | {len(found)}" if found else "| | 0"


def section_of(text: str) -> str:
    """What a page says about Ray clusters so far."""
    _, found, rest = text.partition(SECTION)
    return found + rest.partition("\n## ")[0].rstrip() + "\n" if found else ""


def with_section(text: str, new: str) -> str:
    """The page with this section, at its end or where it was."""
    old = section_of(text)
    return text.replace(old.rstrip(), new.rstrip()) if old else f"{text.rstrip()}\n\n{new}"


def _none(failed: list[int]) -> str:
    """A seed fails if there is one."""
    return "see the failed" if failed else "0"


def _names(seeds: list[int]) -> str:
    return "" if not seeds else f"({', '.join(map(str, seeds[:10]))})"


def _checkpoint_costs(found: Any) -> str:
    return (
        f"A checkpoint every 10 s of a model of 10 million parameters costs {found['cost']:.1%} of the throughput"
        " (`python benchmarks/checkpoints.py`)."
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--real", type=int)
    arguments.add_argument("--virtual", type=int)
    arguments.add_argument("--ray", type=int, default=0)
    arguments.add_argument("--seconds", type=float, default=5.0)
    arguments.add_argument("--kept", type=Path, default=ROOT / "runs" / "reliability")
    arguments.add_argument("--page", type=Path, default=ROOT / "docs" / "reliability.md")
    given = arguments.parse_args()
    given.kept.mkdir(parents=True, exist_ok=True)
    real: list[Line] = []
    virtual: list[Line] = []
    on_ray = gather_on_ray(given.kept / "ray.jsonl", given.ray, given.seconds)
    text = given.page.read_text() if given.page.exists() else ""
    kept = section(on_ray, given.seconds) if on_ray else section_of(text)
    if not given.ray or given.real is not None or given.virtual is not None:
        seeds = 10_000 if given.virtual is None else given.virtual
        virtual = gather(given.kept / "virtual.jsonl", seeds, given.seconds, virtual=True)
        seeds = 300 if given.real is None else given.real
        real = gather(given.kept / "real.jsonl", seeds, given.seconds, virtual=False)
        text = page(real, virtual, given.seconds)
    given.page.write_text(with_section(text, kept) if kept else text)
    print(f"{given.page}: {len(real)} real, {len(virtual)} virtual seeds, {len(on_ray)} on Ray")
    if any(line["verdict"].get("problem") for line in (*real, *virtual, *on_ray)):
        sys.exit(1)


if __name__ == "__main__":
    main()
