"""Learning curves as pictures. Needs matplotlib (`pip install 'paceline[report]'`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from paceline.core.errors import ConfigurationError

Curve: TypeAlias = Sequence[tuple[float, float]]

# Colours that people who do not see all of them can tell apart (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")


def draw(
    curves: Mapping[str, Sequence[Curve]],
    path: Path,
    *,
    title: str,
    across: str,
    up: str,
    target: float | None = None,
    steps: bool = False,
) -> None:
    """One colour per name, one line per seed; the format follows from the path's suffix (.svg, .png)."""
    figure, axes = _figure()
    for number, (name, lines) in enumerate(curves.items()):
        for line in lines:
            if line:
                x, y = zip(*line, strict=True)
                label = name if line is lines[0] else None
                colour = COLOURS[number % len(COLOURS)]
                style = "steps-post" if steps else "default"
                axes.plot(x, y, color=colour, label=label, linewidth=1.2, alpha=0.8, drawstyle=style)
    if target is not None:
        axes.axhline(target, color="#999999", linewidth=0.8, linestyle="--")
    axes.set(title=title, xlabel=across, ylabel=up)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None} if path.suffix == ".svg" else None)


def _figure() -> tuple[Any, Any]:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigurationError("plots need matplotlib: pip install 'paceline[report]'") from None
    mpl.rcParams["svg.hashsalt"] = "paceline"  # the same curves give the same bytes
    figure = Figure(figsize=(7, 4.2))
    return figure, figure.subplots()
