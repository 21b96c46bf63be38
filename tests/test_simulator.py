"""The simulator: how long iterations take, what happens when, and that the same simulation gives the same bytes."""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from group import VARIANTS
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from record_keeper import RecordKeeper

from paceline.core.errors import ConfigurationError
from paceline.core.messages import (
    NOTHING,
    DeadlinePassed,
    Decision,
    Event,
    Gradient,
    GradientArrived,
    InterruptWorker,
    WorkerJoined,
    WorkerLeft,
)
from paceline.core.progress import Progress
from paceline.core.spec import build, parameter
from paceline.experiment import Simulation, Slowdown, run_end, simulate, worker_speeds
from paceline.policies import POLICIES, Policy
from paceline.recording.metrics import Summary
from paceline.recording.replay import replay
from paceline.recording.trace import Record, Trace
from paceline.runtimes.simulated.simulator import RunEnd
from paceline.runtimes.speeds import (
    SPEEDS,
    Constant,
    Lognormal,
    Recorded,
    ShiftedExponential,
    SpeedModel,
    jittered,
    slowed,
)


def recorded(policy: Policy | str, simulation: Simulation) -> tuple[Summary, list[Record]]:
    keeper = RecordKeeper()
    return simulate(policy, simulation, observers=[keeper]), keeper.records


def arrivals(policy: Policy | str, simulation: Simulation, worker: int | None = None) -> list[float]:
    """When gradients arrived: of this worker, or of all."""
    _, records = recorded(policy, simulation)
    return [
        record.now
        for record in records
        if isinstance(record.event, GradientArrived) and worker in (None, record.event.gradient.worker)
    ]


# -- how long an iteration takes --


def draws(model: SpeedModel, count: int = 20_000, seed: str = "0/0/speed") -> list[float]:
    draw = model.start(seed)
    return [draw(iteration, 0.0) for iteration in range(count)]


def test_constant() -> None:
    assert set(draws(Constant(1.5), 10)) == {1.5}


@pytest.mark.parametrize("sigma", [0.02, 0.3, 0.8])
def test_lognormal_has_the_mean_and_the_sigma_that_it_says(sigma: float) -> None:
    times = draws(Lognormal(seconds=2.0, sigma=sigma))
    assert statistics.fmean(times) == pytest.approx(2.0, rel=0.03)
    assert statistics.stdev(map(math.log, times)) == pytest.approx(sigma, rel=0.03)
    assert Lognormal(2.0, sigma).mean == 2.0


@pytest.mark.parametrize("a", [0.0, 0.2, 1.0])
def test_shifted_exponential_has_a_certain_part_and_a_tail(a: float) -> None:
    times = draws(ShiftedExponential(a=a, seconds=3.0))
    assert statistics.fmean(times) == pytest.approx(3.0, rel=0.03)
    assert statistics.pstdev(times) == pytest.approx(3.0 * a, rel=0.05)
    assert min(times) == pytest.approx(3.0 * (1 - a), abs=0.01) and min(times) >= 3.0 * (1 - a)


def test_recorded_times_begin_again_when_they_are_used_up() -> None:
    assert draws(Recorded((1.0, 5.0, 3.0)), 7) == [1.0, 5.0, 3.0, 1.0, 5.0, 3.0, 1.0]
    assert Recorded((1.0, 5.0, 3.0)).mean == 3.0


def test_jitter_has_mean_one_and_none_is_exact() -> None:
    draw = jittered(lambda iteration, now: 4.0, 0.5, "0/0/jitter")
    assert statistics.fmean(draw(iteration, 0.0) for iteration in range(20_000)) == pytest.approx(4.0, rel=0.03)
    assert jittered(lambda iteration, now: 4.0, 0.0, "0/0/jitter")(0, 0.0) == 4.0


def test_a_seed_decides_the_draws() -> None:
    assert draws(Lognormal(), 5, "0/0/speed") == draws(Lognormal(), 5, "0/0/speed")
    assert draws(Lognormal(), 5, "0/0/speed") != draws(Lognormal(), 5, "0/1/speed")


