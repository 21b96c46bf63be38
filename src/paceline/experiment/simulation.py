"""Simulated runs: from a description of the workers to the figures of a policy."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from paceline.core.coordinator import Coordinator
from paceline.core.errors import ConfigurationError
from paceline.core.questions import NO_COSTS, Costs
from paceline.core.spec import build, check
from paceline.experiment.foresight import foresee, simulator_with
from paceline.policies import Policy
from paceline.policies import policy as build_policy
from paceline.recording.lines import write_privately
from paceline.recording.metrics import RunMetrics, Summary
from paceline.recording.observer import Observer
from paceline.recording.trace import TraceWriter
from paceline.runtimes.intervals import patience_of
from paceline.runtimes.iteration_times import read_iteration_times
from paceline.runtimes.simulated.simulator import Eviction, PolicySwitch, RunEnd, SimulatedWorker
from paceline.runtimes.speeds import (
    MOST_SIGMA,
    SPEEDS,
    Constant,
    Draw,
    Recorded,
    Slowdown,
    SpeedModel,
    jittered,
    slowed,
)

LONGEST = 1e100  # of any time or factor
MOST_SIMULATED_WORKERS = 1_000_000
DEFAULT_ROUNDS = 100  # iterations of the slowest worker, where no end of the run is given


class Switch(msgspec.Struct, frozen=True):
    """To another policy, at a time."""

    policy: str
    at: float


class Simulation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that decides a simulated run except the policy. Exactly one of intervals, speed and trace.

    `costs`: what pushes and updates keep the server busy for; with them there are no push and pull delays.
    `trace`: a CSV of iteration times, or the directory of a run whose times are taken.
    """

    intervals: tuple[float, ...] | None = None
    workers: int | None = None
    speed: str | None = None
    trace: str | None = None
    jitter: float = 0.0
    push_delay: float = 0.0
    pull_delay: float = 0.0
    slowdowns: tuple[Slowdown, ...] = ()
    joins: dict[int, float] = {}
    failures: dict[int, float] = {}
    evictions: dict[int, float] = {}  # workers that are sent away, and when
    duration: float | None = None
    updates: int | None = None
    pushes: int | None = None
    seed: int = 0
    switches: tuple[Switch, ...] = ()
    costs: Costs = NO_COSTS
    patience: str = "off"  # with workers that are silent; the unit of time is the simulation's


def simulate(
    policy: Policy | str,
    simulation: Simulation,
    *,
    speeds: Mapping[int, SpeedModel] | None = None,
    trace_file: Path | None = None,
    observers: Sequence[Observer] = (),
) -> Summary:
    """Run one policy in virtual time and return its figures. The same arguments give the same bytes.

    `speeds`: what worker_speeds(simulation) gave, to run several policies: a CSV from a pipe can be read only once.
    """
    if speeds is None:
        speeds = worker_speeds(simulation)
    chosen = policy_for(policy, len(speeds))
    metrics = RunMetrics()
    writer = None if trace_file is None else TraceWriter(trace_file, str(chosen))
    simulator = simulator_with(simulation.costs)(
        simulated_workers(simulation, speeds),
        Coordinator(chosen),
        [metrics, *observers, *([writer] if writer else [])],
        push_delay=simulation.push_delay,
        pull_delay=simulation.pull_delay,
        time_scale=min(speed.mean for speed in speeds.values()),
        patience=patience_of(simulation.patience, "patience"),
        switches=switches_of(simulation, len(speeds)),
        evictions=evictions_of(simulation),
        think=foresee,
    )
    try:
        simulator.run(run_end(simulation, speeds))
    finally:
        if writer is not None:  # an interrupted run leaves a whole trace of what it did
            writer.close(simulator.now)
    return metrics.summary(str(chosen), simulator.now)


