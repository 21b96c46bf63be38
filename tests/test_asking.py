"""Asking what candidates would make of the recent times: the question, who answers it, and who waits for the answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

import msgspec
import pytest
from group import Group
from lifecycle_group import LifecycleGroup
from record_keeper import RecordKeeper

from paceline.core.coordinator import Coordinator
from paceline.core.errors import ConfigurationError
from paceline.core.messages import (
    Answered,
    Ask,
    Decision,
    Event,
    GradientArrived,
    InterruptWorker,
    Record,
    SendParameters,
)
from paceline.core.progress import Progress
from paceline.core.questions import Answer, Costs, Question
from paceline.core.state import kept
from paceline.experiment.foresight import MOST_PUSHES, Tally, foresee, thinker
from paceline.experiment.simulation import Simulation, simulate
from paceline.lifecycle.messages import BeginGroup
from paceline.policies.asp import ASP
from paceline.policies.recent_times import LATEST, MOST_TIMES, RecentTimes
from paceline.recording.replay import first_difference, replay
from paceline.recording.trace import Trace
from paceline.runtimes.serving.loop import Loop
from paceline.runtimes.serving.thinking import MOST_THINKERS, Thinking
from paceline.runtimes.simulated.costly import CostlySimulator, Durations
from paceline.runtimes.simulated.simulator import RunEnd, SimulatedWorker
from paceline.runtimes.speeds import Constant

ONE_SLOW = Question(("bsp", "asp", "backup:k=3"), (0, 1, 2, 3), ((1.0,), (1.0,), (1.0,), (4.0,)), 120.0)


@dataclass(eq=False)
class Curious(ASP):
    """Asks with every eighth push, and remembers what it heard."""

    name = "curious"

    pushes: int = kept(0)
    heard: list[Answer] = kept(factory=list)
    times: RecentTimes = kept(factory=RecentTimes)

    def decide(self, event: Event, progress: Progress, now: float) -> Decision:
        decision = super().decide(event, progress, now)
        if isinstance(event, Answered):
            self.heard.append(event.answer)
        if isinstance(event, GradientArrived):
            self.times.observe(event, progress, now)
            self.pushes += 1
            if self.pushes % 8 == 0:
                return msgspec.structs.replace(decision, ask=self.times.question(["bsp", "asp"], progress, 20))
        return decision


def coordinator_of(group: Group) -> Coordinator:
    return group.coordinator


def asked_by(group: Group) -> list[Ask]:
    return [command for _, _, record in group.history for command in record.commands if isinstance(command, Ask)]


def curious_group() -> tuple[Group, Curious]:
    curious = Curious()
    group = Group(curious)
    group.answers_at_once = False
    for worker in range(2):
        group.join(worker)
    for _ in range(4):
        group.push(0)
        group.push(1)
    return group, curious


# -- the answer --


def test_what_is_foreseen_is_what_arithmetic_says() -> None:
    bsp, asp, backup = foresee(ONE_SLOW).prospects
    assert (bsp.policy, bsp.staleness, bsp.discarded) == ("bsp", 0.0, 0.0)
    assert bsp.pace == pytest.approx(1.0, rel=0.05) and bsp.updates == pytest.approx(0.25, rel=0.06)
    assert bsp.waiting == pytest.approx(9 / 16, rel=0.03)  # three of four wait for three of four seconds
    assert asp.pace == asp.updates == pytest.approx(3.25, rel=0.02) and asp.waiting == 0
    assert 2.5 < asp.staleness < 3.5
    assert backup.pace == pytest.approx(3.0, rel=0.02) and backup.staleness == 0
    assert backup.discarded == pytest.approx(0.25 / 3.25, rel=0.2)


def test_a_candidate_that_cannot_work_with_the_group_is_left_out() -> None:
    question = msgspec.structs.replace(ONE_SLOW, candidates=("backup:k=9", "asp"))
    assert [prospect.policy for prospect in foresee(question).prospects] == ["asp"]


def test_a_large_group_and_a_long_horizon_are_tried_for_a_bounded_number_of_pushes() -> None:
    question = Question(("asp",), tuple(range(30)), ((1.0,),) * 30, 1e9)
    [asp] = foresee(question).prospects
    assert asp.pace == pytest.approx(30, rel=0.05)


def test_updates_that_take_long_make_the_server_the_straggler() -> None:
    """0.2 s each: asp's four updates per second do not fit; bsp makes one and hardly feels it."""
    times = ((1.0,),) * 8
    question = Question(("bsp", "asp"), tuple(range(8)), times, 60.0, Costs(update=0.2))
    bsp, asp = foresee(question).prospects
    assert asp.pace == pytest.approx(5.0, rel=0.05) and asp.server == pytest.approx(1.0, abs=0.05)
    assert bsp.pace == pytest.approx(8 / 1.2, rel=0.05) and bsp.server < 0.2


