"""Answers what a policy asks: each candidate is tried in the simulator, on the times that workers needed lately.

An answer is a function of its question. In virtual time it is found at once (`foresee`); beside a real run a process of
its own finds it (`serve`), at the lowest priority, so that nobody waits for it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import msgspec

from paceline.core.coordinator import Coordinator
from paceline.core.messages import (
    Answered,
    ApplyUpdate,
    Ask,
    DiscardGradient,
    Gradient,
    GradientArrived,
    SendParameters,
)
from paceline.core.questions import NO_COSTS, Answer, Costs, Prospect, Question, short
from paceline.policies import Policy
from paceline.policies import policy as build_policy
from paceline.policies.backup import BackupWorkers
from paceline.recording.observer import Observer
from paceline.recording.trace import Record
from paceline.runtimes.simulated.costly import CostlySimulator, Durations
from paceline.runtimes.simulated.simulator import RunEnd, SimulatedWorker, Simulator
from paceline.runtimes.speeds import Draw, Recorded

MOST_PUSHES = 10_000  # that are simulated for one candidate, however long the horizon is; interrupted iterations count
MOST_OF_IT = 0.75
SETTLING = 1 / 2  # of the time, before it counts: leads must have grown, and plans been made
SERVE = "import sys; sys.path[:] = sys.argv[1:]; from paceline.experiment.foresight import serve; serve()"
NICE = 19


def foresee(question: Question) -> Answer:
    """What each candidate would come to; those that cannot work with such a group are left out."""
    found = [_prospect(candidate, question) for candidate in question.candidates]
    return Answer(
        tuple(prospect for prospect in found if prospect is not None),
        costs=question.costs,
        corrected=question.corrected,
    )


def _prospect(candidate: str, question: Question) -> Prospect | None:
    policy = build_policy(candidate)
    try:
        policy.check_group(len(question.workers))
    except ValueError:
        return None
    speeds = [Recorded(times) for times in question.times]
    workers = [SimulatedWorker(number, _shuffled(times, str(number))) for number, times in enumerate(question.times)]
    begun = sum(1 / speed.mean for speed in speeds) * _begun_for_each(policy, len(workers))
    end = min(question.horizon, MOST_PUSHES / begun)
    tally = Tally(end * SETTLING, _weights(question.samples))
    simulator = try_out(policy, workers, [tally], min(speed.mean for speed in speeds), end, question.costs)
    return tally.prospect(candidate, len(workers), end, simulator)


def _begun_for_each(policy: Policy, workers: int) -> float:
    """Iterations that are begun for each that ends: an update of k that interrupts begins all others anew."""
    if not isinstance(policy, BackupWorkers) or policy.late != "interrupt":
        return 1.0
    return 1.0 + workers / max(1, policy.k or workers)


def _weights(samples: Sequence[int]) -> Sequence[float]:
    """Of each worker's gradients, in those of the mean size; none: all count the same."""
    mean = sum(samples) / max(1, len(samples))
    return [own / mean for own in samples]


def _shuffled(times: Sequence[float], seed: str) -> Draw:
    """As often as they came, in any order: in their own order, again and again, few times could be foretold."""
    if min(times) == max(times):
        return lambda iteration, now: times[0]
    random = Random(seed)
    return lambda iteration, now: random.choice(times)


def try_out(
    policy: Policy,
    workers: Sequence[SimulatedWorker],
    observers: Sequence[Observer],
    typical: float,
    end: float,
    costs: Costs = NO_COSTS,
) -> Simulator:
    """Run this policy until that time. `typical`: of an iteration. What it asks is answered as well."""
    make = simulator_with(costs)
    simulator = make(workers, Coordinator(policy), observers, time_scale=typical, think=foresee, checked=False)
    simulator.run(RunEnd(duration=end))
    return simulator


def simulator_with(costs: Costs) -> Callable[..., Simulator]:
    """What makes a simulator in which pushes and updates keep a single server busy for so long."""
    if costs == NO_COSTS:
        return Simulator
    durations = Durations(
        take_in=costs.push,
        update=costs.gradient,
        step=costs.update,
        hand_out=costs.pull,
        wire_in=costs.wire,
        wire_out=costs.wire,
        one_process=True,
    )
    return partial(CostlySimulator, durations=durations)