@pytest.mark.parametrize(
    ("work", "now", "seconds"),
    [
        (2.0, 5.0, 2.0),  # over before it begins
        (2.0, 8.0, 2.0),  # over when it begins
        (2.0, 9.0, 1 + 3 * 1.0),  # straddles the beginning
        (2.0, 10.0, 6.0),
        (2.0, 12.0, 6.0),  # within
        (2.0, 14.0, 6.0),  # over when it ends
        (2.0, 18.0, 2 + (2 - 2 / 3)),  # straddles the end
        (6.0, 8.0, 2 + 10 + (6 - 2 - 10 / 3)),  # straddles both
        (2.0, 20.0, 2.0),  # begins when it ends
        (2.0, 30.0, 2.0),
    ],
)
def test_a_slow_down_by_three_from_10_to_20(work: float, now: float, seconds: float) -> None:
    assert slowed([Slowdown(0, 3.0, 10.0, 20.0)])(work, now) == pytest.approx(seconds)


def test_a_slow_down_without_an_end() -> None:
    seconds = slowed([Slowdown(0, 3.0, 10.0)])
    assert [seconds(2.0, now) for now in (0.0, 9.0, 10.0, 1e6)] == [2.0, 4.0, 6.0, 6.0]


TIMES = st.floats(0, 50, allow_subnormal=False)


@settings(derandomize=True, deadline=None)
@given(work=st.floats(0.01, 50), now=TIMES, factor=st.floats(1, 10), begin=TIMES, length=st.floats(0.01, 50))
def test_a_slow_down_does_the_same_work(work: float, now: float, factor: float, begin: float, length: float) -> None:
    end = begin + length
    until = now + slowed([Slowdown(0, factor, begin, end)])(work, now)
    slow = max(0.0, min(until, end) - max(now, begin))
    assert until - now - slow + slow / factor == pytest.approx(work, rel=1e-6)


def test_slow_downs_of_one_worker_add_up() -> None:
    slow = (Slowdown(0, 2.0, 1.0, 5.0), Slowdown(0, 3.0, 10.0))
    simulation = Simulation(intervals=(1.0, 1.0), slowdowns=slow, duration=16.0)
    assert arrivals("asp", simulation, 0) == [1.0, 3.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 13.0, 16.0]
    assert len(arrivals("asp", simulation, 1)) == 16


def test_slow_downs_that_overlap_multiply() -> None:
    # By 2 from 0 to 20 and by 3 from 10 on: 5 s of work are done by 10, 10/6 s more by 20, the rest at a third.
    both = [Slowdown(0, 2.0, 0.0, 20.0), Slowdown(0, 3.0, 10.0)]
    for slowdowns in (both, both[::-1]):
        assert slowed(slowdowns)(10.0, 0.0) == pytest.approx(20 + 3 * (10 - 5 - 10 / 6)) == 30.0
    simulation = Simulation(intervals=(10.0,), slowdowns=tuple(both), duration=40.0)
    assert arrivals("asp", simulation) == [30.0]


@settings(derandomize=True, deadline=None)
@given(
    work=st.floats(0.01, 50),
    now=TIMES,
    given=st.lists(st.tuples(st.floats(1, 10), TIMES, st.floats(0.01, 50)), max_size=4),
)
def test_slow_downs_do_the_same_work(work: float, now: float, given: list[tuple[float, float, float]]) -> None:
    slowdowns = [Slowdown(0, factor, begin, begin + length) for factor, begin, length in given]
    until = now + slowed(slowdowns)(work, now)
    inside = [time for each in slowdowns for time in (each.begin, each.until) if now < time < until]
    times = sorted({now, until, *inside})
    done = 0.0
    for begin, end in pairwise(times):
        middle = (begin + end) / 2
        done += (end - begin) / math.prod(each.factor for each in slowdowns if each.begin <= middle < each.until)
    assert done == pytest.approx(work, rel=1e-6)


