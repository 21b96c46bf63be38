"""Runs that are stopped and go on elsewhere: with other numbers of workers and shards, on one machine, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import training_functions as functions
from test_local import same
from test_socket_runs import StopAt, layers, train_layers
from torch import Tensor

from paceline.core.messages import ApplyUpdate, Gradient, GradientArrived, Unit
from paceline.experiment.balance import balance_of
from paceline.experiment.training import RunResult, launch
from paceline.recording.replay import first_difference
from paceline.recording.trace import Trace
from paceline.training.data import order_of

EPOCHS = 40
PAUSE = 0.02  # seconds after every push


class Stay(NamedTuple):
    workers: int
    servers: int | None  # None: on one machine
    updates: int = 12  # that it makes at least


STAYS = [Stay(2, 2), Stay(4, 3), Stay(1, 1), Stay(3, None), Stay(2, 3), Stay(3, 2)]


def move(
    run_dir: Path, policy: str, kind: str, place: Callable[[int], AbstractContextManager[Any]], **options: Any
) -> RunResult:
    """A run at all of these places, one after the other. `place(servers)`: what is launched within is there."""
    result = None
    for stay in STAYS:
        made = 0 if result is None else result.summary.updates
        last = stay is STAYS[-1]
        launching = partial(
            launch,
            partial(train_layers, kind=kind, pause=PAUSE),
            workers=stay.workers,
            policy=policy,
            epochs=EPOCHS,
            lr_scaling="none",
            callbacks=[] if last else [StopAt(made + stay.updates)],
            run_dir=run_dir,
            resume="auto",
            **options,
        )
        if stay.servers is None:
            result = launching()
        else:
            with place(stay.servers) as given:
                result = launching(**given) if isinstance(given, dict) else launching()
        assert result.summary.updates >= made + stay.updates
    assert result is not None
    return result


def is_whole(result: RunResult, run_dir: Path) -> None:
    """Every sample of every epoch counted once, whoever trained on it. On a busy machine a worker's last words may come
    too late for the checkpoint of a stop: then something is done twice, and named."""
    balance = balance_of(run_dir)
    assert len(balance.epochs) == EPOCHS
    assert balance.undone == sum(known.samples for known in balance.returns)
    assert all(epoch.applied == functions.SAMPLES for epoch in balance.epochs), balance
    assert result.samples == EPOCHS * functions.SAMPLES
    assert first_difference(Trace(run_dir / "trace.jsonl")) is None
    assert all(torch.isfinite(tensor).all() for tensor in result.model_state.values())


def weights_of(run_dir: Path, kind: str) -> dict[str, Tensor]:
    """What one process comes to that makes the updates of the trace, where no gradient is stale."""
    net = layers()
    optimizer_class, arguments = functions.OPTIMIZERS[kind]
    optimizer = optimizer_class(net.parameters(), **arguments)
    units: dict[Gradient, Sequence[Unit]] = {}
    for record in Trace(run_dir / "trace.jsonl"):
        if isinstance(record.event, GradientArrived):
            units.setdefault(record.event.gradient, record.event.units)
        for command in record.commands:
            if isinstance(command, ApplyUpdate):
                optimizer.zero_grad()
                taken = [_loss(net, units.pop(gradient)) for gradient in command.gradients]
                samples = sum(number for _, number in taken)
                sum(loss * number / samples for loss, number in taken).backward()  # type: ignore[union-attr]
                optimizer.step()
    return {name: parameter.detach() for name, parameter in net.named_parameters()}


def _loss(net: torch.nn.Module, units: Sequence[Unit]) -> tuple[Tensor, int]:
    indices = torch.cat([order_of(functions.SAMPLES, 0, unit.epoch)[unit.begin : unit.end] for unit in units])
    x, y = (tensor[indices] for tensor in functions.data().tensors)
    return F.cross_entropy(net(x), y), len(indices)


def comes_to_the_weights_of_its_trace(result: RunResult, run_dir: Path, kind: str) -> None:
    expected = weights_of(run_dir, kind)
    same({name: result.model_state[name] for name in expected}, expected)