# -- the question --


def test_a_question_has_the_latest_times_of_every_member_without_waits() -> None:
    group, curious = curious_group()
    question = asked_by(group)[-1].question
    assert question.workers == (0, 1) and question.candidates == ("bsp", "asp")
    assert question.times == ((1.0, 2.0, 2.0, 2.0), (2.0, 2.0, 2.0, 2.0))  # released at its push: two apart
    assert question.horizon == 40.0
    times = RecentTimes()
    assert times.question(["asp"], group.coordinator.progress, 20) is None
    group.join(2)
    asked = curious.times.question(["asp"], group.coordinator.progress, 20)
    assert asked is not None and asked.times[2] == (1.875,)  # nothing is known of it: as the others, on average
    curious.times.forget(0)
    assert curious.times.of(0) == ()


def test_a_worker_that_is_late_counts_by_what_it_has_taken_so_far_unless_it_took_longer_before() -> None:
    group, curious = curious_group()
    progress, now = group.coordinator.progress, group.now + 1.5  # worker 0 has been at it for 2.5 s, worker 1 for 1.5 s
    asked = curious.times.question(["asp"], progress, 20, now=now, late=(0, 1))
    assert asked is not None and asked.times == ((2.5,), (2.0, 2.0, 2.0, 2.0))


def test_a_question_of_a_thousand_workers_is_still_a_line_that_one_can_keep() -> None:
    group = Group(Curious())
    policy = group.coordinator.policy
    assert isinstance(policy, Curious)
    for worker in range(1000):
        group.coordinator.progress.announce(worker)
        group.coordinator.progress.admit(worker, 0.0)
    policy.times.resume({str(worker): [1.23456789] * LATEST for worker in range(1000)})
    question = policy.times.question(["asp"], group.coordinator.progress, 20)
    assert question is not None and sum(map(len, question.times)) <= MOST_TIMES
    assert len(msgspec.json.encode(question)) < 40_000


# -- who waits for the answer --


def test_the_policy_hears_the_answer_to_its_latest_question_once() -> None:
    group, curious = curious_group()
    coordinator = group.coordinator
    [asked] = asked_by(group)
    assert coordinator.asking == asked and asked.number == 1
    coordinator.handle(Answered(7, Answer()), 20.0)
    assert curious.heard == [] and coordinator.asking == asked  # nobody asked that
    answer = foresee(asked.question)
    coordinator.handle(Answered(1, answer), 20.0)
    coordinator.handle(Answered(1, answer), 20.0)
    assert curious.heard == [answer] and coordinator.asking is None


def test_a_policy_that_takes_over_does_not_hear_what_the_one_before_asked() -> None:
    group, curious = curious_group()
    group.change("ssp")
    assert group.coordinator.asking is None
    record = group.coordinator.handle(Answered(1, Answer()), 20.0)
    assert record.commands == () and curious.heard == []


def test_a_question_outlives_the_server_that_asked_it() -> None:
    """The next server asks it again, once somebody has brought a model: before, it could not tell all of it."""
    group = LifecycleGroup("auto", workers=3)
    for seat in range(3):
        group.act("enter", seat)
    while group.lifecycle.coordinator.asking is None:
        for seat in range(3):
            if ("push", seat) in group.actions():
                group.act("push", seat)
    asked = group.lifecycle.coordinator.asking
    group.resume()
    assert group.lifecycle.coordinator.asking == asked and asked not in group.outputs
    group.act("enter", 0)
    assert group.outputs[:2] == [BeginGroup((0,)), asked]
    group.act("enter", 1)
    assert asked not in group.outputs


# -- in virtual time --


def test_the_simulator_answers_at_once_and_a_replay_takes_the_answers_from_the_trace(tmp_path: Path) -> None:
    simulation = Simulation(intervals=(1.0, 1.0, 4.0), duration=40.0)
    path, keeper = tmp_path / "trace.jsonl", RecordKeeper()
    with_questions = simulate(Curious(), simulation, trace_file=path, observers=[keeper])
    assert with_questions.seconds == 40.0 and with_questions.applied == simulate("asp", simulation).applied
    answers = [record for record in keeper.records if isinstance(record.event, Answered)]
    assert len(answers) == with_questions.pushes // 8
    for before, record in zip(keeper.records, keeper.records[1:], strict=False):
        if isinstance(record.event, Answered):
            asked = before.commands[-1]
            assert isinstance(asked, Ask) and before.now == record.now
            assert record.event == Answered(asked.number, foresee(asked.question))
    trace = Trace(path)
    assert [*replay(trace, Curious())] == [*trace]
    with pytest.raises(Exception, match="curious"):
        first_difference(trace)  # the trace names a policy that is not paceline's own


