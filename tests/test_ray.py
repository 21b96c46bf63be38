"""The same training on a Ray cluster: the weights are right, whatever dies, and nothing of a run is left there."""

from __future__ import annotations

import os
import re
import signal
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import training_functions as functions
from ray_nodes import Departures, Driver, Nodes, beside, in_shared_memory, process_of, until
from test_local import each_counted_once, one_process, same
from test_socket_runs import StopAt, train_layers

from paceline import RayCluster, launch
from paceline.core.errors import ConfigurationError
from paceline.experiment.balance import balance_of
from paceline.experiment.going_back import ShardLostWarning
from paceline.experiment.training import RunResult
from paceline.experiment.verification import train_again
from paceline.policies import POLICIES
from paceline.recording.replay import first_difference
from paceline.recording.trace import Trace
from paceline.runtimes.ray_cluster import connection

pytestmark = [pytest.mark.slow, pytest.mark.ray]

EPOCHS = 2
LONG: dict[str, Any] = {"workers": 2, "policy": "bsp", "epochs": functions.LONG}


@cache
def trained_here() -> RunResult:
    """What functions.train_slowly comes to, on one machine."""
    return launch(functions.train_adam, **LONG)


def adds_up(run_dir: Path) -> None:
    """Every sample was applied once, and the recorded events lead to the same commands."""
    balance = balance_of(run_dir)
    assert balance.epochs and all(epoch.applied == epoch.samples for epoch in balance.epochs), balance
    assert first_difference(Trace(run_dir / "trace.jsonl")) is None


def is_what_is_trained_here(result: RunResult, run_dir: Path) -> None:
    for key, tensor in trained_here().model_state.items():
        assert torch.equal(result.model_state[key], tensor), key
    assert result.samples == trained_here().samples
    adds_up(run_dir)
    assert train_again(run_dir, functions.train_adam).differs_at is None


def test_bsp_on_two_nodes_gives_the_weights_of_one_process(nodes: Nodes) -> None:
    cluster = RayCluster(address=nodes.address, transport="tcp", servers=2, resources_per_worker={"seat": 1})
    result = launch(functions.train_adam, workers=2, policy="bsp", epochs=EPOCHS, cluster=cluster)
    kind, arguments = functions.OPTIMIZERS["adam"]
    same(result.model_state, one_process(functions.model(), functions.data(), 16, kind, **arguments))


