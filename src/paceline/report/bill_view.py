"""The straggler bill as a bar and as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from paceline.recording.bill import (
    COMPUTING,
    DISCARDED,
    EVICTED,
    FAILED,
    JOINING,
    NO_WORK,
    NOT_LOST,
    SERVER,
    SLOW,
    UNFINISHED,
    WAITING,
    Bill,
    Item,
)
from paceline.report.contents import Contents
from paceline.report.markup import details, legend, table
from paceline.report.story import money, policy_of, short_seconds

CLASSES = {
    COMPUTING: "computing",
    UNFINISHED: "unfinished",
    WAITING: "waiting",
    SLOW: "slow",
    DISCARDED: "discarded",
    FAILED: "failed",
    EVICTED: "discarded",
    JOINING: "joining",
    NO_WORK: "no-work",
    SERVER: "server",
}
OF_CAUSES = {
    COMPUTING: "computing what was used",
    UNFINISHED: "computing, unfinished",
    WAITING: "waiting for others",
    SLOW: "iterations beyond a worker's own median",
    DISCARDED: "gradients that were not used",
    FAILED: "failures and empty places",
    EVICTED: "what workers were at that were sent away",
    JOINING: "waiting to be let in",
    NO_WORK: "no work was left",
    SERVER: "waiting for the server",
}
FEW_ROWS = 12  # of a bill
MOST_ITEMS = 400  # of it that are told at all
SMALL, MUCH = 0.005, 0.02  # parts of the whole: of an item that is not named, and of many of them together
MOST_OWN = 32  # workers that have a bar each
LETTER, WIDE, PHONE = 9, 400, 330  # pixels: of a letter with what is around it, and of the narrowest bars


class Part(NamedTuple):
    cause: str
    seconds: float
    label: str
    about: str


def describe(item: Item) -> str:
    """What an item of the bill is for."""
    worker = "the server" if item.worker is None else f"worker {item.worker}"
    return {
        COMPUTING: f"{worker} computed what was used",
        UNFINISHED: f"{worker} was still computing at the end",
        WAITING: f"others waited for {worker}",
        SLOW: f"{worker} was slower than its own median",
        DISCARDED: f"gradients of {worker} were not used",
        FAILED: "work that was lost when the run was killed, and done again"
        if item.worker is None
        else f"{worker} failed: its work, waits for it, its empty place",
        EVICTED: f"{worker} was sent away: what it was at",
        JOINING: f"{worker} waited to be let in",
        NO_WORK: f"no work was left for {worker}",
        SERVER: "waiting for the server",
    }[item.cause]


def bill_bar(run: Contents) -> str:
    """All that was paid for as one bar: what was computed, then whom the rest is charged to."""
    parts = _parts(run.bill)
    shown = dict.fromkeys(part.cause for part in parts)
    keys = ((CLASSES[cause], OF_CAUSES[cause]) for cause in shown)
    return _bar(parts, run.bill.worker_seconds, "What the time of the workers was spent on") + legend(keys)


def _parts(bill: Bill) -> list[Part]:
    computed = sum(item.seconds for item in bill.items if item.cause == COMPUTING)
    found = [
        Part(
            COMPUTING,
            computed,
            f"computing {_share(computed, bill)}",
            f"computing what was used: {_share(computed, bill)}",
        )
    ]
    for item in sorted((item for item in bill.items if item.cause != COMPUTING), key=_order):
        failed = "done again" if item.worker is None else f"{item.worker} failed"
        short = {WAITING: f"waiting for {item.worker}", FAILED: failed, SLOW: f"{item.worker} slower"}
        label = f"{short.get(item.cause, '')} {_share(item.seconds, bill)}".strip()
        found.append(Part(item.cause, item.seconds, label, f"{describe(item)}: {_share(item.seconds, bill)}"))
    return found


def _order(item: Item) -> tuple[int, float]:
    return list(CLASSES).index(item.cause), -item.seconds


def _bar(parts: Iterable[Part], total: float, title: str) -> str:
    at, drawn = 0.0, []
    for part in parts:
        if total and part.seconds > 0:
            share = part.seconds / total
            drawn.append(
                f'<svg class="part" x="{100 * at:.3f}%" width="{100 * share:.3f}%" height="100%">'
                f'<title>{escape(part.about)}</title><rect width="100%" height="100%" class="{CLASSES[part.cause]}"/>'
                f"{_labels(part, share)}</svg>"
            )
            at += share
    return f'<svg class="bar" role="img" aria-label="{escape(title)}">{"".join(drawn)}</svg>'


def _labels(part: Part, share: float) -> str:
    """The label where there is room for it; on a phone perhaps only its last word, which is the share."""
    wide, short = part.label, part.label.rpartition(" ")[2]
    fits = [text for text in (wide, short) if len(text) * LETTER < share * WIDE][:1]
    fits_phone = [text for text in (wide, short) if len(text) * LETTER < share * PHONE][:1]
    drawn = [("wide-only", text) for text in fits] + [("narrow", text) for text in fits_phone]
    return "".join(
        f'<text x="50%" y="50%" class="{kind} on-{CLASSES[part.cause]}">{escape(text)}</text>' for kind, text in drawn
    )


def bill_table(run: Contents) -> str:
    bill = run.bill
    lost = [item for item in bill.items if item.cause not in NOT_LOST]
    kept = [item for item in bill.items if item.cause in NOT_LOST]
    large = [item for item in lost[:FEW_ROWS] if item.seconds >= SMALL * bill.worker_seconds] or lost[:1]
    rows = [_row(describe(item), item.seconds, run) for item in large]
    rows += [_row(what, seconds, run) for what, seconds in _the_rest(lost[len(large) :], bill)]
    rows.append(_row("lost in all", bill.lost, run))
    for cause in dict.fromkeys(item.cause for item in kept):
        rows.append(_row(OF_CAUSES[cause], bill.of(cause), run))
    rows.append(_row("paid for", bill.worker_seconds, run))
    heads = ["charged to", "worker-seconds", "share"] + (["cost"] if run.price is not None else [])
    small = [_row(describe(item), item.seconds, run) for item in lost[len(large) : MOST_ITEMS]]
    opened = details("Each of the smaller items", table(heads, small)) if len(small) > 1 else ""
    return table(heads, rows, emphasised="lost in all") + opened


def _the_rest(small: Sequence[Item], bill: Bill) -> list[tuple[str, float]]:
    """One line, or if that is worth it, one per cause: of a large group no item is large."""
    together = sum(item.seconds for item in small)
    if len(small) < 2 or together < MUCH * bill.worker_seconds:
        what = describe(small[0]) if len(small) == 1 else f"{len(small)} smaller items"
        return [(what, together)] if small else []
    found = []
    for cause in dict.fromkeys(item.cause for item in small):
        alike = [item.seconds for item in small if item.cause == cause]
        found.append((f"{OF_CAUSES[cause]}: {len(alike)} more items", sum(alike)))
    return found


def _row(what: str, seconds: float, run: Contents) -> list[str]:
    cost = run.cost(seconds)
    return [what, seconds_of(seconds), _share(seconds, run.bill), *([] if cost is None else [money(cost)])]


def own_times(run: Contents) -> str:
    """A bar per worker: how it spent its own time, whoever caused that."""
    most = max((sum(own.seconds.values()) for own in run.bill.workers), default=0.0)
    bars = []
    for own in run.bill.workers[:MOST_OWN]:
        spent = [(cause, own.seconds[cause]) for cause in CLASSES if own.seconds.get(cause)]
        whole = sum(own.seconds.values())
        parts = [_part(cause, seconds, f"{seconds / whole:.0%}") for cause, seconds in spent]
        pace = "" if own.median is None else f", {short_seconds(own.median)} each"
        about = f"worker {own.worker}: {own.iterations:,} iterations{pace}"
        bars.append(f'<div class="of-run"><span>{escape(about)}</span>{_bar(parts, most, about)}</div>')
    more = len(run.bill.workers) - MOST_OWN
    return "".join(bars) + (f"<p class=dim>and {more} more workers</p>" if more > 0 else "")


def bills_side_by_side(runs: Sequence[Contents]) -> str:
    """A bar per run: how each policy's time was spent. All are as long as the longest of them was."""
    most = max((run.bill.worker_seconds for run in runs), default=0.0)
    causes: dict[str, None] = {}
    names = [policy_of(run.summary) for run in runs]
    bars = []
    for run in runs:
        found = {cause: run.bill.of(cause) for cause in CLASSES}
        causes |= dict.fromkeys(cause for cause, seconds in found.items() if seconds)
        parts = [_part(cause, seconds, _share(seconds, run.bill)) for cause, seconds in found.items()]
        of_all = f"{seconds_of(run.bill.worker_seconds)} worker-seconds"
        name = policy_of(run.summary) if names.count(policy_of(run.summary)) == 1 else run.name
        about = f"{name}: {of_all}, {run.bill.lost_share:.0%} lost"
        bars.append(f'<div class="of-run"><span>{escape(about)}</span>{_bar(parts, most, about)}</div>')
    return "".join(bars) + legend((CLASSES[cause], OF_CAUSES[cause]) for cause in CLASSES if cause in causes)


def _part(cause: str, seconds: float, share: str) -> Part:
    return Part(cause, seconds, share, f"{OF_CAUSES[cause]}: {share}")


def seconds_of(seconds: float) -> str:
    return f"{seconds:,.0f}" if seconds >= 1000 else f"{seconds:,.1f}" if seconds >= 10 else f"{seconds:.2f}"


def _share(seconds: float, bill: Bill) -> str:
    share = seconds / bill.worker_seconds if bill.worker_seconds else 0.0
    return f"{share:.1%}" if 0 < share < 0.1 else f"{share:.0%}"
