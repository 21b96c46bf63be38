"""Chaos in virtual time: the same decision code on processes of a simulator, thousands of seeds a minute.

No gradient is computed. What is checked after every event is that all layers believe the same, and at the end that
every sample was applied exactly once, that nobody waits for ever, and that the recorded events lead to the same
commands again. A crash keeps what the last checkpoint holds, and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import msgspec

from paceline.core.coordinator import Coordinator
from paceline.core.messages import ApplyUpdate, Gradient, Record, Unit, UpdateApplied
from paceline.experiment.chaos.plan import FACTOR, Fault
from paceline.experiment.chaos.setting import CHECKPOINT_EVERY, PATIENCE, Setting, Verdict, in_words
from paceline.experiment.foresight import foresee
from paceline.experiment.group import size_of
from paceline.lifecycle.lifecycle import Lifecycle
from paceline.lifecycle.messages import MakeUpdate
from paceline.lifecycle.resumption import LifecycleState, resume, state_of
from paceline.lifecycle.silence import Patience
from paceline.lifecycle.validation import PortView
from paceline.lifecycle.work import Work
from paceline.policies import policy as build_policy
from paceline.recording.observer import Observer
from paceline.recording.replay import repeat
from paceline.runtimes.simulated.simulator import RunEnd
from paceline.runtimes.simulated.unreliable import UnreliableSimulator
from paceline.runtimes.speeds import Draw, Lognormal

SAMPLES, BATCH = 240, 4
RATE = 12.0  # batches in a second that the plan's seconds are filled with
LONGEST = 60.0  # times the plan's seconds, after which a run is stuck
MOST_LIVES = 20


class Books:
    """Stands where the gradients would be: which samples were applied, and where gradients lie."""

    def __init__(self, work: Work, epochs: int) -> None:
        self.work = work
        self.epochs = epochs
        self.trained: Callable[[], Sequence[int]] = list
        self.version = 0
        self.applied: Counter[tuple[int, int, int]] = Counter()
        self._units: dict[int, Unit] = {}
        self._aside: dict[Gradient, None] = {}

    def kept(self) -> tuple[int, Counter[tuple[int, int, int]]]:
        return self.version, self.applied.copy()

    def pull(self, seat: int, unit: Unit | None) -> None:
        if unit is not None:
            self._units[seat] = unit

    def lease(self, seat: int, unit: Unit) -> None:
        self._units[seat] = unit

    def push(self, seat: int) -> tuple[int, float]:
        return self._units[seat].samples, 1.0

    def leave(self, seat: int) -> None:
        self._units.pop(seat, None)

    def make_update(self, command: MakeUpdate) -> UpdateApplied:
        self.version += 1
        assert command.version == self.version, f"update {command.version} comes after {self.version - 1}"
        for part in command.parts:
            self._take(part.arrived.gradient)
            for unit in part.arrived.units:
                self.applied.update((unit.epoch, unit.part, place) for place in range(unit.begin, unit.end))
        return UpdateApplied(command.version)

    def set_aside(self, gradient: Gradient, seat: int, version: int) -> None:
        self._aside[gradient] = None

    def discard(self, gradient: Gradient, seat: int) -> None:
        self._take(gradient)

    def _take(self, gradient: Gradient) -> None:
        self._aside.pop(gradient, None)

    def view(self) -> PortView:
        return PortView(self.version, tuple(self._aside))


class _Kept(msgspec.Struct, frozen=True):
    """A checkpoint."""

    lifecycle: bytes
    version: int
    applied: Counter[tuple[int, int, int]]
    records: int


class _Recorder(Observer):
    def __init__(self) -> None:
        self.records: list[Record] = []

    def observe(self, record: Record) -> None:
        self.records.append(record)


class VirtualRun:
    """One run under one plan, through all lives of its server."""

    def __init__(self, seed: int, plan: Sequence[Fault], setting: Setting, seconds: float) -> None:
        self._seed = seed
        self._plan = plan
        self._setting = setting
        self._limit = LONGEST * max(seconds, 1.0)
        sharding = Random(f"{seed}/sharding").choice(["dynamic", "dynamic", "static"])
        self._work = Work(SAMPLES, BATCH, sharding)
        self._epochs = max(1, round(seconds * RATE * BATCH / SAMPLES))
        self._recorder = _Recorder()
        self._kept: _Kept | None = None
        self._books = Books(self._work, self._epochs)
        self._happened: list[str] = []
        self._now = 0.0
        self._lives = 0

    def verdict(self) -> Verdict:
        problem = ""
        try:
            while not self._live():
                if self._lives == MOST_LIVES:
                    raise AssertionError(f"not done after {MOST_LIVES} lives")
            self._check_end()
        except Exception as found:
            problem = in_words(found)
        applied = sum(self._books.applied.values())
        return Verdict(problem, tuple(self._happened), self._books.version, applied, self._lives)

    # -- a life of the server --

    def _live(self) -> bool:
        """Whether it came to its end, and not to a crash."""
        self._lives += 1
        coordinator = Coordinator(build_policy(self._setting.policy))
        workers, least, most = size_of(self._setting.workers)
        lifecycle = Lifecycle(
            coordinator,
            range(workers) if self._kept is None else (),
            least=least,
            most=most,
            epochs=self._epochs,
            restarts=self._setting.restart,
            patience=Patience(PATIENCE),
        )
        self._go_back(lifecycle)
        simulator = self._simulator = UnreliableSimulator(
            lifecycle, coordinator, self._books, self._draw, [self._recorder], now=self._now, think=foresee
        )
        for fault in self._plan:
            if fault.at > self._now:
                simulator.at(fault.at, partial(self._befall, fault))
        simulator.at(self._now + CHECKPOINT_EVERY, partial(self._keep, lifecycle))
        simulator.start()
        self._now = simulator.run(RunEnd(duration=self._now + self._limit))
        if simulator.given_up:
            self._happened.append(f"{self._now:.2f}: the run gives up, and is begun again: {simulator.given_up}")
            return False
        if lifecycle.over or simulator.halted:
            return lifecycle.over
        waiting = {seat.index: seat.state.value for seat in lifecycle.seats.values()}
        raise AssertionError(f"stuck at {self._now:.1f}: {waiting}, {lifecycle.coordinator.progress.waiting}")

    def _go_back(self, lifecycle: Lifecycle) -> None:
        """To the last checkpoint, or to the beginning."""
        books = self._books = Books(self._work, self._epochs)
        if self._kept is None:
            self._recorder.records.clear()
            return
        del self._recorder.records[self._kept.records :]
        books.version, books.applied = self._kept.version, self._kept.applied.copy()
        resume(lifecycle, msgspec.json.decode(self._kept.lifecycle, type=LifecycleState))
        workers, least, _ = size_of(self._setting.workers)
        if least is None:
            lifecycle.staffing.wanted = workers

    def _draw(self, seat: int) -> Draw:
        random = Random(f"{self._seed}/{seat}/{self._lives}")
        mean = random.choice([0.05, 0.1, 0.1, 0.4])
        return Lognormal(mean, 0.3).start(f"{self._seed}/{seat}/{self._lives}/speed")

    def _keep(self, lifecycle: Lifecycle) -> None:
        if lifecycle.begun and lifecycle.members:
            written = msgspec.json.encode(state_of(lifecycle))
            version, applied = self._books.kept()
            self._kept = _Kept(written, version, applied, len(self._recorder.records))
        self._simulator.at(self._simulator.now + CHECKPOINT_EVERY, partial(self._keep, lifecycle))

    def _befall(self, fault: Fault) -> None:
        simulator = self._simulator
        if fault.kind == "crash":
            self._happened.append(f"{fault.at:.2f}: the launcher is killed")
            simulator.crash()
            return
        processes = simulator.processes
        if not processes:
            return
        process = processes[fault.worker % len(processes)]
        self._happened.append(f"{fault.at:.2f}: {fault.kind} process {process.seat}")
        match fault.kind:
            case "kill":
                simulator.kill(process)
            case "freeze":
                simulator.freeze(process, fault.seconds)
            case "slow":
                simulator.slow(process, fault.seconds, FACTOR)
            case "delay":
                simulator.delay(process, fault.seconds)
            case _:
                simulator.duplicate(process)

    # -- the end --

    def _check_end(self) -> None:
        counts = self._books.applied
        twice = [sample for sample, times in counts.items() if times > 1]
        assert not twice, f"samples applied more than once: {twice[:3]}"
        missing = SAMPLES * self._epochs - len(counts)
        assert not missing, f"{missing} samples were lost"
        self._check_replay()

    def _check_replay(self) -> None:
        """The events alone lead to the same commands."""
        coordinator = Coordinator(build_policy(self._setting.policy))
        updates = 0
        for record in self._recorder.records:
            again = repeat(record, coordinator)
            assert again.commands == record.commands, f"the replay departs at {record.event}"
            updates += sum(isinstance(command, ApplyUpdate) for command in again.commands)
        assert updates == self._books.version, f"{updates} updates in the trace, {self._books.version} were made"


def run_virtually(seed: int, plan: Sequence[Fault], setting: Setting, seconds: float) -> Verdict:
    return VirtualRun(seed, plan, setting, seconds).verdict()


def shrunk(seed: int, plan: Sequence[Fault], setting: Setting, seconds: float) -> tuple[Fault, ...]:
    """The shortest plan found, by leaving out faults, that still fails."""
    kept = list(plan)
    size = max(1, len(kept) // 2)
    while size:
        at = 0
        while at < len(kept):
            fewer = kept[:at] + kept[at + size :]
            if run_virtually(seed, fewer, setting, seconds).problem:
                kept = fewer
            else:
                at += size
        size //= 2
    return tuple(kept)
