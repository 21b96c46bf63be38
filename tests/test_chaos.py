"""Chaos: its plans, that it finds what is planted, and that nothing is lost whatever goes wrong."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline.cli.app import app
from paceline.core.errors import ConfigurationError
from paceline.core.messages import Unit
from paceline.experiment.chaos.plan import ALL, KINDS, MOST, Fault, plan_of, read_plan, written
from paceline.experiment.chaos.setting import POLICIES, Setting, Subject, cluster_setting_of, kind_of, setting_of
from paceline.experiment.chaos.virtual import run_virtually, shrunk
from paceline.lifecycle.work import WorkLedger

VIRTUAL_SEEDS, REAL_SEEDS = 300, 20


def test_a_plan_follows_from_its_seed_and_can_be_written_and_read() -> None:
    kinds = set()
    for seed in range(50):
        plan = plan_of(seed, 10.0)
        assert plan == plan_of(seed, 10.0) == read_plan(written(plan))
        assert all(0 <= fault.at <= 10 for fault in plan) and list(plan) == sorted(plan)
        kinds.update(fault.kind for fault in plan)
    assert kinds == set(KINDS)
    assert read_plan("nothing") == () and written(()) == "nothing"


def test_on_a_cluster_shards_and_nodes_are_part_of_a_plan() -> None:
    kinds = set()
    for seed in range(100):
        plan = plan_of(seed, 20.0, ALL)
        assert plan == read_plan(written(plan))
        assert all([fault.kind for fault in plan].count(kind) <= most for kind, most in MOST.items())
        kinds.update(fault.kind for fault in plan)
    assert kinds == set(ALL) > set(KINDS)


def test_on_a_cluster_the_seed_chooses_servers_anew_in_every_life_unless_somebody_did() -> None:
    chosen = [cluster_setting_of(seed) for seed in range(50)]
    assert {(setting.transport, setting.compression) for setting in chosen} > {("tcp", "bf16"), ("auto", "none")}
    assert {chosen[0].servers_in(life, seed=0) for life in range(1, 20)} == {1, 2, 3}
    assert {cluster_setting_of(0, 2).servers_in(life, seed=0) for life in range(1, 20)} == {2}


@pytest.mark.parametrize("text", ["kil 1@2", "kill 1", "freeze 1@2", "kill 1@2+3", "crash", ""])
def test_a_fault_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"write kill 1@2\.5"):
        read_plan(text)


def test_the_seed_chooses_policy_and_group_unless_somebody_did() -> None:
    assert {setting_of(seed).policy for seed in range(200)} == set(POLICIES)
    assert setting_of(3, "asp", "2..4") == Setting("asp", "2..4")


@pytest.mark.slow
@pytest.mark.parametrize("begin", range(0, VIRTUAL_SEEDS, 50))
def test_nothing_is_lost_in_virtual_time(begin: int) -> None:
    for seed in range(begin, begin + 50):
        plan, setting = plan_of(seed, 6.0), setting_of(seed)
        verdict = run_virtually(seed, plan, setting, 6.0)
        assert not verdict.problem, f"paceline chaos --virtual --seed {seed} --seconds 6: {verdict.problem}"
        assert verdict == run_virtually(seed, plan, setting, 6.0) or seed % 10, "it is the same each time"


def test_what_is_planted_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work of a silent worker is lost when it is taken from it."""

    def lose(self: WorkLedger, worker: int | None = None) -> tuple[int, tuple[Unit, ...]]:
        chosen = next(iter(self._held), -1) if worker is None else worker
        return chosen, tuple(self._held.pop(chosen, ()))

    monkeypatch.setattr(WorkLedger, "recall", lose)
    found = next(seed for seed in range(300) if run_virtually(seed, plan_of(seed, 6.0), setting_of(seed), 6.0).problem)
    plan = shrunk(found, plan_of(found, 6.0), setting_of(found), 6.0)
    assert 0 < len(plan) < len(plan_of(found, 6.0)) and any(fault.kind in ("freeze", "delay", "slow") for fault in plan)
    printed = CliRunner().invoke(app, ["chaos", "--virtual", "--seed", str(found), "--seconds", "6"])
    assert printed.exit_code == 1 and "FAILED: AssertionError: samples of all epochs" in printed.stdout
    assert f"--virtual --faults '{written(plan)}'" in printed.stdout


