"""Workers that are silent: when they are suspected, when they are given up, and what becomes of them and their work."""

from __future__ import annotations

import math

import pytest
from lifecycle_group import LifecycleGroup

from paceline.core.coordinator import Coordinator
from paceline.core.errors import ConfigurationError
from paceline.core.messages import (
    Gradient,
    GradientArrived,
    SendParameters,
    UnitsReturned,
    WorkerJoined,
    WorkerLeft,
    WorkerSuspected,
)
from paceline.lifecycle.lifecycle import Lifecycle
from paceline.lifecycle.messages import GradientPushed, ModelArrived, Release, WorkRequested
from paceline.lifecycle.seats import State
from paceline.lifecycle.silence import AGAIN, FEW, LONGEST, MEDIANS, STRANGER, Patience, Silence
from paceline.lifecycle.work import Work
from paceline.policies import policy
from paceline.runtimes.intervals import patience_of

WORK = Work(600, 2)


def spoke(silence: Silence, seat: int, *times: float) -> None:
    """It took so long for its words."""
    for seconds in times:
        silence.told(seat, 0.0)
        silence.heard(seat, seconds)


# -- how long is too long --


def test_patience_follows_the_median_and_what_was_usual_is_said() -> None:
    silence = Silence(Patience(least=0.001))
    spoke(silence, 0, 1.0, 1.1, 0.9, 1.0)
    silence.told(0, 100.0)
    limit = 100.0 + MEDIANS * 1.0
    assert silence.look(100.0 + MEDIANS / 2 - 0.01) == []
    assert silence.next_look == pytest.approx(100.0 + MEDIANS / 2)
    (suspected,) = silence.look(100.0 + MEDIANS / 2)
    assert (suspected.seat, suspected.usual, suspected.overdue) == (0, 1.0, False)
    assert silence.look(limit - 0.01) == [], "it was said"
    assert silence.next_look == pytest.approx(limit)
    (overdue,) = silence.look(limit)
    assert overdue.overdue and overdue.seconds == MEDIANS and silence.is_overdue(0, limit)


def test_one_whose_times_vary_gets_more_time() -> None:
    steady, varying = Silence(Patience(least=0.1)), Silence(Patience(least=0.1))
    spoke(steady, 0, 1.0, 1.0, 1.0, 1.0)
    spoke(varying, 0, 0.2, 1.0, 1.0, 1.8, 2.2)
    assert not varying.is_overdue(0, math.inf), "it owes nothing"
    for silence in (steady, varying):
        silence.told(0, 0.0)
    assert steady.is_overdue(0, 11.0) and not varying.is_overdue(0, 11.0)


def test_a_pause_that_was_seen_before_is_not_taken_for_a_death() -> None:
    silence = Silence(Patience(least=0.1))
    spoke(silence, 0, *[1.0] * 30, 9.0, *[1.0] * 30)
    silence.told(0, 0.0)
    assert not silence.is_overdue(0, LONGEST * 9.0 - 0.01) and silence.is_overdue(0, LONGEST * 9.0)


def test_a_silence_without_measure_teaches_only_a_little() -> None:
    silence = Silence(Patience(least=1.0))
    spoke(silence, 0, *[0.1] * 10)
    spoke(silence, 0, 3600.0)
    silence.told(0, 0.0)
    assert silence.is_overdue(0, LONGEST * AGAIN * 1.0)


def test_one_of_whom_little_is_known_is_measured_by_the_slowest_of_the_others() -> None:
    silence = Silence(Patience(least=0.1))
    spoke(silence, 0, *[1.0] * FEW)
    spoke(silence, 1, *[3.0] * FEW)
    spoke(silence, 2, *[0.1] * (FEW - 1))
    silence.told(2, 0.0)
    limit = STRANGER * MEDIANS * 3.0
    assert not silence.is_overdue(2, limit - 0.1) and silence.is_overdue(2, limit)
    (found,) = silence.look(limit)
    assert found.usual is None