def test_what_a_worker_draws_does_not_depend_on_the_policy() -> None:
    simulation = Simulation(workers=3, speed="lognormal:sigma=0.5", jitter=0.1, duration=30.0)

    def computing(policy: str) -> list[float]:
        """How long worker 0 took for each iteration."""
        released, took = 0.0, []
        for record in recorded(policy, simulation)[1]:
            if isinstance(record.event, GradientArrived) and record.event.gradient.worker == 0:
                took.append(record.now - released)
            if any(getattr(command, "worker", None) == 0 for command in record.commands):
                released = record.now
        return took

    under_asp, under_bsp = computing("asp"), computing("bsp")
    assert 10 < len(under_bsp) < len(under_asp)
    assert under_bsp == pytest.approx(under_asp[: len(under_bsp)], abs=1e-6)


# -- what happens when --


def test_times_lie_on_a_decimal_grid_so_that_workers_meet() -> None:
    simulation = Simulation(intervals=(0.1, 0.3), duration=30.0)
    fast, slow = arrivals("asp", simulation, 0), arrivals("asp", simulation, 1)
    assert fast == [round(0.1 * clock, 1) for clock in range(1, 301)]
    assert slow == fast[2::3]


@pytest.mark.parametrize("interval", [0.1, 0.7, 1.1, 1.913, 3e-7, 1913.0, 2.5e8])
@pytest.mark.parametrize("clock", [1, 3, 7, 99, 1000])
def test_a_push_exactly_at_the_end_counts(interval: float, clock: int) -> None:
    end = float(f"{interval * clock:.9g}")  # what somebody would type
    assert simulate("asp", Simulation(intervals=(interval,), duration=end)).pushes == clock
    assert simulate("asp", Simulation(intervals=(interval,), duration=end * (1 - 1e-7))).pushes == clock - 1


def test_delays_are_on_the_grid_too() -> None:
    simulation = Simulation(intervals=(0.1,), push_delay=0.2, pull_delay=0.7, duration=1.0)
    assert arrivals("asp", simulation) == [1.0]
    assert arrivals("asp", Simulation(intervals=(0.1,), push_delay=0.2, duration=0.3)) == [0.3]


def test_a_delayed_worker_computes_from_the_arrival_of_the_parameters() -> None:
    simulation = Simulation(intervals=(1.0, 3.0), push_delay=0.25, pull_delay=0.5, duration=8.0)
    assert arrivals("asp", simulation, 0) == [1.75, 3.5, 5.25, 7.0]
    assert arrivals("asp", simulation, 1) == [3.75, 7.5]
    summary = simulate("bsp", simulation)
    assert summary.pushes == 4 and summary.updates == 2
    assert [each.waiting_seconds for each in summary.workers] == [2 * (3.75 - 1.75), 0.0]


def test_an_interrupted_worker_starts_over() -> None:
    simulation = Simulation(intervals=(1.0, 10.0), duration=5.5)
    summary, records = recorded("backup:k=1,late=interrupt", simulation)
    assert [record.now for record in records if InterruptWorker(1) in record.commands] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert [each.pushes for each in summary.workers] == [5, 0]
    assert summary.discarded == 0 and summary.interrupted == 5


def test_an_interruption_takes_the_time_of_a_pull() -> None:
    # Worker 0 arrives at 1.75, its interruption reaches worker 1 at 2.25, in mid-work; that is the last one to do so.
    simulation = Simulation(intervals=(1.0, 2.0), push_delay=0.25, pull_delay=0.5, failures={0: 2.0}, duration=5.0)
    assert arrivals("backup:k=1,late=interrupt", simulation) == [1.75, 2.25 + 2.0 + 0.25]
    assert arrivals("asp", simulation) == [1.75, 2.75]


def test_a_push_on_its_way_is_not_interrupted() -> None:
    # Worker 1 is done at 1.6, and its push arrives at 1.85; the interruption would reach it at 2.25.
    simulation = Simulation(intervals=(1.0, 1.1), push_delay=0.25, pull_delay=0.5, duration=3.0)
    summary, records = recorded("backup:k=1,late=interrupt", simulation)
    assert [record.now for record in records if isinstance(record.event, GradientArrived)] == [1.75, 1.85]
    assert summary.interrupted == 1 and summary.discarded == 1 and summary.updates == 1


