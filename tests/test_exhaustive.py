"""Every interleaving of 3 workers x 3 iterations, with one leave anywhere, for every policy.

ElasticBSP, DBW and auto have 2 workers (DBW as printed 3): there the times of everything are part of the state.

Two interleavings that lead to the same state have the same future, so each state is explored once.
"""

from __future__ import annotations

import pickle

import pytest
from group import Group

WORKERS, ITERATIONS, ROUNDS = 3, 3, 10
AUTO = "auto:tried=10"
FEWER = {
    "elastic-bsp:lookahead=3": 2,
    "dbw:blind=true": 2,
    AUTO: 2,
}  # workers, where the times of everything are part of the state

POLICIES = [
    "bsp",
    "asp",
    "ssp:staleness=1",
    "dssp:lower=0,upper=2",
    "dssp:lower=0,upper=2,capped=false,wait=next,literal_grant=true",
    "elastic-bsp:lookahead=3",
    "backup",
    "backup:k=2,late=interrupt",
    "backup:k=2,late=pull",
    "dbw:blind=true",
    "dbw:estimator=paper,blind=true",
    "buffered:size=2",
    "buffered:size=3,max_staleness=1",
    AUTO,
]


def state_of(group: Group) -> bytes:
    """All that can decide the future. Times only where the policy reads them from the members."""
    progress = group.coordinator.progress
    books = (group.computing, list(group.waiting), group.clock, group.standing, list(group.open), group.unchecked)
    absent = (list(group.newcomers), progress.departed)
    times = None
    if group.text.startswith("elastic-bsp") or group.first_text == AUTO:
        times = [(member.worker, member.released_at, member.pushed_at) for member in progress.members.values()]
    return pickle.dumps((vars(group.coordinator.policy), books, absent, group.version, times))


def explore(group: Group, may_leave: bool, seen: set[tuple[bool, bytes]]) -> None:
    """Take every next step that is possible, and go on from there."""
    state = (may_leave, state_of(group))
    if state in seen:
        return
    seen.add(state)
    pushes = [worker for worker in sorted(group.computing) if group.clock.get(worker, 0) < ITERATIONS]
    leaves = sorted(group.standing) if may_leave else []
    history, group.history = group.history, []  # shared by all branches, so it need not be copied
    group.coordinator._recent.clear()
    saved = pickle.dumps(group)
    if not pushes:
        group.history = list(history)
        finish(group)
    for worker in (*pushes, *leaves):
        for step in (Group.push,) * (worker in pushes) + (Group.leave,) * (worker in leaves):
            branch = pickle.loads(saved)
            branch.history = list(history)
            step(branch, worker)
            explore(branch, may_leave and step is Group.push, seen)


def finish(group: Group, rounds: int = ROUNDS) -> None:
    """Nobody starves, everybody may go, and then every gradient has had exactly one fate."""
    group.everybody_moves(rounds)
    for worker in sorted(group.standing):
        group.leave(worker)
    assert not group.open
    assert len(group.fates) == sum(group.clock.values())
    group.replays()


@pytest.mark.slow
@pytest.mark.parametrize("text", POLICIES)
def test_every_interleaving(text: str) -> None:
    group = Group(text)
    for worker in range(FEWER.get(text, WORKERS)):
        group.join(worker)
    seen: set[tuple[bool, bytes]] = set()
    explore(group, True, seen)
    assert len(seen) > 20
