"""Pictures of runs: learning curves, when workers compute and wait, what a policy estimated.

Needs matplotlib (`pip install 'paceline[report]'`). The format follows from the path's suffix (.svg, .png).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from paceline.core.errors import ConfigurationError
from paceline.recording.timeline import Span

Curve: TypeAlias = Sequence[tuple[float, float]]

# Colours that people who do not see all of them can tell apart (Okabe and Ito), then the same with dashes.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
DASHES = ("-", "--", ":", "-.")
MEAN_POINTS = 200
COMPUTES, WAITS = "#009E73", "#E69F00"


def draw(
    curves: Mapping[str, Sequence[Curve]],
    path: Path,
    *,
    title: str,
    across: str,
    up: str,
    target: float | None = None,
    logarithmic: bool = False,
) -> None:
    """One colour per name: the mean over its lines, and each of them faintly."""
    figure = _figure(7, 4.2)
    axes = figure.subplots()
    for number, (name, lines) in enumerate(curves.items()):
        drawn = [line for line in lines if line]
        if len(drawn) > 1:
            _draw_lines(axes, drawn, None, number, alpha=0.15)
            drawn = [mean_curve(drawn)]
        _draw_lines(axes, drawn, name, number)
    if target is not None:
        axes.axhline(target, color="#999999", linewidth=0.8, linestyle="--")
    axes.set(title=title, xlabel=across, ylabel=up)
    if logarithmic:
        axes.set(xscale="log", yscale="log")
    axes.grid(alpha=0.25)
    if axes.lines:
        axes.legend(frameon=False, fontsize=8)
    _save(figure, path)


def draw_panels(panels: Mapping[str, Mapping[str, Sequence[Curve]]], path: Path, *, title: str, across: str) -> None:
    """Several pictures of the same runs below each other, as steps; the keys are what goes up and whose curve it is."""
    figure = _figure(7, 1.2 + 1.5 * len(panels))
    several = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (up, curves) in zip(several, panels.items(), strict=True):
        for number, (name, lines) in enumerate(curves.items()):
            _draw_lines(axes, [line for line in lines if line], name, number, drawstyle="steps-post")
        axes.set_ylabel(up, fontsize=8)
        axes.grid(alpha=0.25)
    several[0].set_title(title)
    several[0].legend(frameon=False, fontsize=8)
    several[-1].set_xlabel(across)
    _save(figure, path)


def draw_gantt(groups: Mapping[str, Sequence[Sequence[Span]]], path: Path, *, title: str, across: str) -> None:
    """A strip per worker below each name: when it computes and when it waits."""
    from matplotlib.patches import Patch

    rows = sum(len(workers) + 1.5 for workers in groups.values())
    figure = _figure(9, 1 + 0.18 * rows)
    axes = figure.subplots()
    at, end = 0.0, 0.0
    for name, workers in groups.items():
        axes.text(0, at, name, fontsize=7, va="center")
        end = max([end, *(span.end for spans in workers for span in spans)])
        for spans in workers:
            at += 1
            for waiting, colour in ((False, COMPUTES), (True, WAITS)):
                bars = [(span.begin, span.end - span.begin) for span in spans if span.waiting is waiting]
                axes.broken_barh(bars, (at - 0.4, 0.8), facecolors=colour, edgecolors="white", linewidth=0.4)
        at += 1.5
    axes.set_title(title, loc="left", fontsize=10)
    axes.set(xlabel=across, xlim=(0, end), ylim=(at - 0.5, -0.8), yticks=[])
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    patches = [Patch(color=COMPUTES, label="computes"), Patch(color=WAITS, label="waits")]
    axes.legend(handles=patches, frameon=False, fontsize=8, ncols=2, loc="lower right", bbox_to_anchor=(1, 1))
    _save(figure, path)


def mean_curve(lines: Sequence[Curve]) -> Curve:
    """The mean of several curves where all of them are, with straight lines between their points."""
    begin, end = max(line[0][0] for line in lines), min(line[-1][0] for line in lines)
    grid = np.linspace(begin, max(begin, end), MEAN_POINTS)
    values = [np.interp(grid, [x for x, _ in line], [y for _, y in line]) for line in lines]
    return list(zip(grid.tolist(), np.mean(values, axis=0).tolist(), strict=True))


def _draw_lines(axes: Any, lines: Sequence[Curve], name: str | None, number: int, **given: Any) -> None:
    colour, dashes = COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]
    style = {"color": colour, "linestyle": dashes, "linewidth": 1.4, "alpha": 0.9, **given}
    for line in lines:
        x, y = zip(*line, strict=True)
        axes.plot(x, y, label=name if line is lines[0] else None, **style)


def _figure(width: float, height: float) -> Any:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigurationError("plots need matplotlib: pip install 'paceline[report]'") from None
    mpl.rcParams["svg.hashsalt"] = "paceline"  # the same curves give the same bytes
    return Figure(figsize=(width, height))


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, bbox_inches="tight", dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
