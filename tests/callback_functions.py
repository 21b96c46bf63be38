"""`train` and `evaluate` functions for tests of callbacks, which worker processes import."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
import training_functions as functions
from torch import Tensor

from paceline.training.worker import Worker


def train_and_log(worker: Worker) -> None:
    """Each worker logs its own number."""
    model = functions.model()
    optimizer = worker.optimizer(model, torch.optim.SGD, lr=0.1)
    for x, y in worker.batches(functions.data(), functions.BATCH):
        loss = F.cross_entropy(model(x), y)
        worker.log({"number": worker.index, "one": torch.ones(())})
        functions.push(optimizer, loss)


def three_deaths(worker: Worker) -> None:
    """Worker 0 survives; the others end in three ways."""
    model = functions.model()
    optimizer = worker.optimizer(model, torch.optim.SGD, lr=0.1)
    for number, (x, y) in enumerate(worker.batches(functions.data(), functions.BATCH)):
        if number == 1 and worker.index == 1:
            print("this machine\nis on fire", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 1 and worker.index == 2:
            os._exit(3)
        if number == 1 and worker.index == 3:
            raise ValueError("a bug")
        functions.push(optimizer, F.cross_entropy(model(x), y))


def train_adagrad(worker: Worker) -> None:
    model = functions.model()
    optimizer = worker.optimizer(model, torch.optim.Adagrad, lr=0.1)
    for x, y in worker.batches(functions.data(), functions.BATCH):
        functions.push(optimizer, F.cross_entropy(model(x), y))


def evaluate_until(state: dict[str, Tensor], mark: Path) -> float:
    """It fails as soon as this file is there."""
    if mark.exists():
        raise OSError("the disk is full")
    time.sleep(0.2)  # so that the group goes on meanwhile, and the last state is another one
    return 0.5


def evaluate(state: dict[str, Tensor]) -> dict[str, float]:
    """The loss is always the same, and the weight tells which state it was."""
    return {"loss": 1.0, "weight": float(state["0.weight"].sum())}
