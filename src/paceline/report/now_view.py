"""How a run that goes on is at this moment, as HTML: each worker with what it does and why, and how far the run is."""

from __future__ import annotations

from html import escape

from paceline.recording.status import COMPUTES, WAITS, RunStatus, WorkerStatus
from paceline.report.status import figures_are_over, lasting_remarks, run_line

MOST_WORKERS = 64  # that have a row
BAR = 100  # of its width, in parts


def now_view(status: RunStatus, *, steers: bool) -> str:
    """`steers`: with a button at each worker that sends it away."""
    said = [*([run_line(status)] if status.seconds else []), *_latest_wait(status)]
    said += [line for line, _ in lasting_remarks(status)]
    lines = "".join(f"<li>{escape(line)}</li>" for line in said)
    return f'{_workers(status, steers=steers)}<ul class="said">{lines}</ul>'


def _latest_wait(status: RunStatus) -> list[str]:
    """Of whom waits most. It stays there while nobody waits, so that what is below does not move up and down."""
    waited = max(status.workers, key=lambda worker: (bool(worker.latest_wait), worker.waiting_share), default=None)
    return [f"latest wait: {waited.latest_wait}"] if waited is not None and waited.latest_wait else []


def _workers(status: RunStatus, *, steers: bool) -> str:
    if not status.workers:
        return ""
    heads = ("worker", "", "does", "pushes", "samples/s", "waited", "stale", *([""] if steers else []))
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    rows = "".join(_worker(worker, steers=steers) for worker in status.workers[:MOST_WORKERS])
    over = f'<p class="dim">{escape(figures_are_over(status, MOST_WORKERS))}</p>'
    return (
        f'<div class="wide"><table class="now"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{over}'
    )


def _worker(worker: WorkerStatus, *, steers: bool) -> str:
    does = worker.reason.removeprefix(f"worker {worker.worker} ") or worker.state
    stale = "-" if worker.staleness is None else f"{worker.staleness:.1f}"
    waited = round(BAR * worker.waiting_share)
    share = (
        f'<svg class="share" viewBox="0 0 {BAR} 10" preserveAspectRatio="none" role="img"'
        f' aria-label="waited {waited}%"><rect class="waiting" width="{BAR}" height="10"/>'
        f'<rect class="computing" width="{BAR - waited}" height="10"/></svg>'
    )
    button = f'<td class="acts"><button data-evict="{worker.worker}">evict</button></td>' if steers else ""
    kind = {COMPUTES: "computes", WAITS: "waits"}.get(worker.state, "apart")
    return (
        f'<tr><th scope="row" data-is="worker">{worker.worker}</th><td class="bar-of">{share}</td>'
        f'<td class="does {kind}">{escape(does)}</td>'
        f'<td data-is="pushes">{worker.iterations:,}</td><td data-is="samples/s">{worker.samples_per_second:,.0f}</td>'
        f'<td data-is="waited">{worker.waiting_share:.0%}</td><td data-is="stale">{stale}</td>{button}</tr>'
    )
