"""A LightningModule on three workers, one of them twice as slow, with its validation beside training."""

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import paceline
from paceline.integrations.lightning import Validation, trainer

EPOCHS, BATCH = 4, 32


class Digits(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        x, y = batch
        self.log("accuracy", (self.net(x).argmax(1) == y).float().mean())

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=EPOCHS * 45 + 1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def loader(test: bool) -> DataLoader:
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target))
    return DataLoader(Subset(data, [i for i in range(len(data)) if (i % 5 == 0) == test]), BATCH, shuffle=not test)


def train(worker: paceline.Worker) -> None:
    trainer(worker, gradient_clip_val=1.0).fit(Digits(), loader(test=False))


if __name__ == "__main__":
    result = paceline.launch(
        train,
        workers=3,
        policy="elastic-bsp",
        epochs=EPOCHS,
        slowdown={2: 2.0},
        evaluate=Validation(Digits, loader(test=True)),
    )
    accuracy = result.evaluations[-1].figures["accuracy"]
    print(f"{result.summary.iterations_per_second:.0f} iterations/s, accuracy {accuracy:.1%}")
