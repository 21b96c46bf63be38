"""The driver: commands in their order, updates that take time, statistics, deadlines, a change of policy."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from record_keeper import RecordKeeper

from paceline.core.coordinator import Coordinator
from paceline.core.messages import DeadlinePassed, PolicyChanged, Statistics, UpdateApplied
from paceline.lifecycle.lifecycle import Lifecycle
from paceline.lifecycle.messages import GradientPushed, MakeUpdate, ModelArrived, PolicyReplaced, Release, StartProcess
from paceline.lifecycle.validation import PortView
from paceline.policies import policy
from paceline.runtimes.driver import Driver

SEEN = Statistics(1, 1.0, None, 1.0)


class RecordingPort:
    """A port that writes down what it is told, and takes its time with updates if it is slow."""

    def __init__(self, statistics: Statistics | None = None, *, slow: bool = False) -> None:
        self.told: list[object] = []
        self.version = 0
        self._statistics = statistics
        self._slow = slow

    def note(self, command: object) -> None:
        self.told.append(command)

    start_process = begin_group = lease = release = interrupt = dismiss = end_process = set_aside = discard = (
        give_up
    ) = note

    def make_update(self, command: MakeUpdate) -> UpdateApplied | None:
        self.told.append(command)
        if self._slow:
            return None
        self.version = command.version
        return UpdateApplied(command.version, self._statistics)

    def wake_at(self, time: float) -> None:
        self.told.append(time)

    def view(self) -> PortView:
        return PortView(None if self._slow else self.version)


def started(text: str, port: RecordingPort, workers: int = 2) -> tuple[Driver, RecordKeeper]:
    keeper = RecordKeeper()
    lifecycle = Lifecycle(Coordinator(policy(text)), range(workers), trains=False)
    driver = Driver(lifecycle, port, [keeper])
    driver.start()
    assert port.told == [StartProcess(seat) for seat in range(workers)]
    for seat in range(workers):
        driver.deliver(ModelArrived(seat), 0.0)
    port.told.clear()
    return driver, keeper


def test_what_follows_an_update_is_sent_when_the_update_is_done() -> None:
    port = RecordingPort(slow=True)
    driver, keeper = started("asp", port)
    driver.deliver(GradientPushed(0, 1), 1.0)
    assert port.told == [MakeUpdate(1)]
    driver.deliver(GradientPushed(1, 1), 2.0)  # decided at once, and held back behind the first
    assert port.told == [MakeUpdate(1)] and len(keeper.records) == 4
    driver.deliver(UpdateApplied(1), 3.0)
    assert port.told == [MakeUpdate(1), Release(0), MakeUpdate(2)]
    driver.deliver(GradientPushed(0, 2), 4.0)
    driver.deliver(UpdateApplied(2), 5.0)
    assert port.told == [MakeUpdate(1), Release(0), MakeUpdate(2), Release(1), MakeUpdate(3)]
    driver.deliver(UpdateApplied(3), 6.0)
    assert port.told[-1] == Release(0)


def test_nothing_is_done_away_with_that_a_command_that_is_held_back_may_need() -> None:
    port = RecordingPort(slow=True)
    driver, _ = started("asp", port)
    driver.when_idle(lambda: port.note("at once"))
    for seat in (0, 1):
        driver.deliver(GradientPushed(seat, 1), 1.0)
    driver.when_idle(lambda: port.note("closed"))
    driver.deliver(UpdateApplied(1), 2.0)
    assert driver.busy and port.told == ["at once", MakeUpdate(1), Release(0), MakeUpdate(2)]
    driver.deliver(UpdateApplied(2), 3.0)
    assert not driver.busy and port.told[-2:] == [Release(1), "closed"]


def test_the_end_of_an_update_that_nobody_awaits_is_a_mistake_of_the_runtime() -> None:
    driver, _ = started("asp", RecordingPort(slow=True))
    with pytest.raises(AssertionError, match="nobody awaits"):
        driver.deliver(UpdateApplied(1), 1.0)
    driver.deliver(GradientPushed(0, 1), 1.0)
    with pytest.raises(AssertionError, match="nobody awaits"):
        driver.deliver(UpdateApplied(2), 1.0)


@pytest.mark.parametrize("slow", [False, True])
def test_a_policy_is_told_of_an_update_only_if_there_are_statistics(slow: bool) -> None:
    for statistics in (None, SEEN):
        port = RecordingPort(statistics, slow=slow)
        driver, keeper = started("asp", port)
        driver.deliver(GradientPushed(0, 1), 1.0)
        if slow:
            port.version = 1
            driver.deliver(UpdateApplied(1, statistics), 2.0)
        assert port.told == [MakeUpdate(1), Release(0)]
        told = [record.event for record in keeper.records if isinstance(record.event, UpdateApplied)]
        assert told == ([] if statistics is None else [UpdateApplied(1, SEEN)])


def test_a_driver_carries_out_and_records_what_a_change_of_policy_leads_to(own_policy: type) -> None:
    port = RecordingPort(SEEN)
    driver, keeper = started("bsp", port)
    driver.deliver(GradientPushed(0, 1), 1.0)
    port.told.clear()
    driver.deliver(PolicyReplaced(own_policy(period=1.5)), 2.0)
    assert port.told == [MakeUpdate(1), Release(0), 3.5]
    assert [record.event for record in keeper.records[-2:]] == [
        PolicyChanged("periodic:period=1.5"),
        UpdateApplied(1, SEEN),
    ]
    driver.wake(3.0)  # too early
    assert keeper.records[-1].event == UpdateApplied(1, SEEN)
    driver.wake(3.5)
    assert keeper.records[-1].event == DeadlinePassed()
    driver.deliver(PolicyReplaced(policy("asp")), 4.0)
    driver.wake(5.0)  # what the policy before asked for is no deadline any longer
    assert keeper.records[-1].event == PolicyChanged("asp")


def test_views_that_differ_are_named() -> None:
    port = RecordingPort()
    driver, _ = started("asp", port)
    port.make_update = lambda command: UpdateApplied(command.version)  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="version of progress and store: 1 here, 0 there"):
        driver.deliver(GradientPushed(0, 1), 1.0)  # the port says that it made an update, and did not


def test_every_test_compares_the_views_of_the_layers() -> None:
    assert Driver.validate


@pytest.fixture
def own_policy(monkeypatch: pytest.MonkeyPatch) -> type:
    """The policy of the example, as a user wrote it."""
    path = Path(__file__).parents[1] / "examples" / "own_policy.py"
    spec = importlib.util.spec_from_file_location("own_policy_of_the_driver", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # where dataclasses and type hints look for it
    spec.loader.exec_module(module)
    found: type = module.Periodic
    return found
