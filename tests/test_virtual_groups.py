"""Groups that change in virtual time: they train with the lifecycle of a real run, so nothing is lost or spoilt."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from record_keeper import RecordKeeper
from test_conformance import task
from test_simulator import Periodic
from torch import Tensor, nn
from torch.utils.data import Subset

from paceline.core.messages import WorkerJoined, WorkerLeft
from paceline.experiment.simulation import Simulation
from paceline.experiment.virtual_training import train_virtually
from paceline.training.task import Task


class Counting(nn.Module):
    """Knows how many batches its worker has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(7, 2)
        self.register_buffer("batches", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.batches += 1
        output: Tensor = self.linear(x)
        return output


def counting() -> Task:
    data = task().train
    return Task(Counting(), F.cross_entropy, data, None, partial(torch.optim.SGD, lr=0.1), 16)


def test_the_buffers_of_workers_that_failed_do_not_count() -> None:
    """Two of three fail after two steps; the third does the other 16 of 20 batches."""
    simulation = Simulation(intervals=(1.0, 1.0, 1.0), failures={1: 2.5, 2: 2.5})
    result = train_virtually(counting(), "asp", simulation)
    assert result.samples == 320 and result.model_state["batches"].tolist() == [16.0]
    alone = train_virtually(counting(), "asp", Simulation(intervals=(1.0, 1.0), failures={0: 2.5, 1: 3.5}))
    assert alone.model_state["batches"].tolist() == [2.5]  # nobody is left: the mean of all that there were


def recorded(csv: Path, workers: range) -> Simulation:
    rows = [f"{worker},0,{1.0 + worker / 10}" for worker in workers]
    csv.write_text("worker,iteration,seconds\n" + "\n".join(rows) + "\n")
    return Simulation(trace=str(csv))


@pytest.mark.parametrize("first", [0, 1, 10])
def test_static_sharding_gives_every_worker_a_part_whatever_its_id_in_the_recording(first: int, tmp_path: Path) -> None:
    job = replace(task(), sharding="static")
    result = train_virtually(job, "asp", recorded(tmp_path / "times.csv", range(first, first + 4)))
    assert result.samples == 320
    assert sorted(worker.pushes for worker in result.summary.workers) == [5, 5, 5, 5]


def test_with_static_sharding_a_newcomer_that_fails_before_it_is_let_in_takes_no_samples_with_it() -> None:
    job = replace(task(), sharding="static")
    simulation = Simulation(intervals=(1.0, 4.0, 1.0), joins={2: 1.5}, failures={2: 2.0})  # bsp lets it in at 4
    keeper = RecordKeeper()
    result = train_virtually(job, "bsp", simulation, observers=[keeper])
    assert WorkerLeft(2, "failed") in [record.event for record in keeper.records]
    assert result.samples == 320


def test_training_under_a_policy_with_a_deadline_ends_when_everybody_has_left() -> None:
    result = train_virtually(task(), Periodic(period=1.5), Simulation(intervals=(1.0, 1.3)))
    assert result.samples == 320 and result.seconds < 30


def test_a_worker_that_left_for_want_of_work_and_then_fails_does_not_come_back() -> None:
    """Worker 0 finds nothing more at 2 and fails at 3; what worker 1 was at when it failed at 5 is for worker 2."""
    keeper = RecordKeeper()
    simulation = Simulation(intervals=(1.0, 10.0, 11.0), failures={0: 3.0, 1: 5.0})
    small = replace(task(), train=Subset(task().train, range(64)), test=None)
    result = train_virtually(small, "asp", simulation, observers=[keeper])
    events = [record.event for record in keeper.records]
    assert WorkerLeft(0, "no work left") in events
    joined = [event.worker for event in events if isinstance(event, WorkerJoined)]
    assert joined == [0, 1, 2] and result.samples == 64
