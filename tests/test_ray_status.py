"""What `paceline status --address` says of a real Ray cluster."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import training_functions as functions
from ray_nodes import Nodes, beside, process_of

from paceline import RayCluster, launch

pytestmark = [pytest.mark.slow, pytest.mark.ray]


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
