"""Chaos on a Ray cluster: whatever dies there, nothing is lost, and training again comes to the same weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ray_nodes import Nodes
from test_chaos import SCRIPT
from typer.testing import CliRunner

from paceline.cli.app import app
from paceline.experiment.chaos.on_ray import run_on_ray
from paceline.experiment.chaos.plan import read_plan
from paceline.experiment.chaos.setting import ClusterSetting, Setting, Subject, Verdict, kind_of
from paceline.runtimes.ray_cluster.here import cluster_here

pytestmark = pytest.mark.ray

EPOCHS = 4


def chaos(nodes: Nodes, faults: str, setting: Setting, directory: Path, subject: str = "digits") -> Verdict:
    with cluster_here(nodes.address) as here:
        plan, seconds = read_plan(faults), 1.0
        verdict = run_on_ray(here, Subject(subject, epochs=EPOCHS), 3, plan, setting, seconds, directory / "chaos")
    assert not verdict.problem, verdict
    return verdict


@pytest.mark.slow
def test_workers_are_killed_and_frozen_and_the_run_trained_again_comes_to_the_same_bits(
    nodes: Nodes, tmp_path: Path
) -> None:
    setting = Setting("asp", "2", 0, ClusterSetting(2, "tcp", "bf16"))
    verdict = chaos(nodes, "duplicate 0@0.1, freeze 1@0.2+0.3, kill 0@0.6", setting, tmp_path)
    assert [kind_of(happened) for happened in verdict.happened] == ["duplicate", "freeze", "kill"]
    assert verdict.samples == EPOCHS * 1437 and len(verdict.after_kill) == 1


def test_a_shard_and_the_launcher_are_killed(nodes: Nodes, tmp_path: Path) -> None:
    setting = Setting("ssp:staleness=2", "2", 9, ClusterSetting(2, "auto", "none"))
    verdict = chaos(nodes, "kill-shard 1@1.2, crash@2", setting, tmp_path)
    assert [kind_of(happened) for happened in verdict.happened] == ["kill-shard", "the launcher is killed"]
    assert verdict.samples == EPOCHS * 1437 and verdict.lives == 2


@pytest.mark.parametrize("servers", [None, 1])
def test_nothing_is_lost_of_a_script_when_its_launcher_is_killed(
    nodes: Nodes, tmp_path: Path, servers: int | None
) -> None:
    """Servers by lot: one after the other, other numbers of them."""
    (tmp_path / "train.py").write_text(SCRIPT)
    setting = Setting("backup:late=interrupt", "2", 9, ClusterSetting(servers, "auto", "none"))
    faults = "kill 0@0.1, freeze 1@0.2+0.8, crash@0.6, duplicate 0@0.7, delay 1@0.7+1"
    verdict = chaos(nodes, faults, setting, tmp_path, str(tmp_path / "train.py"))
    assert verdict.samples == EPOCHS * 120 and verdict.lives > 1


def test_nodes_of_a_cluster_that_is_made_for_it_are_killed_and_frozen() -> None:
    faults = "kill-node 0@0.5, freeze-node 1@1+1.5, kill 1@2"
    words = ["chaos", "--cluster", "ray", "--workers", "2..3", "--seconds", "3", "--json", "--faults", faults]
    printed = CliRunner().invoke(app, words)
    assert printed.exit_code == 0, printed.stdout
    line = json.loads(printed.stdout.splitlines()[-1])
    assert [kind_of(happened) for happened in line["verdict"]["happened"]] == ["kill-node", "freeze-node", "kill"]
