"""ElasticBSP's scheduler: prediction of iteration ends, and every search for the barrier where they lie closest.

    points = predict(last_push, interval, lookahead)      # a row of predicted ends per worker
    barrier = search(points)                              # one end per worker, as close together as possible

Papers: X. Zhao et al., Elastic bulk synchronous parallel model for distributed deep learning, ICDM 2019 (arXiv
2001.01347: GridScan, FullGridScan, ZipLine), and the ZipLine journal paper, Machine Learning 2021 (ZipLineOpt,
ZipLineOptBS). `sweep` is our own. Every exact algorithm returns the same set: smallest spread, then the earliest
latest point in the order (time, worker, index), then the newest point of each worker not after it.
"""

from __future__ import annotations

from collections.abc import Callable

from paceline.zipline.barrier import Barrier, predict
from paceline.zipline.combinations import naive
from paceline.zipline.grid_scans import full_grid_scan, grid_scan
from paceline.zipline.objectives import OBJECTIVES, beginning, sweep_waits
from paceline.zipline.rows import Points, Rows, as_rows
from paceline.zipline.scans import zipline, zipline_opt, zipline_opt_bs
from paceline.zipline.sweeping import sweep

ALGORITHMS: dict[str, Callable[[Rows], Barrier]] = {
    "naive": naive,
    "grid-scan": grid_scan,
    "full-grid-scan": full_grid_scan,
    "zipline": zipline,
    "zipline-opt": zipline_opt,
    "zipline-opt-bs": zipline_opt_bs,
    "sweep": sweep,
}
EXACT = ("naive", "zipline", "zipline-opt", "zipline-opt-bs", "sweep")


def search(points: Points, algorithm: str = "sweep", objective: str = "spread", start: float | None = None) -> Barrier:
    """Choose one point per row so that they lie close together.

    `points`: a matrix, or rows of different lengths; each in order. `objective`: spread, total or share; only `sweep`
    and `naive` know the last two. `start`: when the superstep began, for share; else it is read off the points.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {algorithm!r}; there are: {', '.join(ALGORITHMS)}")
    if objective not in OBJECTIVES:
        raise ValueError(f"unknown objective {objective!r}; there are: {', '.join(OBJECTIVES)}")
    rows = as_rows(points)
    if objective == "spread":
        return ALGORITHMS[algorithm](rows)
    began = beginning(rows) if start is None else start
    if algorithm == "sweep":
        return sweep_waits(rows, objective, began)
    if algorithm == "naive":
        return naive(rows, objective, began)
    raise ValueError(f"{algorithm} knows only the objective spread; {objective} needs sweep or naive")


__all__ = ["ALGORITHMS", "EXACT", "OBJECTIVES", "Barrier", "predict", "search"]