def policy_for(policy: Policy | str, workers: int) -> Policy:
    """A policy to run, where it can work with so many workers; ConfigurationError says why not.

    A policy that was given is never run itself, so that it can be given to any number of runs.
    """
    if isinstance(policy, str):
        chosen = build_policy(policy)
    elif not isinstance(policy, Policy):
        raise ConfigurationError(
            f"policy is {policy!r:.80}; it must be a string, as in 'ssp:staleness=3', or an object of a class that"
            " derives from paceline.policies.Policy"
        )
    else:
        check(policy, policy.name, "policy")
        chosen = policy.fresh()
    try:
        chosen.check_group(workers)
    except ValueError as problem:
        raise ConfigurationError(f"policy {str(policy)!r}: {problem}") from None
    return chosen


def worker_speeds(simulation: Simulation) -> dict[int, SpeedModel]:
    """The workers of a simulation and how fast they are; ConfigurationError if anything about it is impossible."""
    given = [way for way in (simulation.intervals, simulation.speed, simulation.trace) if way is not None]
    if len(given) != 1:
        raise ConfigurationError(
            "give the workers exactly one way: as intervals, as workers with a speed, or as a trace;"
            " for instance --workers 3x1.0,1x4.0: three that need a second for an iteration, and one that needs four"
        )
    speeds: dict[int, SpeedModel]
    if simulation.intervals is not None:
        speeds = {}
        for worker, seconds in enumerate(simulation.intervals):
            _require(0 < seconds < math.inf, f"interval of worker {worker}", seconds, "a number above 0")
            speeds[worker] = Constant(seconds)
    elif simulation.speed is not None:
        count = simulation.workers
        if count is None:
            raise ConfigurationError("a speed needs the number of workers that have it")
        _require(1 <= count <= MOST_SIMULATED_WORKERS, "workers", count, f"from 1 to {MOST_SIMULATED_WORKERS:,}")
        speeds = dict.fromkeys(range(count), build(simulation.speed, SPEEDS, "speed"))
    else:
        times = _times_in(Path(str(simulation.trace)))
        speeds = {worker: Recorded(own) for worker, own in times.items()}
    if not speeds:
        raise ConfigurationError("there must be at least 1 worker")
    if simulation.workers is not None and simulation.workers != len(speeds):
        raise ConfigurationError(f"{simulation.workers} workers were asked for, but {len(speeds)} are described")
    _check_rest(simulation, speeds)
    for switch in simulation.switches:
        _require(0 <= switch.at < math.inf, f"time of the switch to {switch.policy}", switch.at, "a number from 0")
        policy_for(switch.policy, len(speeds))
    return speeds


def _times_in(path: Path) -> dict[int, tuple[float, ...]]:
    """Of a CSV, or of a run directory or its trace."""
    if not path.is_dir() and ".jsonl" not in path.suffixes:
        return read_iteration_times(path)
    from paceline.experiment.worker_times import recorded_times  # which looks at simulations, too

    return recorded_times(path)


def _check_rest(simulation: Simulation, speeds: Mapping[int, SpeedModel]) -> None:
    for worker, speed in speeds.items():
        _require(1e-100 < speed.mean < 1e100, f"iteration time of worker {worker}", speed.mean, "from 1e-100 to 1e100")
    _require(0 <= simulation.jitter <= MOST_SIGMA, "jitter", simulation.jitter, f"from 0 to {MOST_SIGMA:g}")
    for what in ("push_delay", "pull_delay"):
        value = getattr(simulation, what)
        _require(0 <= value <= LONGEST, what.replace("_", "-"), value, f"from 0 to {LONGEST:g}")
    _check_costs(simulation)
    ends = {what: getattr(simulation, what) for what in ("duration", "updates", "pushes")}
    given = {what: value for what, value in ends.items() if value is not None}
    if len(given) > 1:
        raise ConfigurationError(f"{' and '.join(given)} were given; a run has one end")
    for what, value in given.items():
        _require(0 < value < math.inf, what, value, "above 0")
    _check_who_comes_and_goes(simulation, speeds)
    patience_of(simulation.patience, "patience")
    for slowdown in simulation.slowdowns:
        what = f"slow-down of worker {slowdown.worker}"
        _require(1 <= slowdown.factor <= LONGEST, what, slowdown.factor, f"a factor from 1 to {LONGEST:g}")
        _require(
            0 <= slowdown.begin < slowdown.until,
            f"beginning of the {what}",
            slowdown.begin,
            "from 0, and before its end",
        )


