"""Sending one worker of a group away: whatever it is at, nothing is lost, or it is refused in a sentence."""

from __future__ import annotations

import io
import itertools
import math
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from command_line import Command, command
from group import VARIANTS, handle
from hypothesis import given, settings
from hypothesis import strategies as st
from lifecycle_group import LifecycleGroup
from record_keeper import RecordKeeper
from rich.console import Console
from test_conformance import EPOCHS, task
from test_lifecycle import WORKS, begun, check_books, happen, left, states

from paceline.core.coordinator import Coordinator
from paceline.core.errors import ConfigurationError
from paceline.core.messages import ApplyUpdate, Gradient, UnitsReturned, WorkerLeft
from paceline.experiment.chaos.virtual import BATCH, SAMPLES, Books
from paceline.experiment.configuration import Configuration
from paceline.experiment.exporting import Exporter
from paceline.experiment.foresight import foresee
from paceline.experiment.group import Group
from paceline.experiment.retraining import retrain
from paceline.experiment.simulation import Simulation, policy_for, simulate
from paceline.experiment.virtual_training import train_virtually
from paceline.lifecycle.lifecycle import Lifecycle
from paceline.lifecycle.messages import (
    Dismiss,
    EndProcess,
    EvictionRequested,
    ModelArrived,
    RoomOffered,
    SizeRequested,
)
from paceline.lifecycle.roster import SENT_AWAY
from paceline.lifecycle.seats import State
from paceline.lifecycle.silence import Patience
from paceline.lifecycle.sizing import NOT_YET
from paceline.lifecycle.work import Work
from paceline.policies import policy
from paceline.recording.bill import COMPUTING, EVICTED, WAITING, Billing
from paceline.recording.course import Course
from paceline.recording.lately import Lately
from paceline.recording.ledger import Ledger
from paceline.recording.replay import first_difference
from paceline.recording.status import LEFT
from paceline.recording.trace import Trace
from paceline.report.bill_view import describe
from paceline.report.live import view_of
from paceline.runtimes.serving.control import Evict, Evicted, Refused, Scale, Stop, Stopping, Switch
from paceline.runtimes.serving.loop import Loop
from paceline.runtimes.serving.requests import STOPPED, Requests
from paceline.runtimes.simulated.simulator import Eviction, RunEnd, SimulatedWorker, Simulator
from paceline.runtimes.speeds import Lognormal

WORK = Work(40, 2)


