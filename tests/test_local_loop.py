"""Loops in real processes: limits, schedules, several types, absent gradients, the optimizer's state, and mistakes."""

from __future__ import annotations

import copy
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import loop_functions as functions
import pytest
import torch
from torch import nn, optim

from paceline.core.errors import ConfigurationError
from paceline.core.messages import FigureFound, GradientArrived, WorkerLeft
from paceline.experiment.balance import balance_of
from paceline.experiment.training import launch
from paceline.experiment.verification import train_again
from paceline.recording.replay import first_difference
from paceline.recording.trace import Trace
from paceline.training.data import order_of
from paceline.training.worker import Worker

pytestmark = pytest.mark.slow


def is_the_same(run_dir: Path, train: Callable[[Worker], None]) -> bool:
    """Whether the run, trained again from its trace, comes to the same weights, wherever they were kept."""
    verdict = train_again(run_dir, train)
    return bool(verdict.agreed) and verdict.differs_at is None


def plain_steps(steps: int) -> tuple[nn.Module, optim.Optimizer]:
    """The same training without any of this."""
    net = functions.Net()
    optimizer = optim.AdamW(net.parameters(), lr=0.01)
    schedule = functions.make_schedule(optimizer, steps)
    x, y = functions.data().tensors
    epochs = -(-steps // 12)
    orders = [indices for epoch in range(epochs) for indices in order_of(len(x), 0, epoch).split(functions.BATCH)]
    for indices in orders[:steps]:
        functions.step(net, optimizer, x[indices], y[indices])
        schedule.step()
    return net, optimizer


def test_so_many_steps_of_one_worker_are_those_of_a_plain_loop_bit_for_bit(tmp_path: Path) -> None:
    net, optimizer = plain_steps(functions.STEPS)
    result = launch(functions.train, workers=1, policy="asp", steps=functions.STEPS, run_dir=tmp_path)
    for key, tensor in net.state_dict().items():
        assert result.model_state[key].dtype == tensor.dtype and torch.equal(result.model_state[key], tensor), key
    assert result.summary.updates == functions.STEPS and result.samples == 3 * 90 + 4 * 8
    expected = optimizer.state_dict()
    found = result.optimizer_state
    assert found is not None and found["state"].keys() == expected["state"].keys()
    for place, known in expected["state"].items():
        assert all(torch.equal(found["state"][place][name], value) for name, value in known.items())
    assert found["param_groups"][0]["lr"] == expected["param_groups"][0]["lr"]
    assert balance_of(tmp_path).adds_up
    assert is_the_same(tmp_path, functions.train)


def test_a_run_of_so_many_steps_goes_on_to_the_same_limit_and_the_same_bits(tmp_path: Path) -> None:
    def run(directory: str, kill_at: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, functions.__file__, str(tmp_path / directory), str(kill_at)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    whole = run("whole", 0)
    assert whole.returncode == 0, whole.stderr
    assert run("killed", 17).returncode == -signal.SIGKILL
    resumed = run("killed", 0)
    assert resumed.stdout == whole.stdout != "", resumed.stderr
    assert balance_of(tmp_path / "killed").applied == balance_of(tmp_path / "whole").applied == 6 * 90 + 8 * 8
    assert is_the_same(tmp_path / "killed", functions.train)


@pytest.mark.parametrize("own", [False, True])
def test_when_the_time_is_over_everything_has_its_fate_and_the_loops_end_by_themselves(
    own: bool, tmp_path: Path
) -> None:
    train = partial(functions.train_until_the_time_is_over, own=own)
    result = launch(
        train,
        workers=2,
        policy="asp",
        stale="none",
        budget=2.0,
        speed="constant:seconds=0.01",
        evaluate=functions.evaluate,
        evaluate_every=90,
        run_dir=tmp_path,
    )
    assert 2.0 <= result.seconds < 20 and result.samples > 90
    records = list(Trace(tmp_path / "trace.jsonl"))
    arrived = sum(record.event.samples for record in records if isinstance(record.event, GradientArrived))
    assert arrived == result.samples
    reasons = {record.event.reason for record in records if isinstance(record.event, WorkerLeft)}
    assert reasons == {"finished" if own else "no work left"}
    assert any(isinstance(record.event, FigureFound) for record in records)
    assert first_difference(Trace(tmp_path / "trace.jsonl")) is None and balance_of(tmp_path).adds_up
    assert is_the_same(tmp_path, train)


def test_samples_are_counted_exactly_under_an_asynchronous_policy(tmp_path: Path) -> None:
    result = launch(functions.train_small, workers=3, policy="asp", samples=501, run_dir=tmp_path)
    assert result.samples == 501
    balance = balance_of(tmp_path)
    assert balance.adds_up and balance.applied == 501 and len(balance.epochs) == 6
    assert is_the_same(tmp_path, functions.train_small)
    assert (
        launch(functions.train_small, workers=3, policy="asp", samples=501, run_dir=tmp_path, resume="auto").samples
        == 501
    )


def test_a_run_may_begin_with_what_another_optimizer_knew() -> None:
    torch.manual_seed(3)
    net, other = nn.Linear(6, 2), nn.Linear(6, 2)
    before = optim.AdamW(other.parameters(), lr=1.0)
    x, y = functions.data().tensors
    for indices in torch.arange(functions.SAMPLES).split(9):
        functions.step(other, before, x[indices], y[indices])
    state = copy.deepcopy(before.state_dict())
    optimizer = optim.AdamW(net.parameters(), lr=0.01)
    optimizer.load_state_dict(before.state_dict())
    optimizer.param_groups[0]["lr"] = 0.01
    for indices in order_of(len(x), 0, 0).split(functions.BATCH):
        functions.step(net, optimizer, x[indices], y[indices])
    result = launch(partial(functions.begin_with_a_state, state=state), workers=1)
    assert all(torch.equal(result.model_state[key], tensor) for key, tensor in net.state_dict().items())


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (
            functions.different_optimizers,
            "^the optimizer of worker 1 differs from that of worker 0: its lr is 0.2, not",
        ),
        (functions.own_schedule, "^the optimizer lives on the server, so its param_groups can only be read"),
        (
            functions.never_steps,
            r"^worker \d took \d+ batches.* calling optimizer.step\(\)|and never called optimizer.st",
        ),
        (functions.parameters_instead_of_a_model, "^worker.optimizer takes the model itself, not a generator"),
        (
            functions.plateau_without_evaluation,
            "^ReduceLROnPlateau goes by what evaluations find: give launch an evalu",
        ),
    ],
)
def test_mistakes_are_told_in_one_sentence(train: Callable[[Worker], None], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        launch(train, workers=2)
    assert "\n" not in str(caught.value)
