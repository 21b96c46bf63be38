"""The loop of examples/plain_training.py without what looks at one worker's batch: BatchNorm, dropout, clipping."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from paceline.training.worker import Worker

torch.set_num_threads(1)
SAMPLES, BATCH, EPOCHS = 192, 8, 3
STEPS = EPOCHS * SAMPLES // BATCH


def cosine(step: int) -> float:
    return (step + 1) / 10 if step < 10 else 0.5 + 0.5 * float(torch.tensor(3.14159 * step / STEPS).cos())


def made(batch: int) -> tuple[nn.Module, torch.optim.Optimizer, DataLoader[Any], Any]:
    x = torch.randn(SAMPLES, 1, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    data = TensorDataset(x, (x.mean((1, 2, 3)) > 0).long())
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, cosine)
    return model, optimizer, DataLoader(data, batch), scheduler


def loop(model: nn.Module, optimizer: Any, loader: Any, scheduler: Any, steps: int = 1) -> None:
    for _ in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            for _ in range(steps):
                scheduler.step()


def train(worker: Worker) -> None:
    loop(*worker.prepare(*made(BATCH), scheduler_every="batch"))


def alone(workers: int) -> dict[str, Tensor]:
    """Plain PyTorch, with the batches of a round as one, and a step of the schedule for each of them."""
    things = made(BATCH * workers)
    loop(*things, steps=workers)
    return things[0].state_dict()
