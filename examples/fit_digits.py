"""No loop at all: a model, a loss and data, on three workers that are not equally fast."""

from functools import partial

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset, random_split

import paceline

if __name__ == "__main__":
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target))
    train, test = random_split(data, [1437, 360], generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    result = paceline.fit(
        model,
        nn.CrossEntropyLoss(),
        train,
        test,
        optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        workers=3,
        policy="dssp",
        epochs=5,
        slowdown={2: 2.0},
    )
    accuracy = result.evaluations[-1].figures["accuracy"]
    print(f"{result.summary.iterations_per_second:.0f} iterations/s, accuracy {accuracy:.1%}")