def test_where_nothing_is_known_only_bounds_count() -> None:
    unbounded, bounded = Silence(Patience()), Silence(Patience(most=60.0))
    for silence in (unbounded, bounded):
        silence.told(0, 0.0)
    assert unbounded.look(1e9) == [] and bounded.is_overdue(0, 60.0)
    assert bounded.gives_up_after(60.0) and not bounded.gives_up_after(59.0) and not unbounded.gives_up_after(1e9)


def test_nobody_is_blamed_while_nobody_listened() -> None:
    silence = Silence(Patience(least=1.0))
    spoke(silence, 0, *[0.1] * FEW)
    silence.told(0, 0.0)
    silence.pause(3600.0)
    assert not silence.is_overdue(0, 3600.5) and silence.is_overdue(0, 3601.0)


def test_the_forgotten_owe_nothing() -> None:
    silence = Silence(Patience(least=1.0))
    spoke(silence, 0, *[0.1] * FEW)
    silence.told(0, 0.0)
    silence.forget(0)
    silence.heard(0, 5.0)
    assert silence.look(100.0) == [] and silence.next_look == math.inf


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("off", None),
        ("5s", Patience(5.0)),
        ("0.5s..2m", Patience(0.5, 120.0)),
        ("..1h", Patience(20.0, 3600.0)),
        ("..2s", Patience(2.0, 2.0)),
    ],
)
def test_patience_as_it_is_written(text: str, expected: Patience | None) -> None:
    assert patience_of(text, "patience") == expected


@pytest.mark.parametrize("text", ["", "soon", "5", "0s", "10s..5s", "5s..", "-1s"])
def test_patience_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="patience"):
        patience_of(text, "patience")


# -- what the group does --


def running(text: str, workers: int = 3, work: Work | None = WORK, **options: object) -> LifecycleGroup:
    """Everybody has pushed a few times."""
    options = {"patience": Patience(least=5.0), **options}
    group = LifecycleGroup(text, workers, work=work, **options)  # type: ignore[arg-type]
    for seat in range(workers):
        group.act("enter", seat)
    for _ in range(FEW + 1):
        for seat in range(workers):
            group.act("push", seat)
    return group


def let_be_silent(group: LifecycleGroup, seat: int, others: list[int]) -> None:
    """Time passes, and of the others one speaks now and then, until it is given up."""
    for turn in range(8):
        able = [other for other in others if ("push", other) in group.actions()]
        if able:
            group.act("push", able[turn % len(able)])
        group.look(12.0)
        if group.lifecycle.seats[seat].state is State.SILENT:
            return
    raise AssertionError(f"process {seat} is {group.lifecycle.seats[seat].state}")


def events(group: LifecycleGroup, kind: type) -> list[object]:
    return [record.event for record in group.records if isinstance(record.event, kind)]


def test_a_silent_worker_is_suspected_in_a_sentence_and_then_nobody_waits_for_it() -> None:
    group = running("bsp")
    group.act("push", 0)
    group.act("push", 1)
    group.look(14.0)
    group.look(16.0)
    (suspected,) = events(group, WorkerSuspected)
    assert str(suspected).startswith("worker 2 has been silent for")
    assert str(suspected).endswith("it usually needs 3 s; workers 0 and 1 wait for it")
    (left,) = events(group, WorkerLeft)
    assert isinstance(left, WorkerLeft) and left.worker == 2 and "it was set aside: silent for" in left.reason
    version = group.version
    group.act("push", 0)
    group.act("push", 1)
    assert group.version == version + 1, "the others go on"


def test_a_sentence_about_one_that_nobody_waits_for() -> None:
    assert str(WorkerSuspected(1, 41.2)) == "worker 1 has been silent for 41 s"
    assert str(WorkerSuspected(1, 41.2, 0.9, (3,))).endswith("it usually needs 0.9 s; worker 3 waits for it")


