"""Real runs from which workers are sent away, and that are stopped, from outside and by callbacks."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import training_functions as functions
from ray_nodes import Nodes, beside
from socket_group import over_sockets
from test_local import each_counted_once
from test_ray import adds_up
from test_socket_runs import StopAt, train_layers
from typer.testing import CliRunner

import paceline
from paceline import RayCluster
from paceline.cli.app import app
from paceline.core.errors import ConfigurationError
from paceline.core.messages import WorkerJoined, WorkerLeft
from paceline.experiment.callbacks import Run
from paceline.experiment.resuming import newest
from paceline.experiment.run_status import RunReader
from paceline.experiment.training import InterruptedRun, launch
from paceline.experiment.verification import train_again
from paceline.lifecycle.roster import SENT_AWAY
from paceline.recording.progress_log import Measurement
from paceline.recording.replay import first_difference
from paceline.recording.status import LEFT, STOPPED
from paceline.recording.trace import Trace
from paceline.runtimes.serving.control import Evict, Evicted, Stop, Stopping, ask

pytestmark = pytest.mark.slow

ENDLESS = 1_000_000  # epochs: only somebody ends such a run


def left(run: Path) -> dict[int, str]:
    events = [record.event for record in Trace(run / "trace.jsonl")]
    return {event.worker: event.reason for event in events if isinstance(event, WorkerLeft)}


def said(*arguments: object) -> str:
    outcome = CliRunner().invoke(app, [*map(str, arguments)])
    return outcome.output or str(outcome.exception)


class SendsAway(paceline.Callback):
    """Sends worker 2 away, and says when somebody else may go on."""

    def __init__(self) -> None:
        self.trains = threading.Event()
        self.refused = ""

    def measured(self, run: Run, measurement: Measurement) -> None:
        if run.updates >= 10 and not self.trains.is_set():
            run.evict(2)
            with pytest.raises(ConfigurationError) as problem:
                run.evict(9)
            self.refused = str(problem.value)
            self.trains.set()


def test_workers_are_sent_away_and_the_run_is_stopped_goes_on_and_is_trained_again(tmp_path: Path) -> None:
    run, callback, told = tmp_path / "run", SendsAway(), dict[str, str]()
    options: dict[str, Any] = {"train": functions.train_momentum, "workers": 3, "policy": "ssp", "epochs": ENDLESS}
    options |= {"run_dir": run, "speed": "constant:seconds=0.01", "resume": "auto"}

    def by_hand() -> None:
        assert callback.trains.wait(60)
        while 2 not in left_so_far(run):
            threading.Event().wait(0.02)
        told.update(gone=said("evict", run, 2), sent=said("evict", run, 1), last=said("evict", run, 0))
        told.update(stop=said("stop", run))

    with beside(by_hand, tmp_path):
        result = launch(**options, callbacks=[callback])
    assert callback.refused == "there is no worker 9; there are 0, 1, 2"
    assert "worker 2 has left already; there are 0, 1" in told["gone"]
    assert "worker 1 is sent away, and what it was at is for others; 1 worker goes on" in told["sent"]
    assert "worker 0 is the only one that trains" in told["last"]
    assert "and a checkpoint is written. Go on: start its program again, with resume=" in told["stop"]
    assert result.stopped == RunReader(run).look().why == "somebody asked it to (paceline stop)"
    assert result.failures == []
    assert left(run) == {2: SENT_AWAY, 1: SENT_AWAY}
    status = RunReader(run).look()
    gone = [worker.reason for worker in status.workers if worker.state == LEFT]
    assert status.state == STOPPED and gone == [SENT_AWAY] * 2
    assert newest(run).facts.updates == result.summary.updates
    for request in (Stop(), Evict(0)):
        with pytest.raises(ConfigurationError, match="no run is going on there"):
            ask(run, request)
    # It goes on with the number of workers that it was begun with, as after `scale`.
    again = launch(**options, callbacks=[StopAt(result.summary.updates + 20)])
    assert again.summary.updates >= result.summary.updates + 20
    trace = Trace(run / "trace.jsonl")
    assert first_difference(trace) is None
    assert {record.event.worker for record in trace if isinstance(record.event, WorkerJoined)} == {0, 1, 2, 3, 4}
    verdict = train_again(run, functions.train_momentum)
    assert verdict.differs_at is None and len(verdict.agreed) >= 2


def left_so_far(run: Path) -> list[int]:
    records = Trace(run / "trace.jsonl", allow_cut_off=True)
    return [record.event.worker for record in records if isinstance(record.event, WorkerLeft)]


class EvictsAndStops(paceline.Callback):
    def measured(self, run: Run, measurement: Measurement) -> None:
        if run.updates >= 3:
            with suppress(ConfigurationError):  # it may have been told already
                run.evict(1)

    def worker_left(self, run: Run, worker: int, reason: str) -> None:
        run.stop("at once")


def test_the_checkpoint_is_of_the_end_although_somebody_was_sent_away_just_before(tmp_path: Path) -> None:
    run = tmp_path / "run"
    slow: dict[str, Any] = {
        "speed": "constant:seconds=0.05",
        "slowdown": {0: 8.0},
    }  # its last words come after the end of worker 1
    with over_sockets("tcp", 2):
        result = launch(
            train_layers, workers=3, policy="bsp", epochs=ENDLESS, run_dir=run, callbacks=[EvictsAndStops()], **slow
        )
    assert result.stopped == "at once" and left(run) == {1: SENT_AWAY} and result.failures == []
    assert newest(run).facts.updates == result.summary.updates >= 4
    assert train_again(run, train_layers).differs_at is None


def hold_and_send_away(run: Path, directory: Path) -> None:
    """Worker 1, in the middle of its third batch."""
    for worker in range(3):
        functions.wait_for(directory / f"holds-{worker}")
    assert ask(run, Evict(1)) == Evicted(1, 2)
    with pytest.raises(ConfigurationError, match="worker 1 has left already; there are 0, 2"):
        ask(run, Evict(1))


@pytest.mark.filterwarnings("ignore::paceline.runtimes.serving.port.WorkerFailedWarning")
@pytest.mark.parametrize("train", [functions.count_on_a_cluster, functions.count_and_close_badly])
def test_a_gradient_in_the_making_is_made_by_another(train: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with beside(lambda: hold_and_send_away(run, tmp_path), tmp_path):
        result = launch(partial(train, directory=str(tmp_path)), workers=3, policy="asp", run_dir=run)
    each_counted_once(result, 1)
    adds_up(run)
    assert left(run)[1] == SENT_AWAY


@pytest.mark.ray
def test_a_worker_on_a_cluster_is_sent_away_and_nobody_takes_its_place(nodes: Nodes, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with beside(lambda: hold_and_send_away(run, tmp_path), tmp_path):
        result = launch(
            partial(functions.count_on_a_cluster, directory=str(tmp_path)),
            workers=(2, 3),
            policy="asp",
            run_dir=run,
            cluster=RayCluster(address=nodes.address, resources_per_worker={"seat": 1}),
        )
    each_counted_once(result, 1)
    adds_up(run)
    assert left(run)[1] == SENT_AWAY and 3 not in left(run) and result.failures == []


def test_a_run_that_has_not_begun_can_be_stopped(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def by_hand() -> None:
        functions.wait_for(tmp_path / "holds-0")
        with pytest.raises(ConfigurationError, match="the group has not begun yet: ask again when it trains"):
            ask(run, Evict(0))
        assert ask(run, Stop()) in (Stopping(begun=False), Stopping(ended=True))

    with beside(by_hand, tmp_path), pytest.raises(InterruptedRun) as ended:
        launch(partial(functions.waits_before_its_model, directory=str(tmp_path)), workers=2, run_dir=run)
    assert ended.value.result is None


def train_until_sent_away(worker: paceline.Worker, mark: Path) -> None:
    """Worker 1 fails before it can know that it was sent away."""
    net = functions.model()
    optimizer = worker.optimizer(net, torch.optim.SGD, lr=0.01)
    for number, (x, y) in enumerate(worker.batches(functions.data(), batch_size=functions.BATCH)):
        while worker.index == 1 and number == 3:
            time.sleep(0.02)
            if mark.exists():
                time.sleep(0.3)
                raise RuntimeError("what nobody waits for")
        functions.push(optimizer, F.cross_entropy(net(x), y))


class SendsOneAway(paceline.Callback):
    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def measured(self, run: Run, measurement: Measurement) -> None:
        if run.updates >= 10 and not self._mark.exists():
            run.evict(1)
            self._mark.touch()
        elif run.updates >= 300:
            run.stop("enough")


def test_what_a_worker_raises_that_was_sent_away_is_no_failure(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    options: dict[str, Any] = {"run_dir": tmp_path / "run", "speed": "constant:seconds=0.005"}
    train = partial(train_until_sent_away, mark=mark)
    result = launch(train, workers=2, policy="asp", epochs=ENDLESS, callbacks=[SendsOneAway(mark)], **options)
    assert result.stopped == "enough" and result.failures == []
