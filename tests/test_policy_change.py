"""A change of policy in the middle of a run: every pair, at every point of every small run.

The group itself checks the contract after each event (tests/group.py), of a change as well: no gradient is lost,
somebody can move, everybody that waits knows why, and nobody is released beyond a limit of the new policy.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Iterator

import pytest
from group import Group
from test_exhaustive import finish, state_of

from paceline.core.messages import Reaction

NEWCOMER = 2
BEFORE = 3  # events before the change, from the start of a run or from where every policy has its first plans
ROUNDS = 7  # more than any lead or superstep that so few events can build up
PAIRED = [
    "bsp",
    "asp",
    "ssp:staleness=0",
    "dssp:lower=0,upper=2",
    "dssp:lower=0,upper=1,wait=next",
    "elastic-bsp:lookahead=2",
    "elastic-bsp:lookahead=2,monitoring=first,inside=gather",
    "backup:k=2",
    "backup:k=2,late=interrupt",
    "backup:k=1,late=pull",
    "dbw:blind=true",
    "buffered:size=3",
]


def branches(saved: bytes) -> Iterator[Group]:
    """The group after everything that may happen next: a push, the join of a third worker, one leave."""
    group: Group = pickle.loads(saved)
    departed = group.coordinator.progress.departed
    steps = [(Group.push, worker) for worker in sorted(group.computing)]
    if NEWCOMER not in {**group.standing, **group.newcomers, **departed}:
        steps.append((Group.join, NEWCOMER))
    if not departed:
        steps += [(Group.leave, worker) for worker in sorted({**group.standing, **group.newcomers})]
    for step, worker in steps:
        branch = pickle.loads(saved)
        step(branch, worker)
        yield branch


@functools.cache
def runs_of(text: str, kind: type[Group] = Group) -> list[bytes]:
    """Two workers under one policy, after every course of at most so many events."""
    found: dict[bytes, bytes] = {}
    for beginning in ((), (0, 0, 1, 1)):
        group = kind(text)
        group.join(0)
        group.join(1)
        for worker in beginning:
            if worker in group.computing:
                group.push(worker)
        newest = {state_of(group): pickle.dumps(group)}
        for _ in range(BEFORE):
            found.update(newest)
            later = (branch for saved in newest.values() for branch in branches(saved))
            newest = {state_of(branch): pickle.dumps(branch) for branch in later}
        found.update(newest)
    return list(found.values())


def change(group: Group, second: str) -> None:
    """A change, which changes nothing for a gradient that is delivered again."""
    group.change(second, after=0.5)
    for worker in group.standing:
        if worker in group.clock:
            assert group.push_again(worker) == Reaction()


@pytest.mark.slow
@pytest.mark.parametrize("second", PAIRED)
def test_every_policy_takes_over_from_every_other_at_any_point(second: str) -> None:
    """Whatever happens next, nobody starves, every gradient has one fate, and the history replays."""
    seen: set[bytes] = set()
    for first in PAIRED:
        for saved in runs_of(first):
            group: Group = pickle.loads(saved)
            change(group, second)
            for changed in (group, *branches(pickle.dumps(group))):
                state = state_of(changed)
                if state not in seen:
                    seen.add(state)
                    finish(changed, ROUNDS)
    assert len(seen) > 500


COURSE = ["join 0", "join 1", "push 0", "push 0", "push 1", "join 2", "push 1", "push 0", "push 2", "leave 1", "push 2"]


@pytest.mark.parametrize("second", PAIRED)
def test_every_policy_takes_over_from_every_other_at_any_point_of_one_course(second: str) -> None:
    for first in PAIRED[::2] if second.startswith("dbw") else PAIRED:  # it is slow to decide
        for point in range(len(COURSE) + 1):
            group = Group(first)
            for number, (step, worker) in enumerate(map(str.split, COURSE)):
                if number == point:
                    change(group, second)
                if step != "push" or int(worker) in group.computing:
                    getattr(group, step)(int(worker))
            finish(group, ROUNDS)
