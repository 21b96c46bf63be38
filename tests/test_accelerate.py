"""Accelerate's own loop, with the real Accelerate: the same bits as without paceline."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from fake_link import FakeLink
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from paceline.integrations.accelerate import prepare
from paceline.training.worker import Worker

SAMPLES, BATCH, EPOCHS = 24, 4, 3


def loader() -> DataLoader[Any]:
    x = torch.randn(SAMPLES, 3, generator=torch.Generator().manual_seed(8))
    # With a generator of its own the loader draws nothing from the random numbers that dropout uses.
    return DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), BATCH, generator=torch.Generator())


def learned(accelerator: Accelerator, worker: Worker | None) -> dict[str, Tensor]:
    torch.manual_seed(3)
    model: nn.Module = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.2), nn.Linear(5, 2))
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler: Any = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    things = (model, optimizer, loader(), scheduler)
    prepared = accelerator.prepare(*things) if worker is None else prepare(accelerator, worker, *things)
    model, optimizer, batches, scheduler = prepared
    for _ in range(EPOCHS):
        for x, y in batches:
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), y))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    return model.state_dict()


@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_loop_of_accelerate_learns_the_same_bits(accumulated: int) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulated)
    alone, link = learned(accelerator, None), FakeLink(EPOCHS)
    ours = learned(accelerator, Worker(0, link, seed=0, epochs=EPOCHS))
    assert [each.samples for each in link.pushed] == [BATCH * accumulated] * (18 // accumulated)
    for name, tensor in alone.items():
        assert torch.equal(tensor, ours[name]), name


def test_what_an_epoch_leaves_of_an_accumulation_is_pushed() -> None:
    link = FakeLink(EPOCHS)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    learned(accelerator, Worker(0, link, seed=0, epochs=EPOCHS))
    assert [each.samples for each in link.pushed] == [16, 8] * EPOCHS and not link.skipped
