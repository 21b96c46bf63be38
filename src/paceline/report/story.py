"""A run in five sentences, each computed: what was trained, how fast, what was lost, who caused it, what to do."""

from __future__ import annotations

from paceline.recording.bill import DISCARDED, EVICTED, FAILED, JOINING, NO_WORK, SERVER, SLOW, WAITING, Bill
from paceline.recording.metrics import Summary
from paceline.recording.newest_answer import BEGINS_WITH
from paceline.recording.status import GOING_ON
from paceline.report.contents import Contents
from paceline.report.live import figure
from paceline.report.status import duration

MUCH = 0.5  # part of what was lost from which one worker is said to have caused it
LOST_BY = {
    WAITING: "by waiting for each other",
    DISCARDED: "by gradients that were not used",
    SLOW: "by iterations that took longer than usual",
    FAILED: "by failures",
    EVICTED: "by sending workers away",
    JOINING: "by waiting to be let in",
    NO_WORK: "because no work was left",
    SERVER: "by waiting for the server",
}
NAMED = 4  # policies of those that took over
LITTLE = 0.02  # part of the time that is not worth a name


def story(run: Contents) -> list[str]:
    if not run.summary.pushes:
        return [_what(run), "Nobody has pushed a gradient, so there is nothing to charge yet."]
    return [sentence for sentence in (_what(run), _how_fast(run), _lost(run), _who(run.bill), _better(run)) if sentence]


def money(amount: float) -> str:
    return f"{amount:,.2f}" if amount >= 0.1 or amount == 0 else f"{amount:.4f}"


def headline(run: Contents) -> str:
    """The whole story in a line."""
    bill = run.bill
    if not run.summary.pushes:
        return "Nothing was pushed"
    lost = f"{bill.lost_share:.0%} of the workers' time was lost"
    first = _first(bill)
    if bill.lost_share < LITTLE:
        return f"{1 - bill.lost_share:.0%} of the workers' time was spent computing"
    if first is None or bill.charged_to(first) < MUCH * bill.lost:
        return lost
    return f"{lost}; worker {first} caused {bill.charged_to(first) / bill.lost:.0%} of that"


def _what(run: Contents) -> str:
    summary = run.summary
    policies = f"{summary.policy}{_changes(summary)}"
    if not run.bill.places:
        return f"A run{f' of {run.trained}' if run.trained else ''} under {summary.policy} that has not begun."
    workers = _count(run.bill.places, "worker")
    goes_on = run.state in GOING_ON
    verb = "train" if goes_on else "trained"
    what = f"{verb} {run.trained}" if run.trained else "run" if goes_on else "ran"
    how = f", with {run.optimizer}" if run.optimizer else ""
    return f"{workers} {what} under {policies}{how}."


def policy_of(summary: Summary) -> str:
    """In a few letters: what it began with, and what it came to if somebody changed it."""
    changes = summary.changes
    return f"{summary.policy} → {changes[-1].policy}" if changes and not changes[0].why else summary.policy


def _changes(summary: Summary) -> str:
    """One that chose others is in force all the time."""
    names = [change.policy for change in summary.changes]
    if not names:
        return ""
    named = f"{', then '.join(names[:NAMED])}{f', and {len(names) - NAMED} more' if len(names) > NAMED else ''}"
    return f", as {BEGINS_WITH}, then {named}" if summary.changes[0].why else f", then {named}"


def _how_fast(run: Contents) -> str:
    summary = run.summary
    if not summary.seconds:
        return ""
    rate = run.samples / summary.seconds
    found = [figure(name, last) for name, (last, _) in run.best.items()]
    reached = f", and came to {' and '.join(found[:2])}" if found else ""
    return (
        f"In {duration(summary.seconds)} it used {run.samples:,} samples in {_count(summary.updates, 'update')},"
        f" {rate:,.0f} a second{reached}."
    )


def _lost(run: Contents) -> str:
    bill = run.bill
    cost = run.cost(bill.lost)
    paid = "" if cost is None else f", worth {money(cost)} of {money(run.cost(bill.worker_seconds) or 0.0)}"
    of_all = f"{_seconds(bill.lost)} of {_seconds(bill.worker_seconds)} worker-seconds{paid}"
    return f"{bill.lost_share:.0%} of the workers' time was lost ({of_all}){_causes(bill)}."


def _causes(bill: Bill) -> str:
    """The largest of them, by their shares of all time."""
    shares = {cause: bill.of(cause) / bill.worker_seconds for cause in LOST_BY} if bill.worker_seconds else {}
    large = sorted((cause for cause in shares if shares[cause] >= LITTLE / 4), key=lambda cause: -shares[cause])
    return ": " + ", ".join(f"{shares[cause]:.0%} {LOST_BY[cause]}" for cause in large[:3]) if large else ""


def _who(bill: Bill) -> str:
    lost = bill.lost
    if not bill.worker_seconds or lost / bill.worker_seconds < LITTLE:
        return "Nobody caused a loss worth naming."
    first = _first(bill)
    again = sum(item.seconds for item in bill.items if item.worker is None and item.cause == FAILED)
    if again >= MUCH * lost:
        return f"{again / lost:.0%} of the loss is work that was done again after the run was killed."
    if first is None:
        return "The server caused it."
    share = bill.charged_to(first) / lost
    medians = {own.worker: own.median for own in bill.workers if own.median}
    others = sorted(median for worker, median in medians.items() if worker != first)
    if share < MUCH:
        return f"Nobody alone caused it: the most, {share:.0%}, is charged to worker {first}."
    own = [item for item in bill.items if item.worker == first and item.cause in LOST_BY]
    cause = max(own, key=lambda item: item.seconds).cause
    if cause == FAILED:
        return f"Worker {first} caused {share:.0%} of the loss, most of it by failing."
    pace = ""
    if first in medians and others:
        usual = others[len(others) // 2]
        pace = f": an iteration takes it {short_seconds(medians[first])}, the others {short_seconds(usual)}"
    return f"Worker {first} caused {share:.0%} of the loss{pace}."


def _first(bill: Bill) -> int | None:
    """The worker that is charged with the most."""
    workers = {item.worker for item in bill.items if item.worker is not None}
    return max(workers, key=lambda worker: (bill.charged_to(worker), -worker), default=None)


def _better(run: Contents) -> str:
    if run.advice is None:
        return ""
    return f"{foresight_of(run)}, say: {run.advice.sentence}."


def foresight_of(run: Contents) -> str:
    """What other policies were tried on."""
    if run.advice is None:
        return ""
    seconds, until = run.advice.seconds, run.advice.until
    first = "" if until > 0.95 * run.summary.seconds else f" the first {duration(until)}"
    part = f" ({duration(seconds)}, taken evenly from {first.strip() or 'all of it'})" if seconds < 0.99 * until else ""
    over = part or (f" (of{first})" if first else "")
    return f"Its own iteration times, simulated again{over}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _seconds(seconds: float) -> str:
    return f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:.3g}"


def short_seconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.3g} s"
