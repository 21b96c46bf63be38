"""What a worker needs of whatever connects it with a server: a pipe, a simulator, a test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from paceline.core.messages import Unit
from paceline.lifecycle.messages import Place
from paceline.lifecycle.work import Work
from paceline.training.early import WayAhead
from paceline.training.layout import Layout, Segment
from paceline.training.optimizers import OptimizerSpec


class Link(Protocol):
    """A worker's way to the server. Every method returns when the worker may go on."""

    def enter(self, layout: Layout) -> Segment:
        """Map the segment, for the model to move in."""

    def begin(self, spec: OptimizerSpec) -> None:
        """Ask to become a member; afterwards the segment holds the server's parameters."""

    def lease(self, work: Work) -> tuple[Unit | None, bool]:
        """The next unit, if there is one, and whether new parameters came with it: the worker may have waited long."""

    def take(self) -> Unit | None:
        """The next unit, if it is here already."""

    @property
    def prefetches(self) -> bool:
        """Whether units may be taken before they are used."""

    @property
    def place(self) -> Place:
        """Among the workers of the group, as of the latest parameters."""

    @property
    def ahead(self) -> WayAhead | None:
        """How gradients may go ahead of their push; None: they do not travel, or not as they are. Known once it has
        begun."""

    def push(
        self, samples: int, units: int, loss: float | None, squared_norm: float, absent: tuple[int, ...] = ()
    ) -> None:
        """Hand in the gradient in the segment, wait as the policy says, and come back with new parameters.

        `absent`: the numbers of the parameters that it is not about.
        """

    @property
    def rates(self) -> Sequence[float]:
        """Learning rates of the parameter groups, as they came with parameters; none: nobody told them."""

    @property
    def enough(self) -> bool:
        """Whether a worker with batches of its own has done what it had to."""

    def optimizer_state(self) -> dict[str, Any]:
        """The optimizer's state_dict, as it is on the server now."""

    @property
    def keeps(self) -> bool:
        """Whether the next push shall come with the worker's state."""

    def keep(self, state: bytes) -> None:
        """Hand over the worker's state, just before a push."""

    def log(self, figures: dict[str, float]) -> None:
        """Hand over figures of the loop's own. It does not wait."""

    def skip(self, samples: int, units: int) -> None:
        """These samples yield no gradient: count them as dropped."""

    def pause(self, seconds: float) -> None:
        """Do nothing for so long, or until the server interrupts."""