@pytest.mark.parametrize("text", ["asp", "ssp:staleness=1", "dssp", "elastic-bsp:lookahead=3"])
def test_what_it_pushes_when_it_wakes_up_is_a_stale_gradient_of_a_new_worker(text: str) -> None:
    group = running(text)
    let_be_silent(group, 2, [0, 1])
    used = group.used
    group.act("push", 2)
    for _ in range(40):  # some let it in at a barrier
        for seat in (0, 1):
            if ("push", seat) in group.actions():
                group.act("push", seat)
    late = [event for event in events(group, GradientArrived) if event.gradient.worker == 3]  # type: ignore[attr-defined]
    assert late[0].version < group.version and late[0].units  # type: ignore[attr-defined]
    assert group.used > used
    assert not events(group, UnitsReturned), "nobody else was given its work"
    group.finish_all()
    group.check_end()


@pytest.mark.parametrize("text", ["bsp", "backup:k=2", "elastic-bsp:lookahead=3,inside=gather"])
def test_a_policy_without_stale_gradients_discards_it_and_its_work_is_done_again(text: str) -> None:
    group = running(text)
    let_be_silent(group, 2, [0, 1])
    for _ in range(12):
        for seat in (0, 1):
            if ("push", seat) in group.actions():
                group.act("push", seat)
    group.act("push", 2)
    group.finish_all()
    group.check_end()
    discarded = [command.gradient.worker for record in group.records for command in record.commands
                 if type(command).__name__ == "DiscardGradient"]  # fmt: skip
    assert 3 in discarded
    assert any(isinstance(event, WorkerJoined) and event.worker == 3 for event in events(group, WorkerJoined))


def test_one_that_comes_back_before_anything_has_changed_counts() -> None:
    coordinator = Coordinator(policy("elastic-bsp:lookahead=3,inside=gather"))
    coordinator.handle(WorkerJoined(0), 0.0)
    coordinator.handle(WorkerJoined(1), 0.0)
    coordinator.handle(WorkerLeft(1, "it was set aside"), 5.0)
    coordinator.handle(WorkerJoined(2, 1), 6.0)
    late = GradientArrived(Gradient(2, 1), 0)
    assert coordinator.handle(late, 6.0).commands == (SendParameters(2),)
    assert late.gradient in coordinator.progress.pending, "it waits for the barrier"


def test_its_work_is_given_to_others_when_there_is_nothing_else_and_what_it_pushes_then_is_void() -> None:
    group = running("asp", 2, Work(30, 2))
    let_be_silent(group, 1, [0])
    while ("push", 0) in group.actions():
        group.act("push", 0)
    (returned,) = events(group, UnitsReturned)
    assert isinstance(returned, UnitsReturned) and (returned.worker, returned.reason) == (1, "it was set aside")
    assert group.lifecycle.samples.ledger is not None and group.lifecycle.samples.ledger.complete


def test_a_void_push_is_not_applied_and_its_worker_goes_on() -> None:
    group = running("asp", 3, Work(40, 2))
    let_be_silent(group, 2, [0, 1])
    ledger = group.lifecycle.samples.ledger
    assert ledger is not None
    while not events(group, UnitsReturned):
        group.act("push", 0)
    group.act("push", 2)
    group.finish_all()
    group.check_end()
    assert ledger.complete


def test_the_last_one_is_waited_for_unless_somebody_set_a_bound() -> None:
    group = running("asp", 1)
    group.look(1000.0)
    group.look(1000.0)
    assert group.lifecycle.seats[0].state is State.MEMBER and group.given_up is None
    bounded = LifecycleGroup("asp", 1, work=WORK, patience=Patience(least=5.0, most=60.0))
    bounded.act("enter", 0)
    bounded.look(61.0)
    assert bounded.given_up == "worker 0 has been silent for 61 s, and nobody else can go on"


def test_when_all_are_silent_they_are_waited_for_until_one_speaks() -> None:
    group = running("bsp")
    group.look(100.0)
    group.look(100.0)
    assert all(seat.state is State.MEMBER for seat in group.lifecycle.seats.values())
    group.act("push", 1)
    group.look(0.1)
    assert [seat.state.value for seat in group.lifecycle.seats.values()] == ["silent", "a member", "silent"]
    assert group.processes[1].does == "computing"
    for seat in (0, 1, 2):
        group.act("push", seat)
    group.finish_all()
    group.check_end()


