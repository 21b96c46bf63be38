"""Units that workers have ahead of their use: who gets which, how many, and what becomes of them."""

from __future__ import annotations

import pytest
from lifecycle_group import LifecycleGroup

from paceline.core.errors import ConfigurationError
from paceline.core.messages import GradientArrived, Record, Unit, UnitsReturned
from paceline.lifecycle.messages import (
    GiveUp,
    GradientPushed,
    Interrupt,
    Lease,
    ModelArrived,
    Place,
    ProcessDied,
    ProcessFinished,
    Release,
    StartProcess,
    WorkDropped,
    WorkRequested,
)
from paceline.lifecycle.samples import Samples
from paceline.lifecycle.seats import Seat, State
from paceline.lifecycle.silence import Patience
from paceline.lifecycle.staffing import MOST_REPLACEMENTS
from paceline.lifecycle.work import Work


def begun(text: str, workers: int, work: Work, **options: object) -> LifecycleGroup:
    group = LifecycleGroup(text, workers, work=work, **options)  # type: ignore[arg-type]
    for seat in range(workers):
        group.act("enter", seat)
    return group


def computed(group: LifecycleGroup) -> list[tuple[int, int, int]]:
    """(worker, epoch, place) of all gradients, in their order."""
    arrived = [record.event for record in group.records if isinstance(record.event, GradientArrived)]
    return [(event.gradient.worker, unit.epoch, unit.begin) for event in arrived for unit in event.units]


def begins(group: LifecycleGroup, seat: int) -> list[int]:
    return [unit.begin for unit in group.processes[seat].units]


def test_units_are_dealt_one_by_one_to_those_who_begin_and_go_on_together() -> None:
    group = begun("bsp", 3, Work(120, 2, ahead=2))
    assert [begins(group, seat) for seat in range(3)] == [[0, 6, 12], [2, 8, 14], [4, 10, 16]]
    for seat in (2, 0, 1):
        group.act("push", seat)
    assert [begins(group, seat) for seat in range(3)] == [[6, 12, 18], [8, 14, 20], [10, 16, 22]]


@pytest.mark.parametrize("sharding", ["dynamic", "static"])
@pytest.mark.parametrize("samples", [120, 121, 127, 35, 6])
def test_under_bsp_the_same_workers_compute_the_same_however_many_are_ahead(samples: int, sharding: str) -> None:
    histories = []
    for ahead in (0, 1, 2, 5, 50):
        group = begun("bsp", 3, Work(samples, 2, sharding, ahead=ahead), epochs=2)
        group.finish_all()
        group.check_end()
        histories.append(sorted(computed(group)))
    assert all(history == histories[0] for history in histories)


def test_towards_the_end_nobody_has_more_ahead_than_its_share_of_the_rest() -> None:
    group = begun("asp", 2, Work(20, 1, ahead=8))
    assert [len(begins(group, seat)) for seat in range(2)] == [6, 5]  # one, and a half of the rest, which shrinks
    while ("push", 0) in group.actions() and group.processes[0].units:
        group.act("push", 0)  # the other does nothing
    slow = len(group.processes[1].units)
    assert group.lifecycle.samples.ledger is not None and group.lifecycle.samples.ledger.remaining == 0
    assert slow == 5, "nobody is given more than it uses"
    group.finish_all()
    group.check_end()


def test_what_a_dead_worker_had_ahead_is_given_to_others() -> None:
    group = begun("asp", 2, Work(40, 2, ahead=3))
    had = group.processes[1].units
    group.act("die", 1)
    returned = [record.event for record in group.records if isinstance(record.event, UnitsReturned)]
    assert returned == [UnitsReturned(1, tuple(had), "killed")] and len(had) == 4
    group.finish_all()
    group.check_end()
    assert group.applied.total() == 40


def test_one_that_leaves_hands_in_its_gradient_and_gives_back_what_it_had_ahead() -> None:
    group = begun("asp", 2, Work(40, 2, ahead=3))
    first, *later = group.processes[1].units
    group.act("resize", 1)
    group.act("push", 1)
    returned = [record.event for record in group.records if isinstance(record.event, UnitsReturned)]
    assert returned == [UnitsReturned(1, tuple(later), "the group was made smaller")]
    group.finish_all()
    group.check_end()
    assert (1, first.epoch, first.begin) in computed(group)


