"""A Ray cluster on this machine, whose nodes are added, killed, frozen and drained for real."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import training_functions as functions
from ray._raylet import GcsClient
from ray.cluster_utils import Cluster
from ray.core.generated import autoscaler_pb2

import paceline
from paceline.core.messages import Record, WorkerLeft
from paceline.recording.observer import Observer

ACTORS = (b"ray::WorkerActor", b"ray::ShardActor")


def until(happened: Callable[[], Any], what: str) -> Any:
    """What it comes to be, once that is true."""
    end = time.monotonic() + functions.PATIENCE
    while not (found := happened()):
        assert time.monotonic() < end, what
        time.sleep(0.01)
    return found


class Nodes:
    """The head has room for two workers; every other node is asked for by name, as a resource."""

    def __init__(self) -> None:
        here = [str(Path(paceline.__file__).parents[1]), str(Path(__file__).parent)]
        os.environ["PYTHONPATH"] = os.pathsep.join(here)  # of whatever the nodes start
        head = {"num_cpus": 2, "include_dashboard": False, "resources": {"head": 8}}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.others: dict[str, Any] = {}

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self, *names: str, kind: str = "", room: float = 8) -> None:
        """Nodes with these names that are not there yet. `kind`: another resource that each of them has so much of."""
        for name in names:
            if name not in self.others:
                resources = {name: 8, **({kind: room} if kind else {})}
                self.others[name] = self.cluster.add_node(num_cpus=2, resources=resources, wait=False)
        self.cluster.wait_for_nodes()

    def kill(self, name: str) -> None:
        self.cluster.remove_node(self.others.pop(name), allow_graceful=False)

    def freeze(self, name: str) -> None:
        for process in self.processes_of(self.others[name]):
            os.kill(process, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        for process in self.processes_of(self.others[name]):
            os.kill(process, signal.SIGCONT)

    def drain(self, name: str, seconds: float = 60.0) -> None:
        """As a cloud says that an instance will be gone."""
        accepted, why = GcsClient(address=self.address).drain_node(
            self.others[name].node_id,
            autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"),
            "a spot instance is taken back",
            int((time.time() + seconds) * 1000),
        )
        assert accepted, why

    def processes_of(self, node: Any) -> list[int]:
        """Its raylet, and all that the raylet started."""
        parents: dict[int, list[int]] = {}
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError, ValueError):
                fields = Path(f"/proc/{int(name)}/stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(name))
        found = [node.all_processes["raylet"][0].process.pid]
        for process in found:
            found += parents.get(process, [])
        return found

    def actors(self, *, of: str = "") -> list[int]:
        """The processes of paceline on the cluster, or on the node of this name."""
        nodes = [self.others[of]] if of else self.cluster.list_all_nodes()
        return [
            process for node in nodes for process in self.processes_of(node) if title_of(process).startswith(ACTORS)
        ]

    def shard_on(self, name: str) -> int:
        """The process of the shard on this node."""
        (found,) = (process for process in self.actors(of=name) if title_of(process).startswith(b"ray::ShardActor"))
        return found

    def are_left_alone(self) -> None:
        until(lambda: not self.actors(), "processes of the run are left")

    def close(self) -> None:
        self.cluster.shutdown()


def title_of(process: int) -> bytes:
    """Empty: it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


def process_of(directory: Path, worker: int) -> int:
    """Of a worker that trains with functions.count_on_a_cluster, once it does."""
    functions.wait_for(directory / f"holds-{worker}")
    return int(json.loads((directory / f"holds-{worker}").read_text()))


@contextlib.contextmanager
def beside(act: Callable[[], None], directory: Path) -> Iterator[None]:
    """Do this in a thread while a run goes on here. Whatever comes of it, its workers may go on then."""
    problems: list[BaseException] = []

    def acting() -> None:
        try:
            act()
        except BaseException as problem:
            problems.append(problem)
        finally:
            functions.write(directory / "go", True)

    thread = threading.Thread(target=acting)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    for problem in problems:
        raise problem


class Departures(Observer):
    """Who left, when and why."""

    def __init__(self) -> None:
        self.reasons: dict[int, str] = {}
        self.times: dict[int, float] = {}

    def observe(self, record: Record) -> None:
        if isinstance(record.event, WorkerLeft):
            self.reasons[record.event.worker] = record.event.reason
            self.times[record.event.worker] = time.monotonic()
