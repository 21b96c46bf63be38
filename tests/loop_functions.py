"""`train` and `evaluate` functions for tests/test_local_loop.py, which worker processes import."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset
from training_functions import Killer

from paceline.experiment.training import launch
from paceline.training.worker import Worker

torch.set_num_threads(1)
SAMPLES, BATCH, STEPS = 90, 8, 40  # the last batch of an epoch has 2 samples


def data() -> TensorDataset:
    x = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(7))
    return TensorDataset(x, (x[:, :3].sum(1) > 0).long())


class Net(nn.Module):
    """Of several types, with a head that is used now and then only."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(6, 8).double()
        self.norm = nn.BatchNorm1d(8)
        self.second = nn.Linear(8, 8).bfloat16()
        self.heads = nn.ModuleList(nn.Linear(8, 2) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.first(x.double()).float())
        hidden = torch.tanh(self.second(hidden.bfloat16())).float()
        found: Tensor = self.heads[int(bool(x[0, 0] > 0))](hidden)
        return found


def make_schedule(optimizer: optim.Optimizer, total_steps: int) -> lr_scheduler.LRScheduler:
    return lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=total_steps)


def step(net: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step(*([] if type(optimizer) is optim.AdamW else [loss]))


def train(worker: Worker) -> None:
    net = Net()
    optimizer = worker.optimizer(net, optim.AdamW, lr=0.01, scheduler=make_schedule, scheduler_every="round")
    for x, y in worker.batches(data(), BATCH):
        step(net, optimizer, x, y)


def train_small(worker: Worker) -> None:
    """Adam as it is, so that stale gradients are corrected."""
    net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 2))
    optimizer = worker.optimizer(net, optim.AdamW, lr=0.01, scheduler=make_schedule, scheduler_every="round")
    for x, y in worker.batches(data(), BATCH):
        step(net, optimizer, x, y)


def train_until_the_time_is_over(worker: Worker, own: bool) -> None:
    net = Net()
    plateau = partial(lr_scheduler.ReduceLROnPlateau, patience=0, factor=0.5, threshold=10.0)
    optimizer = worker.optimizer(net, optim.SGD, lr=0.1, momentum=0.5, scheduler=plateau)
    seen = set()
    for x, y in worker.batches(DataLoader(data(), BATCH), sharding="own") if own else worker.batches(data(), BATCH):
        seen.add(optimizer.param_groups[0]["lr"])
        step(net, optimizer, x, y)
        assert optimizer.state_dict()["param_groups"][0]["momentum"] == 0.5
    assert max(seen) == 0.1 > min(seen)  # the loop saw the rate go down, and came to its end by itself


def evaluate(state: dict[str, Tensor]) -> dict[str, float]:
    net = Net()
    net.load_state_dict(state)
    net.eval()
    x, y = data().tensors
    with torch.no_grad():
        return {"loss": float(F.cross_entropy(net(x), y))}


def begin_with_a_state(worker: Worker, state: dict[str, Any]) -> None:
    torch.manual_seed(3)
    net = nn.Linear(6, 2)
    optimizer = worker.optimizer(net, optim.AdamW, lr=0.01, state=state)
    batches(worker, net, optimizer)


# -- mistakes --


def batches(worker: Worker, net: nn.Module, optimizer: Any) -> None:
    for x, y in worker.batches(data(), BATCH):
        step(net, optimizer, x, y)


def different_optimizers(worker: Worker) -> None:
    net = nn.Linear(6, 2)
    batches(worker, net, worker.optimizer(net, optim.SGD, lr=0.1 * (1 + worker.index)))


def own_schedule(worker: Worker) -> None:
    net = nn.Linear(6, 2)
    lr_scheduler.StepLR(worker.optimizer(net, optim.SGD, lr=0.1), 10)


def never_steps(worker: Worker) -> None:
    net = nn.Linear(6, 2)
    worker.optimizer(net, optim.SGD, lr=0.1)
    other = optim.SGD(net.parameters(), lr=0.1)
    for x, y in worker.batches(data(), BATCH):
        other.zero_grad()
        F.cross_entropy(net(x), y).backward()
        other.step()


def parameters_instead_of_a_model(worker: Worker) -> None:
    worker.optimizer(nn.Linear(6, 2).parameters(), optim.SGD, lr=0.1)  # type: ignore[arg-type]


def plateau_without_evaluation(worker: Worker) -> None:
    net = nn.Linear(6, 2)
    worker.optimizer(net, optim.SGD, lr=0.1, scheduler=lr_scheduler.ReduceLROnPlateau)


def resumable(directory: str, kill_at: str) -> None:
    killers = [Killer(int(kill_at))] if int(kill_at) else []
    result = launch(
        train,
        workers=2,
        policy="bsp",
        steps=STEPS,
        run_dir=directory,
        checkpoint_every="3 updates",
        resume="auto",
        observers=killers,
    )
    print(result.samples, float(sum(tensor.double().abs().sum() for tensor in result.model_state.values())).hex())


if __name__ == "__main__":
    resumable(*sys.argv[1:])
