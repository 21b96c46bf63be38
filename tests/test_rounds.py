"""The size of a round: one batch of every member, whoever comes, goes, or only has no work."""

from __future__ import annotations

import pytest

from paceline.core.messages import AT_THE_END, FINISHED
from paceline.lifecycle.rounds import Round


def round_of(*batches: int) -> Round:
    """Every worker has pulled and pushed once."""
    group = Round()
    for worker, samples in enumerate(batches):
        group.pull(worker)
        group.push(worker, samples)
    return group


def test_a_round_is_one_batch_of_every_member_and_one_that_has_not_pushed_counts_as_the_average() -> None:
    group = round_of(6, 2)
    assert group.samples == 8
    for silent in (2, 3):
        group.pull(silent)
    assert group.samples == 16 and group.members == [0, 1, 2, 3]
    for gone in (0, 2, 3):
        group.leave(gone, "failed")
    assert group.samples == 2


def test_before_anybody_has_pushed_a_round_is_one_sample() -> None:
    group = Round()
    assert group.samples == 1.0
    group.pull(0)
    assert group.samples == 1.0
    group.leave(5, "failed")  # a worker that never entered
    assert group.members == [0]


@pytest.mark.parametrize("reason", AT_THE_END)
def test_a_round_stays_what_it_was_when_only_the_work_runs_out(reason: str) -> None:
    group = round_of(4, 4, 4, 4)
    for worker in range(3):
        group.leave(worker, reason)
        assert group.samples == 16
    assert group.workers == [3, 0, 1, 2]
    group.push(3, 4)  # the stalest of all: it was begun before they left
    assert group.samples == 16
    group.pull(4)  # work came back to one of the three
    group.push(4, 4)
    assert group.samples == 16 and group.workers == [3, 4, 1, 2]
    group.leave(3, "failed")  # this one makes the group smaller
    assert group.samples == 4 and group.workers == [4]  # and worker 4 began after the others had left


def test_what_the_last_worker_left_behind_is_measured_by_the_last_round_that_there_was() -> None:
    group = round_of(4, 4)
    assert group.samples == 8
    group.leave(0, "failed")
    assert group.samples == 4
    group.leave(1, "failed")
    assert group.samples == 4 and group.workers == []


def test_the_group_at_the_end_of_a_run_is_everybody_whose_work_ran_out() -> None:
    group = round_of(4, 4, 4)
    group.leave(1, "failed")
    group.leave(2, "no work left")
    group.leave(0, "no work left")
    assert group.workers == [2, 0] and group.members == []


def test_a_worker_that_finishes_early_does_not_lower_the_rate_of_the_others_for_ever() -> None:
    group = round_of(5, 5, 5)
    for worker in range(3):
        group.pull(worker)
    group.leave(0, FINISHED)
    group.push(1, 5)  # begun before the departure
    group.pull(1)
    assert group.samples == 15
    group.push(1, 5)  # begun after it, but worker 2 is still at its old one
    assert group.samples == 15
    group.push(2, 5)
    group.pull(2)
    assert group.samples == 15
    group.push(2, 5)
    assert group.samples == 10 and group.workers == [1, 2]


def test_a_member_that_leaves_holds_up_no_end_of_an_absence() -> None:
    group = round_of(5, 5, 5)
    group.leave(0, FINISHED)
    group.pull(1)
    group.push(1, 5)
    assert group.samples == 15
    group.leave(2, "failed")
    assert group.samples == 5 and group.workers == [1]
