"""Which policy for *my* model? Your own loop under several policies in virtual time, before any real time is spent.

Run it as it is, or as `paceline compare examples/compare_own_script.py --workers 3x1.0,1x4.0 --policy bsp -p asp`.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import paceline

BATCH = 32


def digits(begin: int, end: int) -> TensorDataset:
    data = load_digits()
    x = torch.tensor(data.data[begin:end] / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    return TensorDataset(x, torch.tensor(data.target[begin:end]))


def net() -> nn.Module:
    convolution = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(convolution, nn.Flatten(), nn.Dropout(0.1), nn.Linear(128, 10))


def train(worker: paceline.Worker) -> None:
    model = net()
    optimizer = worker.optimizer(model, torch.optim.AdamW, lr=3e-3)
    for x, y in worker.batches(digits(0, 1400), batch_size=BATCH):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step(loss)


def evaluate(state: dict[str, torch.Tensor]) -> float:
    model = net()
    model.load_state_dict(state)
    model.eval()
    x, y = digits(1400, 1797).tensors
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


if __name__ == "__main__":
    found = paceline.compare(
        train,
        evaluate=evaluate,
        workers="3x1.0,1x4.0",  # three that need a second for a step, and one that needs four
        policies=["bsp", "ssp:staleness=3", "elastic-bsp"],
        seeds=1,
        epochs=3,
        target_accuracy=0.75,
        evaluate_every=350,
    )
    print(found)
    for row in found.rows:
        print(f"{row.policy:<16} {row.samples / BATCH / row.seconds:.2f} iterations/s")
