"""On a Ray cluster, what takes longer: all ways to connect; nodes that freeze, thaw, are drained and are added."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
import training_functions as functions
from moving_runs import comes_to_the_weights_of_its_trace, is_whole, move
from ray_nodes import Departures, Driver, Nodes, process_of, title_of, until
from test_local import one_process, same
from test_ray import EPOCHS, adds_up, count_while, go_back_after
from test_socket_runs import train_layers
from test_switching_runs import ENDLESS, Switcher

from paceline import RayCluster, launch
from paceline.core.errors import ConfigurationError
from paceline.experiment.callbacks import Callback, Run
from paceline.experiment.verification import train_again
from paceline.recording.observer import Observer
from paceline.recording.progress_log import Measurement
from paceline.recording.replay import first_difference
from paceline.recording.trace import Trace
from paceline.runtimes.ray_cluster import connection, launcher
from paceline.runtimes.ray_cluster.watcher import NODE_DRAINED
from paceline.runtimes.sockets import shards

pytestmark = pytest.mark.ray


@pytest.mark.parametrize(("transport", "servers"), [("auto", 1), ("tcp", 1), ("auto", 2)])
def test_bsp_gives_the_weights_of_one_process(nodes: Nodes, transport: str, servers: int) -> None:
    cluster = RayCluster(address=nodes.address, transport=transport, servers=servers)
    result = launch(functions.train_adam, workers=2, policy="bsp", epochs=EPOCHS, cluster=cluster)
    kind, arguments = functions.OPTIMIZERS["adam"]
    same(result.model_state, one_process(functions.model(), functions.data(), 16, kind, **arguments))


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
    assert list((run_dir / "checkpoints").glob("*"))
    adds_up(run_dir)


# -- groups that change --


def test_a_run_is_switched_again_and_again_and_trained_again_to_the_bit(nodes: Nodes, tmp_path: Path) -> None:
    run, policies = tmp_path / "run", ["bsp", "dbw", "ssp:staleness=1", "elastic-bsp:lookahead=3", "asp", "backup:k=2"]
    switcher = Switcher(policies)
    cluster = RayCluster(address=nodes.address, servers=2, transport="tcp")
    launch(train_layers, workers=3, policy="asp", epochs=ENDLESS, run_dir=run, callbacks=[switcher], cluster=cluster)
    assert switcher.heard == policies
    assert first_difference(Trace(run / "trace.jsonl")) is None
    verdict = train_again(run, train_layers)
    assert verdict.differs_at is None and verdict.agreed


def test_a_shard_whose_node_is_gone_is_made_anew_elsewhere(nodes: Nodes, tmp_path: Path) -> None:
    go_back_after(lambda: nodes.kill(nodes.one_with("Shard")), nodes, tmp_path)


EVERYWHERE: dict[str, Any] = {"resources_per_worker": {"seat": 0.25}, "resources_per_server": {"seat": 0.25}}


def have_both(nodes: Nodes) -> None:
    for kind in ("Shard", "Worker"):
        assert nodes.actors(kind, of="a") or nodes.actors(kind, of="b")


def test_nodes_that_ray_still_believes_in_get_nothing_when_a_fixed_group_goes_back(
    believed_nodes: Nodes, tmp_path: Path
) -> None:
    nodes = believed_nodes

    def act() -> None:
        have_both(nodes)
        nodes.kill("a")
        nodes.kill("b")

    asked: list[str] = []

    def make(self: Any, kind: type, *arguments: Any) -> Any:
        asked.append(kind.__name__)
        return made(self, kind, *arguments)

    made = launcher.RayLauncher._actor
    with patch.object(launcher.RayLauncher, "_actor", make):
        result = go_back_after(act, nodes, tmp_path, **EVERYWHERE)
    assert not result.failures and not result.summary.departures
    assert sorted(asked) == 4 * ["ShardActor"] + 4 * ["WorkerActor"]  # nobody was placed in vain


def test_frozen_nodes_get_nothing_when_a_fixed_group_goes_back(believed_nodes: Nodes, tmp_path: Path) -> None:
    nodes = believed_nodes

    def act() -> None:
        have_both(nodes)
        nodes.freeze("a")
        nodes.freeze("b")

    try:
        with patch.object(shards, "SILENCE", 4.0):
            result = go_back_after(act, nodes, tmp_path, **EVERYWHERE, silence=3)
    finally:
        nodes.thaw("a")
        nodes.thaw("b")
    assert not result.failures and not result.summary.departures


def test_a_frozen_worker_is_given_up_and_what_it_pushes_after_its_thaw_does_not_count(
    nodes: Nodes, tmp_path: Path
) -> None:
    frozen: list[int] = []

    def act(departures: Departures) -> None:
        processes = [process_of(tmp_path, worker) for worker in (0, 1)]
        name = nodes.one_with("Worker")
        (process,) = nodes.actors("Worker", of=name)
        frozen.append(processes.index(process))
        nodes.freeze(name)
        try:
            until(lambda: departures.reasons, "the frozen worker is still a member")
            functions.write(tmp_path / f"go-{frozen[0]}", True)  # it pushes as soon as it thaws; the others hold
        finally:
            nodes.thaw(name)
        until(lambda: not title_of(process), "the thawed worker lives on")

    cluster = RayCluster(address=nodes.address, silence=3, transport="tcp", resources_per_worker={"seat": 1})
    result, departures = count_while(act, nodes, tmp_path, workers=2, cluster=cluster)
    assert departures.reasons[frozen[0]] == "no sign of life for 3 seconds: its host may be frozen"
    assert result.model_state["gradients"][frozen[0]].sum() <= 2


def test_a_worker_on_a_drained_node_hands_in_its_gradient_and_another_takes_over(nodes: Nodes, tmp_path: Path) -> None:
    drained: list[int] = []

    def act(departures: Departures) -> None:
        processes = [process_of(tmp_path, worker) for worker in (0, 1)]
        name = nodes.one_with("Worker")
        (process,) = nodes.actors("Worker", of=name)
        drained.append(processes.index(process))
        nodes.drain(name)
        process_of(tmp_path, 2)
        functions.write(tmp_path / f"go-{drained[0]}", True)
        until(lambda: departures.reasons, "nobody left")
        until(lambda: not title_of(process), "the worker lives on")
        nodes.kill(name)

    result, departures = count_while(act, nodes, tmp_path, workers=(2, 2))
    assert result.model_state["gradients"][drained[0]].sum() == 3
    assert not result.failures
    (gone,) = result.summary.departures
    assert gone.worker == drained[0] and departures.reasons[gone.worker] == gone.reason == NODE_DRAINED


def test_a_group_grows_when_nodes_come_and_nobody_is_started_again(nodes: Nodes, tmp_path: Path) -> None:
    def act(departures: Departures) -> None:
        before = {process_of(tmp_path, worker) for worker in range(3)}
        nodes.are("a", "b", "c")
        process_of(tmp_path, 3)
        assert before < set(nodes.actors("Worker"))
        assert not departures.reasons

    result, _ = count_while(act, nodes, tmp_path, workers=(2, 4))
    assert not result.failures


# -- runs that go on elsewhere --


@pytest.mark.parametrize("policy", ["bsp", "asp"])
@pytest.mark.parametrize("kind", ["momentum", "adamw"])
def test_a_run_goes_on_with_other_workers_and_servers_on_one_machine_and_back(
    nodes: Nodes, policy: str, kind: str, tmp_path: Path
) -> None:
    @contextmanager
    def place(servers: int) -> Iterator[dict[str, Any]]:
        yield {"cluster": RayCluster(address=nodes.address, servers=servers, transport="tcp")}

    result = move(tmp_path / "run", policy, kind, place)
    is_whole(result, tmp_path / "run")
    if policy == "bsp":
        comes_to_the_weights_of_its_trace(result, tmp_path / "run", kind)


# -- how a run ends from outside --


def test_what_ray_tells_of_nodes_is_no_output_of_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    from ray._private import worker

    with connection._notices_on_stderr():
        worker.print_to_stdstream({"lines": ["a node died"], "pid": "raylet", "is_err": False}, ignore_prefix=False)
    said = capsys.readouterr()
    assert "a node died" in said.err and not said.out


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_or_a_polite_kill_ends_a_run_cleanly(nodes: Nodes, tmp_path: Path, how: signal.Signals) -> None:
    driver = Driver(nodes, tmp_path, "1")
    driver.trains()
    os.killpg(driver.process.pid, how)
    output, errors = driver.ends()
    assert (driver.process.returncode, output) == (0, "interrupted\n"), errors
    assert "Traceback" not in errors
    trace = Trace(tmp_path / "run" / "trace.jsonl")
    assert first_difference(trace) is None and trace.records


# -- clusters without room --


class Lines(Observer):
    """What is said while processes start; the first line ends the run."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def starting(self, line: str) -> None:
        self.lines.append(line)
        if "Ray has not placed" in line:
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("resources", "why"),
    [
        ({"CPU": 64}, "each needs 64 CPU, and no node has more than 2 CPU"),
        ({"CPU": 1, "TPU": 1}, "each needs 1 CPU and 1 TPU, and no node has any TPU"),
    ],
)
def test_a_group_that_the_cluster_has_no_room_for_says_so(nodes: Nodes, resources: dict[str, float], why: str) -> None:
    lines = Lines()
    cluster = RayCluster(address=nodes.address, resources_per_worker=resources)
    with pytest.raises(KeyboardInterrupt):
        launch(functions.train_sgd, workers=2, observers=[lines], cluster=cluster)
    assert lines.lines[-1] == f"starting 2 workers: all are still to be started (Ray has not placed them: {why})"


def test_servers_that_are_not_placed_end_the_run_in_a_sentence(nodes: Nodes) -> None:
    cluster = RayCluster(address=nodes.address, servers=2, resources_per_server={"TPU": 1})
    with (
        patch.object(launcher, "PATIENCE", 1.0),
        pytest.raises(ConfigurationError, match=r"did not place 2 servers within 1 seconds \(.* no node has any TPU\)"),
    ):
        launch(functions.train_sgd, cluster=cluster)