@pytest.fixture
def paceline(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command(monkeypatch, capsys)


def refused(paceline: Command, *arguments: str) -> str:
    outcome = paceline(*arguments)
    assert outcome.code == 2 and not outcome.out and len(outcome.err.splitlines()) == 1
    return outcome.err.strip().removeprefix("paceline: error: ")


def evict(group: LifecycleGroup, worker: int) -> None:
    assert group.lifecycle.refusal_to_evict(worker) == ""
    group.send(EvictionRequested(worker))


def refusal(group: LifecycleGroup, worker: int) -> str:
    """It is refused, and asking nevertheless changes nothing."""
    said = group.lifecycle.refusal_to_evict(worker)
    before = states(group)
    group.send(EvictionRequested(worker))
    assert said and group.outputs == [] and states(group) == before
    return said


def ends_well(group: LifecycleGroup) -> None:
    group.finish_all()
    group.check_end()
    ledger = group.lifecycle.samples.ledger
    assert ledger is not None and ledger.complete and group.applied.total() == WORK.samples
    check_books(group, ledger)


# -- whatever it is at --


def test_one_that_computes_goes_at_once_and_its_samples_are_for_others() -> None:
    group = begun(LifecycleGroup("asp", 3, work=WORK))
    evict(group, 1)
    assert states(group) == [State.MEMBER, State.DISMISSED, State.MEMBER]
    assert left(group) == [(1, SENT_AWAY)] and Dismiss(1) in group.outputs and EndProcess(1) not in group.outputs
    returned = [record.event for record in group.records if isinstance(record.event, UnitsReturned)]
    assert [(event.worker, event.reason) for event in returned] == [(1, SENT_AWAY)]
    assert group.lifecycle.staffing.wanted == 2
    group.act("finish", 1)
    assert len(group.processes) == 3  # nobody takes its place
    ends_well(group)


def test_one_that_waits_at_a_barrier_leaves_its_gradient() -> None:
    group = begun(LifecycleGroup("bsp", 3, work=WORK))
    group.act("push", 1)
    evict(group, 1)
    assert group.version == 0 and list(group.aside) == [Gradient(1, 1)]
    group.act("push", 0)
    group.act("push", 2)
    assert group.version == 1 and group.used == 6
    ends_well(group)


def test_the_others_go_on_at_once_where_they_waited_for_it() -> None:
    group = begun(LifecycleGroup("bsp", 3, work=WORK))
    group.act("push", 0)
    group.act("push", 2)
    evict(group, 1)
    assert group.version == 1 and group.used == 4
    ends_well(group)


@pytest.mark.parametrize("text", ["buffered:size=3", "elastic-bsp:lookahead=2,inside=gather", "backup:k=2,late=pull"])
def test_gradients_that_it_handed_in_and_that_are_gathered_count(text: str) -> None:
    group = begun(LifecycleGroup(text, 3, work=WORK))
    for worker in (1, 2, 1):
        if ("push", worker) in group.actions():
            group.act("push", worker)
    evict(group, 1)
    ends_well(group)
    assert not group.lifecycle.coordinator.progress.pending


def test_one_that_was_interrupted_and_has_not_answered() -> None:
    group = begun(LifecycleGroup("backup:k=1,late=interrupt", 3, work=WORK))
    group.act("push", 0)
    assert group.processes[1].interrupted
    evict(group, 1)
    ends_well(group)


def test_one_that_was_not_let_in_yet() -> None:
    group = begun(LifecycleGroup("bsp", 2, work=WORK))
    group.act("push", 0)
    group.send(SizeRequested(3))
    group.act("enter", 2)
    assert list(group.lifecycle.coordinator.progress.newcomers) == [2]
    evict(group, 2)
    ends_well(group)


def test_one_that_was_to_leave_after_its_gradient_leaves_before_it() -> None:
    group = begun(LifecycleGroup("asp", 3, work=WORK))
    group.send(SizeRequested(2))
    assert states(group)[2] is State.LEAVING
    evict(group, 2)
    assert left(group) == [(2, SENT_AWAY)] and group.lifecycle.staffing.wanted == 2  # it was not counted any more
    ends_well(group)


def test_one_of_a_group_that_was_resumed_and_whose_process_is_not_here_yet_is_ended() -> None:
    group = begun(LifecycleGroup("asp", 3, work=WORK))
    group.act("push", 0)
    group.resume()
    assert group.lifecycle.refusal_to_evict(1) == NOT_YET
    group.act("enter", 0)
    evict(group, 1)
    assert group.processes[1].told_to_stop and group.processes[1].does == "ended"
    group.act("enter", 2)
    ends_well(group)


def test_one_that_was_asked_for_before_the_model_of_a_resumed_group_may_be_gone_when_it_is_here() -> None:
    group = begun(LifecycleGroup("asp", 3, work=WORK))
    group.resume()
    group.send(EvictionRequested(1))
    group.act("die", 1)
    group.act("enter", 0)
    assert [worker for worker, _ in left(group)] == [1] and len(group.lifecycle.active) >= 2


def test_what_it_pushed_before_it_knew_changes_nothing() -> None:
    group = begun(LifecycleGroup("asp", 2, work=WORK))
    evict(group, 1)
    group.push(1)
    assert group.outputs == []
    ends_well(group)


def test_its_place_is_not_given_to_another_by_the_least_a_number_of_restarts_or_a_cluster() -> None:
    for options in ({"least": 1, "most": 4}, {"restarts": 3}):
        group = begun(LifecycleGroup("asp", 3, work=WORK, **options))  # type: ignore[arg-type]
        evict(group, 1)
        group.act("die", 1)
        group.send(RoomOffered())
        assert list(group.processes) == [0, 1, 2] and group.lifecycle.staffing.wanted == 2
        ends_well(group)


def test_its_work_is_done_even_if_those_that_are_left_had_been_told_that_there_is_none() -> None:
    """They ask for more in the middle of a gradient: one more process is started, as after a death."""
    group = begun(LifecycleGroup("asp", 2, work=Work(40, 2, ahead=3)))
    while group.lifecycle.samples.ledger is None or not group.lifecycle.seats[0].told_last:
        if ("push", 0) in group.actions() and len(group.processes[0].units) > 1:
            group.act("push", 0)
        else:
            group.ask_ahead(0)
    evict(group, 1)
    assert len(group.processes) == 3
    group.finish_all()
    group.check_end()
    assert group.applied.total() == 40


def test_a_run_does_not_wait_for_one_that_does_not_read_that_it_was_sent_away() -> None:
    group = LifecycleGroup("asp", 2, work=WORK)
    assert not group.lifecycle.done
    begun(group)
    evict(group, 1)
    while ("finish", 0) not in group.actions():
        assert not group.lifecycle.done
        group.act("push", 0)
    group.act("finish", 0)
    assert group.lifecycle.done and not group.lifecycle.over and states(group) == [State.GONE, State.DISMISSED]
    ends_well(group)


# -- what is refused --


def test_nobody_is_sent_away_before_the_group_begins() -> None:
    group = LifecycleGroup("asp", 2, work=WORK)
    group.act("enter", 0)
    assert [refusal(group, worker) for worker in (0, 1, 7)] == [NOT_YET] * 3


def test_one_that_is_not_there_is_named_beside_those_that_are() -> None:
    group = begun(LifecycleGroup("asp", 3, work=WORK))
    assert refusal(group, 7) == "there is no worker 7; there are 0, 1, 2"
    assert refusal(group, -1) == "there is no worker -1; there are 0, 1, 2"
    evict(group, 1)
    assert refusal(group, 1) == "worker 1 has left already; there are 0, 2"
    group.act("finish", 1)
    assert refusal(group, 1) == "worker 1 has left already; there are 0, 2"
    group.send(SizeRequested(3))
    assert refusal(group, 3).startswith("worker 3 is still starting: ask again when it has joined;")
    many = begun(LifecycleGroup("asp", 14, work=WORK))
    assert refusal(many, 14) == "there is no worker 14; there are 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and others"
    group.finish_all()
    assert refusal(group, 0) == "worker 0 has left already; nobody trains"


def test_the_last_one_and_those_that_the_group_must_keep_stay() -> None:
    group = begun(LifecycleGroup("asp", 2, work=WORK))
    evict(group, 0)
    assert refusal(group, 1).startswith("worker 1 is the only one that trains, and nobody would go on: let another")
    group.send(SizeRequested(2))  # one that is still starting may never come
    assert refusal(group, 1).startswith("worker 1 is the only one")
    group.act("enter", 2)
    evict(group, 1)
    ends_well(group)
    group = begun(LifecycleGroup("asp", 2, work=WORK, least=2, most=3))
    assert refusal(group, 1) == (
        "worker 1 cannot go: this run must keep 2 workers, and has no more; let another one join first"
        " (`paceline scale`)"
    )
    group.send(SizeRequested(3))
    group.act("enter", 2)
    evict(group, 1)
    ends_well(group)


def test_a_policy_keeps_those_without_which_it_cannot_work() -> None:
    group = begun(LifecycleGroup("backup:k=2", 2, work=WORK))
    assert refusal(group, 1) == (
        "worker 1 cannot go: policy 'backup:k=2': k=2 gradients per update need at least 2 workers, and there are 1"
    )


def test_one_that_was_set_aside_for_its_silence_has_left() -> None:
    group = begun(LifecycleGroup("asp", 3, work=WORK, patience=Patience(5.0, 5.0)))
    for _ in range(3):
        group.act("push", 0)
        group.act("push", 2)
    group.look(0.1)
    assert State.SILENT in states(group)
    silent = states(group).index(State.SILENT)
    assert refusal(group, silent).startswith(f"worker {silent} was set aside, because it was silent: nobody waits")


def test_one_without_work_has_left() -> None:
    group = begun(LifecycleGroup("asp", 3, work=Work(4, 2)))
    assert State.PARKED in states(group)
    parked = states(group).index(State.PARKED)
    assert refusal(group, parked).startswith(f"worker {parked} has left: there is no work for it")
    group.act("push", 0)
    group.act("push", 1)
    assert State.FINISHING in states(group)
    assert refusal(group, states(group).index(State.FINISHING)).endswith("its process ends with the run")


# -- every moment, and random ones --


def with_one_sent_away(text: str, work: Work, pushes: tuple[int, ...], when: int, worker: int) -> LifecycleGroup:
    group = begun(LifecycleGroup(text, 3, work=work))
    for number, pushing in enumerate((*pushes, -1)):
        if number == when and not group.lifecycle.refusal_to_evict(worker):
            group.send(EvictionRequested(worker))
        if ("push", pushing) in group.actions():
            group.act("push", pushing)
    return group


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["bsp", "asp", "ssp:staleness=0", "backup:k=1,late=interrupt", "buffered:size=2", "elastic-bsp:lookahead=2"]
)
def test_every_worker_at_every_moment_of_every_order_of_pushes(text: str) -> None:
    sent_away = 0
    for pushes in itertools.product(range(3), repeat=3):
        for when, worker in itertools.product(range(4), range(3)):
            work = Work(7, 2) if sum(pushes) % 2 else Work(7, 2, "static")
            group = with_one_sent_away(text, work, pushes, when, worker)
            sent_away += (worker, SENT_AWAY) in left(group)
            group.finish_all()
            group.check_end()
            ledger = group.lifecycle.samples.ledger
            assert ledger is not None and ledger.complete, (pushes, when, worker)
            check_books(group, ledger)
    assert sent_away > 200


