"""The coordinator's contract: what it does with workers and policies that keep the rules, and that do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from group import Group

from paceline.core.coordinator import Coordinator
from paceline.core.errors import PolicyError, ProtocolError
from paceline.core.messages import (
    NOTHING,
    ApplyUpdate,
    DeadlinePassed,
    Decision,
    Event,
    Gradient,
    GradientArrived,
    InterruptWorker,
    PolicyChanged,
    Record,
    SendParameters,
    Statistics,
    UpdateApplied,
    WorkerJoined,
    WorkerLeft,
)
from paceline.core.progress import Progress
from paceline.policies import POLICIES, Policy, policy


def arrived(worker: int, clock: int, version: int = 0, samples: int = 1) -> GradientArrived:
    return GradientArrived(Gradient(worker, clock), version, samples)


def test_one_round_of_bsp_in_commands() -> None:
    coordinator = Coordinator(policy("bsp"))
    assert coordinator.handle(WorkerJoined(0), 0.0) == Record(0.0, WorkerJoined(0), (SendParameters(0),))
    assert coordinator.handle(WorkerJoined(1), 0.0) == Record(0.0, WorkerJoined(1), (SendParameters(1),))
    waits = coordinator.handle(arrived(1, 1), 1.0)
    assert waits == Record(1.0, arrived(1, 1), (), "worker 1 waits: the round still needs worker 0")
    assert coordinator.progress.why(1) == waits.reason
    assert coordinator.handle(arrived(0, 1), 2.0) == Record(
        2.0, arrived(0, 1), (ApplyUpdate((Gradient(1, 1), Gradient(0, 1))), SendParameters(1), SendParameters(0))
    )
    assert coordinator.settled == [arrived(1, 1), arrived(0, 1)]
    assert coordinator.progress.why(1) == ""


def test_a_gradient_delivered_twice_changes_nothing() -> None:
    group = Group("asp")
    group.join(0)
    group.push(0)
    assert group.push_again(0).commands == ()
    assert group.version == 1
    waiting = Group("bsp")
    waiting.join(0)
    waiting.join(1)
    waiting.push(0)
    assert waiting.push_again(0).commands == ()


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (arrived(9, 1), "worker 9 (unknown): pushed gradient 1 of worker 9, but it is not a member"),
        (arrived(0, 3), "worker 0 (computing): pushed gradient 3 of worker 0; expected gradient 1"),
        (arrived(0, 0), "worker 0 (computing): pushed gradient 0 of worker 0; gradients are numbered from 1"),
        (arrived(0, 1, version=7), "worker 0 (computing): claims version 7, but the newest is version 0"),
        (arrived(0, 1, version=-1), "worker 0 (computing): claims version -1, but the newest is version 0"),
        (arrived(0, 1, samples=0), "worker 0 (computing): pushed gradient 1 of worker 0 made of 0 samples"),
        (arrived(1, 2), "worker 1 (waiting): pushed gradient 2 of worker 1 while it waits"),
        (arrived(2, 1), "worker 2 (left: done): pushed gradient 1 of worker 2, but it is not a member"),
        (arrived(3, 1), "worker 3 (not yet admitted): pushed gradient 1 of worker 3, but it is not a member"),
        (WorkerJoined(0), "worker 0 (computing): joined, but it is already here"),
        (WorkerJoined(3), "worker 3 (not yet admitted): joined, but it is already here"),
        (WorkerJoined(2), "worker 2 (left: done): joined again; a worker that comes back needs a new id"),
        (WorkerLeft(9, "lost"), "worker 9 (unknown): left, but it never joined"),
    ],
)
def test_a_worker_that_breaks_the_protocol_is_named_and_changes_nothing(event: Event, message: str) -> None:
    coordinator = Coordinator(policy("bsp"))
    for worker in (0, 1, 2):
        coordinator.handle(WorkerJoined(worker), 0.0)
    coordinator.handle(WorkerLeft(2, "done"), 0.5)
    coordinator.handle(arrived(1, 1), 1.0)
    coordinator.handle(WorkerJoined(3), 1.0)
    with pytest.raises(ProtocolError) as caught:
        coordinator.handle(event, 2.0)
    assert str(caught.value) == message
    assert f"worker {caught.value.worker} ({caught.value.state}): {caught.value.problem}" == message
    finished = coordinator.handle(arrived(0, 1), 3.0)
    assert finished.commands[0] == ApplyUpdate((Gradient(1, 1), Gradient(0, 1)))


def test_leaving_twice_and_leaving_before_being_let_in_are_fine() -> None:
    group = Group("bsp")
    group.join(0)
    group.join(1)
    group.push(0)
    group.join(2)
    assert group.why(2) == "worker 2 enters with the next round"
    group.leave(2)
    assert group.coordinator.handle(WorkerLeft(2, "again"), 5.0).commands == ()
    group.push(1)
    assert list(group.computing) == [0, 1]


def test_a_joiner_starts_where_the_slowest_stands_and_blocks_nobody() -> None:
    group = Group("ssp:staleness=1")
    group.join(0)
    group.join(1)
    for _ in range(5):
        group.push(0)
        group.push(1)
    group.join(2)
    assert group.coordinator.progress.lead(2) == 0
    group.push(0)
    assert 0 in group.computing


def test_a_new_group_after_everybody_left_starts_from_zero() -> None:
    group = Group("ssp:staleness=0")
    group.join(0)
    group.push(0)
    group.leave(0)
    group.join(1)
    group.join(2)
    group.push(1)
    assert group.why(1) == "worker 1 waits: 1 ahead of worker 2, limit 0"


@dataclass(eq=False)
class Faulty(Policy):
    """Does what it is told to do on the first gradient."""

    name = "faulty"

    def __init__(self, answer: Callable[[Progress], Decision]) -> None:
        self.answer = answer

    def __str__(self) -> str:
        return self.name

    def decide(self, event: Event, progress: Progress, now: float) -> Decision:
        if isinstance(event, WorkerJoined):
            return Decision(release=(event.worker,) if event.worker < 2 else (), reason="later")
        return self.answer(progress)


FIRST = Gradient(0, 1)
BREACHES: list[tuple[Callable[[Progress], Decision], str]] = [
    (lambda _: Decision(apply=(FIRST, FIRST), release=(0,)), "applies gradient 1 of worker 0, which is not pending"),
    (lambda _: Decision(apply=(Gradient(1, 1),)), "applies gradient 1 of worker 1, which is not pending"),
    (lambda _: Decision(apply=(FIRST,), weights=(1.0, 2.0)), "gives 2 weights to 1 gradients"),
    (
        lambda _: Decision(apply=(FIRST,), discard=(FIRST,), reason="both"),
        "discards gradient 1 of worker 0, which is not pending",
    ),
    (lambda _: Decision(discard=(FIRST,), release=(0,)), "discards gradient 1 of worker 0 without a reason"),
    (lambda _: Decision(apply=(FIRST,), release=(0, 1)), "releases worker 1, which is computing"),
    (lambda _: Decision(release=(7,)), "releases worker 7, which is unknown"),
    (lambda _: Decision(interrupt=(0,)), "interrupts worker 0, which is waiting"),
    (lambda _: Decision(interrupt=(8,)), "interrupts worker 8, which is unknown"),
    (lambda _: NOTHING, "makes worker 0 wait without a reason"),
]


@pytest.mark.parametrize(("answer", "problem"), BREACHES)
def test_a_policy_that_breaks_the_contract_is_reported_with_its_decisions(
    answer: Callable[[Progress], Decision], problem: str
) -> None:
    coordinator = Coordinator(Faulty(answer))
    coordinator.handle(WorkerJoined(0), 0.0)
    coordinator.handle(WorkerJoined(1), 0.0)
    with pytest.raises(PolicyError) as caught:
        coordinator.handle(arrived(0, 1), 1.0)
    assert caught.value.problem == problem
    assert caught.value.policy == "faulty"
    assert "WorkerJoined(worker=1)" in caught.value.recent[-2]
    assert "GradientArrived" in str(caught.value).splitlines()[-1]


def test_a_policy_that_leaves_everybody_waiting_is_reported() -> None:
    coordinator = Coordinator(Faulty(lambda _: Decision(reason="no")))
    coordinator.handle(WorkerJoined(0), 0.0)
    with pytest.raises(PolicyError, match="leaves everybody waiting"):
        coordinator.handle(arrived(0, 1), 1.0)


def test_a_newcomer_needs_a_reason_too() -> None:
    coordinator = Coordinator(Faulty(lambda _: NOTHING))
    coordinator.handle(WorkerJoined(0), 0.0)
    coordinator.handle(WorkerJoined(2), 0.0)
    assert coordinator.progress.why(2) == "later"
    silent = Coordinator(Faulty(lambda _: NOTHING))
    silent.policy.decide = lambda event, progress, now: NOTHING  # type: ignore[method-assign]
    with pytest.raises(PolicyError, match="makes worker 0 wait without a reason"):
        silent.handle(WorkerJoined(0), 0.0)


def test_everybody_may_wait_for_a_deadline() -> None:
    class Patient(Faulty):
        def deadline(self) -> float | None:
            return 5.0

    coordinator = Coordinator(Patient(lambda _: Decision(reason="until 5")))
    coordinator.handle(WorkerJoined(0), 0.0)
    assert coordinator.handle(arrived(0, 1), 1.0) == Record(1.0, arrived(0, 1), (), "until 5")
    assert coordinator.deadline() == 5.0


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_ignores_what_does_not_concern_it(name: str) -> None:
    coordinator = Coordinator(policy(name))
    coordinator.handle(WorkerJoined(0), 0.0)
    assert coordinator.deadline() is None
    assert coordinator.handle(DeadlinePassed(), 1.0).commands == ()
    assert coordinator.handle(UpdateApplied(1, Statistics(1, 1.0)), 1.0).commands == ()


def test_a_late_push_after_an_interrupt_is_taken_with_its_old_version() -> None:
    group = Group("backup:k=1,late=interrupt")
    group.join(0)
    group.join(1)
    group.push(0)  # interrupts worker 1, whose push was already on its way
    late = group.coordinator.handle(arrived(1, 1, version=0), 2.0)
    assert late.reason == "worker 1 was late: it computed on version 0 of 1"


def test_an_interrupted_worker_computes_from_the_interrupt_on() -> None:
    group = Group("backup:k=1,late=interrupt")
    group.join(0)
    group.join(1)
    assert InterruptWorker(1) in group.push(0, after=3.0).commands
    interrupted = group.coordinator.progress.members[1]
    assert (interrupted.released_at, interrupted.version, interrupted.pushed_at) == (3.0, 1, 0.0)


# -- a change of policy --


class Heir(Faulty):
    """Does what it is told to do when it takes over."""

    def take_over(self, progress: Progress, now: float) -> Decision:
        return self.answer(progress)


def after_one_push() -> Coordinator:
    """Worker 0 waits with its gradient, worker 1 computes, worker 2 is not yet let in."""
    coordinator = Coordinator(policy("bsp"))
    for worker in (0, 1):
        coordinator.handle(WorkerJoined(worker), 0.0)
    coordinator.handle(arrived(0, 1), 1.0)
    coordinator.handle(WorkerJoined(2), 1.0)
    return coordinator


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (lambda _: Decision(release=(0, 2)), "takes over and leaves gradient 1 of worker 0 without a fate"),
        (lambda _: Decision(apply=(FIRST,), release=(2,)), "makes worker 0 wait without a reason"),
        (lambda _: Decision(apply=(FIRST,), release=(0,)), "makes worker 2 wait without a reason"),
        (lambda _: Decision(apply=(FIRST,), release=(1,)), "releases worker 1, which is computing"),
        (lambda _: Decision(discard=(FIRST,), release=(0, 2)), "discards gradient 1 of worker 0 without a reason"),
    ],
)
def test_a_policy_that_takes_over_keeps_the_contract_or_is_reported(
    answer: Callable[[Progress], Decision], problem: str
) -> None:
    with pytest.raises(PolicyError) as caught:
        after_one_push().change_policy(Heir(answer), 2.0)
    assert caught.value.problem == problem and caught.value.policy == "faulty"
    assert "PolicyChanged(policy='faulty')" in caught.value.recent[-1]


class PatientHeir(Heir):
    def deadline(self) -> float | None:
        return 5.0


def test_a_policy_that_takes_over_must_let_somebody_move_or_have_a_deadline() -> None:
    answer = Decision(apply=(FIRST,), reason="until 5")
    for heir in (Heir, PatientHeir):
        coordinator = Coordinator(PatientHeir(lambda _: Decision(reason="until 5")))
        coordinator.handle(WorkerJoined(0), 0.0)
        coordinator.handle(arrived(0, 1), 1.0)
        if heir is Heir:
            with pytest.raises(PolicyError, match="leaves everybody waiting"):
                coordinator.change_policy(heir(lambda _: answer), 2.0)
        else:
            record = coordinator.change_policy(heir(lambda _: answer), 2.0)
            assert (record.commands, record.reason) == ((ApplyUpdate((FIRST,)),), "until 5")
        assert coordinator.deadline() == (None if heir is Heir else 5.0)  # the new policy's


def test_everybody_left_waiting_by_a_change_is_told_the_new_reason() -> None:
    coordinator = after_one_push()
    assert coordinator.progress.why(0) == "worker 0 waits: the round still needs worker 1"
    reaction = coordinator.change_policy(Heir(lambda _: Decision(apply=(FIRST,), reason="not yet")), 2.0)
    assert (reaction.commands, reaction.reason) == ((ApplyUpdate((FIRST,)),), "not yet")
    assert coordinator.progress.why(0) == coordinator.progress.why(2) == "not yet"
    assert coordinator.progress.version == 1


def test_a_change_of_policy_that_comes_as_an_event_is_a_mistake_of_the_runtime() -> None:
    with pytest.raises(AssertionError, match="a change to asp is made with change_policy"):
        after_one_push().handle(PolicyChanged("asp"), 2.0)
