"""Your own loop on local workers, one of them three times slower, under any policy.

Run it as it is, or as `paceline run examples/train_locally.py --workers 4 --policy dssp --epochs 3`.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import paceline


def dataset(samples: int, seed: int) -> TensorDataset:
    x = torch.randn(samples, 20, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x[:, :5].sum(1) > 0).long())


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2))


def train(worker: paceline.Worker) -> None:
    model = net()
    optimizer = worker.optimizer(model, torch.optim.SGD, lr=0.2, momentum=0.9)  # it lives on the server
    for x, y in worker.batches(dataset(1024, seed=0), batch_size=16):  # each sample once per epoch over the whole group
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step(loss)  # push, wait as the policy says, pull


def evaluate(state: dict[str, torch.Tensor]) -> float:
    """Runs in a process of its own, beside training."""
    model = net()
    model.load_state_dict(state)
    x, y = dataset(256, seed=1).tensors
    return float((model(x).argmax(1) == y).float().mean())


if __name__ == "__main__":
    result = paceline.launch(train, workers=2, epochs=3, slowdown={1: 3.0}, evaluate=evaluate)
    print(f"{result.summary.iterations_per_second:.0f} iterations/s, {result.summary.waiting_share:.0%} waiting")
    print(f"accuracy {result.evaluations[-1].figures['accuracy']:.1%} after {result.samples} samples")
