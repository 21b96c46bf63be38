"""ElasticBSP's table 2: how long each search for the barrier takes, over the number of workers and of predictions."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from paceline.experiment.reproduction.page import Claim, Page, Section
from paceline.experiment.reproduction.request import ExperimentRequest
from paceline.report.plots import Curve, draw
from paceline.zipline import EXACT, predict, search

SIZES = ((10, 15), (10, 150), (100, 15), (100, 150), (1_000, 15), (1_000, 150))  # workers n, predictions R
# Microseconds in C++ on a 2.4 GHz Xeon E5-2620 v3, from the papers; the last two rows were read off a plot.
PUBLISHED: dict[str, tuple[int | None, ...]] = {
    "zipline": (149, 1_320, 6_370, 49_900, 253_000, 2_380_000),
    "full-grid-scan": (1_540, 46_700, 81_300, 2_150_000, 4_040_000, 207_000_000),
    "grid-scan": (168, 5_500, 1_110, 43_800, 7_450, 257_000),
    "zipline-opt": (None, None, 2_800, 21_000, 94_000, 780_000),
    "zipline-opt-bs": (None, None, 2_900, 23_000, 77_000, 570_000),
}
OURS = "sweep"
FASTEST = 1000  # milliseconds: the shortest interval in the authors' data
MOST_SECONDS = 40.0  # a search that would take longer is left out, unless all is asked for
QUALITY = ((3, 4), (5, 10), (10, 15), (30, 15))  # sizes at which the found sets are compared
DRAWS = 200
MEASURED = "times.json"


def authors_data(
    workers: int, lookahead: int, seed: int | None = None, fastest: int = FASTEST
) -> npt.NDArray[np.float64]:
    """The papers' synthetic workers: intervals uniform in 1000..1500 whole milliseconds, begun within 100 ms."""
    random = np.random.default_rng(workers * 1_000 + lookahead if seed is None else seed)
    points: npt.NDArray[np.float64]
    points = predict(random.integers(0, 101, workers), random.integers(fastest, 1501, workers), lookahead)
    return points


def seconds_of(points: npt.NDArray[np.float64], algorithm: str) -> float:
    """The best of several runs: at least three, more while they are short."""
    best, spent, runs = float("inf"), 0.0, 0
    while runs < 3 or (spent < 0.5 and runs < 2_000):
        begin = time.perf_counter()
        search(points, algorithm)
        took = time.perf_counter() - begin
        best, spent, runs = min(best, took), spent + took, runs + 1
        if took > 2:
            break
    return best


def search_times(request: ExperimentRequest) -> Page:
    measured = _measured(request.folder / MEASURED, float("inf") if request.full else MOST_SECONDS)
    return Page(
        "ElasticBSP, table 2: search times",
        "X. Zhao et al., Elastic bulk synchronous parallel model for distributed deep learning, ICDM 2019 (arXiv"
        " 2001.01347), table 2; ZipLineOpt and ZipLineOptBS: the journal paper, Machine Learning 2021.",
        "The authors' synthetic workers: intervals uniform in 1000..1500 ms, begun within 100 ms. The papers measured"
        " C++ on a 2.4 GHz Xeon E5-2620 v3; ours is Python, the published algorithms written as printed, so compare"
        f" columns, not absolute times. `{OURS}` is paceline's own exact search (docs/zipline.md). A dash: it would"
        f" take longer than {MOST_SECONDS:g} s, and --full runs it all the same.",
        [*_claims_about_time(measured), *_claims_about_quality()],
        [_times(measured, request.folder)],
    )


