"""The same training on a Ray cluster: the weights are right, and nothing of a run is left on the cluster."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import training_functions as functions
from ray_nodes import Departures, Nodes, beside, process_of
from test_local import each_counted_once, one_process, same

from paceline import RayCluster, launch
from paceline.core.errors import ConfigurationError
from paceline.experiment.callbacks import Callback, Run
from paceline.recording.ledger import Ledger
from paceline.recording.progress_log import Measurement
from paceline.recording.replay import first_difference
from paceline.recording.trace import Trace

pytestmark = [pytest.mark.slow, pytest.mark.ray]

EPOCHS = 2


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    opened = Nodes()
    opened.add("a", "b")
    yield opened
    opened.close()


@pytest.mark.parametrize(("transport", "servers"), [("auto", 1), ("tcp", 1), ("auto", 2), ("tcp", 2)])
def test_bsp_gives_the_weights_of_one_process(nodes: Nodes, transport: str, servers: int) -> None:
    cluster = RayCluster(address=nodes.address, transport=transport, servers=servers)
    result = launch(functions.train_adam, workers=2, policy="bsp", epochs=EPOCHS, cluster=cluster)
    kind, arguments = functions.OPTIMIZERS["adam"]
    same(result.model_state, one_process(functions.model(), functions.data(), 16, kind, **arguments))
    nodes.are_left_alone()


class Counts(Callback):
    def __init__(self) -> None:
        self.measured_at: list[int] = []

    def measured(self, run: Run, measurement: Measurement) -> None:
        self.measured_at.append(measurement.samples)


def test_a_run_with_everything_replays_and_its_ledger_adds_up(nodes: Nodes, tmp_path: Path) -> None:
    """`train` and `evaluate` are made here, and know what is here."""
    counts, factor, run_dir = Counts(), 2.0, tmp_path / "run"

    def train(worker: Any) -> None:
        net = functions.model()
        optimizer = worker.optimizer(net, torch.optim.SGD, lr=0.05 * factor)
        for x, y in worker.batches(functions.data(), batch_size=functions.BATCH):
            functions.push(optimizer, F.cross_entropy(net(x), y))

    result = launch(
        train,
        workers=3,
        policy="asp",
        epochs=4,
        evaluate=lambda state: factor * len(state),
        evaluate_every=96,
        run_dir=run_dir,
        checkpoint_every="5 updates",
        callbacks=[counts],
        slowdown={2: 2.0},
        cluster=RayCluster(address=nodes.address, servers=2, transport="tcp"),
    )
    assert result.samples == 4 * functions.SAMPLES
    assert result.evaluations[-1].figures == {"accuracy": factor * len(result.model_state)}
    assert counts.measured_at
    ledger = Ledger()
    for record in Trace(run_dir / "trace.jsonl"):
        ledger.observe(record)
    assert ledger.balance().adds_up
    assert first_difference(Trace(run_dir / "trace.jsonl")) is None
    assert list((run_dir / "checkpoints").glob("*"))
    nodes.are_left_alone()


def test_a_worker_that_is_killed_is_replaced(nodes: Nodes, tmp_path: Path) -> None:
    departures = Departures()

    def act() -> None:
        os.kill(process_of(tmp_path, 1), signal.SIGKILL)
        process_of(tmp_path, 2)

    with beside(act, tmp_path):
        result = launch(
            partial(functions.count_on_a_cluster, directory=str(tmp_path)),
            workers=(2, 2),
            policy="asp",
            observers=[departures],
            cluster=RayCluster(address=nodes.address),
        )
    each_counted_once(result, 1)
    assert departures.reasons[1] in ("its connection broke", "its process died")
    nodes.are_left_alone()


def status_of(address: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "paceline", "status", "--address", address, "--json"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_run_is_listed_for_as_long_as_it_lives(nodes: Nodes, tmp_path: Path) -> None:
    outcomes = []

    def act() -> None:
        for worker in (0, 1):
            process_of(tmp_path, worker)
        outcomes.append(status_of(nodes.address))

    with beside(act, tmp_path):
        launch(
            partial(functions.count_on_a_cluster, directory=str(tmp_path)),
            policy="asp",
            run_dir=tmp_path / "run",
            cluster=RayCluster(address=nodes.address),
        )
    (run,) = json.loads(outcomes[0].stdout)["runs"]
    assert (run["run"], run["host"]) == (str(tmp_path / "run"), socket.gethostname())
    assert (run["workers"], run["servers"], run["unplaced"]) == ([0, 1], [], 0)
    assert sum(run["nodes"].values()) == 2
    nodes.are_left_alone()
    assert json.loads(status_of(nodes.address).stdout)["runs"] == []


def test_a_cluster_that_is_not_there_is_said_so_at_once() -> None:
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match="nothing answers there"):
            launch(functions.train_adam, cluster=RayCluster(address=address))