def test_costs_of_the_server_are_part_of_the_question_and_its_queue_is_not_part_of_the_times() -> None:
    """Eight workers of a second each, and a server that needs 0.2 s for an update: they come to 1.6 s."""
    keeper = RecordKeeper()
    workers = [SimulatedWorker(worker, Constant(1.0).start("")) for worker in range(8)]
    durations = Durations(step=0.2, one_process=True)
    coordinator = Coordinator(Curious())
    CostlySimulator(workers, coordinator, [keeper], durations=durations, think=foresee).run(RunEnd(duration=20.0))
    heard = coordinator.policy.heard  # type: ignore[attr-defined]
    assert all(answer.costs == Costs(update=0.2) for answer in heard)
    assert heard[-1].prospects[0].pace == pytest.approx(8 / 1.2, rel=0.1)  # bsp, which nobody has tried


@pytest.mark.parametrize(
    ("costs", "delay", "problem"),
    [
        (Costs(update=-1.0), 0.0, "costs: update is -1; it must be from 0 to 1e+100"),
        (Costs(wire=0.1), 0.5, "give either delays or costs"),
    ],
)
def test_costs_that_are_impossible_are_refused(costs: Costs, delay: float, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem.replace("+", r"\+")):
        simulate("asp", Simulation(intervals=(1.0,), costs=costs, push_delay=delay))


# -- in a process of its own --


def answered(thinking: Thinking, loop: Loop, asked: Ask) -> Answered:
    heard: list[Answered] = []
    thinking.attach(heard.append)
    assert thinking.ask(asked) is None
    for _ in range(200):
        loop.turn(0.5)
        if heard:
            return heard[0]
    raise AssertionError("no answer")


def test_without_anybody_who_thinks_the_answer_is_empty() -> None:
    assert Thinking(Loop(), None).ask(Ask(3, ONE_SLOW)) == Answered(3, Answer())


@pytest.mark.slow
def test_a_process_of_its_own_finds_the_same_answer() -> None:
    loop = Loop()
    thinking = Thinking(loop, thinker)
    large = Question(("bsp",), tuple(range(20)), ((1.0,) * 1000,) * 20, 5.0)  # more than a pipe holds
    found = answered(thinking, loop, Ask(1, large))
    assert found.answer.prospects == foresee(large).prospects and found.answer.seconds > 0
    thinking.ask(Ask(2, large))
    last = answered(thinking, loop, Ask(3, ONE_SLOW))  # the one before is not wanted any more
    assert last.number == 3 and last.answer.prospects == foresee(ONE_SLOW).prospects
    assert thinking._process is not None
    thinking._process.kill()
    assert answered(thinking, loop, Ask(4, ONE_SLOW)).answer.prospects == last.answer.prospects
    thinking.close()
    thinking.close()
    loop.close()


def test_who_dies_over_every_question_ends_with_an_empty_answer() -> None:
    started: list[int] = []

    def command() -> list[str]:
        started.append(1)
        return ["false"]

    loop = Loop()
    assert answered(Thinking(loop, command), loop, Ask(5, ONE_SLOW)) == Answered(5, Answer())
    assert len(started) == MOST_THINKERS
    loop.close()


@pytest.mark.parametrize(("workers", "k"), [(16, 1), (100, 1), (100, 60)])
def test_an_answer_takes_no_longer_where_iterations_are_interrupted(
    workers: int, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each update begins the iterations of all others anew."""
    begun: list[int] = []

    class Counting(Tally):
        def observe(self, record: Record) -> None:
            begun.append(sum(isinstance(command, InterruptWorker | SendParameters) for command in record.commands))
            super().observe(record)

    monkeypatch.setattr("paceline.experiment.foresight.Tally", Counting)
    random = Random(1)
    times = tuple(tuple(random.expovariate(1.0) for _ in range(8)) for _ in range(workers))
    [prospect] = foresee(Question((f"backup:k={k},late=interrupt",), tuple(range(workers)), times, 1e9)).prospects
    assert prospect.pace > 0 and MOST_PUSHES / 4 < sum(begun) < 1.5 * MOST_PUSHES