def _check_who_comes_and_goes(simulation: Simulation, speeds: Mapping[int, SpeedModel]) -> None:
    leaving = {"failure": simulation.failures, "eviction": simulation.evictions}
    named = [worker for times in (simulation.joins, *leaving.values()) for worker in times]
    for worker in [*named, *(slowdown.worker for slowdown in simulation.slowdowns)]:
        if worker not in speeds:
            raise ConfigurationError(f"there is no worker {worker}; there are {_few(list(speeds))}")
    for worker, time in simulation.joins.items():
        _require(0 <= time < math.inf, f"joining time of worker {worker}", time, "a number from 0")
    for what, times in leaving.items():
        for worker, time in times.items():
            joined = simulation.joins.get(worker, 0.0)
            _require(joined < time < math.inf, f"{what} of worker {worker}", time, f"after it joined, at {joined:g}")


def _check_costs(simulation: Simulation) -> None:
    for what, value in msgspec.structs.asdict(simulation.costs).items():
        _require(0 <= value <= LONGEST, f"costs: {what}", value, f"from 0 to {LONGEST:g}")
    if simulation.costs != NO_COSTS and (simulation.push_delay or simulation.pull_delay):
        raise ConfigurationError("give either delays or costs: the cost of the wire is a delay that others wait for")


def _require(holds: bool, what: str, value: float, expected: str) -> None:
    if not holds:
        raise ConfigurationError(f"{what} is {value:g}; it must be {expected}")


def _few(workers: list[int]) -> str:
    if len(workers) > 12:
        return f"{len(workers)}, from {workers[0]} to {workers[-1]}"
    return ", ".join(map(str, workers))


def simulated_workers(simulation: Simulation, speeds: Mapping[int, SpeedModel]) -> list[SimulatedWorker]:
    workers = []
    for worker, speed in speeds.items():
        draw = speed.start(f"{simulation.seed}/{worker}/speed")
        if simulation.jitter:
            draw = jittered(draw, simulation.jitter, f"{simulation.seed}/{worker}/jitter")
        own = [slowdown for slowdown in simulation.slowdowns if slowdown.worker == worker]
        if own:
            draw = _slower(draw, own)
        workers.append(
            SimulatedWorker(worker, draw, simulation.joins.get(worker, 0.0), simulation.failures.get(worker))
        )
    return workers


def switches_of(simulation: Simulation, workers: int) -> list[PolicySwitch]:
    """The policies that take over on the way, each a fresh one."""
    return [PolicySwitch(switch.at, policy_for(switch.policy, workers)) for switch in simulation.switches]


def evictions_of(simulation: Simulation) -> list[Eviction]:
    return [Eviction(at, worker) for worker, at in simulation.evictions.items()]


def _slower(draw: Draw, slowdowns: Sequence[Slowdown]) -> Draw:
    stretched = slowed(slowdowns)
    return lambda iteration, now: stretched(draw(iteration, now), now)


def run_end(simulation: Simulation, speeds: Mapping[int, SpeedModel]) -> RunEnd:
    """When the run is over; without a word on it, when the slowest worker had time for a hundred iterations."""
    if simulation.updates is not None:
        return RunEnd(updates=simulation.updates)
    if simulation.pushes is not None:
        return RunEnd(pushes=simulation.pushes)
    if simulation.duration is not None:
        return RunEnd(duration=simulation.duration)
    return RunEnd(duration=DEFAULT_ROUNDS * max(speed.mean for speed in speeds.values()))


def run_directory(below: Path, policy: str, simulation: Simulation) -> Path:
    """Make the directory of one run, write its configuration, and return the path of its trace."""
    directory = below / re.sub(r"[^A-Za-z0-9.+_-]+", "-", policy)
    configuration = {"policy": policy, "simulation": simulation}
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_privately(directory / "config.json", msgspec.json.format(msgspec.json.encode(configuration)) + b"\n")
    except OSError as problem:
        raise ConfigurationError(f"{directory}: cannot be written: {problem.strerror}") from None
    return directory / "trace.jsonl"
