"""What updates, pulls and pushes cost a server, and what iterations take without its queue."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from paceline.core.questions import Costs, Question
from paceline.lifecycle.seats import Seat
from paceline.runtimes.serving.channel import Carried, Channel
from paceline.runtimes.serving.loop import Loop
from paceline.runtimes.serving.meter import STEP, Meter
from paceline.runtimes.serving.wire_meter import Way, WireMeter, least_share


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


def test_what_the_server_did_between_a_decision_and_the_parameters_is_no_part_of_an_iteration() -> None:
    """It is told beside, as what an update costs. A policy counts from the decision on."""
    meter, clock, _ = metered()
    for _ in range(4):
        meter.update(1, lambda: clock.passes(0.5, "done"))
        meter.pull(7, lambda: clock.passes(0.1))
        clock.passes(1.2)
        meter.push(7, 1.0, 1.8)
    seats = cast(dict[int, Seat], {0: SimpleNamespace(index=7)})
    [times] = meter.complete(Question(("asp",), (0,), ((1.8,) * 4,), 10.0), seats).times
    assert times == (1.2,) * 4


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


# -- the wire --


@pytest.mark.parametrize(
    ("ways", "share"),
    [
        ([], 0.0),
        ([(3.0, 3.5)], 0.5),
        ([(3.0, 3.5), (3.0, 4.0), (3.0, 4.5)], 0.5),  # one after the other
        ([(3.0, 4.5)] * 3, 0.5),  # all at once, as TCP does it
        ([(3.0, 4.0), (5.0, 5.5)], 0.5),
        ([(3.0, 4.0), (3.5, 4.5), (4.5, 5.25)], 0.75),  # never idle, until the last begins
        ([(3.0, 3.2), (3.0, 3.2), (3.0, 9.0)], 0.1),  # one of them has a slow wire of its own
    ],
)
def test_each_needs_at_most_the_time_in_which_so_many_arrived(ways: list[tuple[float, float]], share: float) -> None:
    assert least_share(Way(*way) for way in ways) == pytest.approx(share)
    assert least_share(Way(*way) for way in reversed(ways)) == pytest.approx(share)


class Wire(Channel[Any, Any]):
    """What the system would say of a connection."""

    def __init__(self, *, crosses: bool = True) -> None:
        super().__init__(-1, -1, Any)
        self.crosses, self.out, self.gradient = crosses, 0.0, 0.0

    def carried(self) -> Carried | None:
        return Carried(self.out, self.gradient) if self.crosses else None


def rounds(wires: dict[int, Wire], meter: Meter, clock: Clock, out: dict[int, float], back: dict[int, float]) -> None:
    """Three of BSP: all are released at once, compute for a second, and push."""
    for _ in range(3):
        for seat, wire in wires.items():
            meter.pull(seat, lambda: None)
            wire.out += out[seat]
            wire.gradient = back[seat]
        begun = clock.now
        for seat in sorted(wires, key=lambda seat: out[seat] + back[seat]):
            clock.now = begun + out[seat] + 1.0 + back[seat]
            meter.push(seat, 1.0)


def asked(meter: Meter, seats: int, seconds: float) -> Question:
    question = Question(("asp",), tuple(range(seats)), ((seconds,) * 3,) * seats, 10.0)
    return meter.complete(question, cast(dict[int, Seat], {seat: SimpleNamespace(index=seat) for seat in range(seats)}))


def watched(meter: Meter, seats: int) -> dict[int, Wire]:
    wires = {seat: Wire() for seat in range(seats)}
    for seat, wire in wires.items():
        meter.wire.watch(seat, wire)
    return wires


def test_what_workers_wait_for_each_other_on_a_wire_is_no_part_of_their_iterations() -> None:
    """Each transfer needs 0.2 s of the wire; four at once need 0.8."""
    meter, clock, _ = metered()
    wires = watched(meter, 4)
    ways = dict.fromkeys(range(4), 0.8)
    rounds(wires, meter, clock, ways, ways)
    found = asked(meter, 4, 2.6)
    assert (
        found.costs.wire == pytest.approx(0.2) and found.times == ((1.0,) * 3,) * 4
    )  # which asp would hardly wait for


def test_a_slow_wire_of_its_own_is_part_of_a_workers_iterations() -> None:
    meter, clock, _ = metered()
    wires = watched(meter, 4)
    ways = {0: 0.1, 1: 0.1, 2: 0.1, 3: 2.0}
    rounds(wires, meter, clock, ways, ways)
    found = asked(meter, 4, 1.2)
    assert found.costs.wire == pytest.approx(0.1 / 3, rel=1e-3)
    assert found.times[0] == (1.0,) * 3
    assert sum(asked(meter, 4, 5.0).times[3]) / 3 == pytest.approx(1 + 4.0 - 0.2)


def test_where_somebody_sees_the_servers_memory_the_way_stays_part_of_iterations() -> None:
    """Nothing is told of the wire then, and nothing is counted twice."""
    meter, clock, _ = metered()
    wires = watched(meter, 4)
    wires[3].crosses = False
    ways = dict.fromkeys(range(4), 0.8)
    rounds(wires, meter, clock, ways, ways)
    found = asked(meter, 4, 2.6)
    assert found.costs == Costs() and found.times == ((2.6,) * 3,) * 4
    meter.forget(3)
    assert meter.costs.wire == pytest.approx(0.8 / 3, rel=1e-3)


def test_what_was_not_released_or_has_no_channel_takes_no_time_of_a_wire() -> None:
    wire = WireMeter()
    wire.release(0, 1.0)
    assert wire.push(0) == 0.0
    wire.watch(0, Wire())
    assert wire.push(0) == 0.0 and wire.cost == 0.0
    wire.release(0, 1.0)
    assert wire.push(0) == 0.0 and wire.cost == 0.0  # too short to be counted
