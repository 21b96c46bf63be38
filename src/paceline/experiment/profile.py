"""What limits a script: one short real run, measured in its workers and in the server, and a sentence about it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from paceline.core.errors import PacelineError
from paceline.core.messages import GradientArrived, Record, SendParameters, WorkerJoined
from paceline.experiment.group import Group
from paceline.experiment.result import InterruptedRun, RunResult
from paceline.experiment.run_files import name_of
from paceline.experiment.training import launch
from paceline.experiment.whatif import recommendation, whatif
from paceline.policies import POLICIES
from paceline.policies import policy as build_policy
from paceline.recording.lines import write_privately
from paceline.recording.observer import Observer
from paceline.recording.trace import Trace, trace_in
from paceline.training.stopwatch import Enough, Stamps, Stopwatch
from paceline.training.worker import Worker

MANY_EPOCHS = 1_000_000  # the time ends a run, not its data
WORTH_A_WORD = 0.15  # share of the time from which something other than computing is said to limit a run
MOST_LOADERS = 8  # that are recommended
FASTER = 1.3  # a worker that needs so much longer than the others is the one they wait for


class Share(msgspec.Struct, frozen=True):
    """Where the seconds of one worker went; they add up to `elapsed`."""

    worker: int
    elapsed: float
    compute: float
    data: float
    push: float  # from the step to the gradient's arrival at the server
    wait: float  # as the policy says, and for work
    pull: float  # from the decision to parameters in the model, the update itself included
    steps: int
    loaders: int = 0  # processes that load its batches

    @property
    def pace(self) -> float:
        """Seconds of its own that a step takes: computing and data."""
        return (self.compute + self.data) / max(1, self.steps)


class Profile(msgspec.Struct, frozen=True):
    policy: str
    shares: list[Share]
    limit: str  # in a sentence
    advice: str
    run_dir: str
    samples_per_second: float


@dataclass(frozen=True)
class Profiled:
    """The user's loop with a stopwatch; what it finds is left in a directory, a file per worker."""

    train: Callable[[Worker], Any]
    seconds: float
    directory: Path

    @property
    def description(self) -> str:
        return name_of(self.train)

    def __call__(self, worker: Worker) -> None:
        stopwatch = Stopwatch(worker, self.seconds)
        try:
            self.train(worker)
        except Enough:
            pass
        finally:
            stopwatch.stop()
            self.directory.mkdir(mode=0o700, exist_ok=True)
            write_privately(self.directory / f"worker-{worker.index}.json", msgspec.json.encode(stopwatch.stamps))


class Waits(Observer):
    """When the gradients of every process arrived, and when it was released: in seconds of the monotonic clock."""

    def __init__(self) -> None:
        self._offset = math.inf  # the server's zero on that clock; every record comes a little after its time
        self._process: dict[int, int] = {}
        self._arrived: dict[int, float] = {}
        self._found: dict[int, list[tuple[float, float]]] = {}

    def observe(self, record: Record) -> None:
        if record.now > 0:  # before that, the server's clock had not begun
            self._offset = min(self._offset, time.monotonic() - record.now)
        match record.event:
            case WorkerJoined(worker, process):
                self._process[worker] = worker if process is None else process
            case GradientArrived(gradient):
                self._arrived[gradient.worker] = record.now
            case _:
                pass
        for command in record.commands:
            if isinstance(command, SendParameters) and command.worker in self._arrived:
                span = (self._arrived.pop(command.worker), record.now)
                self._found.setdefault(self._process[command.worker], []).append(span)

    def of(self, process: int) -> list[tuple[float, float]]:
        return [(begin + self._offset, end + self._offset) for begin, end in self._found.get(process, ())]


def profile(
    train: Callable[[Worker], Any], run_dir: Path, *, group: Group, policy: str, seconds: float, **options: Any
) -> Profile:
    """Run it for so many seconds, and say where they went. `options`: as `launch` takes them."""
    stamped, waits = run_dir / "profile", Waits()
    result: RunResult | None
    try:
        result = launch(
            Profiled(train, seconds, stamped),
            policy=policy,
            epochs=MANY_EPOCHS,
            run_dir=run_dir,
            checkpoint_every=None,
            group=group,
            observers=[waits, *options.pop("observers", ())],
            **options,
        )
    except InterruptedRun as interrupted:
        result = interrupted.result  # what was measured until then is worth a look
        if result is None:
            raise
    stamps = [msgspec.json.decode(path.read_bytes(), type=Stamps) for path in sorted(stamped.glob("worker-*.json"))]
    shares = [share_of(found, waits.of(found.worker)) for found in stamps if found.steps]
    if not shares:
        raise PacelineError("no worker made a step in that time: give it more --seconds")
    shares.sort(key=lambda share: share.worker)
    limit, kind = limit_of(shares)
    advice = advice_on(kind, shares, trace_in(run_dir), policy)
    rate = result.samples / result.seconds if result.seconds else 0.0
    return Profile(str(build_policy(policy)), shares, limit, advice, str(run_dir), rate)


