"""A Ray cluster on this machine, whose nodes are added, killed, frozen and drained for real."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
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
    """Every node has one `seat`, so that processes which need one are on as many nodes."""

    def __init__(self, **system_config: int) -> None:
        here = [str(Path(paceline.__file__).parents[1]), str(Path(__file__).parent)]
        os.environ["PYTHONPATH"] = os.pathsep.join(here)  # of whatever the nodes start
        head = {"num_cpus": 2, "include_dashboard": False, "resources": {"seat": 1}, "_system_config": system_config}
        # Its own way to close at exit sets signals, which only a main thread may: nodes are added from others, too.
        self.cluster = Cluster(initialize_head=True, head_node_args=head, shutdown_at_exit=False)
        self.others: dict[str, Any] = {}  # by name

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def are(self, *names: str) -> None:
        """These nodes, beside the head, and no others."""
        for name in set(self.others) - set(names):
            self.kill(name)
        for name in names:
            if name not in self.others:
                self.others[name] = self.cluster.add_node(num_cpus=2, resources={"seat": 1})

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

    def actors(self, kind: str = "", *, of: str = "") -> list[int]:
        """The processes of paceline (those of this kind) on the cluster, or on the node of this name."""
        nodes = [self.others[of]] if of else self.cluster.list_all_nodes()
        titles = tuple(title for title in ACTORS if kind.encode() in title)
        return [
            process for node in nodes for process in self.processes_of(node) if title_of(process).startswith(titles)
        ]

    def one_with(self, kind: str) -> str:
        """The name of a node with a process of this kind, which is not the head."""
        return next(name for name in self.others if self.actors(kind, of=name))

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


def in_shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm"))


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


class Driver:
    """A process that launches a run on the cluster, as a script would."""

    def __init__(self, nodes: Nodes, directory: Path, *arguments: str) -> None:
        self._nodes, self.directory = nodes, directory
        script = Path(functions.__file__)
        self.process = subprocess.Popen(
            [sys.executable, str(script), "on_a_cluster", str(directory), nodes.address, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def trains(self) -> None:
        try:
            until(
                lambda: (self.directory / "trains").exists() or self.process.poll() is not None,
                "training did not begin",
            )
        except AssertionError:
            os.killpg(self.process.pid, signal.SIGKILL)  # the next test shall not find it
            raise
        assert self.process.poll() is None, self.process.communicate()[1]
        assert self._nodes.actors()

    def ends(self) -> tuple[str, str]:
        said = self.process.communicate(timeout=functions.PATIENCE)
        self._nodes.are_left_alone()
        return said