def test_a_silent_worker_that_dies_gives_its_work_back() -> None:
    group = running("asp")
    let_be_silent(group, 2, [0, 1])
    group.act("die", 2)
    assert len(events(group, UnitsReturned)) == 1
    group.finish_all()
    group.check_end()


def test_a_silent_worker_may_be_told_to_go() -> None:
    group = running("asp", 3, least=1, most=3)
    let_be_silent(group, 2, [0, 1])
    group.act("resize", 2)
    assert group.processes[2].told_to_stop and len(events(group, UnitsReturned)) == 1
    group.look(1.0)
    group.look(100.0)
    assert group.processes[2].does == "ended", "it did not stop, and was ended"
    group.finish_all()
    group.check_end()


def test_one_that_leaves_and_is_silent_is_dismissed_and_then_ended() -> None:
    group = running("asp", 3, least=1, most=3)
    group.act("resize", 2)
    assert group.lifecycle.seats[2].state is State.LEAVING
    group.look(100.0)
    assert group.lifecycle.seats[2].state is State.DISMISSED
    group.look(100.0)
    assert group.processes[2].does == "ended"


def test_a_run_of_batches_of_their_own_does_not_wait_for_a_silent_worker_at_its_end() -> None:
    group = running("asp", 2, None)
    let_be_silent(group, 1, [0])
    group.act("finish", 0)
    assert group.processes[1].does == "ended" and group.lifecycle.over


def test_a_silent_worker_that_skips_a_batch_or_drops_it_is_believed() -> None:
    group = running("asp")
    let_be_silent(group, 2, [0, 1])
    group.act("skip", 2)
    assert group.lifecycle.samples.dropped == 2
    group.finish_all()
    group.check_end()

    group = running("backup:k=2,late=interrupt")
    group.act("push", 0)
    group.act("push", 1)  # worker 2 is interrupted, and does not hear it
    let_be_silent(group, 2, [0, 1])
    group.act("push", 2)
    assert isinstance(group.processes[2].units, list) and group.processes[2].does == "computing"
    group.finish_all()
    group.check_end()


def test_one_that_gathers_batches_and_lost_some_of_them_begins_again() -> None:
    group = running("asp", 3, Work(40, 2))
    let_be_silent(group, 2, [0, 1])
    group.processes[2].does = "asking"  # for another batch of the same gradient
    held = list(group.processes[2].units)
    group.send(WorkRequested(2, Work(40, 2)))
    assert held and group.processes[2].does == "computing"
    pushed = group.lifecycle.coordinator.progress.members[group.lifecycle.seats[2].worker].clock
    group.act("push", 2)
    assert group.lifecycle.coordinator.progress.members[group.lifecycle.seats[2].worker].clock == pushed
    group.finish_all()
    group.check_end()


def test_a_batch_that_was_given_to_others_is_not_skipped_as_well() -> None:
    group = running("asp", 3, Work(40, 2))
    let_be_silent(group, 2, [0, 1])
    while not events(group, UnitsReturned):
        group.act("push", 0)
    group.act("skip", 2)
    assert group.skipped == group.lifecycle.samples.dropped == 0
    group.finish_all()
    group.check_end()


def test_a_run_that_only_keeps_time_welcomes_a_silent_worker_as_well() -> None:
    lifecycle = Lifecycle(Coordinator(policy("asp")), range(2), together=False, trains=False, patience=Patience(1.0))
    for seat in (0, 1):
        lifecycle.handle(ModelArrived(seat), 0.0)
    for number in range(1, FEW + 2):
        for seat in (0, 1):
            lifecycle.handle(GradientPushed(seat, number), number * 0.1)
    lifecycle.look(1.3)
    lifecycle.handle(GradientPushed(0, FEW + 2), 1.35)
    lifecycle.look(1.8)
    assert lifecycle.seats[1].state is State.SILENT
    outputs = lifecycle.handle(GradientPushed(1, FEW + 2), 2.0)
    assert Release(1) in outputs and lifecycle.seats[1].worker == 2


