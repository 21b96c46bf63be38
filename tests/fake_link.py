"""A worker's way to a server that is no process: a real segment in a plain tensor, a real ledger and a real store."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import torch
from torch import nn

from paceline.core.messages import Unit
from paceline.lifecycle.messages import Place
from paceline.lifecycle.plan import plan_of
from paceline.lifecycle.work import NO_LIMIT, Limit, Work, WorkLedger
from paceline.training.choices import UpdateOptions
from paceline.training.early import WayAhead
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

    def __init__(self, epochs: int | None = 1, limit: Limit = NO_LIMIT) -> None:
        self.epochs = epochs
        self.limit = limit
        self.enough = False
        self.ledger: WorkLedger | None = None
        self.pushed: list[Pushed] = []
        self.skipped: list[int] = []  # units
        self.paused: list[float] = []  # seconds
        self.work: Work | None = None
        self.keep_wanted = False
        self.kept: list[bytes] = []
        self.place = Place()
        self.prefetches = True
        self.ahead: WayAhead | None = None
        self.here: deque[Unit] = deque()  # units that were leased ahead
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
            self.ledger = WorkLedger(work.samples, self.epochs, limit=self.limit)
            if hasattr(self, "store"):
                self.store.open(plan_of(work, self.epochs, self.limit, 1))
        unit = self.here.popleft() if self.here else self.ledger.lease(0, work.batch_size)
        self._top_up()
        return unit, False

    def take(self) -> Unit | None:
        return self.here.popleft() if self.here else None

    def _top_up(self) -> None:
        """As a server does: as many ahead as the worker wants, beside the one that it is at."""
        assert self.ledger is not None and self.work is not None
        while self.ledger.leased_by(0) < 1 + self.work.ahead:
            unit = self.ledger.lease(0, self.work.batch_size)
            if unit is None:
                return
            self.here.append(unit)

    @property
    def rates(self) -> tuple[float, ...]:
        return self.store.rates

    def optimizer_state(self) -> dict[str, Any]:
        return self.store.optimizer_state()

    def push(
        self, samples: int, units: int, loss: float | None, squared_norm: float, absent: tuple[int, ...] = ()
    ) -> None:
        self.pushed.append(Pushed(samples, units, loss, self.segment.gradient.clone(), squared_norm))
        self.store.apply([Contribution(self.segment.gradient, samples, absent=absent)], samples)
        if self.ledger is not None:
            self.ledger.finish(self.ledger.hand_in(0, units))
            if self.work is not None and self.work.ahead:
                self._top_up()
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
