"""Figures of runs as HTML: the large ones, several runs in a table, and what became of every sample."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from paceline.policies.weighing import age_of, worth_of
from paceline.recording.bill import WAITING
from paceline.recording.ledger import Balance
from paceline.recording.newest_answer import Told
from paceline.recording.status import FINISHED
from paceline.report.balance import HEADINGS, rows, sentences
from paceline.report.contents import Contents
from paceline.report.markup import table, tiles
from paceline.report.status import duration
from paceline.report.story import money, policy_of


def run_tiles(run: Contents) -> str:
    summary, bill = run.summary, run.bill
    found = [
        (duration(summary.seconds), "time"),
        (f"{run.samples / summary.seconds:,.0f}" if summary.seconds else "0", "samples per second"),
        (f"{bill.lost_share:.0%}", "of the workers' time lost"),
    ]
    if run.price is not None:
        found.append((money(run.cost(bill.lost) or 0.0), f"lost of {money(run.cost(bill.worker_seconds) or 0.0)}"))
    found += [(value_of(name, last), name) for name, (last, _) in list(run.best.items())[:2]]
    return tiles(found)


def comparison_table(runs: Sequence[Contents]) -> str:
    figures = list(dict.fromkeys(name for run in runs for name in run.best))
    priced = any(run.price is not None for run in runs)
    heads = [
        "run",
        "policy",
        "time",
        "samples/s",
        "lost",
        "waited",
        "staleness",
        "updates",
        *figures,
        *(["cost"] if priced else []),
    ]
    found = []
    for run in runs:
        summary, bill = run.summary, run.bill
        waited = bill.of(WAITING) / bill.worker_seconds if bill.worker_seconds else 0.0
        found.append(
            [
                f"{run.name}, {run.state}" if run.state not in ("", FINISHED) else run.name,
                policy_of(summary),
                duration(summary.seconds),
                f"{run.samples / summary.seconds:,.0f}" if summary.seconds else "0",
                f"{bill.lost_share:.0%}",
                f"{waited:.0%}",
                f"{summary.mean_staleness:.2f}",
                f"{summary.updates:,}",
                *(value_of(name, run.best[name][0]) if name in run.best else "" for name in figures),
                *([money(run.cost(bill.worker_seconds) or 0.0)] if priced else []),
            ]
        )
    return table(heads, found)


def value_of(name: str, value: float) -> str:
    return f"{value:.1%}" if name == "accuracy" else f"{value:.4g}"


def candidates_view(told: Told) -> str:
    """By what a policy that chooses others chose the last time."""
    bsp = next((worth_of(each, told.workers) for each in told.answer.prospects if each.policy == "bsp"), 0.0)
    rows = [
        (
            each.policy,
            f"{worth_of(each, told.workers):,.4g}",
            f"{worth_of(each, told.workers) / bsp:.2f}" if bsp else "-",
            f"{age_of(each, told.workers):.2f}",
            f"{each.waiting:.0%}",
            f"{each.discarded:.0%}",
        )
        for each in told.answer.prospects
    ]
    heads = ("candidate", "gradients used per second", "of bsp's pace", "rounds old", "waits", "thrown away")
    said = (
        f"Asked last after {duration(told.seconds)}: what would each make of the latest iterations of {told.workers}"
        f" workers? In force since: {told.policy}."
    )
    return f"<p>{escape(said)}</p>{table(heads, rows, emphasised=told.policy)}"


def ledger_view(balance: Balance) -> str:
    told = "".join(f"<p>{escape(said)}</p>" for said in sentences(balance))
    return (table(HEADINGS, rows(balance)) if balance.epochs else "") + told
