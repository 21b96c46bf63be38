"""Small models and `train` functions that worker processes import."""

from __future__ import annotations

import os
import signal

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from paceline.training.worker import Worker

SAMPLES, BATCH = 96, 8


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(SAMPLES, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(x, (x[:, :3].sum(1) > 0).long())


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).double()


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.3}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam": (torch.optim.Adam, {"lr": 0.01}),
}


def loop(worker: Worker, optimizer_name: str) -> None:
    net = model()
    kind, arguments = OPTIMIZERS[optimizer_name]
    optimizer = worker.optimizer(net, kind, **arguments)
    for x, y in worker.batches(data(), batch_size=BATCH):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step(loss)


def train_sgd(worker: Worker) -> None:
    loop(worker, "sgd")


def train_momentum(worker: Worker) -> None:
    loop(worker, "momentum")


def train_adam(worker: Worker) -> None:
    loop(worker, "adam")


def raises(worker: Worker) -> None:
    if worker.index == 1:
        raise RuntimeError("a bug in the user's loop")
    loop(worker, "sgd")


def not_finite(worker: Worker) -> None:
    net = model()
    optimizer = worker.optimizer(net, torch.optim.SGD, lr=0.1)
    for x, _ in worker.batches(data(), batch_size=BATCH):
        optimizer.zero_grad()
        (net(x).sum() * float("nan")).backward()
        optimizer.step()


def forgets_backward(worker: Worker) -> None:
    worker.optimizer(model(), torch.optim.SGD, lr=0.1).step()


def another_model(worker: Worker) -> None:
    net = model() if worker.index == 0 else nn.Linear(6, 2).double()
    worker.optimizer(net, torch.optim.SGD, lr=0.1)


def dies(worker: Worker) -> None:
    """Worker 1 is killed in the middle of its second batch."""
    net = model()
    optimizer = worker.optimizer(net, torch.optim.SGD, lr=0.1)
    for number, (x, y) in enumerate(worker.batches(data(), batch_size=BATCH)):
        if worker.index == 1 and number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step(loss)
