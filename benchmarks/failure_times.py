"""How soon a run on a Ray cluster sees what fails, with real kills: a worker, its node, a node that freezes, a shard.

    PYTHONPATH=tests python benchmarks/failure_times.py [--out FILE.json] [--repeat 3] [--only "node frozen"]
Seconds from the moment at which it happened until the group had gone on without that worker, or, of a shard, until the
first update with a new one. All nodes are on this machine, with Ray's own settings. A freeze is SIGSTOP to a node's
raylet and all that it started.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
import training_functions as functions
from ray_nodes import Nodes, beside, until

from paceline import RayCluster, launch
from paceline.core.messages import AT_THE_END, ApplyUpdate, Record, UpdateRule, WorkerLeft
from paceline.experiment.going_back import ShardLostWarning
from paceline.recording.observer import Observer
from paceline.training.worker import Worker

GOALS = {
    "worker killed": 0.1,
    "node killed": 2.0,
    "node frozen": 10.0,
    "shard killed": 10.0,
    "shard's node killed": 10.0,
}
STEP = 0.01  # seconds


def train(worker: Worker, directory: str) -> None:
    net = functions.model()
    optimizer = worker.optimizer(net, torch.optim.SGD, lr=0.01)
    for x, y in worker.batches(functions.data(), batch_size=functions.BATCH):
        functions.push(optimizer, F.cross_entropy(net(x), y))
        time.sleep(STEP)
        if (Path(directory) / "go").exists():
            return


class Times(Observer):
    """When somebody left, and when updates were made, in the life of the run that goes on now."""

    def __init__(self) -> None:
        self.lives = 0
        self.left: list[float] = []
        self.updated = 0.0
        self.first_updates: list[float] = []  # of each life

    def begun(self, rule: UpdateRule) -> None:
        self.lives += 1

    def observe(self, record: Record) -> None:
        if isinstance(record.event, WorkerLeft) and record.event.reason not in AT_THE_END:
            self.left.append(time.monotonic())
        if any(isinstance(command, ApplyUpdate) for command in record.commands):
            self.updated = time.monotonic()
            if len(self.first_updates) < self.lives:
                self.first_updates.append(self.updated)


def seconds_after(nodes: Nodes, hurt: Callable[[], None], *, shards: bool) -> float:
    """Until the group has gone on."""
    times, took = Times(), []

    def act() -> None:
        until(lambda: times.first_updates, "the run did not begin")
        time.sleep(1.0)
        begun = time.monotonic()
        hurt()
        if shards:
            until(lambda: len(times.first_updates) > 1, "there is no other shard")
            took.append(times.first_updates[1] - begun)
        else:
            until(lambda: times.left and times.updated > times.left[0], "nobody saw it")
            took.append(times.left[0] - begun)

    cluster = RayCluster(
        address=nodes.address,
        servers=2 if shards else 1,
        transport="tcp",
        resources_per_worker={"CPU": 0.5} if shards else {"seat": 1},
        resources_per_server={"seat": 1},
    )
    with tempfile.TemporaryDirectory() as directory, beside(act, Path(directory)), warnings.catch_warnings():
        warnings.simplefilter("ignore", ShardLostWarning)
        launch(
            partial(train, directory=directory),
            workers=2,
            policy="asp",
            epochs=10_000,
            run_dir=Path(directory) / "run",
            checkpoint_every="1s",
            observers=[times],
            cluster=cluster,
        )
    return took[0]


def killed(nodes: Nodes, kind: str) -> None:
    os.kill(nodes.actors(kind)[0], signal.SIGKILL)


def node_killed(nodes: Nodes, kind: str) -> None:
    nodes.kill(nodes.one_with(kind))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=Path("benchmarks/results/failure_times.json"))
    arguments.add_argument("--repeat", type=int, default=3)
    arguments.add_argument("--only", choices=list(GOALS), action="append", help="of these kinds")
    given = arguments.parse_args()
    nodes = Nodes()

    def frozen(name: list[str]) -> None:
        name.append(nodes.one_with("Worker"))
        nodes.freeze(name[0])

    def measure(what: str) -> float:
        nodes.are("a", "b")
        names: list[str] = []
        ways: dict[str, Callable[[], None]] = {
            "worker killed": partial(killed, nodes, "Worker"),
            "node killed": partial(node_killed, nodes, "Worker"),
            "node frozen": partial(frozen, names),
            "shard killed": partial(killed, nodes, "Shard"),
            "shard's node killed": partial(node_killed, nodes, "Shard"),
        }
        try:
            return seconds_after(nodes, ways[what], shards="shard" in what)
        finally:
            for name in names:
                nodes.thaw(name)
            nodes.are_left_alone()

    found: dict[str, Any] = {"load_average": os.getloadavg(), "seconds": {}}
    try:
        for what in given.only or GOALS:
            seconds = found["seconds"][what] = [round(measure(what), 3) for _ in range(given.repeat)]
            print(
                f"{what:>20}: median {median(seconds):6.3f} s, worst {max(seconds):6.3f} s, goal {GOALS[what]:g} s",
                flush=True,
            )
    finally:
        nodes.close()
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