def test_an_interrupted_worker_gives_back_what_it_was_at_and_goes_on_with_the_next() -> None:
    group = begun("backup:k=1,late=interrupt", 2, Work(60, 2, ahead=2))
    before = group.processes[1].units.copy()
    group.act("push", 0)
    assert Interrupt(1) in group.outputs
    group.act("push", 1)
    returned = [record.event for record in group.records if isinstance(record.event, UnitsReturned)]
    assert returned == [UnitsReturned(1, (before[0],), "it was interrupted")]
    assert group.processes[1].units[:2] == before[1:]
    group.finish_all()
    group.check_end()


def test_a_silent_worker_keeps_what_it_has_ahead_until_there_is_nothing_else() -> None:
    group = begun("asp", 3, Work(200, 2, ahead=3), patience=Patience(least=5.0))
    for _ in range(5):
        for seat in range(3):
            group.act("push", seat)
    held = group.processes[2].units.copy()
    while group.lifecycle.seats[2].state is not State.SILENT:
        group.act("push", 0)
        group.act("push", 1)
        group.look(12.0)
    group.act("push", 2)
    assert group.processes[2].units[: len(held) - 1] == held[1:], "it is back, and nobody was given what it has"
    group.finish_all()
    group.check_end()


def test_a_process_that_gathers_is_given_as_many_units_at_once_as_its_latest_gradient_had() -> None:
    group = begun("asp", 1, Work(40, 2))
    lifecycle = group.lifecycle
    assert lifecycle.handle(WorkRequested(0, Work(40, 2)), 1.0) == [Lease(0, Unit(0, 2, 4))]
    outputs = lifecycle.handle(GradientPushed(0, 1, 4, 2), 2.0)
    assert outputs[-1] == Release(0, Unit(0, 4, 6), ahead=(Unit(0, 6, 8),))
    assert Seat.resumed(lifecycle.seats[0].kept()).gathers == 2


def test_a_worker_that_asks_in_the_middle_of_a_gradient_is_watched_though_there_is_nothing_for_it() -> None:
    group = begun("asp", 1, Work(4, 2), patience=Patience(least=5.0))
    lifecycle = group.lifecycle
    assert lifecycle.handle(WorkRequested(0, Work(4, 2)), 10.0) == [Lease(0, Unit(0, 2, 4))]
    assert lifecycle.handle(WorkRequested(0, Work(4, 2)), 11.0) == [Lease(0, None)]
    assert lifecycle.silence is not None and 0 in lifecycle.silence._since
    # Its loop ends with that gradient, so that another does what is left of it.
    assert lifecycle.handle(WorkDropped(0, 4, 2), 12.0)[-2:] == [Release(0), StartProcess(1)]


def test_those_that_stand_in_for_one_that_was_let_go_too_early_may_die_but_not_for_ever() -> None:
    lifecycle = begun("asp", 1, Work(4, 2)).lifecycle
    for time in (10.0, 11.0):
        lifecycle.handle(WorkRequested(0, Work(4, 2)), time)
    outputs = lifecycle.handle(WorkDropped(0, 4, 2), 12.0)
    for seat in range(1, MOST_REPLACEMENTS + 1):
        assert outputs[-1] == StartProcess(seat)
        lifecycle.handle(ModelArrived(seat), 13.0)
        (lease,) = lifecycle.handle(WorkRequested(seat, Work(4, 2)), 13.0)
        assert isinstance(lease, Lease) and lease.unit is not None
        outputs = lifecycle.handle(ProcessDied(seat, "it was killed"), 14.0)
    assert outputs[-1] == GiveUp(f"work is left over, and {MOST_REPLACEMENTS} that were to do it died")


def test_what_a_loop_leaves_undone_by_itself_is_done_by_nobody() -> None:
    lifecycle = begun("asp", 1, Work(4, 2)).lifecycle
    for time in (10.0, 11.0):
        lifecycle.handle(WorkRequested(0, Work(4, 2)), time)
    assert not any(isinstance(output, StartProcess) for output in lifecycle.handle(ProcessFinished(0), 12.0))
    assert lifecycle.over


