"""auto: when it asks, what it makes of an answer, and that nothing is lost when it changes its mind."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from group import Group
from record_keeper import RecordKeeper

from paceline.core.coordinator import Coordinator
from paceline.core.messages import Answered, Ask, Decision, Follow, Gradient, GradientArrived, PolicyChanged, WorkerLeft
from paceline.core.questions import Answer, Costs, Prospect
from paceline.experiment.foresight import foresee
from paceline.experiment.simulation import Simulation, simulate
from paceline.lifecycle.lifecycle import Lifecycle
from paceline.lifecycle.messages import PolicyFollowed
from paceline.policies import policy
from paceline.policies.auto import Auto
from paceline.policies.loss_watch import AVOIDED, LOSSES, LossWatch
from paceline.policies.measured import Pace, Stretch
from paceline.policies.rests import (
    ALLOWED,
    BUSY,
    CALM,
    FIRST,
    FREE,
    JUDGED,
    LEAST_CALM,
    LONGEST,
    MOST_CALM,
    RESERVE,
    SHORTEST,
    Rests,
)
from paceline.policies.vigil import Usual, Vigil
from paceline.policies.weighing import ELASTIC, age_of, candidates, choose, scatter_of, shares, worth_of
from paceline.recording.replay import first_difference
from paceline.recording.trace import Trace
from paceline.runtimes.speeds import Slowdown

BSP = Prospect("bsp", 2.0, 0.0, 0.0, 0.5, 0.5)
BACKUP = Prospect("backup:k=3", 3.5, 0.0, 0.1, 0.0, 3.5 / 3)
ELASTIC_BSP = Prospect("elastic-bsp", 3.95, 2.9, 0.0, 0.02, 3.95)
ASP = Prospect("asp", 4.0, 3.0, 0.0, 0.0, 4.0)


def chosen(*prospects: Prospect, present: str = "bsp", slack: float = 0.03, **options: Any) -> str | None:
    choice = choose(Answer(prospects, costs=Costs(update=0.2)), present, 4, slack, **options)
    return None if choice is None else choice.policy


# -- what it makes of an answer --


def test_of_those_about_as_good_as_the_best_the_freshest_is_taken() -> None:
    almost = msgspec.structs.replace(BACKUP, pace=3.9)
    assert chosen(BSP, BACKUP, ASP) == "asp"
    assert chosen(BSP, almost, ASP) == "backup:k=3"
    assert chosen(BSP, BACKUP, ASP, slack=0.15) == "backup:k=3"
    assert chosen(BSP, BACKUP, ASP, only_fresh=True) == "backup:k=3"
    assert chosen(ASP, only_fresh=True) is None and chosen() is None
    assert chosen(Prospect("bsp", 0.0, 0.0, 0.0, 1.0, 0.0)) is None  # nothing moves


def test_the_freshest_of_those_as_good_is_taken_and_the_present_one_stays_if_it_is_about_as_fresh() -> None:
    slower = msgspec.structs.replace(ELASTIC_BSP, pace=3.92, updates=3.92)
    assert chosen(BSP, slower, ASP) == "elastic-bsp"
    assert chosen(BSP, slower, ASP, present="asp") == "asp"  # which is no more than 0.3 rounds staler
    assert chosen(BSP, slower, msgspec.structs.replace(ASP, staleness=4.5), present="asp") == "elastic-bsp"
    twice = msgspec.structs.replace(ASP, policy="ssp", pace=3.95, updates=3.95)
    assert chosen(BSP, twice, ASP) == "asp"  # of those as fresh the one with the most pace


def test_what_the_present_policy_comes_to_counts_if_it_is_much_less_than_foretold() -> None:
    assert chosen(BSP, ELASTIC_BSP, ASP, present="asp", measured={"asp": Pace(3.7)}) == "asp"
    assert chosen(BSP, ELASTIC_BSP, ASP, present="asp", measured={"asp": Pace(3.5)}) == "elastic-bsp"
    assert chosen(BSP, ELASTIC_BSP, ASP, present="asp", measured={"asp": Pace(3.5, 0.2)}) == "asp"  # by chance, perhaps
    assert chosen(BSP, ASP, present="asp", measured={"asp": Pace(2.02)}) == "bsp"


def test_what_was_tried_before_is_known_whatever_is_foretold_of_it_now() -> None:
    """Workers that wait leave their cores to others: iterations are shorter then."""
    tried = {"bsp": Pace(3.0), "asp": Pace(2.5)}
    assert chosen(BSP, ASP, present="asp", measured=tried) == "bsp"
    assert chosen(BSP, ASP, present="bsp", measured=tried) == "bsp"
    assert chosen(BSP, ASP, present="asp", measured={"bsp": Pace(5.0, 2.9)}) == "asp"  # by chance, perhaps
    choice = choose(Answer((BSP, BACKUP, ASP)), "asp", 4, 0.03, measured={"bsp": Pace(3.0)})
    assert choice is not None and choice.why.endswith("bsp was tried, and came to 150% of what is foretold of it")


def test_a_fresher_one_must_be_better_than_it_has_to_be_by_what_worths_scatter() -> None:
    """It has 0.97 of the best, which is just enough."""
    almost = msgspec.structs.replace(BACKUP, pace=3.88)
    assert chosen(BSP, almost, ASP, present="asp") == "backup:k=3"
    assert chosen(BSP, almost, ASP, present="asp", scatter=0.01) == "asp"
    assert chosen(BSP, almost, ASP, present="backup:k=3", scatter=0.01) == "backup:k=3"  # and is no reason to leave it


def test_the_scatter_of_worths_is_what_differs_from_one_answer_to_the_next() -> None:
    before, after = (shares(Answer((BSP, msgspec.structs.replace(ASP, pace=pace, updates=pace))), 4) for pace in (4, 5))
    assert before == {"bsp": 0.5, "asp": 1.0} and after == {"bsp": 0.4, "asp": 1.0}
    assert scatter_of(before, after, 0.5) == pytest.approx(0.05)  # the mean of 0.1 and of nothing
    assert scatter_of(before, after, 0.03) == 0.015
    assert scatter_of({}, after, 0.03) == scatter_of(before, {}, 0.03) == 0.0
    assert shares(Answer(), 4) == shares(Answer((Prospect("bsp", 0.0, 0.0, 0.0, 1.0, 0.0),)), 4) == {}


def test_the_age_of_gradients_is_told_in_rounds_however_large_updates_are() -> None:
    assert age_of(BSP, 4) == 0.0 and age_of(ASP, 4) == 0.75
    buffered = Prospect("buffered:size=4", 4.0, 0.75, 0.0, 0.0, 1.0)
    assert age_of(buffered, 4) == (0.75 * 4 + 1.5) / 4


def test_an_update_of_more_than_a_round_counts_as_one() -> None:
    assert worth_of(Prospect("elastic-bsp:inside=gather", 4.0, 0.0, 0.0, 0.0, 0.25), 4) == 1.0
    assert worth_of(ASP, 4) == 4.0


def test_it_says_why_in_a_sentence_with_figures() -> None:
    answer = Answer((BSP, BACKUP, ASP))
    choice = choose(answer, "bsp", 4, 0.03)
    assert choice is not None and choice.pace == 4.0
    assert choice.why == (
        "asp: 2.00 times bsp's pace, staleness 3; backup:k=3 has 1.75 times bsp's pace, none is stale, 10% thrown away;"
        " bsp waits 50%"
    )
    staying = choose(Answer((BSP, msgspec.structs.replace(ASP, pace=2.01, updates=2.01))), "asp", 4, 0.03)
    assert staying is not None
    assert staying.why == "bsp: nothing is worth more, none is stale; asp has 1.00 times bsp's pace, staleness 3"
    alone = choose(Answer((msgspec.structs.replace(BSP, pace=0.0, updates=0.0), BACKUP)), "bsp", 4, 0.03)
    assert alone is not None
    assert alone.why == "backup:k=3: bsp makes no progress, none is stale, 10% thrown away; bsp waits 50%"
    busy = msgspec.structs.replace(ASP, server=0.97)
    limited = choose(Answer((BSP, busy), costs=Costs(update=0.2)), "bsp", 4, 0.03)
    assert limited is not None and limited.why.endswith("the server is busy for 97%, 0.2 s an update")


@pytest.mark.parametrize("workers", [2, 3, 4, 16, 1000])
def test_candidates_can_be_built_and_work_with_the_group(workers: int) -> None:
    tried = candidates(workers, "ssp:staleness=7")
    assert len(set(tried)) == len(tried) <= 16 and {"bsp", "asp", "ssp", ELASTIC, "ssp:staleness=7"} <= set(tried)
    assert "auto" not in tried
    for name in tried:
        policy(name).check_group(workers)


# -- rests --


def test_questions_get_rarer_while_the_answers_stay_the_same() -> None:
    rests = Rests()
    for _ in range(4 * FIRST):
        rests.push(4, 1.0)
    assert rests.may_ask(1.0, at_once=False)
    rests.ask()
    assert not rests.may_ask(1.0, at_once=True)
    for _ in range(10):
        rests.stay()
    assert rests.between_questions == LONGEST
    for _ in range(4 * SHORTEST):
        rests.push(4, 2.0)
    assert rests.may_ask(2.0, at_once=True) and not rests.may_ask(2.0, at_once=False)
    rests.change(1.0)
    assert rests.between_questions == SHORTEST


def test_questions_may_have_a_share_of_a_processor_and_a_moment_of_it_to_begin_with() -> None:
    rests = Rests()
    assert rests.can_afford(0.0, urgent=False)
    for _ in range(8):
        rests.push(4, 10.0)
    rests.hear(ALLOWED + 0.5)
    assert rests.may_ask(10.0, at_once=False)  # a few may take as long as they take
    for _ in range(FREE):
        rests.hear(0.0)
    assert not rests.may_ask(10.0, at_once=False)
    assert not rests.may_ask(10.0 + 0.49 / BUSY, at_once=False) and rests.may_ask(10.0 + 0.51 / BUSY, at_once=False)
    assert rests.may_ask(10.0, at_once=True)  # for those because somebody is not as usual there is more
    rests.hear(RESERVE)
    assert not rests.may_ask(10.0, at_once=True)


def pushed(rests: Rests, now: float) -> None:
    rests.push(4, now)
    if rests.may_judge:
        rests.judge(0.0)


def test_rests_between_changes_follow_what_the_last_one_brought() -> None:
    rests = Rests()
    assert rests.may_change  # the first need not wait
    now = 0.0
    for kept, expected in ((True, CALM / 2), (False, CALM), (False, 2 * CALM)):
        rests.change(4.0)
        assert not rests.may_change
        for _ in range(4 * JUDGED):
            now += 0.25 if kept else 0.5
            pushed(rests, now)
            rests.since.note(1.0, now)
        assert rests.between_changes == expected and rests.promised is None
    for kept, end in ((True, LEAST_CALM), (False, MOST_CALM)):
        for _ in range(10):
            rests.change(1.0 if kept else 9.0)
            for _ in range(4 * JUDGED):
                now += 0.25
                pushed(rests, now)
                rests.since.note(1.0, now)
        assert rests.between_changes == end
    rests.change(1.0)
    for _ in range(8 * JUDGED):
        pushed(rests, now)
    assert rests.promised == 1.0  # without an update there is nothing to judge
    rests.leave()
    assert rests.promised is None and not rests.may_change


@pytest.mark.parametrize("workers", [2, 3, 5, 8, 16, 31])
def test_rounds_are_counted_whole(workers: int) -> None:
    """A stretch of time cuts a round in two, wherever it begins and ends."""
    for ends in range(1, 4 * workers):
        stretch = Stretch()
        for push in range(ends + 2 * workers):
            if push % workers == workers - 1:
                stretch.note(float(workers), 1.0 + push // workers)  # bsp: one update of all
        pace = stretch.pace(0.0)
        assert pace is None or pace == Pace(float(workers))
        single = Stretch()
        for push in range(ends + 2 * workers):
            single.note(1.0, 1.0 + push // workers)  # asp: all at the same moment
        found = single.pace(0.1)
        assert found is not None and found.measured == pytest.approx(workers) and found.chance > 0
    assert Stretch().pace(0.0) is None
    stretch.begin()
    assert stretch.pace(0.0) is None


# -- the loss --


def watched(losses: list[float | None], workers: int = 4) -> tuple[LossWatch, list[int]]:
    """Stale gradients come into use after twenty losses of about 1."""
    watch = LossWatch()
    assert not any(watch.observe(1.0 + 0.1 * (number % 3 - 1), workers) for number in range(20))
    watch.change(stale=True)
    return watch, [number for number, loss in enumerate(losses) if watch.observe(loss, workers)]


def test_a_loss_that_rises_after_a_change_to_stale_gradients_is_noticed() -> None:
    assert watched([1.0, 0.9, 1.2] * 200)[1] == []
    assert watched([2.5] * LOSSES)[1] == [LOSSES - 1]
    watch, rose = watched([1.0] * LOSSES + [2.5] * LOSSES)
    assert rose == [2 * LOSSES - 1] and watch.avoid == AVOIDED and watch.next_avoid == 2 * AVOIDED
    watch, rose = watched([2.0 ** (-number / 100) for number in range(10 * LOSSES)] + [1.0] * LOSSES)
    assert rose == [11 * LOSSES - 1], (
        "it is compared with what it was lately, and not with what it was at the beginning"
    )
    assert watched([None, 1.0, math.nan])[1] == [2]  # it diverges
    assert watched([-5.0] * 3 * LOSSES + [-1.0] * LOSSES)[1] == [4 * LOSSES - 1], "a loss may be negative"


def test_rounds_for_which_stale_gradients_are_avoided_count_while_there_are_none() -> None:
    watch, rose = watched([9.0] * LOSSES)
    assert rose
    for _ in range(40):
        watch.observe(None, 4)
    assert watch.avoid == AVOIDED
    watch.change(stale=False)
    for _ in range(4 * int(AVOIDED)):
        watch.observe(9.0, 4)
    assert watch.avoid == 0.0
    watch.change(stale=True)
    for _ in range(20 * LOSSES):
        assert not watch.observe(9.0, 4)
    assert watch.next_avoid == AVOIDED, "after a long time without one, the next rise is like the first"


def test_without_a_loss_or_without_stale_gradients_nothing_rises() -> None:
    silent = LossWatch()
    silent.change(stale=True)
    assert not any(silent.observe(None, 4) for _ in range(200)) and silent.before is None
    watch, _ = watched([])
    before = watch.before
    watch.change(stale=True)  # from one policy with stale gradients to another: as before
    assert watch.before == before
    watch.change(stale=False)
    assert not any(watch.observe(9.0, 4) for _ in range(80)) and not watch.observe(math.inf, 4)


@pytest.mark.parametrize(("sigma", "most"), [(0.3, 0), (0.6, 2), (1.0, 10)])
@pytest.mark.parametrize("workers", [2, 4, 16])
def test_losses_that_only_vary_are_no_alarm(sigma: float, most: int, workers: int) -> None:
    """Of two hundred runs of sixty rounds, in which stale gradients come into use after two."""
    alarms = 0
    for seed in range(200):
        random, watch = Random(seed), LossWatch()
        for _ in range(2 * workers):
            watch.observe(random.lognormvariate(0.0, sigma), workers)
        watch.change(stale=True)
        alarms += any(watch.observe(random.lognormvariate(0.0, sigma), workers) for _ in range(60 * workers))
    assert alarms <= most


# -- in a group --

FEW = "auto:tried=100"


def told(simulation: Simulation, text: str = "auto", **options: Any) -> tuple[list[PolicyChanged], RecordKeeper]:
    keeper = RecordKeeper()
    simulate(text, simulation, observers=[keeper], **options)
    return [record.event for record in keeper.records if isinstance(record.event, PolicyChanged)], keeper


def test_where_nobody_is_slow_it_stays_with_bsp_and_asks_less_and_less() -> None:
    changes, keeper = told(Simulation(workers=4, speed="lognormal:sigma=0.002", duration=100.0), "auto:tried=100")
    assert changes == []
    times = [record.now for record in keeper.records if isinstance(record.event, Answered)]
    assert times == pytest.approx([2.0, 6.0, 14.0, 30.0, 62.0], abs=0.2)


def test_a_worker_that_others_wait_for_is_a_reason_to_ask_before_it_has_pushed() -> None:
    changes, keeper = told(Simulation(intervals=(1.0, 1.0, 1.0, 50.0), duration=40.0), FEW)
    assert all(change.by == FEW and change.why.startswith(change.policy + ": ") for change in changes)
    assert next(record.now for record in keeper.records if isinstance(record.event, PolicyChanged)) == 1.3
    asked = [command for record in keeper.records for command in record.commands if isinstance(command, Ask)]
    assert asked[0].question.times == ((1.0,), (1.0,), (1.0,), (1.3,)) and foresee(asked[0].question).prospects
    longest = [max(command.question.times[3]) for command in asked]
    assert longest == sorted(longest) and longest[-1] > 10  # what it has taken so far is the least that it takes
    assert changes[-1].policy == "backup:k=3"  # nobody waits for it any more


def test_it_notices_when_half_of_the_group_slows_down_and_when_somebody_stands_still(tmp_path: Path) -> None:
    slow = tuple(Slowdown(worker, 6.0, 40.0, None) for worker in range(4))
    group = Simulation(workers=8, speed="constant", duration=100.0, slowdowns=slow)
    changes, keeper = told(group, FEW, trace_file=tmp_path / "trace")
    assert "bsp waits" in changes[0].why
    # Others have waited for a second by then; the slow ones push at 46.
    assert next(record.now for record in keeper.records if isinstance(record.event, PolicyChanged)) == 42.0
    assert first_difference(Trace(tmp_path / "trace")) is None


def test_who_joins_and_who_leaves_is_a_reason_to_ask_again() -> None:
    group = Simulation(intervals=(1.0,) * 4, duration=60.0, joins={3: 30.0}, failures={0: 40.0})
    _, keeper = told(group, "auto:tried=60")
    asked = [
        (record.now, len(command.question.workers))
        for record in keeper.records
        for command in record.commands
        if isinstance(command, Ask)
    ]
    assert {workers for _, workers in asked} == {3, 4}
    assert any(30.0 <= when <= 33.0 and workers == 4 for when, workers in asked)


@pytest.mark.parametrize(("reason", "asks"), [("no work left", False), ("its process died", True)])
def test_who_leaves_for_want_of_work_is_no_reason_to_ask(reason: str, asks: bool) -> None:
    """Of what is left of a run nobody need be asked."""
    group = asking_group()
    answered(group, Answer())
    auto = group.coordinator.policy
    assert isinstance(auto, Auto) and not auto._vigil.sees_others(group.coordinator.progress)
    group.coordinator.handle(WorkerLeft(3, reason), group.now)
    assert auto._vigil.sees_others(group.coordinator.progress) == asks


def test_a_single_worker_has_nobody_to_wait_for() -> None:
    _, keeper = told(Simulation(intervals=(1.0,), duration=20.0))
    assert not any(isinstance(command, Ask) for record in keeper.records for command in record.commands)


def test_noise_alone_does_not_make_it_change_to_and_fro() -> None:
    """Exponential times: what the policy in force comes to in a few rounds is often a tenth less than foretold."""
    group = Simulation(workers=16, speed="exponential:a=1", duration=60.0)
    changes, _ = told(group, "auto:tried=400")
    assert changes[-1].policy == "asp" and len(changes) <= 2


def test_what_is_measured_may_be_less_by_as_much_as_iterations_vary() -> None:
    vigil = Vigil()
    assert vigil.noise == 0.0
    vigil.usual = {0: Usual(2.0, 1.0), 1: Usual(4.0, 0.4)}
    assert vigil.noise == pytest.approx(0.3)


def test_a_server_that_is_the_limit_gets_fewer_updates() -> None:
    group = Simulation(workers=8, speed="exponential:a=0.5", duration=30.0, costs=Costs(update=0.25))
    changes, _ = told(group, FEW)
    assert changes and "the server is busy" in changes[0].why
    applied = {name: simulate(name, group).applied for name in ("asp", "bsp")}
    assert simulate(FEW, group).applied > 1.3 * max(applied.values())


class Deaf(Group):
    """Nobody answers in time."""

    def answer(self) -> None:
        return

    def answer_of_old(self) -> None:
        """At last."""
        super().answer()


def test_nothing_waits_for_an_answer_and_it_asks_one_thing_at_a_time() -> None:
    group = Deaf("auto")
    for worker in range(3):
        group.join(worker)
    group.everybody_moves(40)
    asked = [command for _, _, record in group.history for command in record.commands if isinstance(command, Ask)]
    assert len(asked) == 1 and group.version == 40
    group.replays()


def answered(group: Group, answer: Answer) -> Decision:
    """What follows from this answer to what it has asked."""
    asked = group.coordinator.asking
    assert asked is not None
    record = group._send(Answered(asked.number, answer), 0.0)
    return [command for command in record.commands if isinstance(command, Follow)]  # type: ignore[return-value]


def asking_group() -> Deaf:
    group = Deaf("auto")
    for worker in range(4):
        group.join(worker)
    while group.coordinator.asking is None:
        group.everybody_moves(1)
    return group


@pytest.mark.parametrize("gone", range(1, 5))
def test_an_answer_may_come_when_those_that_it_is_about_have_left(gone: int) -> None:
    group = asking_group()
    for worker in range(gone):
        group.leave(worker)
    group.answer_of_old()
    assert group.coordinator.asking is None and str(group.coordinator.policy._inner) == "bsp"  # type: ignore[attr-defined]
    group.replays()


def test_an_answer_of_nobody_changes_nothing_and_it_asks_again() -> None:
    group = asking_group()
    assert answered(group, Answer()) == [] and group.coordinator.asking is None
    while group.coordinator.asking is None:
        group.everybody_moves(1)


def test_stale_gradients_that_nobody_would_correct_are_left_alone() -> None:
    group = asking_group()
    [follow] = answered(group, Answer((BSP, BACKUP, ASP), corrected=False))
    assert follow.policy == "backup:k=3" and not follow.applies_stale


def test_it_goes_back_to_fresh_gradients_when_the_loss_rises_although_it_just_changed() -> None:
    group = asking_group()
    auto = group.coordinator.policy
    assert isinstance(auto, Auto) and not auto.applies_stale
    assert auto._thin  # two iterations of each
    [follow] = answered(group, Answer((BSP, BACKUP, ASP)))
    assert follow.policy == "asp" and follow.applies_stale and auto.applies_stale and auto._rests.may_change
    auto._rests.change(4.0)
    auto._loss.avoid = 10.0
    while group.coordinator.asking is None:
        group.everybody_moves(1)
    assert auto._rests.changed < auto._rests.between_changes
    [follow] = answered(group, Answer((BSP, BACKUP, ASP)))
    assert follow.policy == "backup:k=3" and follow.why.endswith("the loss rose: no stale gradients for 10 more rounds")
    assert not auto.applies_stale and not auto.wants_statistics
    while group.coordinator.asking is None:
        group.everybody_moves(1)
    auto._loss.avoid = 0.0
    assert answered(group, Answer((BSP, BACKUP, ASP))) == []  # it changed a moment ago


def test_a_loss_that_rises_is_no_question() -> None:
    """However long an answer would take, and whether or not it could be afforded."""
    group = asking_group()
    auto = group.coordinator.policy
    assert isinstance(auto, Auto)
    answered(group, Answer((BSP, BACKUP, ASP), seconds=1e6))
    auto._rests.answers = 100
    assert auto.applies_stale
    clock, follows = group.clock[0], []
    for loss in [1.0] * LOSSES + [9.0] * LOSSES:
        clock += 1
        record = group.coordinator.handle(GradientArrived(Gradient(0, clock), 0, 1, loss), group.now + clock)
        follows += [command for command in record.commands if isinstance(command, Follow)]
    [follow] = follows
    assert follow.policy == "backup:k=3", "the best of those without stale gradients"
    assert follow.why == "the loss rose from 1 to 9 under asp: only fresh gradients for 32 rounds"
    group.coordinator.follow(PolicyChanged(follow.policy, None, follow.by, follow.why), group.now + clock)
    assert not auto.applies_stale and auto._loss.avoid == AVOIDED


def test_a_policy_that_is_asked_for_late_in_a_run_measures_from_then_on() -> None:
    """Else what it takes over would seem to be as slow as the run is old."""
    measured: list[dict[str, Pace]] = []
    for began in (0.0, 5000.0):
        group = Deaf("bsp")
        group.now = began
        for worker in range(4):
            group.join(worker)
        group.everybody_moves(4)
        group.change("auto")
        auto = group.coordinator.policy
        assert isinstance(auto, Auto)
        for _ in range(10):  # the answer takes its time
            group.everybody_moves(1)
        measured.append(auto._measure("bsp", 4))
    assert measured[0].keys() == {"bsp"} and measured[1]["bsp"].measured == pytest.approx(measured[0]["bsp"].measured)


@pytest.mark.slow
def test_a_change_back_that_was_right_is_not_held_against_it() -> None:
    """One of eight is slow twice: it must have learned from the first time that changes are worth it."""
    group = Simulation(
        intervals=(1.0,) * 8, duration=300.0, slowdowns=(Slowdown(0, 5.0, 10.0, 60.0), Slowdown(0, 5.0, 75.0, 300.0))
    )
    summary = simulate("auto", group)
    assert summary.used_per_second > 0.97 * simulate("asp", group).used_per_second
    assert any(70 < change.seconds < 85 for change in summary.changes)


def test_another_policy_may_take_over_from_it_and_it_from_another() -> None:
    group = asking_group()
    group.change("ssp")
    group.change("auto")
    assert group.coordinator.asking is None
    while group.coordinator.asking is None:
        group.everybody_moves(1)
    group.replays()


def test_without_any_times_there_is_nothing_to_ask() -> None:
    group = Group("auto")
    for worker in range(2):
        group.join(worker)
    for _ in range(8):
        group.push(0, after=0.0)
        group.push(1, after=0.0)
    assert group.coordinator.asking is None and group.coordinator.state().questions == 0


def test_a_choice_of_a_policy_that_was_replaced_meanwhile_is_void() -> None:
    """Commands wait while an update is under way, and somebody may switch until then."""
    lifecycle = Lifecycle(Coordinator(policy("bsp")), range(2), trains=False)
    assert lifecycle.handle(PolicyFollowed(Follow("asp", "auto", "it is faster")), 1.0) == []
    assert lifecycle.coordinator.changed is None and str(lifecycle.coordinator.policy) == "bsp"