def share_of(stamps: Stamps, waits: Sequence[tuple[float, float]]) -> Share:
    """`waits`: from the arrival of a gradient at the server to the release; each lies within one step."""
    push = wait = pull = 0.0
    at = 0
    for begin, end, paused in stamps.steps:
        while at < len(waits) and waits[at][1] < begin:
            at += 1
        arrived, released = waits[at] if at < len(waits) else (end, end)
        arrived = min(max(arrived, begin + paused), end)  # the two clocks are read a little apart
        released = min(max(released, arrived), end)
        push += arrived - begin - paused
        wait += released - arrived
        pull += end - released
    elapsed = stamps.ended - stamps.began
    wait += stamps.work
    compute = elapsed - stamps.data - push - wait - pull
    return Share(stamps.worker, elapsed, compute, stamps.data, push, wait, pull, len(stamps.steps), stamps.loaders)


def limit_of(shares: Sequence[Share]) -> tuple[str, str]:
    """What limits the run, in a sentence, and in a word: data, wait, server or compute."""
    total = sum(share.elapsed for share in shares)
    parts = {
        "data": sum(share.data for share in shares) / total,
        "wait": sum(share.wait for share in shares) / total,
        "server": sum(share.push + share.pull for share in shares) / total,
    }
    kind = max(parts, key=lambda name: parts[name])
    if parts[kind] < WORTH_A_WORD:
        computing = sum(share.compute for share in shares) / total
        return f"computing: {computing:.0%} of the workers' time", "compute"
    share = f"{parts[kind]:.0%} of the workers' time"
    if kind == "data":
        return f"data loading: {share} goes into the iterator of batches", kind
    if kind == "server":
        return f"the server: {share} goes into pushing gradients, updating and pulling parameters", kind
    slowest = max(shares, key=lambda one: one.pace)
    others = [one.pace for one in shares if one is not slowest]
    if others and slowest.pace > FASTER * sum(others) / len(others):
        mean = sum(others) / len(others)
        return (
            f"waiting for worker {slowest.worker}: it needs {1e3 * slowest.pace:.3g} ms for a step, the others"
            f" {1e3 * mean:.3g} ms, and {share} is waiting",
            kind,
        )
    return f"waiting for each other: {share}, though all are about equally fast on average", kind


def _advice_on_data(data: float, rest: float, loaders: int, workers: int) -> str:
    """`data`, `rest`: seconds of a step in which a loop waits for its batch, and those in which it computes."""
    if loaders:
        cores = os.cpu_count() or 1
        taken = f"{workers} workers and {workers * loaders} loader processes have {cores} cores"
        more = (
            "more of them help only if they wait for a disk or the network"
            if workers * (1 + loaders) >= cores
            else f"num_workers={2 * loaders} may help"
        )
        return (
            f"a step waits {1e3 * data:.3g} ms for its batch, though {loaders} loader processes of every worker prepare"
            f" it ahead: {taken}, so {more}; cheaper transforms and smaller batches in bytes (uint8 instead of float32,"
            " one tensor instead of many) do"
        )
    wanted = min(MOST_LOADERS, max(1, math.ceil(data / max(rest, 1e-6))))
    return (
        f"a batch takes {1e3 * data:.3g} ms to load and {1e3 * rest:.3g} ms to compute: let loader processes"
        f" prepare it meanwhile (num_workers={wanted} in each worker, if there are cores), or make loading cheaper"
    )


def advice_on(kind: str, shares: Sequence[Share], trace: Path, policy: str) -> str:
    if kind == "data":
        steps = sum(share.steps for share in shares)
        data, rest = sum(share.data for share in shares) / steps, sum(share.compute for share in shares) / steps
        return _advice_on_data(data, rest, max(share.loaders for share in shares), len(shares))
    if kind == "server":
        return "larger batches, or several backward() per step, make fewer pushes of the same samples"
    if kind == "wait":
        present = str(build_policy(policy))
        names = [*POLICIES] if present in {str(build_policy(name)) for name in POLICIES} else [policy, *POLICIES]
        return recommendation(whatif(Trace(trace, allow_cut_off=True), names), present)
    return "a faster device, more cores per worker or a cheaper model is what would help"
