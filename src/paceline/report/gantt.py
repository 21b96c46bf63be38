"""A strip of text per worker: when it computes and when it waits, in the first seconds of a run."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from paceline.recording.timeline import Span, Timeline

COMPUTING, WAITING, ABSENT, CHANGED = "█", "░", " ", "▼"
STYLES = {COMPUTING: "green", WAITING: "yellow", ABSENT: ""}
MOST_STRIPS = 12
WIDEST_STRIP = 120


def gantt(title: str, timeline: Timeline, end: float, width: int) -> Text:
    """A heading and one line per worker; of many workers only the first and the last."""
    spans = timeline.spans(end)
    until = min(timeline.until, end)
    workers = list(spans)
    shown = workers if len(workers) <= MOST_STRIPS else workers[: MOST_STRIPS - 1] + workers[-1:]
    label = max((len(str(worker)) for worker in workers), default=1)
    cells = max(10, min(width, WIDEST_STRIP) - label - 4)
    strip = Text()
    strip.append(title, style="bold")
    changes = "".join(f", {policy} from {time:g}" for time, policy in timeline.changes)
    strip.append(f"  0 to {until:g}{changes}\n", style="dim")
    if timeline.changes:
        marked = {min(cells - 1, int(time / until * cells)) for time, _ in timeline.changes}
        strip.append(" " * (label + 3) + "".join(CHANGED if cell in marked else " " for cell in range(cells)).rstrip())
        strip.append("\n")
    for worker in shown:
        if worker == shown[-1] and len(shown) < len(workers):
            strip.append(f"  {'⋮':>{label}} {len(workers) - len(shown)} more\n", style="dim")
        strip.append(f"  {worker:>{label}} ")
        for cell in _cells(spans[worker], until, cells):
            strip.append(cell, style=STYLES[cell])
        strip.append("\n")
    return strip


def legend() -> Text:
    """What the two shades mean."""
    computes, waits = (COMPUTING, STYLES[COMPUTING]), (WAITING, STYLES[WAITING])
    return Text.assemble(computes, (" computes  ", "dim"), waits, (" waits\n", "dim"))


def _cells(spans: Sequence[Span], end: float, width: int) -> list[str]:
    """What the worker does in the middle of each cell. A push that is released at once leaves no mark of its own."""
    cells = [ABSENT] * width
    at = 0
    for cell in range(width):
        moment = (cell + 0.5) * end / width
        while at < len(spans) and spans[at].end <= moment:
            at += 1
        if at < len(spans) and spans[at].begin <= moment:
            cells[cell] = WAITING if spans[at].waiting else COMPUTING
    return cells