class _Rate:
    """How often a worker's gradients were used: from one of its updates to another. In so many seconds there may be a
    round more or less, which would be much where there are few."""

    __slots__ = ("_after", "_at_first", "_first", "_last")

    def __init__(self, now: float) -> None:
        self._first = self._last = now
        self._at_first, self._after = 1, 0

    def note(self, now: float) -> None:
        if now == self._first:
            self._at_first += 1
        else:
            self._after += 1
            self._last = now

    def per_second(self, seconds: float) -> float:
        if self._last - self._first < MOST_OF_IT * seconds:  # it may be a burst
            return (self._at_first + self._after) / seconds
        return self._after / (self._last - self._first)


class Tally(Observer):
    """Counts what happens after a time. A whole summary of a run would take longer than the run."""

    def __init__(self, begin: float, weights: Sequence[float] = ()) -> None:
        """`weights`: as how many gradients one of each worker counts; none: as one."""
        self._begin, self._weights = begin, weights
        self._versions: dict[Gradient, int] = {}  # that gradients without a fate were computed on
        self._waits: dict[int, float] = {}  # since when
        self._version = 0
        self._updates = self._gradients = self._staleness = 0
        self._used = self._discarded = 0.0
        self._waited = 0.0
        self._rates: dict[int, _Rate] = {}  # by worker

    def observe(self, record: Record) -> None:
        now, event = record.now, record.event
        if isinstance(event, GradientArrived):
            self._versions[event.gradient] = event.version
            self._waits[event.gradient.worker] = now
        counts = now > self._begin
        for command in record.commands:
            kind = type(command)
            if kind is SendParameters:
                since = self._waits.pop(command.worker, now)  # type: ignore[union-attr]
                if counts and since < now:
                    self._waited += now - max(since, self._begin)
            elif kind is ApplyUpdate:
                self._apply(command.gradients, now, counts)  # type: ignore[union-attr]
            elif kind is DiscardGradient:
                del self._versions[command.gradient]  # type: ignore[union-attr]
                self._discarded += counts * self._weight(command.gradient.worker)  # type: ignore[union-attr]

    def _weight(self, worker: int) -> float:
        return self._weights[worker] if self._weights else 1.0

    def _apply(self, gradients: Sequence[Gradient], now: float, counts: bool) -> None:
        versions = [self._versions.pop(gradient) for gradient in gradients]
        if counts:
            self._updates += 1
            self._gradients += len(versions)
            self._staleness += self._version * len(versions) - sum(versions)
            for gradient in gradients:
                self._used += self._weight(gradient.worker)
                rate = self._rates.get(gradient.worker)
                if rate is None:
                    self._rates[gradient.worker] = _Rate(now)
                else:
                    rate.note(now)
        self._version += 1

    def prospect(self, candidate: str, workers: int, end: float, simulator: Simulator) -> Prospect:
        seconds = end - self._begin
        waited = self._waited + sum(end - max(since, self._begin) for since in self._waits.values())
        fates = self._used + self._discarded
        pace = sum(self._weight(worker) * rate.per_second(seconds) for worker, rate in self._rates.items())
        return Prospect(
            candidate,
            short(pace),
            short(self._staleness / self._gradients if self._gradients else 0.0),
            short(self._discarded / fates if fates else 0.0),
            short(waited / (seconds * workers)),
            short(pace * self._updates / self._used if self._used else 0.0),
            short(simulator.server.busy / end if isinstance(simulator, CostlySimulator) else 0.0),
        )


# -- a process of its own --


def thinker() -> list[str]:
    """The command of a process that answers questions."""
    return [sys.executable, "-c", SERVE, *(entry or os.getcwd() for entry in sys.path)]


def serve() -> None:
    """Answer questions of standard input, a line each, until there are no more."""
    os.nice(NICE)
    decode, encode = msgspec.json.Decoder(Ask).decode, msgspec.json.Encoder().encode
    for line in sys.stdin.buffer:
        asked, begun = decode(line), time.process_time()
        answer = msgspec.structs.replace(foresee(asked.question), seconds=short(time.process_time() - begun))
        sys.stdout.buffer.write(encode(Answered(asked.number, answer)) + b"\n")
        sys.stdout.buffer.flush()