@pytest.mark.parametrize("name", list(POLICIES))
def test_every_policy_counts_every_sample_once_and_replays(nodes: Nodes, name: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    cluster = RayCluster(address=nodes.address)
    result = launch(
        train_layers, workers=2, policy=name, epochs=EPOCHS, run_dir=run_dir, slowdown={1: 2.0}, cluster=cluster
    )
    assert result.samples == functions.SAMPLES * EPOCHS
    adds_up(run_dir)
    assert train_again(run_dir, train_layers).differs_at is None


# -- what dies --


def count_while(act: Any, nodes: Nodes, directory: Path, **options: Any) -> tuple[RunResult, Departures]:
    """A run whose workers hold at their third batch, while this is done; nothing is lost, and nothing counts twice."""
    departures = Departures()
    with beside(lambda: act(departures), directory):
        result = launch(
            partial(functions.count_on_a_cluster, directory=str(directory)),
            policy="asp",
            run_dir=directory / "run",
            observers=[departures],
            patience="off",
            **{"cluster": RayCluster(address=nodes.address, resources_per_worker={"seat": 1}), **options},
        )
    each_counted_once(result, 1)
    adds_up(directory / "run")
    return result, departures


def test_a_worker_that_is_killed_is_replaced(nodes: Nodes, tmp_path: Path) -> None:
    def act(departures: Departures) -> None:
        process_of(tmp_path, 0)
        os.kill(process_of(tmp_path, 1), signal.SIGKILL)
        process_of(tmp_path, 2)

    _, departures = count_while(act, nodes, tmp_path, workers=(2, 2))
    assert departures.reasons[1] in ("its connection broke", "its process died")


def go_back_after(act: Any, nodes: Nodes, directory: Path, **options: Any) -> RunResult:
    """A run that loses shards comes to the same weights. `options`: of the cluster."""

    def acting() -> None:
        functions.wait_for(directory / "trains")
        act()
        functions.write(directory / "fast", True)

    usual: dict[str, Any] = {"resources_per_worker": {"CPU": 0.5}, "resources_per_server": {"seat": 1}}
    cluster = RayCluster(address=nodes.address, servers=2, transport="tcp", **{**usual, **options})
    with beside(acting, directory), pytest.warns(ShardLostWarning, match="goes back to its last checkpoint"):
        result = launch(
            partial(functions.train_slowly, directory=str(directory)),
            run_dir=directory / "run",
            checkpoint_every="3 updates",
            cluster=cluster,
            **LONG,
        )
    is_what_is_trained_here(result, directory / "run")
    return result


def test_after_a_shards_death_the_run_comes_to_the_same_weights(nodes: Nodes, tmp_path: Path) -> None:
    go_back_after(lambda: os.kill(nodes.actors("Shard")[1], signal.SIGKILL), nodes, tmp_path)


def test_a_driver_that_is_killed_leaves_nothing_and_its_run_goes_on_with_other_servers_and_on_one_machine(
    nodes: Nodes, tmp_path: Path
) -> None:
    before = in_shared_memory()
    driver = Driver(nodes, tmp_path, "2")
    driver.trains()
    os.kill(driver.process.pid, signal.SIGKILL)
    driver.ends()
    until(lambda: in_shared_memory() <= before, "shared memory is left")

    def go_on(updates: int | None, cluster: RayCluster | None) -> RunResult:
        stops = [] if updates is None else [StopAt(updates)]
        train = partial(functions.train_slowly, directory=str(tmp_path))
        return launch(train, **LONG, resume=tmp_path / "run", callbacks=stops, cluster=cluster)

    assert list(Trace(tmp_path / "run" / "trace.jsonl", allow_cut_off=True))
    first = go_on(1, RayCluster(address=nodes.address, servers=3, transport="tcp"))
    second = go_on(first.summary.updates + 1, None)
    assert first.summary.updates < second.summary.updates < trained_here().summary.updates
    (tmp_path / "fast").touch()
    is_what_is_trained_here(go_on(None, RayCluster(address=nodes.address)), tmp_path / "run")


def test_when_a_node_is_gone_its_worker_is_replaced(nodes: Nodes, tmp_path: Path) -> None:
    def act(departures: Departures) -> None:
        for worker in (0, 1):
            process_of(tmp_path, worker)
        nodes.kill(nodes.one_with("Worker"))
        process_of(tmp_path, 2)

    result, _ = count_while(act, nodes, tmp_path, workers=(2, 2))
    (failure,) = result.failures
    assert failure.reason in ("its connection broke", "its node is gone", "its process died")


# -- wrong input --


def test_there_is_no_cluster_at_the_address() -> None:
    with pytest.raises(ConfigurationError, match=r"no Ray cluster at '127.0.0.1:1': .*`ray start --head` begins one"):
        launch(functions.train_sgd, cluster=RayCluster(address="127.0.0.1:1"))


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        (RayCluster(servers=0), "servers is 0; it must be a number of processes, at least 1"),
        (RayCluster(transport="udp"), "unknown transport 'udp'; there are: auto, tcp"),
        (RayCluster(compression="zip"), "unknown compression 'zip'"),
        (RayCluster(ports="9"), "ports '9': must be a range, as in 20000..20100"),
        (RayCluster(silence=1), "silence is 1; it must be more than 2 seconds"),
        (
            RayCluster(resources_per_server={"CPU": -1}),
            "resources_per_server: 'CPU' is -1; it must be a number, 0 or more",
        ),
    ],
)
def test_wrong_words_about_a_cluster_are_refused(cluster: RayCluster, said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        launch(functions.train_sgd, cluster=cluster)


def test_a_ray_that_is_too_old_is_refused() -> None:
    with (
        patch.object(connection, "version", lambda name: "2.9.3"),
        pytest.raises(ConfigurationError, match=r"ray 2.9.3 is too old: paceline needs 2\.\d+ or later"),
    ):
        launch(functions.train_sgd, cluster=RayCluster())
