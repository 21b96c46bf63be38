"""The port of a local run, command by command, on real segments and pipes but without a process."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
from torch import nn

from paceline.core.coordinator import Coordinator
from paceline.core.errors import ConfigurationError
from paceline.core.messages import Gradient, GradientArrived, Unit, UpdateApplied, UpdateRule
from paceline.lifecycle.lifecycle import Lifecycle
from paceline.lifecycle.messages import (
    BeginGroup,
    Discard,
    Dismiss,
    GiveUp,
    GradientPushed,
    Interrupt,
    Lease,
    MakeUpdate,
    ModelArrived,
    Part,
    Place,
    ProcessDied,
    Release,
    SetAside,
    StartProcess,
)
from paceline.lifecycle.validation import PortView
from paceline.policies import policy
from paceline.runtimes.local.launcher import Launcher
from paceline.runtimes.serving import messages as sent
from paceline.runtimes.serving.channel import Channel
from paceline.runtimes.serving.launching import Started
from paceline.runtimes.serving.loop import Loop
from paceline.runtimes.serving.memory import create, map_segment
from paceline.runtimes.serving.port import ProcessPort, WorkerFailedError
from paceline.training.choices import AS_USUAL
from paceline.training.layout import Segment, layout_of
from paceline.training.optimizers import OptimizerSpec
from paceline.training.replica import Replica


class Ends:
    """A launcher whose processes are the test itself, at the other ends of the pipes."""

    elsewhere = None

    def __init__(self) -> None:
        self.channels: dict[int, Channel[Any, Any]] = {}
        self._descriptors: list[int] = []

    def start_worker(self, index: int) -> Started:
        (server_reads, its_writes), (its_reads, server_writes) = os.pipe(), os.pipe()
        self.channels[index] = Channel(its_reads, its_writes, sent.ToWorker)
        channel: Channel[Any, Any] = Channel(server_reads, server_writes, sent.ToServer, patient=False)
        return Started(index, multiprocessing.current_process(), channel, create(), os.pidfd_open(os.getpid()))

    def close(self, started: Started) -> int:
        started.channel.close()
        os.close(started.descriptor)
        os.close(started.ended)
        self.channels.pop(started.index).close()
        return 0


class Group:
    def __init__(self, workers: int = 2) -> None:
        self.ends, self.loop = Ends(), Loop()
        self.lifecycle = Lifecycle(Coordinator(policy("asp")), range(workers))
        self.started: list[int] = []
        self.begun: list[UpdateRule] = []
        self.port = ProcessPort(
            self.lifecycle,
            cast(Launcher, self.ends),
            self.loop,
            updates=AS_USUAL,
            statistics=False,
            started=lambda process: self.started.append(process.index),
            begun=self.begun.append,
            ask=lambda asked: None,
            rule_under=lambda follow: UpdateRule("SGD", "linear"),
        )
        for seat in range(workers):
            self.port.start_process(StartProcess(seat))

    def model(self, seat: int, value: float, size: int = 2) -> Segment:
        """What a worker does: it puts its model into its segment, and says so."""
        net = nn.Sequential(nn.Linear(size, 1, bias=False), nn.BatchNorm1d(1, affine=False))
        with torch.no_grad():
            net[0].weight.fill_(value)
        net[1].running_mean.fill_(10 * value)
        segment = map_segment(self.port.processes[seat].descriptor, layout_of(net))
        Replica(net, segment)
        spec = OptimizerSpec(torch.optim.SGD, {"lr": 1.0}, [(["0.weight"], {})])
        self.port.take_model(seat, segment.layout, pickle.dumps(spec))
        return segment

    def said(self, seat: int) -> list[Any]:
        return self.ends.channels[seat].received()


@pytest.fixture
def group() -> Iterator[Group]:
    made = Group()
    yield made
    made.port.close()
    for seat in list(made.port.processes):
        made.port.close_process(seat)
    made.loop.close()


def begun(group: Group) -> list[Segment]:
    segments = [group.model(0, 1.0), group.model(1, 2.0)]
    group.port.begin_group(BeginGroup((0, 1)))
    for seat in (0, 1):
        group.lifecycle.handle(ModelArrived(seat), 0.0)
        group.port.release(Release(seat))
        assert group.said(seat) == [sent.Go(place=Place(1, 2) if seat else None, rates=(1.0,))]
    return segments


def test_a_group_begins_with_the_parameters_of_the_first(group: Group) -> None:
    first, second = begun(group)
    assert group.started == [0, 1]
    assert second.parameters.tolist() == first.parameters.tolist() == [1.0, 1.0]
    assert group.port.view() == PortView(0, ())


def test_models_that_differ_are_named(group: Group) -> None:
    group.model(0, 1.0)
    group.model(1, 1.0, size=3)
    with pytest.raises(ConfigurationError, match="the model of worker 1 differs from that of worker 0: its parameter"):
        group.port.begin_group(BeginGroup((0, 1)))


def test_an_update_is_made_of_what_lies_in_the_slots_or_was_set_aside(group: Group) -> None:
    segments = begun(group)
    for seat, segment in enumerate(segments):
        segment.gradient.fill_(1.0 + seat)
        group.port.take_gradient(seat, None)
    group.port.set_aside(SetAside(Gradient(0, 1), 0, 0))
    segments[0].gradient.fill_(99.0)  # its worker goes on
    assert group.port.view() == PortView(0, (Gradient(0, 1),))
    parts = tuple(Part(GradientArrived(Gradient(seat, 1), 0), seat, 1.0, 0) for seat in (0, 1))
    assert group.port.make_update(MakeUpdate(1, parts, 2.0)) == UpdateApplied(1)
    assert group.port.store.flat.tolist() == [-0.5, -0.5]
    group.port.take_gradient(0, None)
    group.port.discard(Discard(Gradient(0, 2), 0))
    assert group.port.view() == PortView(1, ())


def test_what_a_process_is_told(group: Group) -> None:
    begun(group)
    unit, later = Unit(0, 4, 8), Unit(0, 8, 12)
    group.port.release(Release(0, unit))
    group.port.release(Release(0, unit, requested=True, ahead=(later,)))
    group.port.lease(Lease(0, None))
    group.port.interrupt(Interrupt(0))
    group.port.dismiss(Dismiss(0))
    assert group.said(0) == [
        sent.Go(unit, place=Place(0, 2)),  # it did not know of the other yet
        sent.Leased(unit, parameters=True, ahead=(later,)),
        sent.Leased(None),
        sent.Interrupt(),
        sent.Stop(),
    ]
    group.port.dismiss(Dismiss(7))  # a process that is gone is told nothing
    with pytest.raises(WorkerFailedError, match="it was the last"):
        group.port.give_up(GiveUp("it was the last"))
    group.port.wake_at(4.5)
    assert group.port.wake_time == 4.5


def test_a_late_joiner_gets_the_buffers_of_the_group_and_a_dead_one_leaves_none(group: Group) -> None:
    begun(group)
    for seat in (0, 1):
        group.lifecycle.handle(GradientPushed(seat, 1), 1.0)
    group.port.start_process(StartProcess(2))
    joiner = group.model(2, 5.0)
    assert joiner.others["1.running_mean"].tolist() == [15.0]  # the mean of 10 and 20
    group.lifecycle.handle(ProcessDied(1, "killed"), 2.0)
    group.port.close_process(1)
    assert group.port.model_state()["1.running_mean"].tolist() == [10.0]
    group.lifecycle.handle(ProcessDied(0, "killed"), 3.0)
    group.port.close_process(0)
    assert group.port.model_state()["1.running_mean"].tolist() == [10.0]  # nobody is left: what there was last
