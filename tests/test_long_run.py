"""DBW's own estimator: what it knows of workers' times and of the worth of an update, against closed forms."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from group import Group
from record_keeper import RecordKeeper

from paceline.core.messages import Answered, Ask, GradientArrived, Statistics, UpdateApplied
from paceline.core.questions import Answer, Prospect, Question
from paceline.experiment.foresight import foresee
from paceline.experiment.simulation import Simulation, simulate
from paceline.policies import policy
from paceline.policies.long_run import EVERY, FIRST, MOST_CANDIDATES, REST, candidates
from paceline.policies.round_trips import LEAST_EACH, RECENT, dealt, lengthened, typical
from paceline.policies.worth_model import WorthModel
from paceline.recording.replay import first_difference
from paceline.recording.trace import Trace

WORKERS = 4


def learned_from(
    model: WorthModel,
    slope: float,
    *,
    updates: int = 200,
    k: int = 2,
    variance: float = 3.0,
    norm: float = 0.5,
    scaling: str = "none",
) -> None:
    """Updates of k gradients in a run in which the loss falls by `slope` while its way becomes e times as long."""
    eta = 0.1 if scaling == "none" else 0.1 * k / WORKERS
    bounce = eta * (norm + variance / k) / 4
    for number in range(1, updates + 1):
        loss = 2.0 - slope * math.log(eta * number) + bounce
        model.observe(Statistics(k, norm + variance / k, variance, loss, 0.1, scaling), WORKERS)


# -- what an update is worth --


@pytest.mark.parametrize("scaling", ["none", "linear"])
@pytest.mark.parametrize("slope", [0.05, 0.4])
def test_noise_true_norm_and_slope_are_found_where_they_are_known(scaling: str, slope: float) -> None:
    model = WorthModel(1.0, None)
    learned_from(model, slope, scaling=scaling)
    assert model.learned == pytest.approx((3.0, 0.5, slope))


def test_worth_is_the_way_less_what_makes_up_for_the_bounce() -> None:
    for scaling, power in (("none", 0.0), ("linear", 1.0), ("sqrt", 0.5)):
        model = WorthModel(1.0, None)
        learned_from(model, 0.2, updates=100, k=WORKERS, scaling=scaling)
        worth = model.worth(WORKERS)
        assert worth is not None
        for k in range(1, WORKERS + 1):
            eta = 0.1 * (k / WORKERS) ** power
            level = eta * (0.5 + 3.0 / k) / 4
            assert math.exp(worth[k - 1]) == pytest.approx(eta * math.exp(-2 * level / 0.2) * 0.2 / (100 * 0.1))


def test_the_rate_that_the_policy_was_given_holds_against_what_the_run_says() -> None:
    told, follows = WorthModel(0.1, "none"), WorthModel(0.1, None)
    for model in (told, follows):
        learned_from(model, 0.2, k=WORKERS, scaling="linear")
    fixed, proportional = told.worth(WORKERS), follows.worth(WORKERS)
    assert fixed is not None and proportional is not None
    assert fixed[0] - fixed[-1] > proportional[0] - proportional[-1]


def test_a_loss_that_does_not_fall_counts_as_a_slope_that_cannot_be_told_from_nothing() -> None:
    model = WorthModel(0.1, "none")
    random = np.random.default_rng(0)
    for _ in range(400):
        model.observe(Statistics(2, 2.0, 3.0, 1.0 + 0.1 * random.standard_normal()), WORKERS)
    assert model.learned is not None
    # Half of the updates count, their ln(way) varies by about 1/2.
    assert 0 < model.learned.slope < 4 * 0.1 / math.sqrt(200) / 0.5


def test_nothing_is_known_without_noise_or_without_loss() -> None:
    model = WorthModel(0.1, "none")
    assert model.learned is None and model.worth(WORKERS) is None
    for _ in range(30):
        model.observe(Statistics(1, 1.0, None, 2.0), WORKERS)  # one gradient has no variance
    for _ in range(30):
        model.observe(Statistics(2, 1.0, 0.5, None), WORKERS)  # no loss was told
    for _ in range(30):
        model.observe(Statistics(2, 1.0, 0.5, 2.0), 0)  # everybody left
    assert model.learned is None


def test_of_a_few_updates_the_slope_is_half_of_the_loss() -> None:
    model = WorthModel(0.1, "none")
    model.observe(Statistics(2, 0.25, 0.5, -2.0), WORKERS)
    assert model.learned == pytest.approx((0.5, 0.0, (2.0 + 0.1 * 0.25 / 4) / 2))
    for number in range(2, 30):
        model.observe(Statistics(2, 0.25, 0.5, -2.0 - 0.3 * math.log(number)), WORKERS)
    assert model.learned == pytest.approx((0.5, 0.0, 0.3))


def test_momentum_makes_the_true_gradient_bounce_less() -> None:
    calm, plain = WorthModel(1.0, None), WorthModel(1.0, None)
    for number in range(1, 60):
        for model, edge in ((plain, 2.0), (calm, 38.0)):
            seen = Statistics(4, 2.0, 0.0, 2.0 - 0.2 * math.log(number), 0.1, "linear", edge)
            model.observe(seen, WORKERS)
    one, other = plain.worth(WORKERS), calm.worth(WORKERS)
    assert one is not None and other is not None and plain.learned is not None and calm.learned is not None
    for worth, model, edge in ((one, plain, 2.0), (other, calm, 38.0)):
        assert model.learned is not None
        more = math.log(4) - 2 * (0.1 - 0.025) * 2.0 / (2 * edge) / model.learned.slope
        assert worth[3] - worth[0] == pytest.approx(more)


def test_a_rate_of_nothing_moves_nothing() -> None:
    model = WorthModel(0.1, "none")
    for _ in range(30):
        model.observe(Statistics(2, 1.0, 0.5, 2.0, learning_rate=0.0), WORKERS)
    assert model.worth(WORKERS) is None


# -- what workers need --


def test_workers_that_differ_by_chance_are_taken_for_equals_and_those_that_do_not_are_not() -> None:
    random = np.random.default_rng(1)
    alike = [random.exponential(1.0, 8) for _ in range(16)]
    means, shapes = typical(alike)
    assert np.std(means) < 0.5 * np.std([own.mean() for own in alike])
    assert means.mean() == pytest.approx(np.mean([own.mean() for own in alike]))
    assert shapes.std() == pytest.approx(1.0, abs=0.25)
    halves = [random.exponential(1.0, 8) * (5 if worker < 8 else 1) for worker in range(16)]
    means, _ = typical(halves)
    assert means[:8].mean() / means[8:].mean() == pytest.approx(5, rel=0.4)


def test_times_that_never_vary_are_as_they_are() -> None:
    means, shapes = typical([np.array([1.0, 1.0]), np.array([3.0])])
    assert means == pytest.approx([1.0, 3.0]) and shapes == pytest.approx([1.0, 1.0, 1.0])
    means, shapes = typical([np.array([1.0]), np.array([3.0])])  # which may be chance
    assert means == pytest.approx([2.0, 2.0]) and shapes == pytest.approx([0.5, 1.5])


def test_all_times_are_dealt_to_everybody_each_in_another_order() -> None:
    shapes = np.arange(10.0)
    hands = [dealt(shapes, number, 4) for number in range(4)]
    assert all(sorted(hand) == list(shapes) for hand in hands)
    assert len({tuple(hand) for hand in hands}) == 4
    assert (dealt(shapes, 2, 4) == hands[2]).all()


def test_an_iteration_that_was_cut_short_would_have_lasted_as_long_as_exponential_times_do() -> None:
    """A minimum of 1 and a mean of 1 more; all are cut after 1.5. What is put in their place has the same mean."""
    random = np.random.default_rng(2)
    true = 1 + random.exponential(1.0, 4_000)
    guessed = lengthened(np.minimum(true, 1.5), true > 1.5, float(true.min()), 1.0)
    assert guessed.mean() == pytest.approx(2.0, rel=0.05) and guessed.std() == pytest.approx(1.0, rel=0.1)
    assert (guessed[true <= 1.5] == true[true <= 1.5]).all()


# -- a group --


def group_of(text: str, workers: int = WORKERS) -> Group:
    group = Group(text)
    group.answers_at_once = False  # they are told by hand
    for worker in range(workers):
        group.join(worker)
    return group


def rounds(group: Group, count: int, slow: float = 1.0) -> list[Question]:
    """Everybody pushes after a second, the last one `slow` later; returns what was asked."""
    before = len(group.history)
    for _ in range(count):
        for worker in range(WORKERS):
            if worker in group.computing:
                group.push(worker, after={0: 1.0, WORKERS - 1: slow}.get(worker, 0.0))
    records = [record for _, _, record in group.history[before:]]
    return [command.question for record in records for command in record.commands if isinstance(command, Ask)]


def tell(group: Group, number: int, paces: Sequence[float], seconds: float = 0.0) -> None:
    prospects = [Prospect(f"backup:k={k},late=finish", pace, 0, 0, 0, pace / k) for k, pace in enumerate(paces, 1)]
    group._send(Answered(number, Answer(tuple(prospects), seconds)), 0.0)


def wanted(group: Group) -> int:
    return group.coordinator.policy.wanted(group.coordinator.progress)  # type: ignore[attr-defined, no-any-return]


def test_it_waits_for_all_until_the_first_answer_and_asks_after_one_round_then_less_and_less_often() -> None:
    group = group_of("dbw:late=pull")
    (question,) = rounds(group, FIRST)
    assert question.candidates == tuple(f"backup:k={k},late=pull" for k in range(1, WORKERS + 1))
    assert wanted(group) == WORKERS
    tell(group, 1, [1.0, 2.0, 3.0, 4.0])
    assert [len(rounds(group, 1)) for _ in range(31)] == [int(done in (1, 3, 7, 15, 23, 31)) for done in range(1, 32)]


def asked_next(group: Group, slow: float = 1.0) -> Question:
    for _ in range(3 * EVERY):
        if found := rounds(group, 1, slow):
            return found[0]
    raise AssertionError("nothing was asked")


def test_it_takes_the_pace_that_was_foretold_and_half_of_what_was_heard_before() -> None:
    group = group_of("dbw")
    rounds(group, FIRST)
    tell(group, 1, [1.0, 2.0, 3.0, 2.5])
    assert wanted(group) == 3
    asked_next(group)
    tell(group, 2, [])
    assert wanted(group) == 3  # nobody could tell: what was heard before holds
    asked_next(group)
    tell(group, 3, [1.0, 2.0, 1.0, 2.5])  # half way between the two answers: 1, 2, 1.7, 2.5
    assert wanted(group) == 4


def test_an_answer_that_asks_for_fewer_makes_the_update_that_is_ready() -> None:
    group = group_of("dbw")
    rounds(group, FIRST)
    for worker in range(3):
        group.push(worker)
    version = group.version
    tell(group, 1, [1.0, 2.0, 3.0, 1.0])
    assert group.version == version + 1 and group.computing.keys() == {0, 1, 2, 3}


def test_who_thinks_for_long_is_asked_less_often() -> None:
    group = group_of("dbw")
    rounds(group, FIRST)
    tell(group, 1, [1.0, 2.0, 3.0, 4.0], seconds=0.5)
    asked_at = group.now
    while not rounds(group, 1):
        assert group.now < asked_at + 2 * REST * 0.5
    assert REST * 0.5 <= group.now - asked_at < REST * 0.5 + 3


def test_a_worker_that_became_slow_is_seen_before_it_pushes_and_old_times_are_forgotten() -> None:
    group = group_of("dbw")
    rounds(group, FIRST)
    tell(group, 1, [1.0, 2.0, 3.0, 1.0])
    questions: list[Question] = []
    while len(questions) < 3:  # the last worker does not push any more
        for worker in range(WORKERS - 1):
            commands = group.push(worker, after=1.0 if worker == 0 else 0.0).commands
            questions += [command.question for command in commands if isinstance(command, Ask)]
    slowest = [float(np.mean(each.times[3])) for each in questions]
    assert np.mean(questions[2].times[0]) == pytest.approx(1.0, rel=0.5)
    assert slowest == sorted(slowest) and slowest[2] > 3.0
    for _ in range(2 * RECENT):  # from now on it is as fast as the others
        rounds(group, 1, slow=0.0)
    last = asked_next(group, slow=0.0)
    assert np.mean(last.times[3]) < 1.5 * np.mean(last.times[0])


def test_a_worker_that_left_is_forgotten_and_one_that_joined_is_taken_for_a_typical_one() -> None:
    group = group_of("dbw")
    rounds(group, FIRST)
    tell(group, 1, [1.0, 2.0, 1.5, 1.0])
    group.leave(1)
    group.join(9)
    question = asked_next(group)
    assert question.workers == (0, 2, 3, 9)
    assert np.mean(question.times[3]) == pytest.approx(np.mean([np.mean(own) for own in question.times[:3]]), rel=0.3)


def test_the_noise_of_gradients_makes_it_wait_for_more_where_the_rate_is_fixed() -> None:
    chosen = []
    for variance in (0.01, 30.0):
        group = group_of("dbw:rate=fixed,learning_rate=0.1")
        rounds(group, FIRST)
        tell(group, 1, [3.0, 3.5, 3.8, 3.9])
        for number in range(1, 30):
            loss = 2.0 - 0.3 * math.log(number) + 0.1 * (0.5 + variance / 3) / 4
            statistics = Statistics(3, 0.5 + variance / 3, variance, loss)
            record = group.coordinator.handle(UpdateApplied(group.version, statistics), group.now)
        chosen.append(wanted(group))
        found = record.estimates
        assert found is not None and found.variance == pytest.approx(variance) and found.smoothness is None
        assert found.slope == pytest.approx(0.3, rel=0.01) and found.squared_norm == pytest.approx(0.5)
        assert found.k == chosen[-1] == int(np.argmax(np.array(found.gain) / found.time)) + 1
    assert chosen == [1, 4]


def test_blind_goes_by_pace_alone() -> None:
    group = group_of("dbw:blind=true")
    rounds(group, FIRST)
    tell(group, 1, [3.0, 3.5, 3.4, 3.3])
    assert wanted(group) == 2
    rounds(group, 1)
    found = [record.estimates for _, _, record in group.history if record.estimates is not None][-1]
    assert found.gain == pytest.approx((1.0, 2.0, 3.0, 4.0)) and found.variance is None and found.slope is None


def test_of_a_large_group_some_candidates_stand_for_all() -> None:
    assert candidates(1) == [1] and candidates(5) == [1, 2, 3, 4, 5]
    many = candidates(1_000)
    assert len(many) <= MOST_CANDIDATES + 1 and many[0] == 1 and many[-1] == 1_000
    assert max(after - before for before, after in pairwise(many)) <= 63
    big = Group("dbw")
    big.answers_at_once = False
    for worker in range(1_000):
        big.join(worker)
    for _ in range(FIRST):
        for worker in range(1_000):
            last = big.push(worker, after=1.0 if worker == 0 else 0.001)
    (ask,) = [command for command in last.commands if isinstance(command, Ask)]
    assert {len(own) for own in ask.question.times} == {LEAST_EACH}


# -- whole runs --


@pytest.mark.parametrize(
    ("intervals", "best"),
    [((1.0, 1.0, 1.0, 1.0), 4), ((1.0, 1.0, 1.0, 5.0), 3), ((1.0, 1.0, 4.0, 4.0), 2), ((1.0, 1.0, 1.4, 1.4), 4)],
)
def test_in_a_group_whose_best_k_is_known_it_is_taken(intervals: tuple[float, ...], best: int) -> None:
    keeper = RecordKeeper()
    simulate("dbw", Simulation(intervals=intervals, duration=60.0), observers=[keeper])
    chosen = [record.estimates.k for record in keeper.records if record.estimates is not None]
    assert set(chosen[2:]) == {best}  # one or two times of each worker may be chance


@pytest.mark.parametrize("late", ["finish", "interrupt", "pull"])
def test_it_keeps_the_pace_of_the_best_k_and_is_replayed_without_thinking(late: str, tmp_path: Path) -> None:
    group = Simulation(workers=6, speed="exponential:a=0.7", duration=80.0)
    ours = simulate(f"dbw:late={late}", group, trace_file=tmp_path / "trace")
    best = max(simulate(f"backup:k={k},late={late}", group).used_per_second for k in range(1, 7))
    assert ours.used_per_second > 0.85 * best
    assert first_difference(Trace(tmp_path / "trace")) is None


@pytest.mark.slow
def test_what_it_asks_is_answered_with_the_paces_that_fixed_numbers_have() -> None:
    group = Simulation(workers=8, speed="exponential:a=1", duration=100.0)
    keeper = RecordKeeper()
    simulate("dbw", group, observers=[keeper])
    asked = [command.question for record in keeper.records for command in record.commands if isinstance(command, Ask)]
    found = {int(each.policy[9]): each.pace for each in foresee(asked[-1]).prospects}
    for k in (2, 5, 8):
        true = simulate(f"backup:k={k}", Simulation(workers=8, speed="exponential:a=1", duration=1_000.0))
        assert found[k] == pytest.approx(true.used_per_second, rel=0.3)


def test_it_goes_on_from_its_state_as_if_it_had_not_stopped() -> None:
    one, other = group_of("dbw"), None
    rounds(one, FIRST)
    tell(one, 1, [1.0, 2.0, 3.0, 1.0])
    one.coordinator.handle(UpdateApplied(one.version, Statistics(3, 1.0, 0.5, 2.0)), one.now)
    progress = one.coordinator.progress
    other = policy("dbw")
    other.resume(json.loads(json.dumps(one.coordinator.policy.state())), progress)  # type: ignore[attr-defined]
    assert other.state() == one.coordinator.policy.state()  # type: ignore[attr-defined]
    event = UpdateApplied(one.version, Statistics(3, 0.9, 0.6, 1.8))
    assert other.decide(event, progress, one.now) == one.coordinator.policy.decide(event, progress, one.now)


def test_a_push_that_an_interrupt_came_too_late_for_teaches_nothing() -> None:
    group = group_of("dbw:late=interrupt")
    rounds(group, FIRST)
    tell(group, 1, [1.0, 2.0, 3.0, 1.0])
    for worker in range(3):
        group.push(worker, after=1.0 if worker == 0 else 0.0)
    trips = group.coordinator.policy._estimator._trips  # type: ignore[attr-defined]
    cut = trips.state()["3"][-1]
    assert cut[2] is True
    member = group.coordinator.progress.members[3]
    pushed = GradientArrived(next(iter(group.fates)), member.version - 1)
    trips.observe(pushed, group.coordinator.progress, group.now)
    assert trips.state()["3"][-1] == cut


def test_pushes_that_took_no_time_say_nothing_and_nothing_is_asked() -> None:
    group = group_of("dbw")
    for _ in range(3):
        for worker in range(WORKERS):
            assert not any(isinstance(command, Ask) for command in group.push(worker, after=0.0).commands)


def test_an_answer_tells_the_printed_estimator_nothing() -> None:
    group = group_of("dbw:estimator=paper,blind=true")
    rounds(group, 2)
    printed = group.coordinator.policy._estimator  # type: ignore[attr-defined]
    before = printed.state()
    printed.hear(Answer((Prospect("backup:k=1,late=finish", 9.0, 0, 0, 0, 9.0),)), group.now)
    assert printed.state() == before
