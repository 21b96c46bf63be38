"""What updates, pulls and pushes cost a server, and what iterations take without its queue."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from paceline.core.questions import Costs, Question
from paceline.lifecycle.seats import Seat
from paceline.runtimes.serving.loop import Loop
from paceline.runtimes.serving.meter import STEP, Meter


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float, result: Any = None) -> Any:
        self.now += seconds
        return result


def metered() -> tuple[Meter, Clock, Loop]:
    clock, loop = Clock(), cast(Loop, SimpleNamespace(busy=0.0))
    return Meter(loop, clock), clock, loop


def test_updates_of_several_sizes_tell_what_an_update_costs_and_what_each_gradient() -> None:
    meter, clock, loop = metered()
    assert meter.costs == Costs()
    for size in (1, 3, 2, 8):
        assert meter.update(size, lambda size=size: clock.passes(0.2 + 0.05 * size, "done")) == "done"
    meter.pull(0, lambda: clock.passes(0.01))
    meter.push(0, None)
    loop.busy = clock.now + 0.03  # and deciding
    assert meter.costs == pytest.approx(Costs(push=0.03, gradient=0.05, update=0.2, pull=0.01), abs=1e-4)


def test_of_updates_of_one_size_the_step_is_taken_for_a_few_gradients() -> None:
    meter, clock, _ = metered()
    for _ in range(3):
        meter.update(1, lambda: clock.passes(0.4, "done"))
    assert meter.costs == Costs(gradient=pytest.approx(0.1), update=pytest.approx(0.1 * STEP))


def test_an_update_that_is_under_way_takes_until_it_is_done() -> None:
    meter, clock, _ = metered()
    assert meter.update(4, lambda: None) is None
    clock.passes(0.7)
    meter.updated()
    assert sum((meter.costs.update, 4 * meter.costs.gradient)) == pytest.approx(0.7, rel=1e-3)


def test_the_queue_is_taken_out_of_iterations_and_the_way_is_not() -> None:
    """A worker computes for a second, its way takes 0.2 s, and then it waits for up to two seconds to be served."""
    meter, clock, loop = metered()
    for queue in (0.0, 1.0, 2.0):
        meter.pull(7, lambda: None)
        clock.passes(1.2 + queue)
        meter.push(7, 1.0)
    loop.busy = 0.3
    question = Question(("asp",), (0, 1, 2), ((1.2, 2.2, 3.2), (5.0, 5.0), (9.0,)), 10.0)
    seats = cast(dict[int, Seat], {0: SimpleNamespace(index=7), 2: SimpleNamespace(index=7)})
    completed = meter.complete(question, seats)
    assert completed.times == ((0.6545, 1.2, 1.745), (5.0, 5.0), (9.0,))  # a single one may be of what it is at
    assert sum(completed.times[0]) / 3 == pytest.approx(1.2, rel=1e-3) and completed.costs.push == pytest.approx(0.1)
    meter.forget(7)
    assert meter.complete(question, seats).times == question.times


def test_what_was_measured_before_counts_less_with_every_question() -> None:
    meter, clock, loop = metered()
    question = Question(("asp",), (), (), 10.0)
    for _ in range(8):
        meter.update(1, lambda: clock.passes(1.0, "done"))
        meter.push(0, 1.0)  # of one that nobody has released
    loop.busy = 8.0 + 0.8
    assert meter.complete(question, {}).costs.push == pytest.approx(0.1)
    for _ in range(4):
        meter.update(1, lambda: clock.passes(0.0, "done"))
        meter.push(0, None)
    assert meter.costs.update + meter.costs.gradient == pytest.approx(0.5) and meter.costs.push == pytest.approx(0.05)
