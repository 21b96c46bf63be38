"""Chaos on a Ray cluster, all of whose processes are on this machine: shards and nodes die there as well as workers.

The rest is as on one machine, but for the time of the plan: it stands still while Ray starts processes and no worker is
there, which takes seconds. Of a life of the run nothing may be left: no actor, no process, no shared memory.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.experiment.chaos.plan import KINDS, NODES, SHARDS, Fault
from paceline.experiment.chaos.processes import is_alive, send_signal, title_of, tree_of, used_by
from paceline.experiment.chaos.real import Tormentor
from paceline.experiment.chaos.setting import Setting, Subject, Verdict
from paceline.runtimes.ray_cluster.found import SERVER, WORKER
from paceline.runtimes.ray_cluster.here import ClusterHere
from paceline.runtimes.ray_cluster.options import RayCluster
from paceline.runtimes.ray_cluster.watcher import NODE_DIED, PROCESS_DIED
from paceline.runtimes.sockets.remote import CONNECTION_BROKE

SILENCE = 3.0  # seconds, so that some freezes are longer
LOOK_EVERY = 0.1  # seconds between two questions to Ray about who is there
TITLE = "ray::"  # of every process that Ray may have started for an actor
SHARED_MEMORY = Path("/dev/shm")


def kinds_on(here: ClusterHere, servers: int | None) -> Mapping[str, int]:
    """What may go wrong there. `servers`: None, if there are several in some lives."""
    return {**KINDS, **(SHARDS if servers != 1 else {}), **(NODES if here.nodes is not None else {})}


class ClusterTormentor(Tormentor):
    longest = 240.0  # Ray takes a while to start processes, after the death of a shard all of them
    killed = (CONNECTION_BROKE, PROCESS_DIED, NODE_DIED)

    def __init__(self, here: ClusterHere, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._here = here
        self._looked_at = 0.0
        self._by_role: dict[str, list[int]] = {}
        self._lost_shards: list[float] = []  # when
        self._ends: list[float] = []  # when launchers ended
        self._in_memory_before = set(os.listdir(SHARED_MEMORY))

    def _arguments(self) -> tuple[Any, ...]:
        wanted = self._setting.cluster
        assert wanted is not None
        cluster = RayCluster(
            self._here.address,
            servers=wanted.servers_in(self._lives, self._seed),
            transport=wanted.transport,
            compression=wanted.compression,
            silence=SILENCE,
        )
        return *super()._arguments(), cluster

    # -- torment --

    def _workers(self, launcher: int) -> list[int]:
        now = time.monotonic()
        if now >= self._looked_at + LOOK_EVERY:
            since, self._looked_at = now - self._looked_at, now
            self._by_role = {WORKER: [], SERVER: []}
            for actor in self._here.actors_of(self._run_dir):
                if actor.pid and title_of(actor.pid).startswith(TITLE):
                    self._by_role[actor.role].append(actor.pid)
                    self._pids.add(actor.pid)
            if self._began is not None and not self._by_role[WORKER]:
                self._began += since
        return self._by_role[WORKER]

    def _targets(self, fault: Fault, workers: list[int]) -> list[int]:
        if fault.kind in SHARDS:
            return self._by_role[SERVER]
        if fault.kind in NODES:
            return [] if self._here.nodes is None else list(filter(is_alive, self._here.nodes.raylets))
        return workers

    def _befall(self, fault: Fault, pid: int, now: float) -> None:
        if fault.kind == "kill-shard":
            send_signal(pid, signal.SIGKILL)
            self._lost_shards.append(now)
            self._say(f"kill-shard process {pid}")
        elif fault.kind == "kill-node":
            for process in tree_of(pid):
                send_signal(process, signal.SIGKILL)
            self._say(f"kill-node process {pid}")
        elif fault.kind == "freeze-node":
            for process in tree_of(pid):
                send_signal(process, signal.SIGSTOP)
                self._resume_at.append((now + fault.seconds, process))
            self._say(f"freeze-node process {pid} for {fault.seconds:g} s")
        else:
            super()._befall(fault, pid, now)

    # -- what became of it --

    def _wait_until_gone(self) -> None:
        self._ends.append(time.monotonic())
        super()._wait_until_gone()

    def _left(self) -> str:
        left = super()._left()
        actors = self._here.actors_of(self._run_dir)
        if actors:
            left = f"{left} {', '.join(f'{actor.role} {actor.number}' for actor in actors)}".strip()
        return left or left_in_memory(self._in_memory_before)

    def _end_everything(self) -> None:
        for process in (pid for _, pid in self._resume_at):
            send_signal(process, signal.SIGCONT)
        for pid in self._pids:
            if title_of(pid).startswith(TITLE):  # a number may be another process's by now
                send_signal(pid, signal.SIGKILL)

    def _after_lost_shards(self) -> Iterator[float]:
        begun = [seen.at for seen in self._log() if seen.what == "begun"]
        for at in self._lost_shards:
            again = min((time_ for time_ in begun if time_ > at), default=at)
            if at < again and not any(at < end < again for end in self._ends):
                yield round(again - at, 4)


def left_in_memory(before: set[str]) -> str:
    """Files in shared memory that are new, and that no process has open or mapped: nobody will remove them."""
    new = {str(SHARED_MEMORY / name) for name in set(os.listdir(SHARED_MEMORY)) - before}
    if not new:
        return ""
    for process in filter(str.isdecimal, os.listdir("/proc")):
        used = used_by(int(process))
        new = {name for name in new if name not in used}
    return f"files {sorted(new)} in shared memory" if new else ""


def run_on_ray(
    here: ClusterHere,
    subject: Subject,
    seed: int,
    plan: Sequence[Fault],
    setting: Setting,
    seconds: float,
    directory: Path,
) -> Verdict:
    if here.nodes is not None:
        here.nodes.replenish()
    return ClusterTormentor(here, subject, seed, plan, setting, seconds, directory).verdict()
