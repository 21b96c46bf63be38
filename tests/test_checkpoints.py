"""What a run writes down, and whether another one can go on from it; to the bit, unless it hangs on who came first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import training_functions as functions
from fake_link import FakeLink
from lifecycle_group import LifecycleGroup
from test_stale_gradients import ASYNCHRONOUS, push, store_of
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

from paceline.cli.app import app
from paceline.core.coordinator import Coordinator
from paceline.core.errors import ConfigurationError, ProtocolError
from paceline.core.messages import WorkerReturned
from paceline.experiment.configuration import CHECKPOINTS, Configuration
from paceline.experiment.group import Group
from paceline.experiment.resuming import find_resumption, newest
from paceline.experiment.run_files import RunFiles
from paceline.lifecycle.resumption import state_of
from paceline.lifecycle.work import Work, WorkLedger
from paceline.policies import policy
from paceline.recording.replay import first_difference
from paceline.recording.trace import Trace
from paceline.runtimes.intervals import Interval, interval_of
from paceline.runtimes.serving.checkpoints import figure_of
from paceline.training.checkpoint import (
    MODEL,
    STATE,
    TRAINING,
    Facts,
    TornCheckpointError,
    checkpoints_in,
    read_checkpoint,
    set_aside_after,
    snapshot_of,
    write_checkpoint,
)
from paceline.training.choices import UpdateOptions
from paceline.training.trees import put_together, taken_apart
from paceline.training.worker import Worker
from paceline.training.worker_state import unpacked

# -- trees --


def test_a_tree_comes_back_as_it_was() -> None:
    tree = {
        "none": None,
        "numbers": [1, 2.5, float("inf"), True],
        0: (torch.arange(3), "text", b"bytes"),
        "nested": {"array": np.arange(4, dtype=np.uint32), "empty": {}, "scalar": np.float64(0.1)},
    }
    structure, tensors = taken_apart(tree)
    back = put_together(msgspec.json.decode(msgspec.json.encode(structure)), tensors)
    assert back["numbers"] == tree["numbers"] and back["none"] is None and back["nested"]["empty"] == {}
    assert torch.equal(back[0][0], torch.arange(3)) and back[0][1:] == ("text", b"bytes")
    assert back["nested"]["array"].dtype == np.uint32 and back["nested"]["array"].tolist() == [0, 1, 2, 3]
    assert back["nested"]["scalar"] == 0.1


def test_a_tree_is_a_copy_and_what_cannot_be_kept_is_named() -> None:
    tensor = torch.zeros(2)
    _, tensors = taken_apart({"a": tensor})
    tensor.add_(1)
    assert tensors["state/a"].tolist() == [0.0, 0.0]
    with pytest.raises(ConfigurationError, match=r"the worker's state/ema/0 is a set, which a checkpoint cannot hold"):
        taken_apart({"ema": [{1, 2}]}, "the worker's state")


# -- intervals --


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ("30s", Interval(seconds=30.0)),
        ("1.5 m", Interval(seconds=90.0)),
        ("10000 samples", Interval(samples=10_000)),
        ("1 update", Interval(updates=1)),
    ],
)
def test_an_interval_is_a_time_or_a_number_of_samples_or_updates(text: str, interval: Interval) -> None:
    assert interval_of(text, "it") == interval


@pytest.mark.parametrize("text", ["often", "0s", "-3s", "1.5 updates", "10"])
def test_an_interval_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"--checkpoint-every '{text}': must be"):
        interval_of(text, "--checkpoint-every")


def test_an_interval_is_over_by_what_it_counts() -> None:
    assert Interval(seconds=2.0).over(2.0, 0, 0) and not Interval(seconds=2.0).over(1.9, 9, 9)
    assert Interval(samples=5).over(0.0, 5, 0) and Interval(updates=5).over(0.0, 0, 5)
    assert not Interval().over(1e9, 10**9, 10**9)


# -- the store --


@pytest.mark.parametrize("options", [ASYNCHRONOUS, UpdateOptions()])
@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (optim.SGD, {"lr": 0.1}),
        (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
        (optim.AdamW, {"lr": 0.01}),
        (optim.Adamax, {"lr": 0.01}),
        (optim.RMSprop, {"lr": 0.01}),
    ],
)
def test_a_store_goes_on_to_the_bit(options: UpdateOptions, kind: Any, arguments: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(40, 2, generator=generator, dtype=torch.float64).tolist()

    def follow(store: Any, begin: int, end: int, pulled: dict[int, tuple[Tensor, int]]) -> None:
        for number in range(begin, end):
            parameters, version = pulled.get(number % 4, (store.flat.clone(), store.version))
            push(store, number % 4, gradients[number], workers=4, pulled=parameters, version=version)
            pulled[number % 4] = store.flat.clone(), store.version

    whole, half, rest = (store_of(kind, options, (1.0, -1.0), **arguments) for _ in range(3))
    follow(whole, 0, 40, {})
    pulled: dict[int, tuple[Tensor, int]] = {}
    follow(half, 0, 17, pulled)
    structure, tensors = taken_apart(half.state())
    flat = half.flat.clone()
    follow(half, 17, 20, dict(pulled))  # what was written down does not change any more
    rest.resume(flat, put_together(msgspec.json.decode(msgspec.json.encode(structure)), tensors))
    follow(rest, 17, 40, pulled)
    assert torch.equal(rest.flat, whole.flat) and (rest.version, rest.samples) == (whole.version, whole.samples)


# -- files --


def facts(updates: int) -> Facts:
    group = LifecycleGroup("asp", 1, work=Work(8, 2))
    group.act("enter", 0)
    return Facts("asp", 0, 1, 1.0, 2 * updates, updates, state_of(group.lifecycle), 10, 20)


def written(below: Path, *updates: int) -> list[Path]:
    return [
        write_checkpoint(
            below, snapshot_of(facts(number), {"weight": torch.full((2,), float(number))}, {"number": number})
        )
        for number in updates
    ]


def test_a_checkpoint_is_whole_and_readable_by_anybody_who_may(tmp_path: Path) -> None:
    (directory,) = written(tmp_path / "checkpoints", 3)
    found = read_checkpoint(directory)
    assert msgspec.json.encode(found.facts) == msgspec.json.encode(facts(3))
    assert found.training == {"number": 3} and found.model["weight"].tolist() == [3.0, 3.0]
    assert {path.name for path in directory.iterdir()} == {MODEL, TRAINING, STATE}
    assert directory.stat().st_mode & 0o077 == 0 == (directory / STATE).stat().st_mode & 0o077
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["000000003"]  # nothing unfinished


@pytest.mark.parametrize("name", [MODEL, TRAINING, STATE])
@pytest.mark.parametrize("harm", ["cut", "change", "remove"])
def test_a_torn_checkpoint_is_refused_by_name_and_the_one_before_it_is_taken(
    name: str, harm: str, tmp_path: Path
) -> None:
    _, torn = written(tmp_path / CHECKPOINTS, 1, 2)
    content = (torn / name).read_bytes()
    if harm == "remove":
        (torn / name).unlink()
    else:
        (torn / name).write_bytes(content[: len(content) // 2] if harm == "cut" else b"x" + content[1:])
    with pytest.raises(TornCheckpointError, match="000000002"):
        read_checkpoint(torn)
    with pytest.warns(UserWarning, match="000000002.*the one before it is taken"):
        assert newest(tmp_path).facts.updates == 1


def test_a_checkpoint_that_cannot_be_written_leaves_the_others_and_nothing_unfinished(tmp_path: Path) -> None:
    written(tmp_path, 1)
    with pytest.raises(ConfigurationError, match="cannot hold"):
        write_checkpoint(tmp_path, snapshot_of(facts(2), {}, {"bad": object()}))
    broken = snapshot_of(facts(2), {"weight": torch.zeros(1)}, {})._replace(structure=object())
    with pytest.raises(TypeError):
        write_checkpoint(tmp_path, broken)
    assert [path.name for path in checkpoints_in(tmp_path)] == ["000000001"] and len(list(tmp_path.iterdir())) == 1


TOLD = Configuration("bsp", Group(1), 1, 0, "auto", "train")


def test_only_the_same_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(TOLD))
    assert find_resumption("auto", tmp_path, TOLD) is None
    with pytest.raises(ConfigurationError, match="has no checkpoint"):
        find_resumption(tmp_path, None, TOLD)
    directory = written(tmp_path / CHECKPOINTS, 4)[0]
    for where in (tmp_path, directory):
        found = find_resumption(where, None, TOLD)
        assert found is not None and found.run_dir == tmp_path and found.checkpoint.facts.updates == 4
    for name, value in (("seed", 1), ("policy", "asp"), ("epochs", 2), ("stale", "none")):
        other = msgspec.structs.replace(TOLD, **{name: value})
        with pytest.raises(ConfigurationError, match=f"is another run: its {name} is"):
            find_resumption("auto", tmp_path, other)
    with pytest.raises(ConfigurationError, match="needs a run_dir"):
        find_resumption("auto", None, TOLD)
    with pytest.raises(ConfigurationError, match="leave one out"):
        find_resumption(tmp_path, tmp_path / "other", TOLD)
    with pytest.raises(ConfigurationError, match="there is no such directory"):
        find_resumption(tmp_path / "missing", None, TOLD)


def test_two_processes_are_never_at_the_same_run(tmp_path: Path) -> None:
    with (
        RunFiles(tmp_path / "run", TOLD),
        pytest.raises(ConfigurationError, match="another process is at this run"),
        RunFiles(tmp_path / "run", TOLD, anew=True),
    ):
        pass


@pytest.mark.parametrize(
    ("figures", "name", "worth"),
    [
        ({"loss": 0.5, "accuracy": 0.9}, "accuracy", 0.9),
        ({"other": 1.0, "loss": 0.5}, "loss", -0.5),
        ({"bleu": 30.0}, "bleu", 30.0),
        ({"accuracy": float("nan"), "loss": 0.5}, "loss", -0.5),
    ],
)
def test_states_are_compared_by_accuracy_else_loss_else_the_first_figure(
    figures: dict[str, float], name: str, worth: float
) -> None:
    figure = figure_of(figures)
    assert figure is not None and (figure.name, figure.worth) == (name, worth)
    assert figure_of({}) is None is figure_of({"loss": float("inf")})


# -- the decision core --


def test_only_a_worker_that_is_here_can_come_back() -> None:
    with pytest.raises(ProtocolError, match="came back, but it is not here"):
        Coordinator(policy("asp")).handle(WorkerReturned(3), 0.0)


def test_what_a_worker_had_is_given_to_it_again_in_its_order() -> None:
    ledger = WorkLedger(20, 1)
    first, second = ledger.lease(0, 4), ledger.lease(0, 4)
    ledger.lease(1, 4)
    again = WorkLedger.resumed(ledger.state())
    assert again.state() == ledger.state() and again.leased == 12
    assert (again.lease(0, 4), again.lease(0, 4)) == (first, second)
    again.release(1)
    assert again.remaining == 12 and again.leased == 8


def test_a_run_is_over_when_nobody_has_anything_left_to_do() -> None:
    group = LifecycleGroup("asp", 2, work=Work(4, 2))
    for seat in (0, 1):
        group.act("enter", seat)
    assert not state_of(group.lifecycle).over
    group.finish_all()
    assert state_of(group.lifecycle).over


# -- workers --


def batches_of(worker: Worker, link: FakeLink, keep_after: int | None = None) -> list[list[float]]:
    """What a loop with a DataLoader, dropout and a thing of its own sees; after so many steps it is killed."""
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.5))
    optimizer = worker.optimizer(net, optim.SGD, lr=0.0)
    counted = nn.BatchNorm1d(1)
    worker.keep("counted", counted)
    loader = DataLoader(TensorDataset(torch.arange(10.0).unsqueeze(1)), batch_size=2, shuffle=True)
    seen = []
    for (x,) in worker.batches(loader, sharding="own"):
        link.keep_wanted = len(seen) + 1 == keep_after
        optimizer.zero_grad()
        loss = net(x).sum()
        counted(x)
        loss.backward()
        optimizer.step(loss)
        seen.append([*x.flatten().tolist(), float(loss.detach()), float(counted.running_mean)])
        if len(seen) == keep_after:
            break
    return seen


@pytest.mark.parametrize("kept_after", [1, 5, 7, 15])
def test_a_worker_goes_on_in_its_own_batches_with_its_own_random_numbers(kept_after: int) -> None:
    whole = batches_of(Worker(1, FakeLink(), seed=2, epochs=3), FakeLink())
    link = FakeLink()
    first = batches_of(Worker(1, link, seed=2, epochs=3), link, kept_after)
    assert len(link.kept) == 1
    rest = batches_of(Worker(1, FakeLink(), seed=2, epochs=3, kept=unpacked(link.kept[0])), FakeLink())
    assert len(whole) == 15 and first + rest == whole


def test_only_a_thing_with_a_state_can_be_kept_and_only_once() -> None:
    worker = Worker(0, FakeLink(), seed=0)
    with pytest.raises(ConfigurationError, match=r"worker.keep\('x'\): a int has no state_dict"):
        worker.keep("x", 1)
    worker.keep("x", nn.Linear(1, 1))
    with pytest.raises(ConfigurationError, match="there is such a thing already"):
        worker.keep("x", nn.Linear(1, 1))


# -- real runs that are killed --


def run_of(
    directory: Path, workers: int, text: str, kill_at: int | None, loaders: int = 0
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, functions.__file__, "resumable", str(directory), str(workers), text, str(kill_at or 0)]
    environment = {**os.environ, "LOADERS": str(loaders)}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "text", "loaders"), [(1, "asp", 0), (3, "bsp", 0), (3, "bsp", 1)])
def test_a_run_that_was_killed_twice_ends_in_the_same_bits(
    workers: int, text: str, loaders: int, tmp_path: Path
) -> None:
    whole = run_of(tmp_path / "whole", workers, text, None)
    assert whole.returncode == 0, whole.stderr
    for kill_at in (25, 15):
        killed = run_of(tmp_path / "killed", workers, text, kill_at, loaders)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = run_of(tmp_path / "killed", workers, text, None, loaders)
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout == whole.stdout != ""
    trace = Trace(tmp_path / "killed" / "trace.jsonl")
    assert first_difference(trace) is None
    returned = [record.event.worker for record in trace if isinstance(record.event, WorkerReturned)]
    assert set(returned) == set(range(workers))
    again = run_of(tmp_path / "killed", workers, text, None)  # there is nothing left to do
    assert again.stdout == whole.stdout


@pytest.mark.slow
@pytest.mark.parametrize("text", ["asp", "ssp", "elastic-bsp", "buffered", "backup:k=2", "dbw"])
def test_a_run_that_was_killed_goes_on_under_every_policy_and_uses_every_sample(text: str, tmp_path: Path) -> None:
    killed = run_of(tmp_path, 3, text, 30)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = run_of(tmp_path, 3, text, None)
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout.startswith(f"{12 * functions.SAMPLES} samples")
    assert first_difference(Trace(tmp_path / "trace.jsonl")) is None
    assert os.listdir(tmp_path / CHECKPOINTS)


# -- the commands --


@pytest.mark.parametrize("command", ["train", "run"])
def test_a_run_that_goes_on_is_told_nothing_that_it_knows(command: str, tmp_path: Path) -> None:
    def problem(*arguments: str) -> str:
        result = CliRunner().invoke(app, [command, *arguments])
        assert isinstance(result.exception, ConfigurationError), result.output
        return str(result.exception)

    assert "or --resume RUN" in problem()
    assert problem("--resume", str(tmp_path), "--epochs", "3").startswith("epochs cannot be given along with --resume")
    assert problem("--resume", str(tmp_path), "--keep", "1").startswith("keep cannot be given along with --resume")
    assert "is this a run directory?" in problem("--resume", str(tmp_path), "--workers", "2")
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(TOLD))
    assert "was begun by a program: start that again, with resume=" in problem("--resume", str(tmp_path))


def test_checkpoints_after_the_one_that_a_run_goes_on_from_are_set_aside(tmp_path: Path) -> None:
    for name in ("000000100", "000000200", "000000300", "lost-000000300"):
        (tmp_path / name).mkdir()
    set_aside_after(tmp_path, 100)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000100", "lost-000000200", "lost-000000300"]
    assert [path.name for path in checkpoints_in(tmp_path)] == ["000000100"]
