"""The straggler bill: closed forms to the second, and that it adds up whatever happens to a group."""

from __future__ import annotations

import math
from typing import Any

import pytest
from group import VARIANTS
from hypothesis import given, settings
from hypothesis import strategies as st
from record_keeper import RecordKeeper

from paceline.core.errors import ConfigurationError
from paceline.core.messages import (
    ApplyUpdate,
    BatchSkipped,
    Command,
    DeadlinePassed,
    DiscardGradient,
    Gradient,
    GradientArrived,
    InterruptWorker,
    Record,
    SendParameters,
    UpdateApplied,
    WentBack,
    WorkerJoined,
    WorkerLeft,
    WorkerReturned,
)
from paceline.experiment.simulation import LONGEST, Simulation, Switch, simulate
from paceline.recording.bill import (
    COMPUTING,
    DISCARDED,
    FAILED,
    JOINING,
    NO_WORK,
    NOT_LOST,
    SERVER,
    SLOW,
    UNFINISHED,
    WAITING,
    Bill,
    Billing,
)
from paceline.recording.blame import Arrival, share_waits
from paceline.recording.metrics import RunMetrics
from paceline.recording.observer import Observer
from paceline.runtimes.speeds import Slowdown


class Presence(Observer):
    """How long how many places were there, counted another way: by what changes their number."""

    def __init__(self) -> None:
        self.changes: list[tuple[float, int]] = []
        self._empty = 0
        self._here: set[int] = set()

    def observe(self, record: Record) -> None:
        match record.event:
            case WorkerJoined(worker):
                self._here.add(worker)
                if self._empty:
                    self._empty -= 1
                else:
                    self.changes.append((record.now, 1))
            case WorkerLeft(worker) if worker in self._here:
                self._here.remove(worker)
                self._empty += 1
            case _:
                pass

    def seconds(self, end: float) -> float:
        return sum(number * (end - begin) for begin, number in self.changes)


def bill_of(policy: str, simulation: Simulation, *observers: Observer) -> tuple[Bill, Any]:
    billing = Billing(policy)
    summary = simulate(policy, simulation, observers=[billing, *observers])
    return billing.bill(summary.seconds), summary


def figures(bill: Bill) -> dict[tuple[int | None, str], float]:
    return {(item.worker, item.cause): item.seconds for item in bill.items}


def test_two_workers_one_half_as_fast_under_bsp() -> None:
    """Each round takes 2 s; the fast worker waits for one of them, and the slow one pays."""
    bill, summary = bill_of("bsp", Simulation(intervals=(1.0, 2.0), duration=100))
    assert (bill.seconds, bill.places, bill.worker_seconds) == (100, 2, 200)
    assert figures(bill) == {(0, COMPUTING): 50, (1, COMPUTING): 100, (1, WAITING): 50}
    assert bill.lost == bill.charged_to(1) == summary.waiting_seconds == 50 and bill.lost_share == 0.25
    assert [own.seconds for own in bill.workers] == [{COMPUTING: 50, WAITING: 50}, {COMPUTING: 100}]
    assert [own.median for own in bill.workers] == [1, 2]


def test_the_last_one_pays_alone_for_what_it_alone_causes() -> None:
    """Rounds of 4 s: worker 0 waits from 1 s on, for both until 2 s, for worker 2 after that; worker 1 from 2 s on."""
    bill, _ = bill_of("bsp", Simulation(intervals=(1.0, 2.0, 4.0), duration=40))
    assert figures(bill)[1, WAITING] == 10 * 0.5
    assert figures(bill)[2, WAITING] == 10 * (0.5 + 2 * 2.0)


def test_under_ssp_the_slowest_pays_for_all_waits() -> None:
    bill, summary = bill_of("ssp:staleness=2", Simulation(intervals=(1.0, 1.5, 3.0), duration=300))
    assert {item.worker for item in bill.items if item.cause == WAITING} == {2}
    assert bill.of(WAITING) == pytest.approx(summary.waiting_seconds) and summary.waiting_seconds > 200


def test_a_slow_down_is_charged_to_its_worker_and_waits_for_it_as_well() -> None:
    """From 10 to 20 s worker 1 is three times slower: iterations that begin at 10, 13, 16 and 19 s take 3 s."""
    slowdown = Slowdown(1, 3.0, 10.0, 20.0)
    bill, _ = bill_of("bsp", Simulation(intervals=(1.0, 1.0), duration=42, slowdowns=(slowdown,)))
    found = figures(bill)
    assert found[1, SLOW] == found[1, WAITING] > 6 and (0, WAITING) not in found and (0, SLOW) not in found


def test_late_gradients_of_backup_workers() -> None:
    """Worker 2 is never among the first two: all that it computes is discarded, and nobody waits for it."""
    bill, _ = bill_of("backup:k=2", Simulation(intervals=(1.0, 1.0, 1.9), duration=95))
    found = figures(bill)
    assert found[2, DISCARDED] > 80 and (2, COMPUTING) not in found
    assert not {(0, WAITING), (1, WAITING), (2, WAITING)} & set(found) or found.get((2, WAITING), 0.0) == 0