def test_a_run_that_is_stuck_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is given up, and one stands still for ever."""
    monkeypatch.setattr("paceline.experiment.chaos.virtual.PATIENCE", 1e9)
    verdict = run_virtually(0, (Fault(1.0, "freeze", 0, 1e6),), Setting("bsp", "2"), 5.0)
    assert "stuck" in verdict.problem


def test_the_command_says_what_it_did_and_how_to_do_it_again() -> None:
    runner = CliRunner()
    one = runner.invoke(app, ["chaos", "--virtual", "--seed", "7", "--seconds", "6"])
    assert one.exit_code == 0 and "Survived: " in one.stdout and "the launcher is killed" in one.stdout
    assert one.stdout.endswith("Again: paceline chaos digits --seed 7 --seconds 6 --virtual\n")
    many = runner.invoke(app, ["chaos", "--virtual", "--seeds", "20", "--seconds", "4", "--policy", "bsp"])
    assert "All 20 seeds survived: no sample was lost, none was applied twice." in many.stdout
    lines = runner.invoke(app, ["chaos", "--virtual", "--seeds", "2", "--workers", "3", "--json"]).stdout.splitlines()
    assert [json.loads(line)["seed"] for line in lines] == [0, 1]
    assert json.loads(lines[0])["setting"]["workers"] == "3"
    given = runner.invoke(app, ["chaos", "--virtual", "--faults", "kill 1@1, crash@2"])
    assert "1.00: kill process 1" in given.stdout and "2.00: the launcher is killed" in given.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mnist"], "unknown task 'mnist'; there are: digits; or name a script of yours, as in train.py"),
        (["train.py"], "--virtual computes no gradients, so that it needs no script"),
        (["digits", "x"], "x: a task takes no arguments of its own; a script does"),
        (["--epochs", "0"], "--epochs 0: must be at least 1"),
        (["--seeds", "0"], "--seeds 0: must be at least 1"),
        (["--seconds", "0"], "--seconds 0: must be above 0"),
        (["--policy", "bps"], "unknown policy 'bps'"),
        (["--workers", "x"], "workers 'x': must be a number or a range"),
    ],
)
def test_wrong_input_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        CliRunner().invoke(app, ["chaos", "--virtual", *arguments], catch_exceptions=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--servers", "2"], "--servers is for a cluster: add --cluster ray"),
        (["--address", "local"], "--address is for a cluster: add --cluster ray"),
        (["--faults", "kill-shard 0@1"], "fault 'kill-shard 0@1' is for a cluster: add --cluster ray"),
        (["--cluster", "slurm"], "unknown --cluster 'slurm'; there are: local, ray"),
        (["--cluster", "ray", "--virtual"], "--virtual has no cluster"),
        (["--cluster", "ray", "--servers", "0"], "--servers 0: must be at least 1"),
        (["--cluster", "ray", "--address", "x:1", "--faults", "kill-node 0@1"], "the nodes at x:1 are left alone"),
        (["--cluster", "ray", "--address", "ray://x:1"], "ray://x:1: processes are killed by their ids"),
    ],
)
def test_a_place_that_makes_no_sense_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        CliRunner().invoke(app, ["chaos", *arguments], catch_exceptions=False)


def test_a_cluster_with_nodes_on_other_machines_is_refused() -> None:
    from paceline.runtimes.ray_cluster.here import refuse_other_hosts

    here = {"Alive": True, "NodeManagerHostname": socket.gethostname()}
    gone, there = {"Alive": False, "NodeManagerHostname": "far"}, {"Alive": True, "NodeManagerHostname": "far"}
    refuse_other_hosts([here, gone])
    with pytest.raises(ConfigurationError, match="has a node on far, and processes can only be killed on this machine"):
        refuse_other_hosts([here, there])


def test_what_nobody_uses_in_shared_memory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.experiment.chaos import on_ray

    monkeypatch.setattr(on_ray, "SHARED_MEMORY", tmp_path)
    (tmp_path / "old").touch()
    before = {"old"}
    assert on_ray.left_in_memory(before) == ""
    with (tmp_path / "new").open("w"):
        assert on_ray.left_in_memory(before) == ""
    assert on_ray.left_in_memory(before) == f"files ['{tmp_path}/new'] in shared memory"


SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Pictures(Dataset):
    pictures = torch.randn(120, 1, 4, 4, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return 120

    def __getitem__(self, index):
        return self.pictures[index] + 0.1 * torch.randn(1, 4, 4), index % 2

def train(worker):
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.1), nn.Flatten(), nn.Linear(16, 2))
    optimizer = worker.optimizer(model, torch.optim.AdamW, lr=0.01)
    gathered = 0
    for x, y in worker.batches(DataLoader(Pictures(), 4, shuffle=True, num_workers=1)):
        (F.cross_entropy(model(x), y) / 3).backward()
        gathered += 1
        if gathered == 3:
            optimizer.step()
            optimizer.zero_grad()
            gathered = 0
    if gathered:
        optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "policy"), [(0, "asp"), (1, "bsp"), (2, "backup:late=interrupt")])
def test_nothing_is_lost_of_a_script_that_accumulates_and_loads_ahead(seed: int, policy: str, tmp_path: Path) -> None:
    from paceline.experiment.chaos.real import run_for_real

    (tmp_path / "train.py").write_text(SCRIPT)
    faults = read_plan("kill 0@0.3, freeze 1@0.5+0.8, crash@0.9, kill 1@1.2")
    subject = Subject(str(tmp_path / "train.py"), epochs=8)
    verdict = run_for_real(subject, seed, faults, Setting(policy, "2", 9), 1.0, tmp_path / "chaos")
    assert not verdict.problem and verdict.samples == 8 * 120


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(REAL_SEEDS))
def test_nothing_is_lost_with_real_processes(seed: int, tmp_path: Path) -> None:
    from paceline.experiment.chaos.real import run_for_real

    plan, setting = plan_of(seed, 1.0), setting_of(seed)
    verdict = run_for_real(Subject("digits"), seed, plan, setting, 1.0, tmp_path / "chaos")
    assert not verdict.problem, f"paceline chaos --seed {seed} --seconds 1: {verdict.problem}"
    assert verdict.samples == 2 * 1437
    crashed = any(kind_of(happened) == "the launcher is killed" for happened in verdict.happened)
    assert verdict.lives > 1 or not crashed
