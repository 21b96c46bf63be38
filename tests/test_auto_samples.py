"""auto where workers have batches of different sizes: samples are what counts; among equals nothing changes."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from group import handle
from record_keeper import RecordKeeper

from paceline.core.coordinator import Coordinator
from paceline.core.messages import ApplyUpdate, Ask, Gradient, GradientArrived, PolicyChanged
from paceline.core.questions import Question
from paceline.experiment.foresight import foresee
from paceline.lifecycle.messages import GradientPushed
from paceline.policies import policy
from paceline.policies.auto import Auto
from paceline.policies.batches import LATEST, Batches
from paceline.policies.weighing import choose, worth_of
from paceline.runtimes.simulated.simulator import RunEnd, SimulatedWorker, Simulator, WorkerLoop
from paceline.runtimes.speeds import Constant

TIMES = (1.0, 1.0, 1.0, 4.0)
SIZES = (8, 8, 8, 128)  # with which the slow one has more samples per second than the others together


def batches(*sizes: list[int]) -> Batches:
    found = Batches()
    for worker, own in enumerate(sizes):
        for clock, samples in enumerate(own, 1):
            found.observe(GradientArrived(Gradient(worker, clock), 0, samples))
    return found


# -- the sizes --


def test_a_gradient_counts_by_its_share_of_the_mean_over_the_workers() -> None:
    found = batches([10], [30])
    assert found.weight([Gradient(0, 1), Gradient(1, 1)]) == 2.0
    assert found.weight([Gradient(0, 1)]) == 0.5 and found.weight([Gradient(7, 1)]) == 1.0 and found.weight([]) == 0
    assert found.of((0, 1, 2)) == (10, 30, 20)  # one that has not pushed yet is as the others
    found.forget(1)
    found.forget(1)
    assert found.weight([Gradient(0, 1)]) == 1.0 and found.of((0,)) == () and Batches().of((0, 1)) == ()


def test_the_last_batch_of_an_epoch_says_nothing_and_a_new_size_is_learned() -> None:
    found = batches([16] * 9 + [3], [16, 5], [16])
    assert found.of((0, 1, 2)) == () and found.weight([Gradient(0, 10), Gradient(1, 2)]) == 2.0
    for clock in range(LATEST // 2 + 1):
        assert found.of((0, 1, 2)) == ()
        found.observe(GradientArrived(Gradient(0, 11 + clock), 0, 64))
    assert found.of((0, 1, 2)) == (64, 16, 16)


def test_what_is_remembered_of_sizes_that_stay_the_same_is_no_less() -> None:
    """Against the obvious way: the median of the latest five."""
    chance = Random(3)
    for _ in range(50):
        sizes = [chance.choice((8, 8, 8, 8, 3, 16)) for _ in range(30)]
        found = batches(sizes, [1])
        assert found.of((0, 1)) == (sorted(sizes[-LATEST:])[LATEST // 2], 1)


def test_sizes_outlive_the_server_that_saw_them() -> None:
    found, again = batches([10, 12, 10], [30]), Batches()
    again.resume(msgspec.json.decode(msgspec.json.encode(found.state())))
    assert again.of((0, 1)) == (10, 30) and again.weight([Gradient(1, 1)]) == found.weight([Gradient(1, 1)])


# -- what is foretold --


def asked(samples: tuple[int, ...]) -> Question:
    times = tuple((seconds,) for seconds in TIMES)
    return Question(("bsp", "backup:k=3", "asp"), (0, 1, 2, 3), times, 400.0, samples=samples)


def test_pace_and_what_is_thrown_away_count_samples() -> None:
    bsp, backup, asp = foresee(asked(SIZES)).prospects
    mean = sum(SIZES) / 4
    assert bsp.pace * mean == pytest.approx(152 / 4, rel=0.03) and bsp.updates == pytest.approx(1 / 4, rel=0.03)
    assert asp.pace * mean == pytest.approx(24 + 32, rel=0.03)
    assert backup.pace * mean == pytest.approx(24, rel=0.03)
    assert backup.discarded == pytest.approx(32 / 56, rel=0.1)
    assert worth_of(bsp, 4) == bsp.pace and worth_of(asp, 4) == asp.pace
    plain = foresee(asked(())).prospects
    assert plain[1].pace == pytest.approx(3.0, rel=0.02) and plain[1].discarded == pytest.approx(1 / 13, rel=0.2)
    assert asp.staleness == plain[2].staleness  # is told of gradients


def test_equal_sizes_are_as_none_to_the_bit() -> None:
    assert foresee(asked((7, 7, 7, 7))).prospects == foresee(asked(())).prospects


def test_what_may_not_be_stale_is_chosen_by_samples() -> None:
    """Three quick workers with little against a slow one with much: by gradients nobody should wait for it."""
    fresh = {"present": "bsp", "workers": 4, "slack": 0.03, "only_fresh": True}
    by_gradients, by_samples = (choose(foresee(asked(sizes)), **fresh) for sizes in ((), SIZES))  # type: ignore[arg-type]
    assert by_gradients is not None and by_gradients.policy == "backup:k=3"
    assert by_samples is not None and by_samples.policy == "bsp"


# -- in a group --


class Pushing(Simulator):
    """Its workers say how many samples their gradients have."""

    def __init__(self, sizes: tuple[int, ...], *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._sizes = sizes

    def _push(self, worker: WorkerLoop, now: float) -> None:
        self.now = now
        worker.pushed += 1
        self._driver.deliver(GradientPushed(worker.seat, worker.pushed, self._sizes[worker.seat]), now)


def run(sizes: tuple[int, ...], **options: Any) -> tuple[RecordKeeper, Auto]:
    keeper, auto = RecordKeeper(), policy("auto:tried=100")
    assert isinstance(auto, Auto)
    workers = [SimulatedWorker(number, Constant(seconds).start("")) for number, seconds in enumerate(TIMES)]
    Pushing(sizes, workers, Coordinator(auto), [keeper], think=foresee, **options).run(RunEnd(duration=200.0))
    return keeper, auto


def changes(keeper: RecordKeeper) -> list[str]:
    return [record.event.policy for record in keeper.records if isinstance(record.event, PolicyChanged)]


def test_it_asks_and_chooses_by_samples_and_its_record_replays() -> None:
    """Stale gradients would not be corrected: the choice is whether to wait for the slow one."""
    keeper, _ = run(SIZES, corrects=lambda: False)
    questions = [each.question for record in keeper.records for each in record.commands if isinstance(each, Ask)]
    assert questions[-1].samples == SIZES and changes(keeper) == []
    assert changes(run((8, 8, 8, 8), corrects=lambda: False)[0])[-1] == "backup:k=3"
    again = Coordinator(policy("auto:tried=100"))
    for record in keeper.records:
        assert handle(record.event, again, record.now) == record


def test_what_is_measured_counts_samples_as_well() -> None:
    keeper, auto = run(SIZES)
    assert auto._since.first is not None
    used = [
        SIZES[gradient.worker]
        for record in keeper.records
        if auto._since.first < record.now <= auto._since.latest
        for each in record.commands
        if isinstance(each, ApplyUpdate)
        for gradient in each.gradients
    ]
    assert len(used) > 4 and auto._since.used == pytest.approx(sum(used) / (sum(SIZES) / 4))


def test_as_many_samples_for_all_change_nothing_to_the_bit() -> None:
    def course(sizes: tuple[int, ...]) -> list[Any]:
        return [(record.now, record.commands, record.reason) for record in run(sizes)[0].records]

    assert course((1, 1, 1, 1)) == course((48, 48, 48, 48))
