"""Real runs over sockets, with and without shards: the same weights, nothing lost, and what happens when one dies."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
import training_functions as functions
from socket_group import PlainLauncher, over_sockets
from test_local import one_process, same
from torch import Tensor, nn
from typer.testing import CliRunner

from paceline.cli.app import app
from paceline.core.messages import ApplyUpdate, Record, UpdateRule
from paceline.experiment import going_back
from paceline.experiment.balance import balance_of
from paceline.experiment.callbacks import Callback, Run
from paceline.experiment.going_back import ShardLostWarning
from paceline.experiment.training import RunResult, launch
from paceline.policies import POLICIES
from paceline.recording.ledger import Ledger
from paceline.recording.observer import Observer
from paceline.recording.progress_log import Measurement
from paceline.recording.replay import first_difference
from paceline.recording.trace import Trace
from paceline.runtimes.sockets.shards import ShardLostError
from paceline.training.early import Experience
from paceline.training.worker import Worker

pytestmark = pytest.mark.slow

EPOCHS = 2
WAYS = [("tcp", 1), ("auto", 1), ("tcp", 2), ("auto", 3)]


def layers() -> nn.Module:
    """Several blocks, so that there is something to spread over shards; with buffers."""
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 5), nn.BatchNorm1d(5, momentum=None), nn.Tanh(), nn.Linear(5, 2)
    ).double()


def train_layers(worker: Worker, kind: str = "momentum", pause: float = 0.0) -> None:
    net = layers()
    optimizer_class, arguments = functions.OPTIMIZERS[kind]
    optimizer = worker.optimizer(net, optimizer_class, **arguments)
    for x, y in worker.batches(functions.data(), batch_size=functions.BATCH):
        functions.push(optimizer, F.cross_entropy(net(x), y))
        time.sleep(pause)


def the_same_bits(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert list(found) == list(expected)
    for key, tensor in expected.items():
        assert torch.equal(found[key], tensor), key


@pytest.mark.parametrize(("transport", "servers"), WAYS)
def test_bsp_gives_the_weights_of_one_process(transport: str, servers: int) -> None:
    with over_sockets(transport, servers):
        result = launch(functions.train_adam, workers=2, policy="bsp", epochs=EPOCHS)
    kind, arguments = functions.OPTIMIZERS["adam"]
    same(result.model_state, one_process(functions.model(), functions.data(), 16, kind, **arguments))


@pytest.mark.parametrize(("transport", "servers"), WAYS)
def test_bsp_gives_the_bits_of_a_local_run_buffers_included(transport: str, servers: int) -> None:
    expected = launch(train_layers, workers=2, policy="bsp", epochs=EPOCHS)
    with over_sockets(transport, servers):
        result = launch(train_layers, workers=2, policy="bsp", epochs=EPOCHS, evaluate=lambda state: len(state))
    the_same_bits(result.model_state, expected.model_state)
    assert result.evaluations[-1].figures == {"accuracy": float(len(expected.model_state))}
    assert result.optimizer_state is not None and expected.optimizer_state is not None
    for number, state in expected.optimizer_state["state"].items():
        assert torch.equal(result.optimizer_state["state"][number]["momentum_buffer"], state["momentum_buffer"])


@pytest.mark.parametrize("name", list(POLICIES))
def test_every_policy_counts_every_sample_once_and_replays(name: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with over_sockets("tcp", 2):
        result = launch(train_layers, workers=3, policy=name, epochs=EPOCHS, run_dir=run_dir, slowdown={2: 2.0})
    assert result.samples == functions.SAMPLES * EPOCHS
    ledger = Ledger()
    for record in Trace(run_dir / "trace.jsonl"):
        ledger.observe(record)
    assert ledger.balance().adds_up
    assert first_difference(Trace(run_dir / "trace.jsonl")) is None
    assert all(torch.isfinite(tensor).all() for tensor in result.model_state.values())


@pytest.mark.parametrize("compression", ["bf16", "int8:block=16", "topk:share=0.2"])
@pytest.mark.parametrize("servers", [1, 2])
def test_gradients_may_be_compressed_on_their_way(compression: str, servers: int) -> None:
    with over_sockets("tcp", servers, compression=compression):
        found = launch(train_layers, workers=2, policy="bsp", epochs=EPOCHS)
    exact = launch(train_layers, workers=2, policy="bsp", epochs=EPOCHS)
    weights = "0.weight", "5.weight"
    assert not any(torch.equal(found.model_state[key], exact.model_state[key]) for key in weights)
    if compression != "topk:share=0.2":
        for key in weights:
            torch.testing.assert_close(found.model_state[key], exact.model_state[key], rtol=0.2, atol=0.05)
    with over_sockets("auto", servers, compression=compression):  # nothing leaves the host
        the_same_bits(launch(train_layers, workers=2, policy="bsp", epochs=EPOCHS).model_state, exact.model_state)


def wide() -> nn.Module:
    """Large enough for gradients to go ahead."""
    torch.manual_seed(4)
    widths = 6, 300, 300, 300
    layers = [layer for sizes in pairwise(widths) for layer in (nn.Linear(*sizes), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(300, 2)).double()


def train_ahead(worker: Worker, trouble: str = "", ways: int = 0) -> None:
    """Over sockets gradients go ahead after the first steps, however fast the wire is. `ways`: connections that they
    travel."""
    net = wide()
    optimizer = worker.optimizer(net, torch.optim.SGD, lr=0.05, momentum=0.9)
    early, kept = optimizer._early, []
    assert (early is not None) == bool(ways)
    if early is not None:
        early.experience = Experience(0.0)
        keep = early._way.keep
        assert len(early._way._ways) == ways  # type: ignore[attr-defined]
        early._way.keep = lambda: (kept.append(True), keep())[1]  # type: ignore[method-assign,func-returns-value]
    for turn, (x, y) in enumerate(worker.batches(functions.data(), batch_size=2, sharding="static")):
        if trouble == "nan" and turn in (6, 9):
            x = x * float("nan")
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        if trouble == "clip" and turn in (6, 7):
            nn.utils.clip_grad_norm_(net.parameters(), 0.01)
        if trouble == "data" and turn == 8:
            for parameter in net.parameters():
                assert parameter.grad is not None
                parameter.grad.data.clamp_(-1e-3, 1e-3)
        if trouble == "absent" and turn % 2:
            net[2].weight.grad = None
        optimizer.step(loss)
    assert bool(kept) == (ways > 0 and trouble != "absent"), kept


@pytest.mark.parametrize("trouble", ["", "clip", "data", "nan", "absent"])
@pytest.mark.parametrize("servers", [1, 2])
def test_gradients_that_go_ahead_change_nothing(trouble: str, servers: int) -> None:
    options: dict[str, Any] = {"workers": 2, "policy": "bsp", "epochs": EPOCHS, "not_finite": "skip"}
    expected = launch(partial(train_ahead, trouble=trouble), **options)
    with over_sockets("tcp", servers):
        result = launch(partial(train_ahead, trouble=trouble, ways=servers), **options)
    the_same_bits(result.model_state, expected.model_state)
    assert result.samples == expected.samples


@pytest.mark.parametrize("policy", ["asp", "backup:late=interrupt"])
def test_gradients_that_go_ahead_count_once_whatever_interrupts_them(policy: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with over_sockets("tcp", 2):
        result = launch(
            partial(train_ahead, ways=2), workers=3, policy=policy, epochs=EPOCHS, run_dir=run_dir, slowdown={2: 3.0}
        )
    assert result.samples == functions.SAMPLES * EPOCHS
    ledger = Ledger()
    for record in Trace(run_dir / "trace.jsonl"):
        ledger.observe(record)
    assert ledger.balance().adds_up and first_difference(Trace(run_dir / "trace.jsonl")) is None
    assert all(torch.isfinite(tensor).all() for tensor in result.model_state.values())


def test_checkpoints_hold_up_nobody_who_pushes_meanwhile(tmp_path: Path) -> None:
    """What shards say while a checkpoint is fetched from them may be all that they say."""
    with over_sockets("tcp", 2):
        result = launch(
            train_layers, workers=2, policy="bsp", epochs=40, run_dir=tmp_path / "run", checkpoint_every="1 updates"
        )
    assert result.samples == 40 * functions.SAMPLES


class StopAt(Callback):
    """Ends the run after so many updates."""

    def __init__(self, updates: int) -> None:
        self._updates = updates

    def measured(self, run: Run, measurement: Measurement) -> None:
        if run.updates >= self._updates:
            run.stop()


def test_a_run_goes_on_with_other_numbers_of_shards_and_on_one_machine_and_back(tmp_path: Path) -> None:
    options: dict[str, Any] = {"workers": 2, "policy": "bsp", "epochs": 16, "run_dir": tmp_path / "run"}
    expected = launch(train_layers, **{**options, "run_dir": None})
    slow = partial(train_layers, pause=0.02)

    def go_on(updates: int | None) -> RunResult:
        resume = {"resume": tmp_path / "run"} if (tmp_path / "run").exists() else {}
        callbacks = [] if updates is None else [StopAt(updates)]
        return launch(slow, **options, **resume, callbacks=callbacks)

    with over_sockets("tcp", 2):
        go_on(4)
    with over_sockets("auto", 3):
        go_on(20)
    assert go_on(40).summary.updates < expected.summary.updates
    with over_sockets("tcp", 3):
        result = go_on(None)
    the_same_bits(result.model_state, expected.model_state)
    assert result.samples == expected.samples


class At(Observer):
    """Does something to the processes of a run when there have been so many updates."""

    def __init__(self, updates: int, launchers: list[PlainLauncher], act: Any) -> None:
        self._left, self._launchers, self._act = updates, launchers, act

    def observe(self, record: Record) -> None:
        self._left -= sum(isinstance(command, ApplyUpdate) for command in record.commands)
        if self._left <= 0 and self._act is not None:
            act, self._act = self._act, None
            act(self._launchers[-1])


@pytest.mark.parametrize(("transport", "servers"), [("tcp", 1), ("auto", 1), ("tcp", 2)])
def test_a_worker_that_is_killed_is_replaced_and_its_samples_are_trained(transport: str, servers: int) -> None:
    def kill(launcher: PlainLauncher) -> None:
        os.kill(launcher.workers[1].pid, signal.SIGKILL)

    with over_sockets(transport, servers) as launchers:
        result = launch(
            partial(train_layers, pause=0.01),
            workers="2..2",
            policy="asp",
            epochs=4,
            observers=[At(5, launchers, kill)],
        )
        assert sorted(launchers[0].workers) == [0, 1, 2]
    assert result.samples == 4 * functions.SAMPLES
    (failure,) = result.failures
    assert failure.worker == 1 and failure.reason in ("its connection broke", "its process died")


def test_a_worker_whose_host_stands_still_is_given_up_and_fenced() -> None:
    def freeze(launcher: PlainLauncher) -> None:
        os.kill(launcher.workers[1].pid, signal.SIGSTOP)

    with over_sockets("tcp", 2, silence=2.5) as launchers:
        result = launch(
            partial(train_layers, pause=0.01),
            workers=2,
            policy="bsp",
            epochs=6,
            observers=[At(5, launchers, freeze)],
            patience="off",
        )
        assert not launchers[0].workers[1].is_alive() or launchers[0].workers[1].join(5) is None
    assert result.samples == 6 * functions.SAMPLES
    assert "no sign of life for 2.5 seconds" in result.failures[0].reason


def test_a_shard_that_dies_ends_the_run_in_a_sentence(tmp_path: Path) -> None:
    def kill(launcher: PlainLauncher) -> None:
        os.kill(launcher.shards[1].pid, signal.SIGKILL)

    with over_sockets("tcp", 2) as launchers, pytest.raises(ShardLostError, match="with a run_dir the run would go"):
        launch(
            partial(train_layers, pause=0.01), workers=2, policy="asp", epochs=50, observers=[At(5, launchers, kill)]
        )


class Deaths(Observer):
    """Does this to the processes of a run whenever it has made so many updates since it began, or went on."""

    def __init__(self, updates: list[int], launchers: list[PlainLauncher], act: Any) -> None:
        self._at, self._launchers, self._act = updates, launchers, act
        self._lives = self._acted = self._updates = 0

    def begun(self, rule: UpdateRule) -> None:
        self._lives, self._updates = self._lives + 1, 0

    def observe(self, record: Record) -> None:
        self._updates += sum(isinstance(command, ApplyUpdate) for command in record.commands)
        if self._at and self._updates >= self._at[0] and self._acted < self._lives:
            del self._at[0]
            self._acted = self._lives  # once in each
            self._act(self._launchers[-1])


def kill_a_shard(launcher: PlainLauncher) -> None:
    os.kill(launcher.shards[1].pid, signal.SIGKILL)


def kill_all_workers_and_a_shard(launcher: PlainLauncher) -> None:
    for process in (*launcher.workers.values(), launcher.shards[1]):
        os.kill(process.pid, signal.SIGKILL)


AGAIN: dict[str, Any] = {"workers": 2, "policy": "bsp", "epochs": 10}
TO_A_CHECKPOINT, TO_ITS_BEGINNING = "its last checkpoint; ", "its beginning, because there is no checkpoint yet; "


@pytest.mark.parametrize(
    ("at", "to", "act"),
    [
        ([3], [TO_ITS_BEGINNING], kill_a_shard),
        ([20], [TO_A_CHECKPOINT], kill_a_shard),
        ([20, 1], 2 * [TO_A_CHECKPOINT], kill_a_shard),
        ([20], [TO_A_CHECKPOINT], kill_all_workers_and_a_shard),
    ],
)
def test_after_a_shards_death_all_go_back_and_the_ledger_says_what_is_done_twice(
    tmp_path: Path, at: list[int], to: list[str], act: Any
) -> None:
    run_dir = tmp_path / "run"
    expected = launch(train_layers, **AGAIN)
    with over_sockets("tcp", 2) as launchers, pytest.warns(ShardLostWarning) as warned:
        result = launch(
            partial(train_layers, pause=0.01),
            **AGAIN,
            run_dir=run_dir,
            checkpoint_every="8 updates",
            observers=[Deaths([*at], launchers, act)],
        )
    assert len(launchers) == 1 + len(at)
    the_same_bits(result.model_state, expected.model_state)
    balance = balance_of(run_dir)
    assert balance.adds_up and result.samples == expected.samples == balance.applied
    assert len(balance.returns) == len(at) and sum(known.samples for known in balance.returns) == balance.undone > 0
    said = CliRunner().invoke(app, ["ledger", str(run_dir)]).output
    for known, warning, where in zip(balance.returns, warned, to, strict=True):
        assert known.reason.startswith("shard 1: its connection broke")
        assert (known.version > 0) == (where == TO_A_CHECKPOINT) and known.updates > 0
        assert f"goes back to {where}{known.undone}" in str(warning.message)
        assert f"The run went back to version {known.version}: {known.undone} (shard 1: its connection broke" in said
    assert first_difference(Trace(run_dir / "trace.jsonl")) is None


def test_a_run_that_loses_a_shard_again_and_again_ends_in_a_sentence(tmp_path: Path) -> None:
    with (
        over_sockets("tcp", 2) as launchers,
        pytest.warns(ShardLostWarning),
        pytest.raises(ShardLostError, match=r"went back 2 times, and never came to another checkpoint: make them more"),
        patch.object(going_back, "MOST_RETURNS", 2),
    ):
        launch(
            partial(train_layers, pause=0.01),
            **AGAIN,
            run_dir=tmp_path / "run",
            observers=[Deaths([2, 2, 2], launchers, kill_a_shard)],
        )
    assert len(launchers) == 3
