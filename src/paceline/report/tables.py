"""The tables of the command line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table

from paceline.core.spec import Parameter
from paceline.recording.metrics import Summary


def summary_table(summaries: Sequence[Summary], beside: str | None = None) -> Table:
    """One row per policy: what it got done, and what that cost. `beside`: the policy to compare with, by the gradients
    that were used; None: the first, by iterations."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), collapse_padding=True)
    table.add_column("\npolicy", overflow="fold")
    rates = [summary.iterations_per_second if beside is None else summary.used_per_second for summary in summaries]
    compared = ("itera-\ntions/s", "vs\nfirst")
    first = rates[0]
    if beside is not None:
        compared = ("gradients\nused/s", "vs\n" + beside.partition(":")[0])
        first = next(rate for rate, summary in zip(rates, summaries, strict=True) if summary.policy == beside)
    headings = (*compared, "wait-\ning", "\nupdates", "dis-\ncarded")
    for heading in (*headings, "max\nlead", "stale\nmean", "stale\nmax", "super-\nsteps"):
        table.add_column(heading, justify="right", no_wrap=True)
    for rate, summary in zip(rates, summaries, strict=True):
        table.add_row(
            summary.policy,
            f"{rate:.4g}",
            f"{rate / first:.2f}x" if first else "-",
            f"{summary.waiting_share:.1%}",
            _count(summary.updates),
            _count(summary.discarded),
            _count(summary.max_lead),
            f"{summary.mean_staleness:.2f}",
            _count(summary.max_staleness),
            _count(summary.supersteps),
        )
    return table


def remarks(summaries: Sequence[Summary]) -> Iterator[str]:
    """The longest wait in the policy's own words, and what a reader could misunderstand."""
    waits = [(summary.longest_wait, summary.policy) for summary in summaries if summary.longest_wait is not None]
    if waits:
        wait, policy = max(waits, key=lambda pair: pair[0].seconds)
        yield f"longest wait: {wait.seconds:g}, from {wait.began:g}, under {policy}: {wait.reason}"
    seeing = [each.policy for each in summaries if each.policy.startswith("dbw") and "blind=true" not in each.policy]
    if any("estimator=paper" in policy for policy in seeing):
        yield "dbw:estimator=paper: without gradients it sees no gain and waits for all; blind=true goes by time"
    if any("estimator=paper" not in policy for policy in seeing):
        yield "dbw: without gradients it goes by pace alone, and not by what an update is worth"


class TrainingRow(NamedTuple):
    """One policy of a training comparison."""

    policy: str
    seconds: float
    time_to_target: float | None
    samples: int
    samples_per_second: float
    waiting_share: float
    mean_staleness: float
    updates: int
    final: dict[str, float]
    samples_asked: int | None = None  # None: nobody knows
    run_dir: str | None = None
    model: str | None = None  # the file


