"""The table of a profile: where the time of every worker went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rich.box import SIMPLE_HEAD
from rich.table import Table

from paceline.report.tables import percent

PARTS = ("compute", "data", "push", "wait", "pull")


class Shared(Protocol):
    """What is known of a worker: seconds, by what it did."""

    @property
    def worker(self) -> int: ...
    @property
    def elapsed(self) -> float: ...
    @property
    def steps(self) -> int: ...


def profile_table(shares: Sequence[Shared]) -> Table:
    """One row per worker, whose parts add up to the time that it ran, and what a step takes."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for heading in ("worker", "seconds", *PARTS, "steps", "ms per step"):
        table.add_column(heading, justify="right", no_wrap=True)
    for share in shares:
        table.add_row(
            str(share.worker),
            f"{share.elapsed:.1f}",
            *(percent(getattr(share, part) / share.elapsed) for part in PARTS),
            f"{share.steps:,}",
            f"{1e3 * share.elapsed / share.steps:.3g}",
        )
    return table
