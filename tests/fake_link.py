"""A worker's way to a server that is no process: a real segment in a plain tensor, a real ledger and a real store."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from paceline.core.messages import Unit
from paceline.lifecycle.work import Work, WorkLedger
from paceline.training.choices import UpdateOptions
from paceline.training.layout import Layout, Segment, layout_of
from paceline.training.optimizers import OptimizerSpec
from paceline.training.parameters import ParameterStore
from paceline.training.updates import Contribution

# The first optimizer of a process makes torch import its compiler: a second or two that belong to no test.
torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)


class Pushed(NamedTuple):
    samples: int
    units: int
    loss: float | None
    gradient: torch.Tensor
    squared_norm: float


class FakeLink:
    """The server of one worker: every push is an update of its own, at the full learning rate."""

    def __init__(self, epochs: int = 1) -> None:
        self.epochs = epochs
        self.ledger: WorkLedger | None = None
        self.pushed: list[Pushed] = []
        self.skipped: list[int] = []  # units
        self.paused: list[float] = []  # seconds
        self.work: Work | None = None
        self.keep_wanted = False
        self.kept: list[bytes] = []
        self.logged: list[dict[str, float]] = []
        self.group_begins_with: torch.Tensor | None = None  # parameters of a group that this worker joins late

    def enter(self, layout: Layout) -> Segment:
        self.segment = segment_of(layout)
        return self.segment

    def begin(self, spec: OptimizerSpec) -> None:
        if self.group_begins_with is not None:
            self.segment.parameters.copy_(self.group_begins_with)
        self.spec = spec
        self.store = ParameterStore(self.segment.layout, self.segment.parameters, spec)

    @property
    def keeps(self) -> bool:
        return self.keep_wanted

    def keep(self, state: bytes) -> None:
        self.kept.append(state)

    def log(self, figures: dict[str, float]) -> None:
        self.logged.append(figures)

    def lease(self, work: Work) -> tuple[Unit | None, bool]:
        self.work = work
        if self.ledger is None:
            self.ledger = WorkLedger(work.samples, self.epochs)
        return self.ledger.lease(0, work.batch_size), False

    def push(self, samples: int, units: int, loss: float | None, squared_norm: float) -> None:
        self.pushed.append(Pushed(samples, units, loss, self.segment.gradient.clone(), squared_norm))
        self.store.apply([Contribution(self.segment.gradient, samples)], samples)
        if self.ledger is not None:
            self.ledger.finish(self.ledger.hand_in(0, units))
        self.segment.parameters.copy_(self.store.flat)

    def skip(self, samples: int, units: int) -> None:
        self.skipped.append(units)
        if self.ledger is not None:
            self.ledger.drop(0, units)

    def pause(self, seconds: float) -> None:
        self.paused.append(seconds)


def segment_of(layout: Layout) -> Segment:
    return Segment(layout, torch.zeros(layout.segment_bytes, dtype=torch.uint8))


def flat_of(model: nn.Module) -> torch.Tensor:
    """The trained parameters of a model, one after another."""
    return torch.cat([each.detach().reshape(-1) for each in model.parameters() if each.requires_grad])


def store_of(
    model: nn.Module,
    kind: type[torch.optim.Optimizer] = torch.optim.SGD,
    lr_scaling: str = "linear",
    **arguments: object,
) -> ParameterStore:
    layout = layout_of(model)
    names = [entry.name for entry in layout.parameters]
    return ParameterStore(
        layout, flat_of(model), OptimizerSpec(kind, dict(arguments), [(names, {})]), UpdateOptions(lr_scaling)
    )
