"""Counts what a search looks at, so that its cost can be shown without a clock."""

from __future__ import annotations


class Operations:
    """How many elements a search compared or visited, sorting apart."""

    def __init__(self) -> None:
        self.count = 0
