"""A CNN with BatchNorm, AdamW, warm-up and cosine, clipping, loader processes, evaluation, the best model kept."""

import math

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import paceline

EPOCHS, BATCH = 3, 32


def data() -> list[TensorDataset]:
    digits = load_digits()
    pictures = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
    whole = TensorDataset(pictures, torch.tensor(digits.target))
    return random_split(whole, [1437, 360], generator=torch.Generator().manual_seed(0))


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(32 * 16, 64), nn.ReLU(), nn.Linear(64, 10)),
        )


def warm_up_and_cosine(step: int, warm_up: int = 20, steps: int = EPOCHS * 45) -> float:
    return (step + 1) / warm_up if step < warm_up else 0.5 + 0.5 * math.cos(math.pi * (step - warm_up) / steps)


def evaluate(model: nn.Module, test: TensorDataset) -> float:
    model.eval()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in DataLoader(test, batch_size=256))
    return right / len(test)


def train(worker: paceline.Worker) -> None:
    training, test = data()
    model = Net()
    loader = DataLoader(training, batch_size=BATCH, shuffle=True, num_workers=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warm_up_and_cosine)
    model, optimizer, loader, scheduler = worker.prepare(model, optimizer, loader, scheduler, scheduler_every="batch")
    best = 0.0
    for epoch in range(EPOCHS):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
        if worker.rank > 0:
            continue  # one worker evaluates
        accuracy = evaluate(model, test)
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}, accuracy {accuracy:.1%}")
        if accuracy > best:
            best = accuracy
            torch.save(model.state_dict(), "best.pt")


if __name__ == "__main__":
    paceline.launch(train, workers=4, epochs=EPOCHS)