def test_a_death_costs_its_work_and_its_place() -> None:
    """Worker 1 dies in its third iteration, at 4.5 s: half a second of work, and its place from then on."""
    bill, _ = bill_of("asp", Simulation(intervals=(1.0, 2.0), failures={1: 4.5}, duration=10))
    assert figures(bill) == {(0, COMPUTING): 10, (1, COMPUTING): 4, (1, FAILED): 0.5 + 5.5}
    bill, _ = bill_of("asp", Simulation(intervals=(1.0, 2.0, 1.0), failures={1: 4.5}, joins={2: 6.5}, duration=10))
    assert figures(bill)[1, FAILED] == 0.5 + 2.0 and bill.places == 2 and bill.worker_seconds == 20


def test_a_silent_worker_is_charged_with_the_waits_for_it_until_it_is_given_up() -> None:
    frozen = Slowdown(1, LONGEST, 10.0)
    simulation = Simulation(intervals=(1.0, 1.0), slowdowns=(frozen,), duration=60, patience="20s")
    for policy in ("bsp", "ssp:staleness=0"):
        bill, _ = bill_of(policy, simulation)
        found = figures(bill)
        assert found[1, FAILED] > 60 and (1, WAITING) not in found and found[0, COMPUTING] > 29, policy


def test_a_joiner_waits_until_it_is_let_in() -> None:
    bill, _ = bill_of("bsp", Simulation(intervals=(4.0, 4.0), joins={1: 2.0}, duration=20))
    assert bill.worker_seconds == 20 + 18 and figures(bill).get((1, JOINING), 0.0) + bill.of(WAITING) >= 2


def test_waits_after_everybody_arrived_are_nobodys() -> None:
    charged: dict[Arrival | None, float] = {}

    def charge(arrival: Arrival | None, seconds: float) -> None:
        charged[arrival] = charged.get(arrival, 0.0) + seconds

    first, second = Arrival(2.0, 7, False), Arrival(3.0, 8, True)
    share_waits([0.0, 1.0], 5.0, [second, first], charge)
    assert charged == {first: 0.5 + 1.0, second: 0.5 + 1.0 + 2.0, None: 4.0}


@st.composite
def groups(draw: st.DrawFn) -> Simulation:
    size = draw(st.integers(1, 5))
    intervals = tuple(draw(st.lists(st.sampled_from((0.7, 1.0, 1.3, 4.0)), min_size=size, max_size=size)))
    workers = st.integers(0, size - 1)
    joins = draw(st.dictionaries(workers, st.floats(0, 20), max_size=size - 1))
    failures = {worker: joins.get(worker, 0.0) + draw(st.floats(0.1, 30)) for worker in draw(st.sets(workers))}
    slowdowns = tuple(
        Slowdown(worker, draw(st.sampled_from((3.0, LONGEST))), begin, draw(st.sampled_from((None, begin + 5))))
        for worker, begin in draw(st.dictionaries(workers, st.floats(0, 20), max_size=2)).items()
    )
    switches = draw(st.sampled_from(((), (Switch("ssp", 12.0),), (Switch("bsp", 9.0), Switch("asp", 21.0)))))
    return Simulation(
        intervals=intervals,
        joins=joins,
        failures=failures,
        slowdowns=slowdowns,
        switches=switches,
        jitter=draw(st.sampled_from((0.0, 0.2))),
        patience=draw(st.sampled_from(("off", "2s..6s"))),
        duration=40.0,
        seed=draw(st.integers(0, 9)),
    )


@pytest.mark.slow
@pytest.mark.parametrize("policy", VARIANTS)
@settings(max_examples=15, deadline=None)
@given(simulation=groups())
def test_it_adds_up_whatever_happens(policy: str, simulation: Simulation) -> None:
    presence, metrics = Presence(), RunMetrics()
    try:
        bill, summary = bill_of(policy, simulation, presence, metrics)
    except ConfigurationError:  # a group that is too small for this policy
        return
    total = sum(item.seconds for item in bill.items)
    assert math.isclose(total, bill.worker_seconds, abs_tol=1e-6)
    assert math.isclose(total, presence.seconds(summary.seconds), abs_tol=1e-6)
    if not simulation.joins:
        assert math.isclose(total, summary.seconds * len(simulation.intervals or ()), abs_tol=1e-6)
    assert all(item.seconds > 0 for item in bill.items)
    if policy.startswith(("bsp", "ssp", "asp")):
        assert bill.of(SERVER) == 0, "somebody still computes whenever somebody waits"
    waited = sum(own.seconds.get(WAITING, 0.0) for own in bill.workers)
    assert math.isclose(waited, summary.waiting_seconds, abs_tol=1e-6)
    computed = sum(own.seconds.get(cause, 0.0) for own in bill.workers for cause in NOT_LOST)
    assert math.isclose(computed, bill.of(COMPUTING) + bill.of(UNFINISHED), abs_tol=1e-6)


