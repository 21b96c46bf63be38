"""Prediction of iteration ends, and the exact search for the barrier at which they lie closest together."""

from __future__ import annotations

from paceline.zipline.barrier import Barrier, Points, predict
from paceline.zipline.sweep import sweep


def search(points: Points) -> Barrier:
    """The set of one point per row with the smallest spread; the earliest such set on a tie."""
    return sweep(points)


__all__ = ["Barrier", "predict", "search"]
