"""Where the parameters are: with the server, or with other processes that it tells what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from torch import Tensor

from paceline.core.messages import DataOpened, Gradient, UpdateApplied, UpdateRule
from paceline.lifecycle.messages import MakeUpdate
from paceline.lifecycle.validation import PortView
from paceline.runtimes.serving.loop import Loop
from paceline.runtimes.serving.messages import ToServer
from paceline.training.choices import UpdateOptions
from paceline.training.layout import Layout, Segment
from paceline.training.optimizers import OptimizerSpec
from paceline.training.schedule import Figure


class Store(Protocol):
    """What a server asks of a ParameterStore."""

    layout: Layout
    spec: OptimizerSpec

    @property
    def version(self) -> int: ...
    @property
    def samples(self) -> int: ...
    @property
    def epoch_samples(self) -> int | None: ...
    @property
    def rates(self) -> tuple[float, ...]: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def digest(self) -> int | None: ...
    @property
    def flat(self) -> Tensor: ...
    @property
    def parameters(self) -> dict[str, Tensor]: ...
    @property
    def wants_figures(self) -> bool: ...
    def figure_of(self, figures: Mapping[str, float]) -> Figure | None: ...
    def feed(self, value: float) -> None: ...
    def open(self, opened: DataOpened) -> None: ...
    def rule_for(self, may_be_stale: bool | None = None, *, statistics: bool = False) -> UpdateRule: ...
    def optimizer_state(self) -> dict[str, Any]: ...


class Holding(Protocol):
    """What a server asks of an Aggregation."""

    @property
    def store(self) -> Store: ...
    def hand_in(
        self,
        seat: int,
        gradient: Tensor,
        squared_norm: float | None = None,
        pulled: Tensor | None = None,
        absent: tuple[int, ...] = (),
    ) -> None: ...
    def hand_out(self, seat: int, segment: Segment) -> None: ...
    def set_aside(self, gradient: Gradient, seat: int, version: int) -> None: ...
    def discard(self, gradient: Gradient, seat: int) -> None: ...
    def forget(self, seat: int) -> None: ...
    def make_update(self, command: MakeUpdate) -> UpdateApplied | None: ...
    def everything(self, pending: Iterable[tuple[Gradient, int]]) -> tuple[dict[str, Any], list[Any]]:
        """All that a checkpoint holds beside the model: the state of the store, and the gradients without a fate."""

    def view(self) -> PortView: ...


class Elsewhere(Protocol):
    """Other processes that hold the parameters, each a part."""

    def attach(
        self, loop: Loop, redeliver: Callable[[int, ToServer], None], deliver: Callable[[UpdateApplied], None]
    ) -> None:
        """The loop of the run begins. `redeliver`: for words of a worker that waited for something; `deliver`: for
        updates that are made."""

    @property
    def is_lost(self) -> bool:
        """Whether one of them is gone, and its part of the parameters with it."""

    def look_closely(self) -> None:
        """The group is given up: raise if one of them is lost, too."""

    def is_complete(self, seat: int, message: ToServer) -> bool:
        """Whether all that belongs to a worker's word is there; if not, it is delivered again when it is."""

    def begin(
        self,
        layout: Layout,
        spec: OptimizerSpec,
        options: UpdateOptions,
        *,
        statistics: bool,
        first: int,
        hand_over: Callable[[], None],
        has_ended: Callable[[], bool],
        resumed: tuple[Tensor, dict[str, Any], list[Any]] | None,
    ) -> Holding:
        """The group begins with the parameters of the `first` seat, which `hand_over` tells to give them, or goes on
        from a checkpoint."""

    def forget(self, seat: int) -> None: ...