@settings(deadline=None, max_examples=60)
@given(
    text=st.sampled_from(VARIANTS),
    work=st.sampled_from(WORKS),
    least=st.sampled_from([None, 2]),
    happenings=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 12)), max_size=60),
)
def test_nothing_is_lost_whatever_else_happens(
    text: str, work: Work | None, least: int | None, happenings: list[tuple[int, int]]
) -> None:
    """Deaths, silence, resizes, switches and crashes in between, and some that are refused."""
    most = None if least is None else 5
    group = LifecycleGroup(text, 3, work=work, least=least, most=most, patience=Patience())
    for choice, kind in happenings:
        if kind < 11:
            happen(group, choice, kind)
        elif group.given_up is None:
            worker, before = choice % (group.lifecycle.next_worker + 1), left(group)
            possible = not group.lifecycle.refusal_to_evict(worker)
            group.send(EvictionRequested(worker))
            assert possible == ((worker, SENT_AWAY) in left(group)[len(before) :])
            assert not possible or len(group.lifecycle.active) >= (least or 1)
    if group.given_up is not None:
        return
    if work is None:
        for seat, process in [*group.processes.items(), *group.processes.items()]:
            if process.does != "ended":
                group.act("enter" if process.does == "starting" else "finish", seat)
    group.finish_all()
    if group.given_up is None:
        group.check_end()
        ledger = group.lifecycle.samples.ledger
        assert ledger is None or ledger.complete


