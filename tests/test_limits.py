"""A run ends after so many batches, samples or seconds as cleanly as after its epochs."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from group import VARIANTS
from lifecycle_group import LifecycleGroup
from test_silence import let_be_silent, running

from paceline.core.errors import ConfigurationError
from paceline.core.messages import DataOpened, FigureFound, Record
from paceline.experiment.limits import Limits, limits_of
from paceline.lifecycle.lifecycle import Lifecycle
from paceline.lifecycle.messages import EndRequested, SizeRequested
from paceline.lifecycle.plan import plan_of
from paceline.lifecycle.samples import Samples
from paceline.lifecycle.work import NO_LIMIT, LedgerState, Limit, Work, WorkLedger

DYNAMIC, STATIC = Work(11, 2), Work(11, 2, "static")


# -- the ledger --


def all_units(ledger: WorkLedger, batch_size: int) -> list[int]:
    found = []
    while (unit := ledger.lease(0, batch_size)) is not None:
        found.append(unit.samples)
        ledger.finish(ledger.hand_in(0))
        assert ledger.applied == ledger.given
    return found


@pytest.mark.parametrize(
    ("epochs", "limit", "expected"),
    [
        (None, Limit(batches=5), [4, 4, 2, 4, 4]),
        (None, Limit(samples=13), [4, 4, 2, 3]),
        (None, Limit(samples=20), [4, 4, 2, 4, 4, 2]),
        (1, Limit(batches=5), [4, 4, 2]),
        (2, Limit(batches=9, samples=12), [4, 4, 2, 2]),
    ],
)
def test_a_ledger_gives_out_what_the_first_limit_allows(epochs: int | None, limit: Limit, expected: list[int]) -> None:
    ledger = WorkLedger(10, epochs, limit=limit)
    assert ledger.available and not ledger.complete
    assert (ledger.asked is None) == (limit.batches is not None)
    assert all_units(ledger, 4) == expected
    assert ledger.complete and not ledger.available and not ledger.remaining
    assert ledger.asked == ledger.applied
    assert WorkLedger.resumed(msgspec.json.decode(msgspec.json.encode(ledger.state()), type=LedgerState)).complete


def test_what_comes_back_is_given_again_beyond_the_limit() -> None:
    ledger = WorkLedger(10, None, limit=Limit(batches=2))
    assert ledger.remaining == 10  # nobody knows more than that there is something
    first, second = ledger.lease(0, 4), ledger.lease(0, 4)
    assert first is not None and second is not None and ledger.lease(0, 4) is None
    ledger.give_back(ledger.hand_in(0))
    assert ledger.available and ledger.remaining == ledger.returned == 4
    assert ledger.lease(1, 4) == first and not ledger.remaining


def test_a_closed_ledger_gives_nothing_out_not_even_again() -> None:
    ledger = WorkLedger(10, None)
    ledger.lease(0, 4)
    ledger.lease(1, 4)
    ledger.closed = True
    ledger.give_back(ledger.hand_in(0))
    assert ledger.lease(0, 4) is None and not ledger.available and not ledger.remaining
    assert ledger.outstanding == 4
    ledger.hold(1)  # nobody waits for one that is silent
    assert ledger.outstanding == 0 and ledger.leased == 4


@pytest.mark.parametrize(
    ("work", "epochs", "limit", "workers", "expected"),
    [
        (Work(22, 4), 3, NO_LIMIT, 1, DataOpened(22, 3, 66, 18)),
        (Work(22, 4), 3, NO_LIMIT, 4, DataOpened(22, 3, 66, 5)),
        (Work(22, 4, "static"), 1, NO_LIMIT, 4, DataOpened(22, 1, 22, 2)),
        (Work(22, 4), None, Limit(batches=8), 2, DataOpened(22, None, 30, 4)),
        (Work(22, 4), None, Limit(batches=12), 2, DataOpened(22, None, 44, 6)),
        (Work(22, 4), None, Limit(samples=29), 2, DataOpened(22, None, 29, 4)),
        (Work(22, 4), 1, Limit(samples=29), 2, DataOpened(22, 1, 22, 3)),
        (Work(22, 4), None, NO_LIMIT, 2, DataOpened(22, None)),
        (
            Work(6, 1, whole=22),
            2,
            NO_LIMIT,
            4,
            DataOpened(6, 2, 44, 3, 22),
        ),  # six batches of 22 samples
    ],
)
def test_how_much_work_there_will_be(
    work: Work, epochs: int | None, limit: Limit, workers: int, expected: DataOpened
) -> None:
    assert plan_of(work, epochs, limit, workers) == expected


def test_how_many_units_are_left_is_known_where_batches_are_limited() -> None:
    ledger = WorkLedger(10, None, limit=Limit(batches=3))
    assert ledger.units_left(4) == 3
    ledger.lease(0, 4)
    assert ledger.units_left(4) == 2 and WorkLedger(10, 1).units_left(4) == 3
    ledger.release(0)
    assert ledger.units_left(4) == 3
    ledger.closed = True
    assert ledger.units_left(4) == 0


def test_whole_batches_count_as_equal_where_samples_are_limited() -> None:
    assert Limit(3, 20).of(Work(22, 4)) == Limit(3, 20)
    assert Limit(3, 20).of(Work(6, 1, whole=24)) == Limit(3, 5)
    assert Limit(batches=3).of(Work(6, 1, whole=24)) == Limit(batches=3)


@pytest.mark.parametrize(
    ("epochs", "limit", "work", "expected"),
    [
        (3, NO_LIMIT, Work(10, 4), 30),
        (3, Limit(samples=25), Work(10, 4), 25),
        (None, Limit(samples=25), Work(10, 4), 25),
        (3, Limit(batches=4), Work(10, 4), None),
        (None, NO_LIMIT, Work(10, 4), None),  # a budget ends it
        (3, NO_LIMIT, Work(3, 1, whole=10), None),
        (3, NO_LIMIT, None, None),  # batches of the workers' own
    ],
)
def test_how_many_samples_were_asked_for(
    epochs: int | None, limit: Limit, work: Work | None, expected: int | None
) -> None:
    samples = Samples(epochs, limit)
    if work is not None:
        samples.open(work, 0, [], 1)
    assert samples.asked == expected


# -- the group --


@pytest.mark.parametrize("text", VARIANTS)
@pytest.mark.parametrize("work", [DYNAMIC, STATIC])
@pytest.mark.parametrize("limit", [Limit(batches=9), Limit(samples=23)])
def test_a_group_comes_to_its_limit_whoever_dies_and_wherever_it_is_resumed(
    text: str, work: Work, limit: Limit
) -> None:
    for seed in range(6):
        chance = random.Random(f"{text}/{seed}")
        group = LifecycleGroup(text, 3, work=work, epochs=None, limit=limit, least=1, most=4)
        for _ in range(40):
            actions = [(action, seat) for action, seat in group.actions() if action != "die" or chance.random() < 0.05]
            if not actions:
                break
            group.act(*chance.choice(actions))
            if chance.random() < 0.03 and group.lifecycle.begun and group.given_up is None:
                group.resume()
        if group.given_up is not None:
            continue
        group.finish_all()
        group.check_end()
        ledger = group.lifecycle.samples.ledger
        assert ledger is not None and ledger.complete
        assert ledger.batches == 9 if limit.batches else ledger.applied == 23


@pytest.mark.parametrize("text", VARIANTS)
@pytest.mark.parametrize("work", [DYNAMIC, STATIC, None])
def test_a_group_that_is_to_end_does_what_it_is_at_and_every_gradient_gets_its_fate(
    text: str, work: Work | None
) -> None:
    for when in range(3, 30, 4):
        chance = random.Random(f"{text}/{when}")
        group = LifecycleGroup(text, 3, work=work, epochs=None)
        for _ in range(when):
            group.act(*chance.choice([action for action in group.actions() if action[0] != "die"]))
        group.send(EndRequested())
        if when % 3 == 0 and group.lifecycle.begun:
            group.resume()
        group.finish_all()
        group.check_end()
        assert not group.lifecycle.coordinator.progress.pending


def test_nobody_waits_for_a_silent_worker_when_the_time_is_over() -> None:
    group = running("asp", 2, Work(1000, 2))
    let_be_silent(group, 1, [0])
    group.send(EndRequested())
    group.act("push", 0)
    group.finish_all()
    assert group.lifecycle.over


@pytest.mark.parametrize("limit", [Limit(batches=6), Limit(samples=12)])
def test_those_with_batches_of_their_own_are_told_when_it_is_enough(limit: Limit) -> None:
    group = LifecycleGroup("bsp", 2, epochs=None, limit=limit)
    group.finish_all()
    group.check_end()
    assert group.used == 12 and group.version == 3
    group = LifecycleGroup("asp", 2, epochs=None, limit=limit)
    for action, seat in [("enter", 0), ("enter", 1), *[("push", 0)] * 4]:
        group.act(action, seat)
    group.resume()
    group.finish_all()
    assert 12 <= group.used <= 14  # one may have been under way


def test_a_figure_is_noted_in_its_place() -> None:
    group = LifecycleGroup("bsp", 1)
    group.act("enter", 0)
    group.send(FigureFound("loss", 0.5))
    assert group.outputs == [Record(group.now, FigureFound("loss", 0.5))]


def test_the_end_of_a_group_that_was_resumed_waits_for_its_first_model() -> None:
    group = LifecycleGroup("bsp", 2, work=DYNAMIC)
    for seat in (0, 1):
        group.act("enter", seat)
    group.resume()
    group.send(EndRequested())
    group.send(SizeRequested(2))
    group.finish_all()
    group.check_end()
    ledger = group.lifecycle.samples.ledger
    assert isinstance(group.lifecycle, Lifecycle) and ledger is not None and ledger.applied == ledger.given == 4


# -- what a user says --


def test_one_epoch_if_nothing_is_said_and_a_step_is_a_round() -> None:
    assert limits_of(None, None, None, None) == Limits(1, None, None, None)
    assert limits_of(None, 10, None, None).epochs is None
    assert limits_of(None, 10, 7, 1.5).of_work(4) == Limit(batches=40, samples=7)
    assert limits_of(2, None, None, None).of_work(4) == NO_LIMIT


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps is 0; it must be at least 1"),
        ({"samples": "many"}, "samples is 'many'; it must be a whole number"),
        ({"epochs": True}, "epochs is True; it must be a whole number"),
        ({"budget": 0}, "budget is 0; it must be a number of seconds above 0"),
        ({"budget": float("inf")}, "budget is inf; it must be a number of seconds"),
        ({"budget": "1h"}, "budget is '1h'; it must be a number of seconds"),
    ],
)
def test_limits_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        limits_of(**{"epochs": None, "steps": None, "samples": None, "budget": None, **options})
