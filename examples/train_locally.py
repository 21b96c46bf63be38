"""Train in real processes, one of them three times slower, under any policy. (Preview: see the README.)"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import paceline


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1024, 20, generator=generator)
    return TensorDataset(x, (x[:, :5].sum(1) > 0).long())


def train(worker: paceline.Worker) -> None:
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = worker.optimizer(model, torch.optim.SGD, lr=0.2, momentum=0.9)  # it lives on the server
    for x, y in worker.batches(dataset(), batch_size=16):  # each sample once per epoch over the whole group
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step(loss)  # push, wait as the policy says, pull


if __name__ == "__main__":
    result = paceline.launch(train, workers=2, policy="elastic-bsp", epochs=3, slowdown={1: 3.0})
    waiting = result.summary.waiting_share
    print(f"{result.summary.iterations_per_second:.0f} iterations/s, {waiting:.0%} waiting, {result.samples} samples")
