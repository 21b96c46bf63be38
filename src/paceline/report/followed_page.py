"""The pages that follow runs: what a browser is given once. All that they say comes piece by piece, by `live.js`."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote, urlencode

from paceline.recording.status import RunStatus, as_text
from paceline.report.document import CHART_SCRIPTS, build_of, document
from paceline.report.sections import article
from paceline.report.status import evaluated, in_force, samples_done

SCRIPTS = (*CHART_SCRIPTS, "live.js")
LOST = '<p class="note" role="status" data-connection hidden></p>'


def build() -> str:
    """Of a page: where a server says another one, the page is loaded again."""
    return build_of(SCRIPTS)


def run_page(name: str, version: str, policies: Sequence[str]) -> str:
    """`policies`: that may be switched to."""
    above, below = article({"name": escape(name)}, (), 0, heading=1, live=True, controls=_controls(policies))
    body = f'<nav><a data-home href="/">all runs</a></nav>{LOST}<article>{above}{below}</article>'
    return document(f"{name} · paceline", body, version, SCRIPTS, data="run", connects="'self'")


def runs_page(version: str) -> str:
    body = f'<header><h1>Runs</h1></header>{LOST}<div data-part="runs"></div>'
    return document("runs · paceline", body, version, SCRIPTS, data="runs", connects="'self'")


def _controls(policies: Sequence[str]) -> str:
    known = "".join(f'<option value="{escape(policy, quote=True)}"></option>' for policy in policies)
    return (
        '<div class="steering"><div data-controls hidden>'
        '<form data-steer="Scale"><label>workers <input name="workers" type="number" min="1" max="99999" required>'
        "</label><button>scale</button></form>"
        '<form data-steer="Switch"><label>policy <input name="policy" list="policies" required spellcheck="false"'
        ' autocapitalize="off"></label><button>switch</button></form>'
        f'<datalist id="policies">{known}</datalist>'
        '<form data-steer="Stop" data-sure="Stop this run? It ends in order, and can be resumed.">'
        "<button>stop</button></form>"
        '</div><p role="status" data-answer></p></div>'
    )


def runs_view(runs: Sequence[RunStatus], below: Path, token: str) -> str:
    """A table of them; those that go on first, the newest first."""
    heads = ("run", "state", "policy", "workers", "samples", "updates", "evaluated")
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    return (
        f'<div class="wide"><table class="runs"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(_run(run, below, token) for run in runs)}</tbody></table></div>"
        if runs
        else f"<p>There is no run below {escape(str(below))} yet.</p>"
    )


def _run(run: RunStatus, below: Path, token: str) -> str:
    name = name_of(Path(run.run), below)
    return (
        f'<tr><th scope="row"><a href="{address_of(name, token)}">{escape(name)}</a></th>'
        f'<td><span class="state {escape(run.state)}">{escape(run.state)}</span></td>'
        f'<td class="does">{escape(run.problem or in_force(run))}</td>'
        f'<td data-is="workers">{"" if run.workers_asked is None else run.workers_asked}</td>'
        f'<td data-is="samples">{escape(samples_done(run, True))}</td>'
        f'<td data-is="updates">{f"{run.updates:,}" if run.updates else "-"}</td>'
        f'<td data-is="evaluated">{escape(evaluated(run))}</td></tr>'
    )


def name_of(run: Path, below: Path) -> str:
    """Its path from there on."""
    return as_text(run.relative_to(below).as_posix())


def address_of(name: str, token: str) -> str:
    """Of a run's page, from the address of the server on."""
    return f"/runs/{quote(name)}?{urlencode({'token': token})}"
