"""A LightningModule under paceline's strategy, with the real Lightning: the same bits as Lightning alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fake_link import FakeLink
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from paceline.core.errors import ConfigurationError
from paceline.integrations.lightning import QUIET, PacelineStrategy, Validation, trainer
from paceline.training.worker import Worker

# Lightning advises (more loader processes, a logger) by warnings, and calls what torch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore")

SAMPLES, BATCH, EPOCHS = 24, 4, 3


def loader() -> DataLoader[Any]:
    x = torch.randn(SAMPLES, 3, generator=torch.Generator().manual_seed(8))
    # With a generator of its own the loader draws nothing from the random numbers that dropout uses.
    return DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), BATCH, generator=torch.Generator())


class Module(LightningModule):
    def __init__(self, interval: str = "step", frequency: int = 1, skipped: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.2), nn.Linear(5, 2))
        self.schedule: dict[str, Any] = {"interval": interval, "frequency": frequency}
        self.skipped = skipped  # a batch without a loss

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor | None:
        x, y = batch
        return None if batch_idx == self.skipped else F.cross_entropy(self.net(x), y)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        x, y = batch
        self.log("accuracy", (self.net(x).argmax(1) == y).float().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, **self.schedule}}


def worker_of(link: FakeLink) -> Worker:
    return Worker(0, link, seed=0, epochs=link.epochs)


def learned(interval: str, link: FakeLink | None, **options: Any) -> dict[str, Tensor]:
    module = Module(interval)
    torch.manual_seed(5)
    if link is None:
        alone = Trainer(accelerator="cpu", max_epochs=EPOCHS, gradient_clip_val=0.5, **{**QUIET, **options})
        alone.fit(module, loader())
    else:
        trainer(worker_of(link), gradient_clip_val=0.5, **options).fit(module, loader())
    return module.state_dict()


@pytest.mark.parametrize("accumulated", [1, 4])  # an epoch has six batches
@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_a_module_learns_the_same_bits_as_with_lightning_alone(
    interval: str, accumulated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = FakeLink(EPOCHS)
    if interval == "epoch":  # a server knows how long an epoch is
        begin = link.begin

        def begin_knowing(spec: Any) -> None:
            begin(spec)
            link.store.epoch_samples = SAMPLES

        monkeypatch.setattr(link, "begin", begin_knowing)
    ours = learned(interval, link, accumulate_grad_batches=accumulated)
    assert [each.samples for each in link.pushed] == ([BATCH] * 6 if accumulated == 1 else [16, 8]) * EPOCHS
    if interval == "step" and accumulated == 4:
        return  # Lightning counts the last, smaller step of an epoch as a whole one; a schedule of samples does not
    for name, tensor in learned(interval, None, accumulate_grad_batches=accumulated).items():
        assert torch.equal(tensor, ours[name]), name


def test_what_an_epoch_leaves_of_an_accumulation_is_pushed_though_lightning_expects_more_batches() -> None:
    """A worker gets less than the whole of an epoch, whose length is what Lightning knows."""
    link = FakeLink(EPOCHS)
    worker = worker_of(link)
    batches, half = worker.batches, DataLoader(Subset(loader().dataset, range(SAMPLES // 2)), BATCH)
    worker.batches = lambda data: batches(half)  # type: ignore[assignment, method-assign]
    trainer(worker, accumulate_grad_batches=2).fit(Module(), loader())
    assert [each.samples for each in link.pushed] == [8, 4] * EPOCHS and not link.skipped


def test_a_batch_without_a_loss_is_skipped_and_validation_tells_what_the_module_logs() -> None:
    link, module = FakeLink(1), Module(skipped=2)
    trainer(worker_of(link)).fit(module, loader())
    assert len(link.pushed) == 5 and len(link.skipped) == 1
    figures = Validation(Module, loader())(module.state_dict())
    x, y = loader().dataset.tensors  # type: ignore[attr-defined]
    module.eval()
    assert figures == {"accuracy": pytest.approx(float((module.net(x).argmax(1) == y).float().mean()))}


class TwoOptimizers(Module):
    def configure_optimizers(self) -> Any:
        self.automatic_optimization = False
        return [torch.optim.SGD(self.parameters(), lr=0.1), torch.optim.SGD(self.parameters(), lr=0.1)]


def test_what_cannot_be_taken_over_is_told_in_a_sentence() -> None:
    def fit(module: Module, *loaders: Any, **options: Any) -> None:
        Trainer(strategy=PacelineStrategy(worker_of(FakeLink())), **{**QUIET, **options}).fit(module, *loaders)

    with pytest.raises(ConfigurationError, match=r"every worker would validate by itself: give .*limit_val_batches=0"):
        fit(Module(), loader(), loader(), limit_val_batches=1.0, num_sanity_val_steps=0)
    with pytest.raises(ConfigurationError, match="returns 2 optimizers and 0 schedulers; a run has one optimizer"):
        fit(TwoOptimizers(), loader())
    with pytest.raises(ConfigurationError, match="every 2 epochs cannot be taken over"):
        fit(Module("epoch", 2), loader())
    with pytest.raises(ConfigurationError, match="a run has one training loader"):
        fit(Module(), [loader(), loader()])
