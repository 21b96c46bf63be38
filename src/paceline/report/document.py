"""An HTML document that holds its scripts and its style, and a security policy that lets nothing else run."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files

CHART_SCRIPTS = ("data.js", "marks.js", "curves.js", "gantt.js", "charts.js")
STYLE = "page.css"


def document(
    title: str, body: str, version: str, scripts: Sequence[str], *, data: str = "", connects: str = "'none'"
) -> str:
    """`scripts`: of `assets`, in their order. `data`: letters that a browser takes for nothing. `connects`: to whom the
    scripts may speak."""
    script, style = _script(tuple(scripts)), asset(STYLE)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:;"
        f" connect-src {connects}; base-uri 'none'; form-action 'none'"
    )
    return (
        "<!DOCTYPE html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy, quote=True)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{style}</style></head>'
        f"<body><main>{body}"
        f"<footer>paceline {escape(version)}. A worker-second is one second of one worker; who pays for a wait is"
        " told in docs/report.md.</footer></main>"
        f'<script type="text/plain" id="data">{data}</script><script>{script}</script></body></html>\n'
    )


@cache
def _script(names: tuple[str, ...]) -> str:
    return "'use strict';\n(() => {\n" + "".join(asset(name) for name in names) + "})();\n"


def build_of(scripts: Sequence[str]) -> str:
    """Another one where a script, the style, or what they are given has changed."""
    return hashlib.sha256((_script(tuple(scripts)) + asset(STYLE)).encode()).hexdigest()[:16]


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def asset(name: str) -> str:
    return (files("paceline.report") / "assets" / name).read_text(encoding="utf-8")
