"""Random arrivals, joins, leaves and duplicates over every policy: whatever happens, the contract holds.

The group itself checks the contract after each event (tests/group.py); this adds what only shows at the end of a run.
"""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from group import VARIANTS, Group, StoppingGroup
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from paceline.core.messages import Statistics

MOST_WORKERS = 5
ROUNDS = 60  # more than any lead, quota or buffer that a run of this length can build up


class AnyGroup(RuleBasedStateMachine):
    kind = Group

    @initialize(text=st.sampled_from(VARIANTS), workers=st.integers(1, MOST_WORKERS), measured=st.booleans())
    def start(self, text: str, workers: int, measured: bool) -> None:
        statistics = Statistics(gradients=2, squared_norm=1.0, variance=0.5, loss=1.0) if measured else None
        self.group = self.kind(text, statistics=statistics)
        self.next_worker = workers
        for worker in range(workers):
            self.group.join(worker)

    def pick(self, data: st.DataObject, of: dict[int, object]) -> int:
        return data.draw(st.sampled_from(sorted(of)))

    @precondition(lambda self: self.group.computing)
    @rule(data=st.data(), after=st.floats(0.001, 10.0))
    def push(self, data: st.DataObject, after: float) -> None:
        self.group.push(self.pick(data, self.group.computing), after)

    @precondition(lambda self: self.group.computing)
    @rule(data=st.data(), times=st.integers(2, 6))
    def run_ahead(self, data: st.DataObject, times: int) -> None:
        worker = self.pick(data, self.group.computing)
        for _ in range(times):
            if worker in self.group.computing:
                self.group.push(worker, 0.5)

    @precondition(lambda self: any(worker in self.group.clock for worker in self.group.standing))
    @rule(data=st.data())
    def deliver_twice(self, data: st.DataObject) -> None:
        pushed = {worker: None for worker in self.group.standing if worker in self.group.clock}
        assert self.group.push_again(self.pick(data, pushed)).commands == ()

    @precondition(lambda self: len(self.group.standing) < MOST_WORKERS)
    @rule()
    def join(self) -> None:
        self.group.join(self.next_worker, after=0.1)
        self.next_worker += 1

    @precondition(lambda self: self.group.standing or self.group.newcomers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.group.leave(self.pick(data, {**self.group.standing, **self.group.newcomers}), after=0.1)

    def teardown(self) -> None:
        if not hasattr(self, "group"):
            return
        group = self.group
        group.everybody_moves(ROUNDS)
        for worker in sorted({**group.standing, **group.newcomers}):
            group.leave(worker)
        assert not group.open
        assert len(group.fates) == sum(group.clock.values())
        group.replays()


class AnyStoppingGroup(AnyGroup):
    """The same with stops after every event and changes of policy in between."""

    kind = StoppingGroup

    @rule(text=st.sampled_from(VARIANTS))
    def change_policy(self, text: str) -> None:
        self.group.change(text, after=0.1)


AnyGroup.TestCase.settings = settings(
    max_examples=200, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
AnyStoppingGroup.TestCase.settings = settings(AnyGroup.TestCase.settings, max_examples=80)
TestAnyGroup = pytest.mark.slow(AnyGroup.TestCase)
TestAnyStoppingGroup = pytest.mark.slow(AnyStoppingGroup.TestCase)