def test_deaths_are_made_up_for_as_often_as_was_said() -> None:
    group = running("asp", 2, restarts=1)
    group.act("die", 0)
    assert 2 in group.processes
    group.act("enter", 2)
    group.act("die", 1)
    assert set(group.processes) == {0, 1, 2}, "nobody takes its place any more"
    group.finish_all()
    group.check_end()


# -- found by reading --


def test_one_that_was_set_aside_before_it_first_asked_for_work_gets_some_when_it_asks() -> None:
    group = running("asp", 2, least=2, most=3, patience=Patience(least=5.0, most=100.0))
    group.act("resize", 3)
    group.processes[2].does = "waiting"
    group.lifecycle.handle(ModelArrived(2), group.now)  # it is released, and loads its data for a long time
    group.processes[2].does = "loading"
    let_be_silent_until_known(group)
    outputs = group.lifecycle.handle(WorkRequested(2, WORK), group.now)
    (answer,) = [output for output in outputs if isinstance(output, Release)]
    assert answer.seat == 2 and answer.unit is not None and answer.requested


def let_be_silent_until_known(group: LifecycleGroup) -> None:
    """Process 2 has said nothing yet, so it is given much more time than the others."""
    for _ in range(60):
        for seat in (0, 1):
            group.act("push", seat)
        group.look(8.0)
        if group.lifecycle.seats[2].state is State.SILENT:
            return
    raise AssertionError("nobody gave it up")


def test_a_bound_holds_for_the_last_one_as_well_whatever_was_learned() -> None:
    group = LifecycleGroup("asp", 1, work=WORK, patience=Patience(least=5.0, most=300.0))
    group.act("enter", 0)
    for _ in range(FEW + 1):
        group.act("push", 0)
    told = group.now
    while group.given_up is None and group.lifecycle.next_look < math.inf:
        group.look(group.lifecycle.next_look - group.now)
    assert group.given_up is not None and group.now - told == pytest.approx(300.0, abs=5.0)


def test_where_all_others_are_gone_a_bound_holds_for_one_that_was_set_aside() -> None:
    group = LifecycleGroup("asp", 2, work=WORK, patience=Patience(least=5.0, most=300.0))
    for seat in (0, 1):
        group.act("enter", seat)
    for _ in range(FEW + 1):
        for seat in (0, 1):
            group.act("push", seat)
    let_be_silent(group, 1, [0])
    group.act("die", 0)
    assert group.given_up is None
    while group.given_up is None and group.lifecycle.next_look < math.inf:
        group.look(group.lifecycle.next_look - group.now)
    assert group.given_up is not None and "nobody else can go on" in group.given_up


def gather_another(group: LifecycleGroup, seat: int) -> None:
    """It asks for one more batch of the same gradient."""
    group.processes[seat].does = "asking"
    group.send(WorkRequested(seat, Work(60, 2)))


def test_one_that_gathers_and_is_set_aside_twice_within_a_step_loses_nothing() -> None:
    group = running("asp", 3, Work(60, 2))
    let_be_silent(group, 2, [0, 1])
    gather_another(group, 2)
    assert len(group.processes[2].units) == 2
    let_be_silent(group, 2, [0, 1])
    group.act("push", 2)
    group.finish_all()
    group.check_end()
    ledger = group.lifecycle.samples.ledger
    assert ledger is not None and ledger.complete


def test_the_rest_of_a_gradient_whose_samples_others_were_given_is_ignored() -> None:
    group = running("asp", 3, Work(60, 2))
    let_be_silent(group, 2, [0, 1])
    while not events(group, UnitsReturned):
        group.act("push", 0)
    gather_another(group, 2)  # there is nothing for it: another has what it had
    for seat in (0, 1):
        if ("push", seat) in group.actions():
            group.act("push", seat)
    assert group.processes[2].does == "finishing" and len(group.processes[2].units) == 1
    group.processes[2].does = "waiting"
    group.processes[2].pushed += 1
    group.send(GradientPushed(2, group.processes[2].pushed, 2, 1, 0.5))
    assert group.outputs == [Release(2)]