def training_table(rows: Sequence[TrainingRow], target: float | None) -> Table:
    """What a user wants to know of each policy: how long, how fast, how good, beside the first one."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), collapse_padding=True)
    table.add_column("\npolicy", overflow="fold")
    first = rows[0]
    speed_up = "speed-up\nover " + first.policy.partition(":")[0]
    timed = ("time to\n" + percent(target), speed_up) if target is not None else ()
    figures = list(dict.fromkeys(name for row in rows for name in row.final))
    for heading in (*timed, "whole\nrun", "samples\nper s", "time\nwaited", "mean\nstaleness", "\nupdates"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in figures:
        table.add_column(f"final\n{name}", justify="right", no_wrap=True)
    for row in rows:
        cells = [row.policy]
        if target is not None:
            cells.append("never" if row.time_to_target is None else f"{row.time_to_target:.1f} s")
            known = row.time_to_target is not None and first.time_to_target is not None
            cells.append(f"{first.time_to_target / row.time_to_target:.2f}x" if known else "-")  # type: ignore[operator]
        cells += [f"{row.seconds:.1f} s", f"{row.samples_per_second:,.0f}", percent(row.waiting_share)]
        cells += [f"{row.mean_staleness:.2f}", _count(row.updates)]
        cells += [_final(name, row.final.get(name)) for name in figures]
        table.add_row(*cells)
    return table


def verdict(rows: Sequence[TrainingRow], target: float | None) -> str:
    """Which policy won, and why, in one sentence; empty if there is nothing to say."""
    reached = [row for row in rows if row.time_to_target is not None]
    if target is None or len(rows) < 2 or not reached:
        return ""
    best, first = min(reached, key=lambda row: row.time_to_target or 0.0), rows[0]
    if best is first or first.time_to_target is None or not best.time_to_target:
        return f"{best.policy} was the first at {percent(target)}: its workers waited {percent(best.waiting_share)}"
    times = first.time_to_target / best.time_to_target
    return (
        f"{best.policy} was the first at {percent(target)}, {times:.1f} times as fast as {first.policy}: its workers"
        f" waited {percent(best.waiting_share)} of their time instead of {percent(first.waiting_share)}"
    )


class LearningRow(NamedTuple):
    """One policy of a comparison in virtual time, over all seeds."""

    policy: str
    factor: float
    time: tuple[float, float] | None  # to the target: mean and standard deviation; None: never
    seconds: float
    samples: float
    waiting_share: float
    mean_staleness: float
    accuracy: float
    figure: str = "accuracy"  # that stands where the accuracy would


def learning_table(rows: Sequence[LearningRow], target: float | None, *, tuned: bool) -> Table:
    """Time to the target with its spread, beside the first policy, and what it cost."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), collapse_padding=True)
    headings, lines = learning_cells(rows, target, tuned=tuned)
    table.add_column(headings[0], overflow="fold")
    for heading in headings[1:]:
        table.add_column(heading, justify="right", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    return table


def learning_cells(
    rows: Sequence[LearningRow], target: float | None, *, tuned: bool = False
) -> tuple[list[str], list[list[str]]]:
    """The headings of that table, and its lines."""
    first = rows[0]
    lines = []
    headings = ["lr\nfactor"] if tuned else []
    if target is not None:
        headings += [f"time to\n{100 * target:g}%", "\n+-", f"speed-up over\n{first.policy.partition(':')[0]}"]
    headings += ["whole\nrun", "samples\nused", "time\nwaited", "mean\nstaleness", f"final\n{first.figure}"]
    for row in rows:
        cells = [row.policy, *([f"{row.factor:g}"] if tuned else [])]
        if target is not None:
            cells += ["never", "-"] if row.time is None else [f"{row.time[0]:.4g}", _rounded(row.time[1])]
            known = row.time is not None and first.time is not None and row.time[0] > 0
            cells.append(f"{first.time[0] / row.time[0]:.2f}x" if known else "-")  # type: ignore[index]
        cells += [f"{row.seconds:.4g}", f"{row.samples:,.0f}", percent(row.waiting_share)]
        final = None if math.isnan(row.accuracy) else row.accuracy
        lines.append([*cells, f"{row.mean_staleness:.2f}", _final(row.figure, final)])
    return ["\npolicy", *headings], lines


def _rounded(spread: float) -> str:
    """Two digits, without an exponent for as long as that is readable."""
    return f"{spread:.0f}" if 100 <= spread < 1e6 else f"{spread:.2g}"


def _final(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1%}" if name == "accuracy" else f"{value:.4g}"


def percent(share: float) -> str:
    return f"{share:.0%}"


def policy_listing(rows: Iterable[tuple[str, str, Sequence[Parameter], str]]) -> Table:
    """Name, what it does, parameters with their range and default, paper."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, leading=1)
    table.add_column("policy", no_wrap=True)
    table.add_column("what it does", ratio=3)
    table.add_column("parameters", no_wrap=True)
    table.add_column("paper", ratio=2)
    for name, summary, parameters, paper in rows:
        table.add_row(name, summary, "\n".join(_in_short(parameter) for parameter in parameters) or "-", paper)
    return table


def parameter_listing(parameters: Sequence[Parameter]) -> Table:
    """Every parameter of one policy with its meaning."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("parameter", "values", "default"):
        table.add_column(heading, no_wrap=True)
    table.add_column("meaning")
    for parameter in parameters:
        table.add_row(parameter.name, parameter.kind, parameter.default_text, parameter.meaning)
    return table


def _count(number: int) -> str:
    """Exact while it fits into six characters."""
    if number < 100_000:
        return f"{number:,}"
    return f"{number / 1e3:.0f}k" if number < 999_500 else f"{number / 1e6:,.1f}M"


def _in_short(parameter: Parameter) -> str:
    return f"{parameter.name}={parameter.default_text}"