def test_a_failed_worker_pushes_no_more_and_blocks_nobody() -> None:
    simulation = Simulation(intervals=(1.0, 2.0), failures={1: 3.0}, duration=6.0)
    summary, records = recorded("bsp", simulation)
    assert [record.event for record in records if record.now == 3.0] == [
        WorkerLeft(1, "failed"),
        GradientArrived(Gradient(0, 2), 1),
    ]
    assert [each.pushes for each in summary.workers] == [1 + 4, 1]
    assert summary.workers[1].member_seconds == 3.0


def test_a_push_at_the_moment_of_a_failure_is_lost() -> None:
    assert arrivals("asp", Simulation(intervals=(1.0, 1.0), failures={1: 2.0}, duration=2.0), 1) == [1.0]


def test_a_push_on_its_way_is_lost_with_its_worker() -> None:
    simulation = Simulation(intervals=(1.0, 1.0), push_delay=0.5, failures={1: 1.25}, duration=4.0)
    assert arrivals("asp", simulation) == [1.5, 3.0]
    assert arrivals("asp", simulation, 1) == []


def test_a_late_joiner_begins_when_it_joins() -> None:
    simulation = Simulation(intervals=(1.0, 1.0), joins={1: 2.5}, duration=5.0)
    assert arrivals("asp", simulation, 1) == [3.5, 4.5]
    assert simulate("asp", simulation).workers[1].member_seconds == 2.5


@pytest.mark.parametrize("text", VARIANTS)
def test_a_group_may_come_late_go_and_come_again(text: str) -> None:
    # Nobody until 1, then 0 and 1 until 5, nobody until 10, then 2 and 3, of which 2 fails.
    simulation = Simulation(
        intervals=(1.0, 1.5, 0.75, 1.25),
        joins={0: 1.0, 1: 1.0, 2: 10.0, 3: 10.0},
        failures={0: 4.5, 1: 5.0, 2: 15.0},
        duration=20.0,
    )
    summary, records = recorded(text, simulation)
    assert summary.workers[3].pushes >= 5 and summary.pending <= 3
    times = [record.now for record in records]
    assert times == sorted(times) and not [now for now in times if 5.0 < now < 10.0]


def test_everybody_fails_and_the_run_still_lasts_as_long_as_asked() -> None:
    simulation = Simulation(intervals=(1.0, 1.0), failures={0: 1.5, 1: 2.5})
    assert simulate("bsp", simulation).seconds == 100.0
    without_end = simulate("asp", replace(simulation, pushes=1000))
    assert without_end.seconds == 2.5 and without_end.pushes == 3


@pytest.mark.parametrize("text", VARIANTS)
def test_a_run_ends_at_its_number_of_updates_or_pushes(text: str) -> None:
    by_updates = simulate(text, Simulation(intervals=(1.0, 1.7, 2.0), jitter=0.05, updates=13))
    assert by_updates.updates == 13
    summary, records = recorded(text, Simulation(intervals=(1.0, 1.7, 2.0), jitter=0.05, pushes=29))
    assert summary.pushes == 29
    assert summary.seconds == records[-1].now


def test_without_an_end_the_slowest_has_time_for_a_hundred_iterations() -> None:
    simulation = Simulation(intervals=(1.0, 2.5))
    assert run_end(simulation, worker_speeds(simulation)) == RunEnd(duration=250.0)
    assert simulate("bsp", simulation).updates == 100


def test_a_worker_that_still_waits_has_waited_until_the_end() -> None:
    summary = simulate("bsp", Simulation(intervals=(1.0, 10.0), duration=7.25))
    assert [each.waiting_seconds for each in summary.workers] == [6.25, 0.0]
    by_pushes = simulate("bsp", Simulation(intervals=(1.0, 10.0, 4.0), pushes=2))
    assert by_pushes.seconds == 4.0
    assert [each.waiting_seconds for each in by_pushes.workers] == [3.0, 0.0, 0.0]


# -- deadlines --


