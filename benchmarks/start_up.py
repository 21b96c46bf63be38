"""How long a launch takes until its workers have trained one batch each: forked from a zygote, and spawned as before.

    python benchmarks/start_up.py [--out FILE.json] [--workers 1,2,4] [--repeat 3] [--many 64]
Each figure is of a script of its own, both ways in turn: the wall time of `launch`, of a second `launch` in the same
script, of the whole script with its imports, and the CPU time of all its processes. Then what `--many` workers take of
memory, and how long Ctrl-C takes while 2 and while so many start.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing import reduction
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from paceline import launch
from paceline.experiment import launchers
from paceline.runtimes.local import process
from paceline.runtimes.local.launcher import Launcher
from paceline.runtimes.local.surroundings import Surroundings
from paceline.runtimes.local.zygote import Given
from paceline.runtimes.serving.channel import Channel
from paceline.runtimes.serving.launching import Started
from paceline.runtimes.serving.memory import create, pack
from paceline.training.worker import Worker

BATCH = 8


def train(worker: Worker) -> None:
    model = nn.Linear(10, 1)
    optimizer = worker.optimizer(model, torch.optim.SGD, lr=1e-3)
    data = TensorDataset(torch.ones(BATCH * int(sys.argv[3]), 10))
    for (x,) in worker.batches(data, batch_size=BATCH, sharding="static"):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    if len(sys.argv) > 4:
        kinds = dict(line.split()[:2] for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
        (Path(sys.argv[4]) / str(worker.index)).write_text(kinds["Pss:"])


class NoZygote:
    """Has never anything to say."""

    is_ready = False

    def __init__(self) -> None:
        self._pipe = os.pipe()

    def fileno(self) -> int:
        return self._pipe[0]

    def hear(self) -> None:
        raise AssertionError


class Spawning(Launcher):
    """As paceline did it before: every process is a new Python that imports torch and the script."""

    def __enter__(self) -> Launcher:
        self._zygote = NoZygote()  # type: ignore[assignment]
        self._parcel = pack((self.train, self.evaluate))
        return self

    def _start(self, assignment: Any, incoming: Any, *, evaluates: bool = False) -> Started:
        to_server, to_process = os.pipe(), os.pipe()
        segment, words = create(), create()
        given = [to_process[0], to_server[1], segment, self._parcel, words]
        context = multiprocessing.get_context("spawn")
        new = context.Process(target=spawned, args=([Inherited(number) for number in given], assignment), daemon=True)
        new.start()
        assert new.pid is not None
        os.close(to_process[0])
        os.close(to_server[1])
        new.ended = os.pidfd_open(new.pid)  # type: ignore[attr-defined]
        channel: Channel[Any, Any] = Channel(to_server[0], to_process[1], incoming, patient=False)
        started = Started(assignment.index, new, channel, segment, new.ended, words)  # type: ignore[attr-defined]
        self._started[started] = new  # type: ignore[assignment]
        return started


class Inherited:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        return detached, (reduction.DupFd(self._descriptor),)


def detached(duplicate: Any) -> int:
    return int(duplicate.detach())


def spawned(descriptors: list[int], assignment: process.Assignment) -> None:
    letter = process.Letter(False, assignment, Surroundings({}, {}, {}))
    process._work(Given(-1, -1, -1, -1, *descriptors), letter)


def one_script(way: str, workers: int) -> None:
    """Two launches; prints how long each took."""
    if way == "spawned":
        launchers.Launcher = Spawning  # type: ignore[misc]
    seconds = []
    for _ in range(2):
        begun = time.monotonic()
        launch(train, workers=workers)
        seconds.append(time.monotonic() - begun)
    print(json.dumps(seconds))


def measured(way: str, workers: int, *more: str) -> dict[str, float]:
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [sys.executable, __file__, "--script", way, str(workers), *more]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    first, second = json.loads(ended.stdout)
    return {
        "launch": first,
        "second_launch": second,
        "script": time.monotonic() - begun,
        "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    }


def memory(workers: int) -> dict[str, float]:
    """In MB: what a worker adds, and all of them together; pages that several share count in part for each."""
    with tempfile.TemporaryDirectory() as directory:
        measured("forked", workers, directory)
        shares = [int(file.read_text()) / 1024 for file in Path(directory).iterdir()]
    return {"workers": workers, "each": statistics.median(shares), "all": sum(shares)}


def seconds_to_end(workers: int) -> dict[str, float]:
    """From Ctrl-C to the end of the launcher: while its zygote imports torch, and a moment later, while it forks."""
    found = {}
    for name, pause in (("importing torch", 0.3), ("forking", 3.0)):
        command = [sys.executable, __file__, "--script", "forked", str(workers)]
        launcher = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        while not any(b"\0-c\0" in line or b"paceline zygote" in line for line in command_lines(launcher.pid)):
            time.sleep(0.01)
        time.sleep(pause)
        begun = time.monotonic()
        os.killpg(launcher.pid, signal.SIGINT)
        launcher.communicate()
        found[name] = time.monotonic() - begun
    return found


def command_lines(parent: int) -> list[bytes]:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [Path(f"/proc/{child}/cmdline").read_bytes() for child in children]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "start_up.json")
    arguments.add_argument("--workers", default="1,2,4")
    arguments.add_argument("--repeat", type=int, default=3)
    arguments.add_argument("--many", type=int, default=64)
    chosen = arguments.parse_args()
    found: dict[str, Any] = {"seconds": {}, "load_average": os.getloadavg()}
    for workers in map(int, chosen.workers.split(",")):
        runs: dict[str, list[dict[str, float]]] = {"spawned": [], "forked": []}
        for _ in range(chosen.repeat):
            for way, all_of_it in runs.items():
                all_of_it.append(measured(way, workers))
        medians = {
            way: {name: statistics.median(run[name] for run in all_of_it) for name in all_of_it[0]}
            for way, all_of_it in runs.items()
        }
        found["seconds"][workers] = medians
        for name in medians["forked"]:
            spawned_, forked = medians["spawned"][name], medians["forked"][name]
            print(f"{workers} workers, {name:>13}: {spawned_:6.2f} s spawned, {forked:5.2f} s forked", end="")
            print(f", {forked / spawned_:.2f} of it")
    found["memory"] = memory(chosen.many)
    print("memory of {workers} workers: {each:.0f} MB each, {all:.0f} MB together".format(**found["memory"]))
    found["interrupted"] = {workers: seconds_to_end(workers) for workers in (2, chosen.many)}
    for workers, moments in found["interrupted"].items():
        said = ", ".join(f"{seconds:.2f} s while {name}" for name, seconds in moments.items())
        print(f"Ctrl-C with {workers} workers: {said}")
    chosen.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--script"]:
        one_script(sys.argv[2], int(sys.argv[3]))
    else:
        main()