def _measured(path: Path, most: float) -> dict[str, dict[str, float]]:
    """Seconds by algorithm and size; those that are in the file are not measured again."""
    known: dict[str, dict[str, float]] = {}
    if path.exists():
        known = msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, float]])
    for workers, lookahead in SIZES:
        points = authors_data(workers, lookahead)
        for name in (*PUBLISHED, OURS):
            mine = known.setdefault(name, {})
            if _key(workers, lookahead) in mine or _expected(workers, lookahead, mine) > most:
                continue
            mine[_key(workers, lookahead)] = seconds_of(points, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(msgspec.json.format(msgspec.json.encode(known)) + b"\n")
    return known


def _expected(workers: int, lookahead: int, mine: dict[str, float]) -> float:
    """From a tenth of the workers: none of the searches grows faster than with the square of them."""
    if (workers // 10, lookahead) not in SIZES:
        return 0.0
    return 100 * mine.get(_key(workers // 10, lookahead), float("inf"))


def _key(workers: int, lookahead: int) -> str:
    return f"n={workers},R={lookahead}"


def _times(measured: dict[str, dict[str, float]], folder: Path) -> Section:
    cells = []
    for name in (*PUBLISHED, OURS):
        ours = [measured[name].get(_key(*size)) for size in SIZES]
        cells.append([f"{name}, here", *("-" if seconds is None else f"{seconds * 1e6:,.0f}" for seconds in ours)])
        if name in PUBLISHED:
            printed = ["-" if microseconds is None else f"{microseconds:,}" for microseconds in PUBLISHED[name]]
            cells.append([f"{name}, paper", *printed])
    curves: dict[str, list[Curve]] = {
        f"{name}, R={lookahead}": [
            [
                (workers, measured[name][_key(workers, lookahead)] * 1e3)
                for workers, other in SIZES
                if other == lookahead and _key(workers, lookahead) in measured[name]
            ]
        ]
        for lookahead in (15, 150)
        for name in (*PUBLISHED, OURS)
    }
    picture = folder / "search-times.svg"
    draw(curves, picture, title="time of one search", across="workers n", up="milliseconds", logarithmic=True)
    headings = ["microseconds", *(f"n={workers} R={lookahead}" for workers, lookahead in SIZES)]
    return Section("Search times", "", headings, cells, [("time of one search over n", picture)])


def _claims_about_time(measured: dict[str, dict[str, float]]) -> list[Claim]:
    """Each compares one algorithm with another, wherever both were measured."""
    return [
        _faster("zipline", "full-grid-scan", measured, SIZES),
        _faster("grid-scan", "zipline", measured, SIZES[2:]),
        _faster("zipline-opt", "zipline", measured, SIZES[2:]),
        _faster("zipline-opt-bs", "zipline", measured, SIZES[2:]),
        _faster("zipline-opt-bs", "zipline-opt", measured, SIZES[4:]),
    ]


def _faster(fast: str, slow: str, measured: dict[str, dict[str, float]], sizes: tuple[tuple[int, int], ...]) -> Claim:
    printed, seen = [], []
    for size in sizes:
        at = SIZES.index(size)
        theirs, other = PUBLISHED[slow][at], PUBLISHED[fast][at]
        ours = measured[slow].get(_key(*size)), measured[fast].get(_key(*size))
        if theirs is not None and other is not None:
            printed.append(f"{theirs / other:,.1f}x")
            seen.append(ours[0] / ours[1] if ours[0] is not None and ours[1] is not None else None)
    known = [ratio for ratio in seen if ratio is not None]
    where = ", ".join(f"n={workers} R={lookahead}" for workers, lookahead in sizes)
    return Claim(
        f"{fast} is faster than {slow}: {', '.join(printed)} ({where})",
        ", ".join("-" if ratio is None else f"{ratio:,.1f}x" for ratio in seen),
        bool(known) and min(known) > 1,
    )


def _claims_about_quality() -> list[Claim]:
    """Exact algorithms find the smallest spread; the grid scans are heuristics."""
    alike, unlike = _missed(FASTEST), _missed(FASTEST // 10)
    exact = [name for name in alike if name in EXACT]
    scans = ("grid-scan", "full-grid-scan")
    drawn = len(QUALITY) * DRAWS
    return [
        Claim(
            "ZipLine and its variants find the smallest spread",
            f"missed in {sum(alike[name] + unlike[name] for name in exact)} of {2 * drawn} draws",
            not any(alike[name] + unlike[name] for name in exact),
        ),
        Claim(
            "GridScan and FullGridScan are heuristics, which do not always find it",
            ", ".join(f"{name} missed it in {alike[name]} of {drawn} draws of the authors' data" for name in scans)
            + f"; of workers up to 15 times as fast as others in {unlike[scans[0]]} and {unlike[scans[1]]}",
            unlike[scans[0]] > 0 and unlike[scans[1]] > 0,
        ),
    ]


def _missed(fastest: int) -> dict[str, int]:
    """How often each algorithm found a larger spread than the best of them."""
    missed = dict.fromkeys((*PUBLISHED, OURS), 0)
    for workers, lookahead in QUALITY:
        for seed in range(DRAWS):
            points = authors_data(workers, lookahead, seed, fastest)
            names = (*missed, "naive") if lookahead**workers <= 100 else tuple(missed)
            spread = {name: search(points, name).spread for name in names}
            for name in missed:
                missed[name] += spread[name] > min(spread.values())
    return missed