@dataclass(eq=False)
class Periodic(Policy):
    """An update at the end of every period, from whoever is ready."""

    name = "periodic"
    summary = "an update every period"
    paper = "none"

    period: float = parameter(2.0, "time between two updates", above=0)
    _due: float | None = field(init=False, default=None)

    def decide(self, event: Event, progress: Progress, now: float) -> Decision:
        match event:
            case WorkerJoined(worker):
                self._due = now + self.period if self._due is None else self._due
                return Decision(release=(worker,))
            case GradientArrived(gradient):
                return Decision(reason=f"worker {gradient.worker} waits for the update at {self._due:g}")
            case DeadlinePassed():
                self._due = now + self.period
                return Decision(apply=tuple(progress.pending), release=tuple(progress.waiting))
            case _:
                return NOTHING

    def deadline(self) -> float | None:
        return self._due


def test_a_policy_is_woken_at_its_deadline() -> None:
    summary, records = recorded(Periodic(), Simulation(intervals=(1.0, 2.5), duration=10.0))
    assert [record.now for record in records if record.event == DeadlinePassed()] == [2.0, 4.0, 6.0, 8.0, 10.0]
    assert summary.updates == 5 and summary.pushes == 7
    # Worker 0 pushes at 1, 3, 5, 7, 9 and waits 1 each; worker 1 at 2.5 and 6.5, and waits 1.5 each.
    assert [(each.pushes, each.waiting_seconds) for each in summary.workers] == [(5, 5.0), (2, 3.0)]
    assert summary.longest_wait is not None
    assert summary.longest_wait.reason == "worker 1 waits for the update at 4"