# -- in virtual time --


def at_random_moments(text: str, seed: int) -> int:
    """A run from which workers are sent away at random moments, with one that joins and one that fails: every sample is
    applied once, the bill adds up, and the events lead to the same commands. Returns how many were."""
    chance, keeper, billing = Random(seed), RecordKeeper(), Billing(text)
    joins = [0, 0, 0, chance.uniform(1, 6), 0]
    draws = [Lognormal(1 + number / 2, 0.3).start(f"{seed}/{number}") for number in range(5)]
    fails = [None, None, None, None, 7.0]
    workers = [SimulatedWorker(*worker) for worker in zip(range(5), draws, joins, fails, strict=True)]
    evictions = [Eviction(chance.uniform(0.5, 9), chance.randrange(1, 5)) for _ in range(6)]
    books = Books(Work(SAMPLES, BATCH), 1)
    observers = [keeper, billing, ledger := Ledger()]
    simulator = Simulator(
        workers, Coordinator(policy(text)), observers, learner=books, evictions=evictions, think=foresee
    )
    ended = False
    while not ended:  # those that are impossible are refused, and change nothing
        with suppress(ConfigurationError):
            simulator.run(RunEnd())
            ended = True
    assert Counter(books.applied.values()) == {1: SAMPLES} and ledger.balance().adds_up
    bill = billing.bill(simulator.now)
    assert math.isclose(sum(item.seconds for item in bill.items), bill.worker_seconds, rel_tol=1e-9)
    again, updates = Coordinator(policy(text)), 0
    for record in keeper.records:
        assert handle(record.event, again, record.now) == record
        updates += sum(isinstance(command, ApplyUpdate) for command in record.commands)
    assert updates == books.version
    return sum(isinstance(record.event, WorkerLeft) and record.event.reason == SENT_AWAY for record in keeper.records)


@pytest.mark.parametrize("text", ["bsp", "ssp:staleness=1", "backup:k=1,late=interrupt", "buffered:size=2"])
def test_a_few_workers_are_sent_away_at_random_moments_and_nothing_is_lost(text: str) -> None:
    assert at_random_moments(text, seed=3) >= 2


@pytest.mark.slow
def test_hundreds_of_workers_are_sent_away_at_random_moments_and_nothing_is_lost() -> None:
    assert sum(at_random_moments(VARIANTS[seed % len(VARIANTS)], seed) for seed in range(100)) >= 200


