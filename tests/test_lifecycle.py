"""The life of a group without a single process: every state, every way in and out, random and exhaustive."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest
from group import VARIANTS
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lifecycle_group import COMPUTING, FINISHING, LifecycleGroup

from paceline.core.coordinator import Coordinator
from paceline.core.errors import ConfigurationError, ProtocolError
from paceline.core.messages import DeadlinePassed, Gradient, GradientArrived, Unit, WorkerJoined, WorkerLeft
from paceline.lifecycle.lifecycle import Lifecycle
from paceline.lifecycle.messages import (
    BatchesSkipped,
    BeginGroup,
    DepartureRequested,
    Dismiss,
    GiveUp,
    GradientPushed,
    Interrupt,
    Lease,
    ModelArrived,
    PolicyReplaced,
    ProcessDied,
    Release,
    RoomOffered,
    SizeRequested,
    StartProcess,
    WorkDropped,
    WorkRequested,
)
from paceline.lifecycle.seats import IN_THE_GROUP, TRANSITIONS, Change, Seat, State
from paceline.lifecycle.silence import Patience
from paceline.lifecycle.staffing import MOST_REPLACEMENTS
from paceline.lifecycle.work import Work, WorkLedger
from paceline.policies import policy
from paceline.recording.ledger import Ledger


def begun(group: LifecycleGroup) -> LifecycleGroup:
    """Every process has made its model."""
    for seat in list(group.processes):
        group.act("enter", seat)
    return group


def states(group: LifecycleGroup) -> list[State]:
    return [seat.state for seat in group.lifecycle.seats.values()]


def left(group: LifecycleGroup) -> list[tuple[int, str]]:
    """Who left the group, and why."""
    events = [record.event for record in group.records]
    return [(event.worker, event.reason) for event in events if isinstance(event, WorkerLeft)]


def joined(group: LifecycleGroup) -> list[int]:
    return [record.event.worker for record in group.records if isinstance(record.event, WorkerJoined)]


# -- states --


def test_every_transition_leads_to_a_state_and_every_other_change_is_an_error() -> None:
    for state, change in itertools.product(State, Change):
        seat = Seat(0)
        seat.state = state
        following = TRANSITIONS[state].get(change)
        if following is None:
            with pytest.raises(AssertionError, match=f"process 0 is {state.value}: {change.value} cannot happen"):
                seat.change(change)
            assert seat.state is state
        else:
            seat.change(change)
            assert seat.state is following


def test_every_state_can_be_reached_and_leads_to_the_end() -> None:
    assert TRANSITIONS.keys() == set(State)
    reached = {State.STARTING}
    while more := {after for state in reached for after in TRANSITIONS[state].values()} - reached:
        reached |= more
    assert reached == set(State)
    for state in State:
        assert state is State.GONE or TRANSITIONS[state][Change.ENDED] is State.GONE
    assert set(IN_THE_GROUP) == {
        state for state in State if Change.ASKED_TO_LEAVE in TRANSITIONS[state] or state is State.LEAVING
    }


# -- beginning --


def test_a_group_begins_when_the_models_of_all_are_here() -> None:
    lifecycle = Lifecycle(Coordinator(policy("asp")), range(2))
    assert lifecycle.start() == [StartProcess(0), StartProcess(1)]
    assert lifecycle.handle(ModelArrived(1), 0.0) == [] and not lifecycle.begun
    outputs = lifecycle.handle(ModelArrived(0), 0.0)
    assert outputs[0] == BeginGroup((0, 1)) and lifecycle.begun
    assert [output for output in outputs if isinstance(output, Release)] == [Release(0), Release(1)]


def test_where_workers_come_one_by_one_the_first_begins() -> None:
    lifecycle = Lifecycle(Coordinator(policy("asp")), [7, 3], together=False)
    assert lifecycle.handle(ModelArrived(3), 0.0)[0] == BeginGroup((3,))
    assert Release(7) in lifecycle.handle(ModelArrived(7), 1.0)
    assert list(lifecycle.members) == [3, 7]


def test_a_process_that_dies_before_the_group_began_ends_the_run_unless_it_is_replaced() -> None:
    group = LifecycleGroup("bsp", 3)
    group.act("die", 1)
    assert group.given_up == "worker 1: killed before the group began"
    elastic = LifecycleGroup("bsp", 2, least=2)
    elastic.act("die", 1)
    assert elastic.given_up is None and StartProcess(2) in elastic.outputs
    begun_late = begun(elastic)
    assert begun_late.begun and joined(begun_late) == [0, 2]


def test_a_process_that_finishes_without_a_model_is_told_what_is_missing() -> None:
    group = LifecycleGroup("bsp", 2)
    group.act("finish", 0)
    assert group.given_up is not None and "worker 0 finished without a model" in group.given_up


# -- work --


def test_processes_work_until_there_is_nothing_left_and_come_to_their_end() -> None:
    group = begun(LifecycleGroup("asp", 2, work=Work(6, 2)))
    assert [process.does for process in group.processes.values()] == [COMPUTING, COMPUTING]
    for seat in (0, 1, 0):
        group.act("push", seat)
    assert states(group) == [State.FINISHING, State.FINISHING]
    assert left(group) == [(1, "no work left"), (0, "no work left")]
    group.finish_all()
    group.check_end()
    assert group.applied.total() == 6


def test_work_that_comes_back_brings_a_parked_process_back_under_a_new_id() -> None:
    group = begun(LifecycleGroup("asp", 3, work=Work(6, 2)))
    group.act("push", 0)
    assert states(group) == [State.PARKED, State.MEMBER, State.MEMBER]
    group.act("die", 1)
    assert states(group) == [State.MEMBER, State.GONE, State.MEMBER]
    assert joined(group) == [0, 1, 2, 3] and group.lifecycle.members[3].index == 0
    group.act("push", 0)
    last = group.records[-2].event
    assert isinstance(last, GradientArrived) and last.gradient == Gradient(3, 1)
    group.finish_all()
    group.check_end()
    assert group.applied.total() == 6


def test_a_parked_process_that_dies_is_taken_away_and_does_not_come_back() -> None:
    """Work that comes back afterwards goes to somebody else."""
    group = begun(LifecycleGroup("asp", 4, work=Work(8, 2)))
    group.act("push", 0)
    group.act("push", 1)
    assert states(group)[:2] == [State.PARKED, State.PARKED]
    group.act("die", 0)
    group.act("die", 2)
    assert states(group) == [State.GONE, State.MEMBER, State.GONE, State.MEMBER]
    assert left(group) == [(0, "no work left"), (1, "no work left"), (2, "killed")]
    group.finish_all()
    group.check_end()
    assert group.applied.total() == 8


def test_a_parked_process_is_not_replaced() -> None:
    group = begun(LifecycleGroup("asp", 2, work=Work(4, 2), least=2))
    group.act("push", 0)
    group.act("die", 0)
    assert not any(isinstance(output, StartProcess) for output in group.outputs) and group.given_up is None


def test_a_process_that_gathers_batches_is_told_that_it_has_the_last_one() -> None:
    group = begun(LifecycleGroup("asp", 1, work=Work(4, 2)))
    second, third = (group.lifecycle.handle(WorkRequested(0, Work(4, 2)), time) for time in (4.0, 5.0))
    assert second == [Lease(0, Unit(0, 2, 4))] and third == [Lease(0, None)]
    assert group.lifecycle.seats[0].state is State.MEMBER


def test_all_must_share_one_data_set_in_one_way() -> None:
    group = begun(LifecycleGroup("asp", 2, work=Work(6, 2)))
    for other in (Work(7, 2), Work(6, 2, "static")):
        with pytest.raises(ConfigurationError, match="all must share one data set in one way"):
            group.lifecycle.handle(WorkRequested(1, other), 9.0)
    group.lifecycle.handle(WorkRequested(1, Work(6, 3)), 9.0)  # batches may differ


def test_a_data_set_smaller_than_the_group_and_a_request_before_the_model_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="has 1 samples, fewer than the 2 workers"):
        begun(LifecycleGroup("asp", 2, work=Work(1, 2)))
    lifecycle = Lifecycle(Coordinator(policy("asp")), range(2))
    lifecycle.start()
    with pytest.raises(ConfigurationError, match=r"worker 0 asks for batches before it has a model: .*optimizer"):
        lifecycle.handle(WorkRequested(0, Work(6, 2)), 0.0)


def test_a_finished_process_that_asks_again_gets_the_same_answer_and_must_not_push() -> None:
    group = begun(LifecycleGroup("asp", 1, work=Work(2, 2)))
    group.act("push", 0)
    assert group.processes[0].does == FINISHING
    assert group.lifecycle.handle(WorkRequested(0, Work(2, 2)), 9.0) == [Lease(0, None)]
    with pytest.raises(ProtocolError, match="pushed a gradient after its work was done"):
        group.lifecycle.handle(GradientPushed(0, 2), 9.0)
    assert group.lifecycle.handle(GradientPushed(0, 1), 9.0) == []  # delivered twice


def test_with_static_sharding_parts_belong_to_processes_whatever_their_ids() -> None:
    lifecycle = Lifecycle(Coordinator(policy("asp")), [11, 12, 13, 14], together=False)
    lifecycle.provide(Work(8, 2, "static"))
    parts = []
    for seat in (11, 12, 13, 14):
        released = [output for output in lifecycle.handle(ModelArrived(seat), 0.0) if isinstance(output, Release)]
        parts += [release.unit.part for release in released if release.unit is not None]
    assert parts == [0, 1, 2, 3]


def test_the_part_of_a_process_that_died_before_anybody_asked_is_for_anybody() -> None:
    lifecycle = Lifecycle(Coordinator(policy("asp")), range(2))
    for seat in (0, 1):
        lifecycle.handle(ModelArrived(seat), 0.0)
    lifecycle.handle(ProcessDied(1, "killed"), 1.0)
    lifecycle.handle(WorkRequested(0, Work(6, 2, "static")), 2.0)
    ledger = lifecycle.samples.ledger
    assert ledger is not None and ledger.parts == 2 and ledger.available


def test_the_part_of_a_newcomer_that_fails_before_it_is_let_in_is_for_anybody() -> None:
    """Under bsp a worker that joins in the middle of a round waits for the next one."""
    lifecycle = Lifecycle(Coordinator(policy("bsp")), range(3), together=False)
    lifecycle.provide(Work(6, 2, "static"))
    for seat in (0, 1):
        lifecycle.handle(ModelArrived(seat), 0.0)
    lifecycle.handle(GradientPushed(0, 1, 2, 1), 1.0)
    lifecycle.handle(ModelArrived(2), 1.5)
    assert list(lifecycle.coordinator.progress.newcomers) == [2]
    lifecycle.handle(ProcessDied(2, "killed"), 2.0)
    ledger = lifecycle.samples.ledger
    assert ledger is not None and ledger.available


# -- pushes --


def test_a_push_that_is_delivered_twice_changes_nothing_anywhere() -> None:
    group = begun(LifecycleGroup("bsp", 2, work=Work(12, 2)))
    group.act("push", 0)
    ledger = group.lifecycle.samples.ledger
    assert ledger is not None
    before = (ledger.undecided, ledger.leased, ledger.remaining, group.lifecycle.round.samples, group.version)
    group.act("again", 0)
    assert before == (ledger.undecided, ledger.leased, ledger.remaining, group.lifecycle.round.samples, group.version)
    assert group.records[-1].commands == () and len(group.outputs) == 1
    group.act("push", 1)  # the round is over, and everybody has the next unit
    before = (ledger.undecided, ledger.leased, ledger.remaining, group.lifecycle.round.samples, group.version)
    group.act("again", 1)
    assert before == (ledger.undecided, ledger.leased, ledger.remaining, group.lifecycle.round.samples, group.version)
    group.finish_all()
    group.check_end()


def test_a_push_from_before_a_process_came_back_is_not_taken_for_a_new_one() -> None:
    group = begun(LifecycleGroup("asp", 2, work=Work(4, 2)))
    group.act("push", 0)
    group.act("die", 1)
    assert group.lifecycle.seats[0].worker == 2
    assert group.lifecycle.handle(GradientPushed(0, 1, 2, 1), 9.0) == []


def test_interrupts_do_not_pile_up() -> None:
    group = begun(LifecycleGroup("backup:k=1,late=interrupt", 2))
    for _ in range(50):
        group.act("push", 0)
    told = group.lifecycle.seats[1]
    assert told.interrupted and group.version == 50
    group.act("push", 1)  # it has read the one interrupt, and drops what it had
    assert not told.interrupted and Release(1) in group.outputs
    assert told.version == group.version
    group.act("push", 0)
    assert Interrupt(1) in group.outputs
    group.act("push late", 1)  # its push was on its way
    assert not told.interrupted


def test_own_batches_that_an_interrupt_dropped_are_counted() -> None:
    group = begun(LifecycleGroup("backup:k=1,late=interrupt", 2))
    for seat in (0, 1, 0, 1, 0):
        group.act("push", seat)
    assert group.lifecycle.samples.dropped == group.dropped == 4
    assert group.used == 6


def test_skipped_samples_are_counted_and_those_of_a_process_that_was_sent_away_came_back() -> None:
    group = begun(LifecycleGroup("asp", 2, work=Work(8, 2)))
    group.act("skip", 0)
    ledger = group.lifecycle.samples.ledger
    assert ledger is not None and ledger.dropped == 2 == group.lifecycle.samples.dropped
    group.send(SizeRequested(1))
    group.act("skip", 1)
    assert states(group) == [State.MEMBER, State.DISMISSED] and ledger.dropped == 4
    for event in (BatchesSkipped(1, 2, 1), WorkDropped(1, 2, 1), WorkRequested(1, Work(8, 2)), ModelArrived(1)):
        assert group.lifecycle.handle(event, 99.0) == []  # said before it knew
    assert group.lifecycle.handle(GradientPushed(1, 5, 2, 1), 99.0) == []
    group.finish_all()
    group.check_end()


def test_skipped_batches_of_their_own_are_counted_as_well() -> None:
    group = begun(LifecycleGroup("asp", 1))
    group.act("skip", 0)
    assert group.lifecycle.samples.dropped == 2


def test_an_interrupted_worker_that_is_asked_to_leave_goes_with_its_answer() -> None:
    group = begun(LifecycleGroup("backup:k=1,late=interrupt", 2, work=Work(100, 2)))
    group.act("push", 0)
    group.send(SizeRequested(1))
    assert states(group) == [State.MEMBER, State.LEAVING]
    group.act("push", 1)  # it drops what it had
    assert Dismiss(1) in group.outputs and Release(1) not in group.outputs
    group.finish_all()
    group.check_end()
    assert group.applied.total() == 100


# -- size --


def test_a_group_grows_and_shrinks_by_its_newest() -> None:
    group = begun(LifecycleGroup("asp", 2, work=Work(100, 2), least=1, most=4))
    group.send(SizeRequested(9))
    assert group.lifecycle.staffing.wanted == 4 and list(group.processes) == [0, 1, 2, 3]
    group.act("enter", 2)
    group.send(SizeRequested(1))
    assert states(group) == [State.MEMBER, State.LEAVING, State.LEAVING, State.DISMISSED]
    group.act("push", 1)
    assert left(group) == [(1, "the group was made smaller")] and states(group)[1] is State.DISMISSED
    assert Dismiss(1) in group.outputs
    group.send(SizeRequested(0))
    assert group.lifecycle.staffing.wanted == 1
    group.finish_all()
    group.check_end()
    assert group.applied.total() == 100


def test_without_a_range_any_size_may_be_asked_for_but_none_is_no_group() -> None:
    group = begun(LifecycleGroup("asp", 2))
    for wanted, got in ((5, 5), (-3, 1)):
        group.send(SizeRequested(wanted))
        assert group.lifecycle.staffing.wanted == got


def test_a_waiting_worker_and_a_newcomer_are_dismissed_at_once() -> None:
    group = begun(LifecycleGroup("bsp", 3, work=Work(100, 2)))
    group.act("push", 2)
    group.send(SizeRequested(4))
    group.act("enter", 3)
    assert list(group.lifecycle.coordinator.progress.newcomers) == [3]
    group.send(SizeRequested(2))
    assert states(group) == [State.MEMBER, State.MEMBER, State.DISMISSED, State.DISMISSED]
    group.act("push", 0)
    group.act("push", 1)
    assert group.version == 1 and group.used == 6  # what worker 2 had pushed counts
    group.finish_all()
    group.check_end()


def test_a_group_that_is_made_smaller_before_it_began_begins_with_those_that_are_here() -> None:
    group = LifecycleGroup("bsp", 2)
    group.act("enter", 0)
    group.send(SizeRequested(1))
    assert group.begun and joined(group) == [0]


def test_a_parked_process_can_be_dismissed() -> None:
    group = begun(LifecycleGroup("asp", 2, work=Work(4, 2)))
    group.act("push", 1)
    assert states(group)[1] is State.PARKED
    group.send(SizeRequested(1))
    assert states(group) == [State.MEMBER, State.DISMISSED]
    group.act("die", 1)
    assert group.given_up is None
    group.finish_all()
    group.check_end()


def test_a_group_takes_one_more_whenever_there_is_room_up_to_its_limit() -> None:
    group = LifecycleGroup("asp", 1, work=Work(40, 2), least=1, most=3)
    group.send(RoomOffered())
    assert list(group.processes) == [0]  # it has not begun
    group.act("enter", 0)
    for members in (2, 3, 3):
        group.send(RoomOffered())
        assert len(group.processes) == members
    group.act("die", 2)  # its place was gone again
    assert list(group.processes) == [0, 1, 2]
    group.send(RoomOffered())
    assert list(group.processes) == [0, 1, 2, 3]
    group.finish_all()
    group.check_end()
    assert group.applied.total() == 40


def test_joiners_that_all_die_at_once_do_not_end_a_healthy_run() -> None:
    group = begun(LifecycleGroup("asp", 1, work=Work(40, 2), least=1, most=2))
    for joiner in range(1, 9):
        group.send(RoomOffered())
        group.act("die", joiner)
    assert group.given_up is None
    group.finish_all()
    group.check_end()


def test_a_group_that_was_made_smaller_stays_so_whatever_room_there_is() -> None:
    group = begun(LifecycleGroup("asp", 3, work=Work(40, 2), least=1, most=4))
    group.send(SizeRequested(2))
    group.act("push", 2)
    group.send(RoomOffered())
    assert list(group.processes) == [0, 1, 2] and len(group.lifecycle.active) == 2
    group.send(SizeRequested(3))
    group.send(RoomOffered())
    assert len(group.lifecycle.active) == 3
    group.finish_all()
    group.check_end()


def test_a_fixed_group_and_one_whose_work_is_done_take_nobody() -> None:
    group = begun(LifecycleGroup("asp", 1, work=Work(40, 2)))
    group.send(RoomOffered())
    assert list(group.processes) == [0]
    group = begun(LifecycleGroup("asp", 1, work=Work(2, 2), least=1, most=3))
    group.act("push", 0)
    group.send(RoomOffered())
    assert list(group.processes) == [0]


def test_a_joiner_that_never_comes_does_not_keep_a_run_from_its_end() -> None:
    group = begun(LifecycleGroup("asp", 2, work=Work(8, 2), least=2, most=3))
    group.send(RoomOffered())
    for seat in (0, 1, 0, 1):
        group.act("push", seat)
    assert states(group) == [State.FINISHING, State.FINISHING, State.GONE]
    assert group.processes[2].told_to_stop
    group.finish_all()
    group.check_end()


def test_a_worker_whose_place_will_be_gone_hands_in_its_gradient_and_another_takes_over() -> None:
    group = begun(LifecycleGroup("asp", 2, work=Work(40, 2), least=2, most=2))
    group.send(DepartureRequested(1, "its node is drained"))
    assert states(group) == [State.MEMBER, State.LEAVING, State.STARTING]
    group.send(DepartureRequested(1))  # it knows
    assert len(group.processes) == 3
    group.act("push", 1)
    assert group.version == 1 and states(group)[1] is State.DISMISSED
    assert left(group) == [(1, "its node is drained")]
    group.finish_all()
    group.check_end()
    assert group.applied.total() == 40


def test_one_that_waits_goes_at_once_and_a_fixed_group_goes_on_without_it() -> None:
    group = begun(LifecycleGroup("bsp", 2, work=Work(40, 2)))
    group.act("push", 0)
    group.send(DepartureRequested(0))
    assert states(group) == [State.DISMISSED, State.MEMBER] and left(group) == [(0, "its place will be gone")]
    group.send(DepartureRequested(1))
    assert states(group)[1] is State.MEMBER  # nobody else would go on
    group.finish_all()
    group.check_end()


# -- deaths --


def test_the_dead_are_replaced_up_to_a_number_in_a_row() -> None:
    group = begun(LifecycleGroup("asp", 1, work=Work(100, 2), least=1))
    for number in range(MOST_REPLACEMENTS):
        group.act("die", number)
        assert group.given_up is None
    group.act("enter", MOST_REPLACEMENTS)
    group.act("push", MOST_REPLACEMENTS)  # this one works: counting begins anew
    for number in range(MOST_REPLACEMENTS, 2 * MOST_REPLACEMENTS):
        group.act("die", number)
    assert group.given_up is None
    group.act("die", 2 * MOST_REPLACEMENTS)
    assert (
        group.given_up
        == f"worker {2 * MOST_REPLACEMENTS}: killed; {MOST_REPLACEMENTS} others that took its place" + (" died as well")
    )


def test_the_last_one_that_dies_ends_the_run() -> None:
    group = begun(LifecycleGroup("ssp", 2))
    group.act("die", 0)
    assert group.given_up is None
    group.act("die", 1)
    assert group.given_up == "worker 1: killed, and it was the last" and group.lifecycle.over
    assert group.lifecycle.handle(ProcessDied(1, "killed"), 9.0) == []


def test_the_buffers_of_the_group_are_those_of_its_members_or_of_workers_that_ran_out_of_work() -> None:
    group = begun(LifecycleGroup("asp", 3, work=Work(12, 2)))
    for seat in (0, 1, 2):
        group.act("push", seat)
    group.act("die", 1)
    assert group.lifecycle.trained == [0, 2]
    group.finish_all()
    assert group.lifecycle.over and group.lifecycle.trained == [0, 2]
    alone = begun(LifecycleGroup("asp", 1))
    alone.act("die", 0)
    assert alone.lifecycle.trained == []


def test_a_deadline_reaches_the_policy() -> None:
    group = begun(LifecycleGroup("asp", 1))
    group.send(DeadlinePassed())
    assert isinstance(group.records[-1].event, DeadlinePassed)


def test_a_run_that_only_keeps_time_has_no_samples_and_no_gradients_behind_it() -> None:
    lifecycle = Lifecycle(Coordinator(policy("backup:k=1,late=interrupt")), range(2), together=False, trains=False)
    for seat in (0, 1):
        lifecycle.handle(ModelArrived(seat), 0.0)
    outputs = lifecycle.handle(GradientPushed(0, 1), 1.0)
    assert [type(output).__name__ for output in outputs] == ["Record", "MakeUpdate", "Release", "Interrupt"]
    assert lifecycle.handle(WorkDropped(1, 0, 0), 1.0) == [Release(1)]
    assert lifecycle.samples.dropped == 0


# -- whatever happens --

EXTRA = ("skip", "resize", "again", "push late")


def happen(group: LifecycleGroup, choice: int, kind: int) -> None:
    """One of the things that may happen now; `kind` mixes in what a process or a person rarely does."""
    actions = group.actions()
    if not actions:
        return
    action, seat = actions[choice % len(actions)]
    if kind == 8:
        group.look(choice * 3.0)
        return
    if kind in (6, 10):
        replaced = PolicyReplaced(policy(VARIANTS[choice % len(VARIANTS)]))
        group.send(replaced if kind == 6 else DepartureRequested(seat) if choice % 2 else RoomOffered())
        return
    if kind == 7 and group.begun:
        group.resume()
        return
    if action == "push" and kind == 9:
        group.ask_ahead(seat)
        return
    if action == "push" and kind in (1, 2):
        action = ("skip", "push late")[kind - 1]
    elif kind == 3:
        action, seat = "resize", 1 + choice % 4
    elif kind == 4 and group.processes[seat].pushed and group.processes[seat].does != "ended":
        action = "again"
    elif action == "die" and kind != 5:
        return  # or nobody would live long
    group.act(action, seat)


WORKS = [None, Work(9, 2), Work(9, 2, "static"), Work(30, 4), Work(30, 2, ahead=3), Work(24, 2, "static", ahead=2)]


@settings(deadline=None, max_examples=150)
@example(  # a policy that interrupts is replaced before the interrupted worker has answered
    text="bsp",
    work=Work(9, 2),
    epochs=1,
    least=None,
    happenings=[(0, 0), (1, 0), (2, 0), (0, 0), (18, 6), (0, 0), (0, 6)],
)
@given(
    text=st.sampled_from(VARIANTS),
    work=st.sampled_from(WORKS),
    epochs=st.integers(1, 2),
    least=st.sampled_from([None, 2]),
    happenings=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 10)), max_size=80),
)
def test_nothing_is_lost_whatever_happens(
    text: str, work: Work | None, epochs: int, least: int | None, happenings: list[tuple[int, int]]
) -> None:
    let_happen(text, work, epochs, least, happenings)


def test_nothing_is_lost_when_all_is_killed_and_goes_on() -> None:
    """The same with histories that are the same each time, and long enough for everything to come to pass."""
    for seed in range(200):
        chosen = random.Random(seed)
        let_happen(
            chosen.choice(VARIANTS),
            chosen.choice(WORKS),
            chosen.randint(1, 2),
            chosen.choice([None, 2]),
            [(chosen.randint(0, 20), chosen.randint(0, 9)) for _ in range(60)],
        )


def check_books(group: LifecycleGroup, ledger: WorkLedger) -> None:
    """The records alone say the same."""
    books = Ledger()
    for record in group.records:
        books.observe(record)
    balance = books.balance()
    assert balance.adds_up and (balance.applied, balance.skipped) == (ledger.applied, ledger.dropped)
    assert [epoch.applied + epoch.skipped for epoch in balance.epochs] == [ledger.samples] * ledger.epochs


def let_happen(text: str, work: Work | None, epochs: int, least: int | None, happenings: list[tuple[int, int]]) -> None:
    most = None if least is None else 5
    group = LifecycleGroup(text, 3, work=work, epochs=epochs, least=least, most=most, patience=Patience())
    for choice, kind in happenings:
        happen(group, choice, kind)
    if group.given_up is not None:
        return
    if work is None:
        for seat, process in list(group.processes.items()):
            if process.does != "ended":
                group.act("enter" if process.does == "starting" else "finish", seat)
        for seat, process in list(group.processes.items()):
            if process.does != "ended":
                group.act("finish", seat)
    group.finish_all()
    if group.given_up is not None:
        return
    group.check_end()
    ledger = group.lifecycle.samples.ledger
    if ledger is not None:
        assert ledger.complete, "work was left, and processes that could have done it"
        check_books(group, ledger)
    assert group.lifecycle.samples.dropped == group.skipped + (group.dropped if work is None else 0)


def sequences(text: str, work: Work, depth: int) -> Iterator[tuple[int, ...]]:
    """Every sequence of so many things that may happen to two processes, the dead and a change of size included."""

    def grow(chosen: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        options = len(replayed(text, work, chosen)[1])
        if len(chosen) == depth or options == 0:
            yield chosen
            return
        for number in range(options):
            yield from grow((*chosen, number))

    return grow(())


def replayed(text: str, work: Work, chosen: tuple[int, ...]) -> tuple[LifecycleGroup, list[tuple[str, int]]]:
    group = begun(LifecycleGroup(text, 2, work=work, least=1, most=3))
    for number in chosen:
        group.act(*options_of(group)[number])
    return group, options_of(group)


def options_of(group: LifecycleGroup) -> list[tuple[str, int]]:
    open_actions = group.actions()
    return [*open_actions, ("resize", 1), ("resize", 3)] if open_actions else []


@pytest.mark.slow
@pytest.mark.parametrize("text", ["bsp", "ssp:staleness=0", "backup:k=1,late=interrupt", "buffered:size=2"])
@pytest.mark.parametrize("sharding", ["dynamic", "static"])
def test_every_sequence_of_happenings_in_a_small_group(text: str, sharding: str) -> None:
    work = Work(5, 2, sharding)
    for chosen in sequences(text, work, 4):
        group, _ = replayed(text, work, chosen)
        group.finish_all()
        if group.given_up is None:
            group.check_end()
            ledger = group.lifecycle.samples.ledger
            assert ledger is not None and ledger.complete, chosen


def test_giving_up_is_a_command_and_names_the_reason() -> None:
    lifecycle = Lifecycle(Coordinator(policy("asp")), range(1))
    assert lifecycle.handle(ProcessDied(0, "killed"), 0.0) == [GiveUp("worker 0: killed, and it was the last")]


# -- before the first model of a group that was resumed --


def resumed_group(text: str = "buffered:size=2", work: Work | None = WORKS[3]) -> LifecycleGroup:
    group = begun(LifecycleGroup(text, 2, work=work))
    group.act("push", 0)
    group.resume()
    return group


def test_a_death_before_the_first_model_is_judged_when_there_is_one() -> None:
    group = resumed_group()
    group.act("die", 1)
    assert group.outputs == [] and group.given_up is None
    group.act("enter", 0)
    group.finish_all()
    group.check_end()


def test_a_death_that_is_told_twice_is_one() -> None:
    group = resumed_group()
    group.act("die", 1)
    group.send(ProcessDied(1, "again"))
    assert group.given_up is None
    group.act("die", 0)
    assert group.given_up == "worker 0: killed, and it was the last"


def test_a_size_that_is_asked_for_before_the_first_model_is_kept() -> None:
    group = resumed_group()
    group.act("resize", 4)
    assert group.lifecycle.staffing.wanted == 4
    group.act("enter", 0)
    assert sorted(group.processes) == [0, 1, 2, 3]
    assert not any(process.told_to_stop for process in group.processes.values())


def test_one_that_had_finished_its_own_batches_is_not_made_up_for() -> None:
    group = begun(LifecycleGroup("asp", 2))
    group.act("push", 0)
    group.act("push", 1)
    group.act("finish", 0)
    group.resume()
    group.act("enter", 1)
    assert set(group.processes) == {0, 1}


def test_how_long_a_process_computes_is_what_a_policy_sees() -> None:
    group = begun(LifecycleGroup("bsp", 2))
    lifecycle, later = group.lifecycle, group.now + 3.0
    released = lifecycle.coordinator.progress.members[0].released_at
    assert lifecycle.computes_for(lifecycle.seats[0], later) == later - released
    group.act("push", 0)
    assert lifecycle.computes_for(lifecycle.seats[0], later) is None, "it waits"
    group.act("die", 1)
    assert lifecycle.computes_for(lifecycle.seats[1], later) is None, "it is gone"


def test_a_group_without_a_model_wakes_no_policy() -> None:
    """It could decide nothing, and would be woken again and again."""
    group = resumed_group()
    group.lifecycle.coordinator.deadline = lambda: 5.0  # type: ignore[method-assign]
    assert group.lifecycle.deadline() is None
    del group.lifecycle.coordinator.deadline
    group.act("enter", 0)
    group.lifecycle.coordinator.deadline = lambda: 5.0  # type: ignore[method-assign]
    assert group.lifecycle.deadline() == 5.0