# -- what only real runs have, record by record --


def push(now: float, worker: int, clock: int, *commands: Command) -> Record:
    return Record(now, GradientArrived(Gradient(worker, clock), 0), commands)


def applied(worker: int, clock: int) -> tuple[Command, ...]:
    return ApplyUpdate((Gradient(worker, clock),)), SendParameters(worker)


def joined(now: float, worker: int, process: int | None = None) -> Record:
    return Record(now, WorkerJoined(worker, process), (SendParameters(worker),))


def billed(records: list[Record], end: float) -> Bill:
    billing = Billing("asp")
    for record in records:
        billing.observe(record)
    return billing.bill(end)


def test_a_group_that_is_made_smaller_pays_no_longer() -> None:
    records = [joined(0, 0), joined(0, 1), push(4, 0, 1, *applied(0, 1)), push(4, 1, 1, *applied(1, 1))]
    records += [Record(5, WorkerLeft(1, "the group was made smaller")), push(8, 0, 2, *applied(0, 2))]
    bill = billed(records, 10)
    assert bill.worker_seconds == 10 + 5 and bill.places == 2
    assert figures(bill) == {(0, COMPUTING): 8, (0, UNFINISHED): 2, (1, COMPUTING): 4, (1, DISCARDED): 1}
    again = billed([*records, joined(9, 2, 1), push(9.5, 2, 1, *applied(2, 1))], 10)
    assert again.worker_seconds == 15 + 1 and again.places == 2 and figures(again)[2, COMPUTING] == 0.5


def test_a_process_that_comes_back_takes_its_own_place() -> None:
    records = [joined(0, 0), joined(0, 1), joined(0, 2)]
    records += [Record(1, WorkerLeft(0, "died")), Record(2, WorkerLeft(1, "silent")), joined(6, 3, 1), joined(7, 4)]
    bill = billed(records, 10)
    assert bill.worker_seconds == 30 and bill.places == 3
    assert figures(bill)[1, FAILED] == 2 + 4 and figures(bill)[0, FAILED] == 1 + 6
    assert figures(bill)[3, UNFINISHED] == 4 and figures(bill)[4, UNFINISHED] == 3


def test_work_that_is_done_in_vain() -> None:
    records = [joined(0, 0), Record(3, BatchSkipped(0, 8)), Record(5, WorkerReturned(0), (SendParameters(0),))]
    records += [Record(6, WorkerLeft(9, "was never here")), Record(6, DeadlinePassed(), (InterruptWorker(0),))]
    records += [
        push(8, 0, 1, *applied(0, 1)),
        push(9, 0, 2, DiscardGradient(Gradient(0, 2), "late"), SendParameters(0)),
    ]
    records += [push(9, 0, 2), Record(9, WorkerLeft(0, "no work left"))]
    bill = billed(records, 10)
    assert figures(bill) == {
        (0, DISCARDED): 3 + 1 + 1,
        (0, FAILED): 2,
        (0, COMPUTING): 1,
        (0, SLOW): 1,
        (0, NO_WORK): 1,
    }
    assert bill.workers[0].iterations == 2 and bill.workers[0].median == 1


def test_waits_for_a_server_are_its_own() -> None:
    """A policy that waits for the statistics of an update releases its workers when they come."""
    records = [joined(0, 0), joined(0, 1), push(1, 0, 1), push(3, 1, 1, ApplyUpdate((Gradient(0, 1), Gradient(1, 1))))]
    records.append(Record(3.5, UpdateApplied(1), (SendParameters(0), SendParameters(1))))
    billing = Billing("dbw")
    for record in records:
        billing.observe(record)
    found = figures(billing.bill(4))
    assert found[1, WAITING] == 2 and found[None, SERVER] == 2 * 0.5


def test_work_that_was_done_again_is_paid_for() -> None:
    """The clock of a run goes back to its checkpoint, and the workers were paid all the same."""
    keeper = RecordKeeper()
    simulate("bsp", Simulation(intervals=(1.0, 1.0, 2.0), duration=20.0), observers=[keeper])
    before, after = Billing("bsp"), Billing("bsp")
    for number, record in enumerate(keeper.records):
        before.observe(record)
        after.observe(record)
        if number == 15:
            after.observe(Record(record.now, WentBack(3, 2, 6, "it was killed", 4.5)))
    without, found = before.bill(20.0), after.bill(20.0)
    assert without.of(FAILED) == 0 and found.of(FAILED) == 3 * 4.5
    assert found.worker_seconds == without.worker_seconds + 3 * 4.5
    assert sum(item.seconds for item in found.items) == pytest.approx(found.worker_seconds)
