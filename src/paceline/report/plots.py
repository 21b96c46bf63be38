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
Marks: TypeAlias = Sequence[tuple[float, str]]

# Colours that people who do not see all of them can tell apart (Okabe and Ito), then the same with dashes.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
DASHES = ("-", "--", ":", "-.")
MEAN_POINTS = 200
RISING, MARGIN = 0.2, 0.05  # parts of a curve's length, and of the axis
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
    caption: str = "",
    focused: bool = False,
    marks: Marks = (),
) -> None:
    """One colour per name: the mean over its lines, and each of them faintly. `caption`: a line below the title.

    `marks`: what happened, and where across. `focused`: leave out the steep beginning of the curves, so that the rest
    can be told apart.
    """
    figure = _figure(7, 4.2)
    axes = figure.subplots()
    means = []
    for number, (name, lines) in enumerate(curves.items()):
        drawn = [line for line in lines if line]
        if len(drawn) > 1:
            _draw_lines(axes, drawn, None, number, alpha=0.15)
            drawn = [mean_curve(drawn)]
        _draw_lines(axes, drawn, name, number)
        means += drawn
    if target is not None:
        axes.axhline(target, color="#999999", linewidth=0.8, linestyle="--", label=f"target {target:g}")
    _mark(axes, marks)
    axes.set(xlabel=across, ylabel=up)
    _write_titles(axes, title, caption)
    if logarithmic:
        axes.set(xscale="log", yscale="log")
    limits = focus(means, target, [line for lines in curves.values() for line in lines]) if focused else None
    if limits is not None:
        axes.set_ylim(*limits)
    axes.grid(alpha=0.25)
    if axes.lines:
        axes.legend(frameon=False, fontsize=8)
    _save(figure, path)


def focus(curves: Sequence[Curve], target: float | None, beside: Sequence[Curve] = ()) -> tuple[float, float] | None:
    """The part of the upright axis in which the curves are once they have risen, with the target; None: all of it.

    A curve has risen after a fifth of its length. One that stays low is seen all the same: it never leaves the range.
    `beside`: curves of which nothing is cut off at the top.
    """
    risen = [y for line in curves for x, y in line if x >= line[0][0] + RISING * (line[-1][0] - line[0][0])]
    if not risen:
        return None
    wanted = [*risen, *([] if target is None else [target])]
    low, high = min(wanted), max([*wanted, *(y for line in beside for _, y in line)])
    margin = MARGIN * (high - low)
    return (low - margin, high + margin) if margin > 0 else None


def draw_panels(
    panels: Mapping[str, Mapping[str, Sequence[Curve]]], path: Path, *, title: str, across: str, caption: str = ""
) -> None:
    """Several pictures of the same runs below each other, as steps; the keys are what goes up and whose curve it is."""
    figure = _figure(7, 1.2 + 1.5 * len(panels))
    several = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (up, curves) in zip(several, panels.items(), strict=True):
        for number, (name, lines) in enumerate(curves.items()):
            _draw_lines(axes, [line for line in lines if line], name, number, drawstyle="steps-post")
        axes.set_ylabel(up, fontsize=8)
        axes.grid(alpha=0.25)
    _write_titles(several[0], title, caption)
    several[0].legend(frameon=False, fontsize=8)
    several[-1].set_xlabel(across)
    _save(figure, path)


def draw_gantt(
    groups: Mapping[str, Sequence[Sequence[Span]]],
    path: Path,
    *,
    title: str,
    across: str,
    caption: str = "",
    marks: Marks = (),
) -> None:
    """A strip per worker below each name: when it computes and when it waits. Workers are numbered from 0."""
    from matplotlib.patches import Patch

    rows = sum(len(workers) + 1.5 for workers in groups.values())
    figure = _figure(9, 1 + 0.18 * rows)
    axes = figure.subplots()
    at, end = 0.0, 0.0
    numbered: list[tuple[float, str]] = []
    for name, workers in groups.items():
        axes.text(0, at, name, fontsize=7, va="center")
        end = max([end, *(span.end for spans in workers for span in spans)])
        for worker, spans in enumerate(workers):
            at += 1
            numbered.append((at, str(worker)))
            for waiting, colour in ((False, COMPUTES), (True, WAITS)):
                bars = [(span.begin, span.end - span.begin) for span in spans if span.waiting is waiting]
                axes.broken_barh(bars, (at - 0.4, 0.8), facecolors=colour, edgecolors="white", linewidth=0.4)
        at += 1.5
    _mark(axes, [mark for mark in marks if mark[0] < end])
    _write_titles(axes, title, caption)
    axes.set(xlabel=across, ylabel="worker", xlim=(0, end), ylim=(at - 0.5, -0.8))
    axes.set_yticks([place for place, _ in numbered], [number for _, number in numbered], fontsize=6)
    axes.tick_params(axis="y", length=0, pad=1)
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


def _mark(axes: Any, marks: Marks) -> None:
    for place, what in marks:
        axes.axvline(place, color="#666666", linewidth=0.8, linestyle=":")
        where = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        axes.annotate(what, (place, 1.0), xytext=(2, -2), fontsize=6, va="top", rotation=90, **where)


def _write_titles(axes: Any, title: str, caption: str) -> None:
    """The title, and below it, smaller, what the picture is of."""
    axes.set_title(f"{title}\n" if caption else title, loc="left", fontsize=10)
    if caption:
        axes.text(0, 1.02, caption, transform=axes.transAxes, fontsize=7, color="#555555", va="bottom")


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
