"""One HTML file that shows runs: its words and tables are made here, its charts by the scripts in `assets`.

It loads nothing: scripts, styles and data are in it, and its security policy lets nothing else run. All text of a run
is escaped, and the data are no script.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

import msgspec

from paceline.report.bill_view import bill_bar, bill_table, bills_side_by_side, own_times
from paceline.report.contents import Contents
from paceline.report.markup import details, pairs, table
from paceline.report.run_view import comparison_table, ledger_view, run_tiles
from paceline.report.story import headline, story

SCRIPTS = ("data.js", "marks.js", "curves.js", "gantt.js", "page.js")
STYLE = "page.css"


def page_of(runs: Sequence[Contents], version: str) -> str:
    """The whole file. `version`: of this paceline."""
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    script, style = _script(), _asset(STYLE)
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; base-uri 'none'"
    body = "".join(_run(number, run, alone=len(runs) == 1) for number, run in enumerate(runs))
    without = (
        '<noscript><p class="note">The charts of this page need scripts; its words and tables do not.</p></noscript>'
    )
    return (
        "<!DOCTYPE html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<link rel="icon" href="data:,"><title>{escape(title)} · paceline</title><style>{style}</style></head>'
        f"<body><main>{without}{_together(runs) if len(runs) > 1 else ''}{body}"
        f"<footer>paceline {escape(version)}. A worker-second is one second of one worker; who pays for a wait is"
        " told in docs/report.md.</footer></main>"
        f'<script type="text/plain" id="data">{_packed(runs)}</script><script>{script}</script></body></html>\n'
    )


def _together(runs: Sequence[Contents]) -> str:
    """What is shown of several runs at once."""
    host = '<div class="chart" data-chart="curves"></div>'
    curves = f'<section class="when-drawn"><h2>Learning curves</h2>{host}</section>'
    return (
        f"<header><h1>{len(runs)} runs side by side</h1></header>"
        f"<section><h2>What was paid for</h2>{bills_side_by_side(runs)}</section>"
        f"<section><h2>In figures</h2>{comparison_table(runs)}</section>"
        f"{curves if any(map(_was_measured, runs)) else ''}"
    )


def _was_measured(run: Contents) -> bool:
    """A simulation measures nothing on the way."""
    measured = run.curves.get("measured", {}).get("seconds")
    return bool(measured or run.curves.get("figures") or run.curves.get("logged"))


def _run(number: int, run: Contents, *, alone: bool) -> str:
    heading, section = ("h1", "h2") if alone else ("h2", "h3")
    sentences = "".join(f"<p>{escape(sentence)}</p>" for sentence in story(run))
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in run.notes)
    failures = "".join(f'<p class="note">{escape(str(failure))}</p>' for failure in run.failures)
    state = f'<span class="state {escape(run.state)}">{escape(run.state)}</span>' if run.state else ""
    above = [
        f"<header><{heading}>{escape(run.name)} {state}</{heading}>"
        f'<p class="dim">{escape(", ".join(part for part in (run.summary.policy, run.began) if part))}</p></header>',
        notes,
        f'<p class="headline">{escape(headline(run))}</p>{bill_bar(run)}' if run.summary.pushes else "",
        f'<div class="story">{sentences}</div>{failures}',
    ]
    parts = []
    if run.summary.pushes:
        parts += [
            run_tiles(run),
            f'<div class="beside"><section><{section}>The straggler bill</{section}>{bill_table(run)}</section>'
            f"<section><{section}>How each worker spent its time</{section}>{own_times(run)}</section></div>",
            _chart(section, "Who did what, when", "gantt", number),
            _chart(section, "Learning curves", "curves", number) if alone and _was_measured(run) else "",
            f'<div class="columns">{_chart(section, "Pace of each worker", "pace", number)}'
            f"{_chart(section, 'Staleness of used gradients', 'staleness', number)}"
            f"{_chart(section, 'Lead over the slowest worker', 'leads', number)}</div>",
            _chart(section, "How k was chosen", "choices", number) if run.curves["choices"]["seconds"] else "",
        ]
    parts += [
        _advice(section, run),
        f"<section><{section}>What became of every sample</{section}>{ledger_view(run.balance)}</section>"
        if run.balance is not None and run.summary.pushes
        else "",
        _happened(run),
        details("Commands for this run", pairs(run.steps, code=True)) if run.steps else "",
        details("Configuration", pairs(run.settings)) if run.settings else "",
    ]
    more = "".join(parts)
    return f"<article>{''.join(above)}{more if alone else details('More of this run', more)}</article>"


def _happened(run: Contents) -> str:
    """What the chart marks, in words."""
    marks = [(f"{seconds:,.2f} s", said) for seconds, _, said in run.course["marks"]]
    return details("Who joined and left, and other events", pairs(marks)) if marks else ""


def _chart(section: str, title: str, kind: str, number: int) -> str:
    return (
        f'<section class="when-drawn"><{section}>{escape(title)}</{section}>'
        f'<div class="chart" data-chart="{kind}" data-run="{number}"></div></section>'
    )


def _advice(section: str, run: Contents) -> str:
    if run.advice is None:
        return ""
    rows = [
        (
            summary.policy,
            f"{summary.used_per_second:,.1f}",
            f"{summary.waiting_share:.0%}",
            f"{summary.mean_staleness:.2f}",
            f"{summary.discarded:,}",
        )
        for summary in run.advice.summaries
    ]
    heads = ("policy", "gradients used per second", "waited", "mean staleness", "discarded")
    return (
        f"<section><{section}>What other policies would have made of it</{section}>"
        f"{table(heads, rows, emphasised=run.summary.policy)}</section>"
    )


def _packed(runs: Sequence[Contents]) -> str:
    """What the charts are drawn from: compressed JSON in letters that mean nothing to a browser."""
    shown: list[dict[str, Any]] = [
        {"name": run.name, "policy": run.summary.policy, "curves": run.curves, "course": run.course} for run in runs
    ]
    return base64.b64encode(zlib.compress(msgspec.json.encode(shown), 6)).decode()


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _script() -> str:
    return "'use strict';\n(() => {\n" + "".join(_asset(name) for name in SCRIPTS) + "})();\n"


@cache
def _asset(name: str) -> str:
    return (files("paceline.report") / "assets" / name).read_text(encoding="utf-8")