def test_all_must_have_the_same_data_in_the_same_order() -> None:
    group = LifecycleGroup("asp", 2)
    for seat in (0, 1):
        group.act("enter", seat)
    group.lifecycle.handle(WorkRequested(0, Work(20, 2, check=7)), 1.0)
    with pytest.raises(ConfigurationError, match=r"the data set of worker 1, or its order, is not that of the others"):
        group.lifecycle.handle(WorkRequested(1, Work(20, 2, check=8)), 1.0)


def test_nobody_is_dealt_anything_before_there_is_work() -> None:
    assert Samples(1).deal([Seat(0)], 1) == [()]


def test_where_units_are_whole_batches_an_epoch_has_more_samples_than_units() -> None:
    assert Work(10, 1, whole=73).epoch_samples == 73 and Work(10, 2).epoch_samples == 10


# -- places --


def test_the_places_of_workers_follow_who_is_here() -> None:
    group = LifecycleGroup("asp", 3, work=Work(100, 2), most=5, least=1)
    lifecycle = group.lifecycle
    assert lifecycle.place_of(0) == Place(0, 1), "nobody is here yet"
    for seat in range(3):
        group.act("enter", seat)
    assert [lifecycle.place_of(seat) for seat in range(3)] == [Place(0, 3), Place(1, 3), Place(2, 3)]
    group.act("die", 1)
    assert [lifecycle.place_of(seat) for seat in (0, 2)] == [Place(0, 2), Place(1, 2)]
    group.act("resize", 4)
    assert lifecycle.place_of(2) == Place(1, 2), "those that start do not count yet"
    for seat in (3, 4):
        group.act("enter", seat)
    assert [lifecycle.place_of(seat) for seat in (0, 2, 3, 4)] == [Place(rank, 4) for rank in range(4)]
    group.finish_all()
    group.check_end()


# -- gradients of several batches --


class Gathering:
    """Two workers under BSP, each of whose gradients is made of two batches."""

    def __init__(self, ahead: int) -> None:
        self.work = Work(64, 2, ahead=ahead)
        self.group = LifecycleGroup("bsp", 2)
        self.has = {0: 0, 1: 0}
        self.computed: list[tuple[int, tuple[int, ...]]] = []

    def send(self, event: WorkRequested | GradientPushed) -> None:
        for output in self.group.lifecycle.handle(event, 1.0):
            if isinstance(output, Lease | Release):
                self.has[output.seat] += (output.unit is not None) + len(output.ahead)
            elif isinstance(output, Record) and isinstance(output.event, GradientArrived):
                worker, units = output.event.gradient.worker, output.event.units
                self.computed.append((worker, tuple(unit.begin for unit in units)))


def gathered(order: tuple[int, int], ahead: int) -> list[tuple[int, tuple[int, ...]]]:
    """What they compute if they come in this order."""
    run = Gathering(ahead)
    for seat in order:
        run.group.act("enter", seat)
    for number in range(1, 9):
        for seat in order * 2:
            if run.has[seat] < 2:
                run.send(WorkRequested(seat, run.work))
        for seat in order:
            run.has[seat] -= 2
            run.send(GradientPushed(seat, number, 4, 2))
    return sorted(run.computed, key=lambda pair: (pair[1], pair[0]))


def test_under_bsp_gradients_of_several_batches_do_not_hang_on_who_is_first_either() -> None:
    histories = [gathered(order, ahead) for order in ((0, 1), (1, 0)) for ahead in (0, 1, 4)]
    assert all(history == histories[0] for history in histories)
    assert histories[0][:4] == [(0, (0, 4)), (1, (2, 6)), (0, (8, 12)), (1, (10, 14))]


def test_one_that_has_pushed_is_not_kept_waiting_by_those_that_have_not() -> None:
    group = begun("asp", 2, Work(20, 2))
    group.act("push", 0)
    outputs = group.lifecycle.handle(WorkRequested(0, Work(20, 2)), 5.0)
    assert outputs == [Lease(0, Unit(0, 6, 8))], "the other is at its first gradient"
    assert group.lifecycle.handle(WorkRequested(1, Work(20, 2)), 6.0) == [Lease(1, Unit(0, 8, 10))]