@pytest.mark.parametrize("first", ["bsp", "ssp:staleness=1"])
def test_a_run_from_which_workers_were_sent_away_replays_and_is_retrained_to_the_bit(
    first: str, tmp_path: Path
) -> None:
    job = replace(task(), optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9))
    group = Simulation(intervals=(1.0, 1.1, 1.3, 3.0), jitter=0.2, seed=5, evictions={3: 7.3, 1: 12.0}, joins={2: 4.0})
    result = train_virtually(job, first, group, epochs=2 * EPOCHS, trace_file=tmp_path / "trace")
    trace = Trace(tmp_path / "trace")
    assert first_difference(trace) is None and result.samples == 320 * 2 * EPOCHS
    assert [gone.worker for gone in result.summary.departures] == [3, 1]
    again = retrain(trace, job, seed=5, threads=torch.get_num_threads())
    for name, tensor in again.parameters.items():
        assert torch.equal(result.model_state[name], tensor)


def test_a_simulation_sends_workers_away_or_says_why_it_cannot(paceline: Command) -> None:
    asked = ("simulate", "-p", "bsp", "--intervals", "1,1,4", "--duration", "40", "--json")
    (alone,) = msgspec.json.decode(paceline(*asked).out)
    (without,) = msgspec.json.decode(paceline(*asked, "--evict", "2@10").out)
    assert without["updates"] > 2 * alone["updates"] and without["departures"] == [
        {"worker": 2, "seconds": 10.0, "reason": SENT_AWAY}
    ]
    for wrong, problem in {
        "2": "--evict 2: must be WORKER@TIME, as in 3@20",
        "9@3": "there is no worker 9; there are 0, 1, 2",
        "2@0": "eviction of worker 2 is 0; it must be after it joined, at 0",
    }.items():
        assert refused(paceline, *asked, "--evict", wrong) == problem
    gone = refused(paceline, *asked, "--evict", "2@10", "--fail", "2@5")
    assert gone == "sending worker 2 away at 10: worker 2 has left already; there are 0, 1"


# -- how it is seen --


def seen(*observers: Any) -> None:
    simulate("asp", Simulation(intervals=(1.0, 2.0), evictions={1: 4.5}, duration=10), observers=observers)


def test_the_bill_has_an_item_of_its_own_and_its_place_is_paid_no_longer() -> None:
    billing = Billing("asp")
    seen(billing)
    bill = billing.bill(10.0)
    assert {(item.worker, item.cause): item.seconds for item in bill.items} == {
        (0, COMPUTING): 10,
        (1, COMPUTING): 4,
        (1, EVICTED): 0.5,
    }
    assert bill.worker_seconds == 14.5 and describe(bill.items[-1]) == "worker 1 was sent away: what it was at"
    barrier = Billing("bsp")
    simulate("bsp", Simulation(intervals=(1.0, 9.0), evictions={1: 5.0}, duration=10), observers=[barrier])
    found = {(item.worker, item.cause): item.seconds for item in barrier.bill(10.0).items}
    assert found == {(0, COMPUTING): 6, (1, WAITING): 4, (1, EVICTED): 5}


def test_the_chart_the_status_and_the_live_view_say_that_it_was_sent_away() -> None:
    course, lately, console = Course(), Lately(None, from_the_start=True), Console(file=io.StringIO(), width=100)
    with view_of("asp", console) as view:
        seen(course, lately, view)
    assert (4.5, "leave", "worker 1 leaves: it was sent away") in course.marks
    (_, gone) = lately.workers(10.0, ended=True)
    assert (gone.state, gone.reason) == (LEFT, SENT_AWAY)
    assert "asp: worker 1 was sent away after 4.5 s" in console.file.getvalue()  # type: ignore[attr-defined]


