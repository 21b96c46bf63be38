"""Whether `auto` holds in groups that it was not built with: they are drawn, and were fixed before the first run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import msgspec

from paceline.core.questions import Costs
from paceline.experiment.reproduction.autopilot import GOALS, HOW_MEASURED, RATE, Scenario, regret_page
from paceline.experiment.reproduction.page import Page
from paceline.experiment.reproduction.request import ExperimentRequest
from paceline.experiment.simulation import Simulation
from paceline.runtimes.speeds import Slowdown

FIRST_SEED = 200
GROUPS = 20
WORKERS = (3, 5, 6, 10, 12, 20, 24, 32)
RATES = (0.5, 1, 2, 4)  # times the one of autopilot


def unseen_groups(request: ExperimentRequest) -> Page:
    request = replace(request, first_seed=FIRST_SEED)
    return regret_page(
        request,
        groups(),
        "The policy that chooses the policy, where nobody looked before",
        "As on [autopilot](autopilot.md), in groups that were drawn, not chosen, and fixed before the first run."
        f" {GOALS}",
        f"{HOW_MEASURED} The group, what happens to it and the rate (half of that to four times as much) are drawn"
        f" (`{__name__}`).",
        FIRST_SEED,
    )


def groups() -> list[Scenario]:
    random = Random("groups that nobody looked at, drawn again")
    return [_drawn(random) for _ in range(GROUPS)]


def _drawn(random: Random) -> Scenario:
    workers, factor = random.choice(WORKERS), random.choice(RATES)
    speeds, simulation = random.choice(SPEEDS)(random, workers)
    event, simulation = random.choice(EVENTS)(random, workers, simulation)
    name = ", ".join(filter(None, (f"{workers} workers", speeds, event, f"rate x {factor:g}" if factor != 1 else "")))
    return Scenario(name, simulation, RATE * factor)


# -- how fast its workers are --


def _of_all_kinds(random: Random, workers: int) -> tuple[str, Simulation]:
    slowest = random.choice((1.2, 2.0, 4.0, 8.0))
    intervals = tuple(round(slowest ** random.random(), 3) for _ in range(workers))
    return f"of up to {slowest:g} times", Simulation(intervals=intervals, jitter=random.choice((0.02, 0.1, 0.3)))


def _some_slower(random: Random, workers: int) -> tuple[str, Simulation]:
    slow, factor = random.randint(1, max(1, workers // 3)), random.choice((1.5, 3.0, 6.0))
    intervals = (1.0,) * (workers - slow) + (factor,) * slow
    return f"{slow} of them {factor:g} times slower", Simulation(
        intervals=intervals, jitter=random.choice((0.02, 0.1, 0.3))
    )


def _noisy(random: Random, workers: int) -> tuple[str, Simulation]:
    speed = random.choice(("exponential:a=0.3", "exponential:a=0.7", "lognormal:sigma=0.2", "lognormal:sigma=0.5"))
    return speed.replace(":", " "), Simulation(workers=workers, speed=speed)


Speeds = Callable[[Random, int], tuple[str, Simulation]]
SPEEDS: tuple[Speeds, ...] = (_of_all_kinds, _of_all_kinds, _some_slower, _noisy)

# -- what happens to it --


def _nothing(random: Random, workers: int, simulation: Simulation) -> tuple[str, Simulation]:
    return "", simulation


def _slow_for_a_while(random: Random, workers: int, simulation: Simulation) -> tuple[str, Simulation]:
    some, begin = random.sample(range(workers), max(1, workers // random.choice((2, 4, 8)))), random.uniform(5, 40)
    end = begin + random.uniform(10, 80)
    slow = tuple(Slowdown(worker, random.choice((2.0, 5.0)), begin, end) for worker in some)
    return f"{len(some)} of them slow for a while", msgspec.structs.replace(simulation, slowdowns=slow)


def _come_and_go(random: Random, workers: int, simulation: Simulation) -> tuple[str, Simulation]:
    late, gone = random.sample(range(workers), 2)
    joins, failures = {late: random.uniform(5, 40)}, {gone: random.uniform(5, 60)}
    return "one joins, one leaves", msgspec.structs.replace(simulation, joins=joins, failures=failures)


def _slow_wire(random: Random, workers: int, simulation: Simulation) -> tuple[str, Simulation]:
    delay = random.choice((0.1, 0.5, 1.0))
    return f"pushes take {delay:g} s", msgspec.structs.replace(simulation, push_delay=delay)


def _busy_server(random: Random, workers: int, simulation: Simulation) -> tuple[str, Simulation]:
    busy = random.choice((0.3, 1.0, 2.5)) / workers  # of asp's pace: less than there is, all of it, more
    return f"updates take {busy:.2g} s", msgspec.structs.replace(simulation, costs=Costs(update=round(busy, 4)))


Events = Callable[[Random, int, Simulation], tuple[str, Simulation]]
EVENTS: tuple[Events, ...] = (_nothing, _slow_for_a_while, _come_and_go, _slow_wire, _busy_server)
