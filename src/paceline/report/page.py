"""One HTML file that shows runs: its words and tables are made here, its charts by the scripts in `assets`.

It loads nothing: scripts, styles and data are in it, and its security policy lets nothing else run. All text of a run
is escaped, and the data are no script.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec

from paceline.report.bill_view import bills_side_by_side
from paceline.report.contents import Contents
from paceline.report.document import CHART_SCRIPTS, document
from paceline.report.markup import details
from paceline.report.run_view import comparison_table
from paceline.report.sections import article, charts_of, words_of

SCRIPTS = (*CHART_SCRIPTS, "page.js")


def page_of(runs: Sequence[Contents], version: str) -> str:
    """The whole file. `version`: of this paceline."""
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    body = "".join(_run(number, run, alone=len(runs) == 1) for number, run in enumerate(runs))
    without = (
        '<noscript><p class="note">The charts of this page need scripts; its words and tables do not.</p></noscript>'
    )
    return document(
        f"{title} · paceline",
        f"{without}{_together(runs) if len(runs) > 1 else ''}{body}",
        version,
        SCRIPTS,
        data=_packed(runs),
    )


def _together(runs: Sequence[Contents]) -> str:
    """What is shown of several runs at once."""
    host = '<div class="chart" data-chart="curves"></div>'
    curves = f'<section class="when-drawn"><h2>Learning curves</h2>{host}</section>'
    return (
        f"<header><h1>{len(runs)} runs side by side</h1></header>"
        f"<section><h2>What was paid for</h2>{bills_side_by_side(runs)}</section>"
        f"<section><h2>In figures</h2>{comparison_table(runs)}</section>"
        f"{curves if any('curves' in charts_of(run) for run in runs) else ''}"
    )


def _run(number: int, run: Contents, *, alone: bool) -> str:
    charts = charts_of(run) - (set() if alone else {"curves"})  # of several, they are drawn over each other
    above, below = article(words_of(run), charts, number, heading=1 if alone else 2)
    return f"<article>{above}{below if alone else details('More of this run', below)}</article>"


def _packed(runs: Sequence[Contents]) -> str:
    """What the charts are drawn from: compressed JSON in letters that mean nothing to a browser."""
    shown: list[dict[str, Any]] = [
        {"name": run.name, "policy": run.summary.policy, "curves": run.curves, "course": run.course} for run in runs
    ]
    return base64.b64encode(zlib.compress(msgspec.json.encode(shown), 6)).decode()
