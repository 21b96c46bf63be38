"""A change of policy in the middle of a run: every pair, at every point of every small run.

The group itself checks the contract after each event (tests/group.py), of a change as well: no gradient is lost,
somebody can move, everybody that waits knows why, and nobody is released beyond a limit of the new policy.
"""

from __future__ import annotations

import functools
import importlib.util
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from group import Group
from test_exhaustive import finish, state_of

from paceline.core.coordinator import Coordinator, State
from paceline.core.errors import TraceError
from paceline.core.messages import (
    ApplyUpdate,
    DeadlinePassed,
    Gradient,
    GradientArrived,
    PolicyChanged,
    SendParameters,
    WorkerJoined,
)
from paceline.recording.metrics import LongestWait, RunMetrics
from paceline.recording.replay import first_difference, replay
from paceline.recording.timeline import Span, Timeline
from paceline.recording.trace import Record, Trace, TraceWriter

_example = importlib.util.spec_from_file_location("own_policy", Path(__file__).parents[1] / "examples/own_policy.py")
own_policy = importlib.util.module_from_spec(_example)
sys.modules["own_policy"] = own_policy  # where dataclasses and type hints look for it
_example.loader.exec_module(own_policy)

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
    "dbw:estimator=paper,blind=true",
    "dbw",
    "buffered:size=3",
    "auto:tried=10",
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
            assert group.push_again(worker).commands == ()


@pytest.mark.slow
@pytest.mark.parametrize("second", PAIRED)
def test_every_policy_takes_over_from_every_other_at_any_point(second: str) -> None:
    """Whatever happens next, nobody starves, every gradient has one fate, and the history replays."""
    seen: set[bytes] = set()
    for first in PAIRED[::4] if second.startswith("auto") else PAIRED:  # which thinks in most of them
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


# -- what is recorded of a change --


def recorded(group: Group, path: Path) -> Trace:
    writer = TraceWriter(path, group.first_text)
    for now, event, reaction in group.history:
        writer.observe(Record(now, event, reaction.commands, reaction.reason, reaction.estimates))
    writer.close(group.now)
    return Trace(path)


def changed_twice() -> Group:
    """From asp, where worker 0 runs ahead by 3, to bsp, where both wait in turn, to ssp, which holds worker 0."""
    group = Group("asp")
    group.join(0)
    group.join(1)
    for _ in range(2):
        group.push(0)
    group.change("bsp")
    group.push(0)
    group.change("ssp:staleness=1", after=2.0)
    group.push(1)
    group.push(1)
    return group


def test_a_replay_follows_the_changes_and_finds_what_differs(tmp_path: Path) -> None:
    trace = recorded(changed_twice(), tmp_path / "trace.jsonl")
    assert first_difference(trace) is None
    assert list(replay(trace)) == list(trace)
    other = tmp_path / "other.jsonl"
    other.write_bytes(trace.path.read_bytes().replace(b"ssp:staleness=1", b"ssp:staleness=2"))
    difference = first_difference(Trace(other))
    assert difference is not None
    line, was, is_now = difference
    assert (line, was.event) == (8, PolicyChanged("ssp:staleness=2"))
    assert was.reason and is_now.reason == "workers more than 2 ahead of worker 1 wait"


def test_a_change_to_a_policy_that_is_unknown_here_is_reported_with_its_line(tmp_path: Path) -> None:
    path = recorded(changed_twice(), tmp_path / "trace.jsonl").path
    path.write_bytes(path.read_bytes().replace(b"ssp:staleness=1", b"periodic"))
    with pytest.raises(TraceError, match=r"trace.jsonl, line 8: unknown policy 'periodic'"):
        list(replay(Trace(path)))


def test_a_wait_that_outlasts_a_change_has_the_reason_of_the_policy_that_ended_it(tmp_path: Path) -> None:
    metrics, timeline = RunMetrics(), Timeline()
    group = changed_twice()
    for record in recorded(group, tmp_path / "trace.jsonl"):
        metrics.observe(record)
        timeline.observe(record)
    # Worker 0 pushes at 1, 2 and 3. It then waits under bsp until 5, and under ssp until worker 1 pushed at 6 and 7.
    summary = metrics.summary("changed", group.now)
    assert summary.supersteps == 1 and summary.updates == 5  # at 7 both go on
    assert summary.longest_wait == LongestWait(0, 3.0, 4.0, "workers more than 1 ahead of worker 1 wait")
    assert timeline.spans(group.now)[0][-1] == Span(3.0, 7.0, True)


def test_a_change_that_lets_everybody_go_on_is_no_superstep() -> None:
    metrics, gradient = RunMetrics(), Gradient(0, 1)
    metrics.observe(Record(0.0, WorkerJoined(0), (SendParameters(0),)))
    metrics.observe(Record(1.0, GradientArrived(gradient, 0), (), "until the end of the period"))
    assert metrics.members(1.5)[0].reason == "until the end of the period"
    metrics.observe(Record(2.0, PolicyChanged("asp"), (ApplyUpdate((gradient,)), SendParameters(0))))
    summary = metrics.summary("by hand", 3.0)
    assert summary.supersteps == 0 and summary.waiting_seconds == 1.0
    assert summary.longest_wait == LongestWait(0, 1.0, 1.0, "until the end of the period")


def test_the_policy_of_the_example_stops_and_goes_on() -> None:
    coordinator = Coordinator(own_policy.Periodic(period=1.5))
    coordinator.handle(WorkerJoined(0), 0.0)
    coordinator.handle(GradientArrived(Gradient(0, 1), 0), 1.0)
    resumed = Coordinator(own_policy.Periodic(period=1.5))
    resumed.resume(msgspec.json.decode(msgspec.json.encode(coordinator.state()), type=State))
    assert resumed.deadline() == 1.5 and resumed.progress.why(0) == coordinator.progress.why(0)
    assert resumed.handle(DeadlinePassed(), 1.5) == coordinator.handle(DeadlinePassed(), 1.5)
    assert resumed.state().policy == {"_next": 3.0}