def test_perfetto_tells_it_from_one_that_was_lost(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    simulate(
        "asp",
        Simulation(intervals=(1.0, 2.0, 2.0), evictions={1: 4.5}, failures={2: 5.5}, duration=10),
        trace_file=tmp_path / "trace.jsonl",
    )
    Exporter(tmp_path).export_perfetto(tmp_path / "out")
    exported = (tmp_path / "out").read_bytes()
    assert b"is sent away" in exported and b"is lost" in exported


# -- requests --


def group_of_requests(begun: bool = True) -> tuple[Requests, list[Any], list[bool], list[bool]]:
    lifecycle = Lifecycle(Coordinator(policy("asp")), range(3), trains=False, together=False)
    delivered: list[Any] = []
    over: list[bool] = []
    ends: list[bool] = []
    port = SimpleNamespace(aggregation=object() if begun else None)
    requests = Requests(lifecycle, port, None, policy_for, largest=3)  # type: ignore[arg-type]
    requests.attach(Loop(), delivered.append, lambda: bool(over), lambda: bool(ends))
    if begun:
        for seat in range(3):
            lifecycle.handle(ModelArrived(seat), 0.0)
    return requests, delivered, over, ends


def test_a_request_becomes_an_event_or_a_sentence() -> None:
    requests, delivered, over, ends = group_of_requests()
    assert requests._answer(Evict(1)) == Evicted(1, 3) and delivered == [EvictionRequested(1)]  # nobody carries it out
    assert requests._answer(Evict(5)) == Refused("there is no worker 5; there are 0, 1, 2")
    requests.want_gone(2)
    assert len(delivered) == 1
    requests.look()
    assert delivered == [EvictionRequested(1), EvictionRequested(2)]
    with pytest.raises(ConfigurationError, match="there is no worker 5"):
        requests.want_gone(5)
    ends.append(True)
    being_stopped = Refused("the run is being stopped, and waits for all of its workers once more")
    assert requests._answer(Evict(1)) == requests._answer(Scale(2)) == requests._answer(Switch("asp")) == being_stopped
    ends.clear()
    assert requests._answer(Stop()) == requests._answer(Stop()) == Stopping() and requests.stopped == STOPPED
    requests.stop("for another reason")
    assert requests.stopped == STOPPED and requests._answer(Evict(1)) == being_stopped
    over.append(True)
    assert requests._answer(Stop()) == Refused("its training is over") == requests._answer(Evict(1))
    requests.want_gone(1)
    requests.look()
    assert len(delivered) == 2


def test_what_a_callback_asked_for_and_cannot_be_any_more_is_told_and_not_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It was checked when it was asked for; then another wish came first, or somebody died."""
    lifecycle = Lifecycle(Coordinator(policy("asp")), range(3), trains=False, together=False)
    port = SimpleNamespace(aggregation=object(), store=None)
    requests = Requests(lifecycle, port, None, policy_for, largest=3)  # type: ignore[arg-type]
    requests.rule_under = lambda policy: None  # type: ignore[method-assign, assignment, return-value]
    requests.attach(Loop(), lambda event: lifecycle.handle(event, 1.0), lambda: False, lambda: False)
    for seat in range(3):
        lifecycle.handle(ModelArrived(seat), 0.0)
    for worker in (2, 1, 0):
        requests.want_gone(worker)
    requests.want("backup:k=3")
    requests.look()
    assert set(lifecycle.coordinator.progress.members) == {0} and str(lifecycle.coordinator.policy) == "asp"
    gone, switched = capsys.readouterr().err.splitlines()
    assert "a worker was to be sent away: worker 0 is the only one that trains" in gone
    assert "the policy was to be backup:k=3" in switched and "need at least 3 workers, and there are 1" in switched


def test_a_run_that_has_not_begun_keeps_its_workers_and_can_be_stopped() -> None:
    requests, delivered, _, _ = group_of_requests(begun=False)
    assert requests._answer(Evict(1)) == Refused(NOT_YET) and delivered == []
    assert requests._answer(Stop()) == Stopping(begun=False) and requests.stopped


# -- the command line --


def test_wrong_input_is_a_sentence(paceline: Command, tmp_path: Path) -> None:
    run = str(tmp_path)
    for asked in (("evict", run, "1"), ("stop", run)):
        assert "is this a run directory?" in refused(paceline, *asked)
    configuration = Configuration("bsp", Group(2), 10, 0, "auto", "mine.train")
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(configuration))
    for asked in (("evict", run, "1"), ("stop", run)):
        assert refused(paceline, *asked).startswith(f"{run}: no run is going on there; `paceline runs` tells which do")
    for wrong in ("abc", "1.5", "", "1" * 30, "-"):
        assert (
            refused(paceline, "evict", run, wrong)
            == f"worker {wrong!r}: must be a number, as `paceline status {run}` has it"
        )
    for wrong in ("-1", "99999999999999999999"):
        assert refused(paceline, "evict", run, wrong).startswith(f"there is no worker {wrong}: `paceline status {run}`")