def test_a_run_with_deadlines_replays(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    simulate(Periodic(1.5), Simulation(workers=3, speed="exponential:a=0.4", updates=20), trace_file=path)
    assert Trace(path).header.policy == "periodic:period=1.5"
    assert list(replay(Trace(path), Periodic(1.5))) == list(Trace(path))


@dataclass(eq=False)
class Restless(Periodic):
    """Moves its deadline at every push, and once into the past."""

    def decide(self, event: Event, progress: Progress, now: float) -> Decision:
        decision = super().decide(event, progress, now)
        if isinstance(event, GradientArrived):
            self._due = now - 1.0 if event.gradient.clock == 3 else now + self.period
        return decision


def test_a_deadline_that_moves_or_lies_in_the_past() -> None:
    summary, records = recorded(Restless(), Simulation(intervals=(1.0,), duration=12.0))
    times = [record.now for record in records]
    assert times == sorted(times)
    # Pushes at 1, 4, 7, 8, 11; each is answered 2 later, the third at once.
    woken = [record.now for record in records if record.event == DeadlinePassed() and record.commands]
    assert woken == [3.0, 6.0, 7.0, 10.0]
    assert summary.pushes == 5


# -- the same command gives the same bytes --

UNSTEADY = Simulation(
    workers=4,
    speed="exponential:a=0.3",
    jitter=0.1,
    push_delay=0.01,
    slowdowns=(Slowdown(1, 4.0, 5.0, 15.0),),
    joins={3: 8.0},
    failures={0: 30.0},
    duration=40.0,
)


@pytest.mark.parametrize("text", VARIANTS)
def test_the_same_simulation_twice_is_the_same_to_the_byte(text: str, tmp_path: Path) -> None:
    first, second = (tmp_path / name for name in ("first", "second"))
    assert simulate(text, UNSTEADY, trace_file=first) == simulate(text, UNSTEADY, trace_file=second)
    assert first.read_bytes() == second.read_bytes()


def test_another_seed_gives_another_run(tmp_path: Path) -> None:
    first, second = (tmp_path / name for name in ("first", "second"))
    simulate("asp", UNSTEADY, trace_file=first)
    simulate("asp", replace(UNSTEADY, seed=1), trace_file=second)
    assert first.read_bytes() != second.read_bytes()


@pytest.mark.slow  # two processes, because PYTHONHASHSEED is read when Python starts
def test_the_hash_seed_changes_nothing(tmp_path: Path) -> None:
    def run(hash_seed: str) -> dict[str, bytes]:
        directory = tmp_path / hash_seed
        arguments = ["simulate", "--policy", "all", "--policy", "dbw:blind=true", "--workers", "5", "--jitter", "0.2"]
        arguments += ["--speed", "lognormal", "--fail", "1@12.5", "--join", "4@6.5", "--duration", "30"]
        code = "from paceline.cli import main; main()"
        outcome = subprocess.run(
            [sys.executable, "-c", code, *arguments, "--json", "--trace-out", str(directory)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
        )
        files = {path.parent.name: path.read_bytes() for path in sorted(directory.glob("*/trace.jsonl"))}
        return {"stdout": outcome.stdout, **files}

    one, other = run("1"), run("12345")
    assert len(one) == 1 + len(POLICIES) + 1
    assert one == other


# -- impossible simulations --

IMPOSSIBLE: dict[str, tuple[Callable[[], Simulation], str]] = {
    "nothing": (lambda: Simulation(), "give the workers exactly one way"),
    "workers only": (lambda: Simulation(workers=3), "give the workers exactly one way"),
    "two ways": (
        lambda: Simulation(intervals=(1.0,), workers=1, speed="constant"),
        "give the workers exactly one way: as intervals, as workers with a speed, or as a trace",
    ),
    "three ways": (lambda: Simulation(intervals=(1.0,), workers=1, speed="constant", trace="x"), "exactly one way"),
    "no intervals": (lambda: Simulation(intervals=()), "there must be at least 1 worker"),
    "zero interval": (
        lambda: Simulation(intervals=(1.0, 0.0)),
        "interval of worker 1 is 0; it must be a number above 0",
    ),
    "negative interval": (lambda: Simulation(intervals=(-1.0,)), "interval of worker 0 is -1; it must be"),
    "NaN interval": (lambda: Simulation(intervals=(math.nan,)), "interval of worker 0 is nan; it must be"),
    "infinite interval": (lambda: Simulation(intervals=(math.inf,)), "interval of worker 0 is inf; it must be"),
    "tiny interval": (
        lambda: Simulation(intervals=(1e-320,)),
        "iteration time of worker 0 is 9.99989e-321; it must be from 1e-100 to 1e100",
    ),
    "huge interval": (lambda: Simulation(intervals=(1e308,)), "iteration time of worker 0 is 1e+308; it must be"),
    "speed without workers": (lambda: Simulation(speed="constant"), "a speed needs the number of workers that have it"),
    "no workers": (lambda: Simulation(workers=0, speed="constant"), "workers is 0; it must be from 1 to 1,000,000"),
    "negative workers": (
        lambda: Simulation(workers=-2, speed="constant"),
        "workers is -2; it must be from 1 to 1,000,000",
    ),
    "another number of workers": (
        lambda: Simulation(intervals=(1.0, 2.0), workers=3),
        "3 workers were asked for, but 2 are described",
    ),
    "unknown speed": (
        lambda: Simulation(workers=2, speed="lognorm"),
        "unknown speed 'lognorm' (did you mean 'lognormal'?); there are: constant, lognormal, exponential",
    ),
    "impossible speed": (
        lambda: Simulation(workers=2, speed="constant:seconds=0"),
        "speed 'constant': seconds=0 is not possible; seconds is float > 0, default 1 (time of an iteration)",
    ),
    "wild speed": (lambda: Simulation(workers=2, speed="lognormal:sigma=9"), "sigma is float >= 0 <= 3, default 0.3"),
    "negative jitter": (
        lambda: Simulation(intervals=(1.0,), jitter=-0.1),
        "jitter is -0.1; it must be from 0 to 3",
    ),
    "NaN jitter": (lambda: Simulation(intervals=(1.0,), jitter=math.nan), "jitter is nan; it must be from 0 to 3"),
    "wild jitter": (lambda: Simulation(intervals=(1.0,), jitter=50.0), "jitter is 50; it must be from 0 to 3"),
    "negative push delay": (
        lambda: Simulation(intervals=(1.0,), push_delay=-1.0),
        "push-delay is -1; it must be from 0 to 1e+100",
    ),
    "infinite pull delay": (
        lambda: Simulation(intervals=(1.0,), pull_delay=math.inf),
        "pull-delay is inf; it must be from 0 to 1e+100",
    ),
    "two ends": (
        lambda: Simulation(intervals=(1.0,), duration=5.0, updates=3),
        "duration and updates were given; a run has one end",
    ),
    "three ends": (
        lambda: Simulation(intervals=(1.0,), duration=5.0, updates=3, pushes=4),
        "duration and updates and pushes were given; a run has one end",
    ),
    "zero duration": (lambda: Simulation(intervals=(1.0,), duration=0.0), "duration is 0; it must be above 0"),
    "NaN duration": (lambda: Simulation(intervals=(1.0,), duration=math.nan), "duration is nan; it must be above 0"),
    "infinite duration": (lambda: Simulation(intervals=(1.0,), duration=math.inf), "duration is inf; it must be"),
    "zero updates": (lambda: Simulation(intervals=(1.0,), updates=0), "updates is 0; it must be above 0"),
    "negative pushes": (lambda: Simulation(intervals=(1.0,), pushes=-1), "pushes is -1; it must be above 0"),
    "unknown joiner": (
        lambda: Simulation(intervals=(1.0, 1.0), joins={2: 1.0}),
        "there is no worker 2; there are 0, 1",
    ),
    "unknown failure": (
        lambda: Simulation(workers=20, speed="constant", failures={20: 1.0}),
        "there is no worker 20; there are 20, from 0 to 19",
    ),
    "unknown slow worker": (
        lambda: Simulation(intervals=(1.0,), slowdowns=(Slowdown(1, 2.0),)),
        "there is no worker 1; there are 0",
    ),
    "joins before the beginning": (
        lambda: Simulation(intervals=(1.0,), joins={0: -1.0}),
        "joining time of worker 0 is -1; it must be a number from 0",
    ),
    "fails before it joins": (
        lambda: Simulation(intervals=(1.0,), joins={0: 5.0}, failures={0: 5.0}),
        "failure of worker 0 is 5; it must be after it joined, at 5",
    ),
    "fails at no time": (lambda: Simulation(intervals=(1.0,), failures={0: math.nan}), "failure of worker 0 is nan"),
    "slow by nothing": (
        lambda: Simulation(intervals=(1.0,), slowdowns=(Slowdown(0, 0.0),)),
        "slow-down of worker 0 is 0; it must be a factor from 1",
    ),
    "slow by NaN": (
        lambda: Simulation(intervals=(1.0,), slowdowns=(Slowdown(0, math.nan),)),
        "slow-down of worker 0 is nan; it must be a factor from 1",
    ),
    "slow backwards": (
        lambda: Simulation(intervals=(1.0,), slowdowns=(Slowdown(0, 2.0, 5.0, 4.0),)),
        "beginning of the slow-down of worker 0 is 5; it must be from 0, and before its end",
    ),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_an_impossible_simulation_is_refused(case: str) -> None:
    simulation, message = IMPOSSIBLE[case]
    with pytest.raises(ConfigurationError) as caught:
        simulate("asp", simulation())
    assert message in str(caught.value)


def test_a_policy_that_needs_more_workers_is_refused() -> None:
    with pytest.raises(ConfigurationError) as caught:
        simulate("backup:k=3", Simulation(intervals=(1.0, 2.0)))
    assert str(caught.value) == (
        "policy 'backup:k=3': k=3 gradients per update need at least 3 workers, and there are 2"
    )


def test_every_speed_model_can_be_named() -> None:
    for name in SPEEDS:
        assert build(name, SPEEDS, "speed").mean == 1.0


def test_a_push_that_rounding_moved_past_the_end_still_counts() -> None:
    third = Simulation(intervals=(0.6666666666666666,), duration=2)
    assert simulate("asp", third).pushes == 3
    long = Simulation(intervals=(0.6666666666666666,), duration=20_000)
    summary = simulate("bsp", long)
    assert summary.pushes == 30_000 and summary.seconds == 20_000
