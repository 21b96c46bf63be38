"""Small pieces of HTML; all text that they are given is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, emphasised: str = "") -> str:
    """The first column is words, the others are numbers. `emphasised`: the row that begins with this."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = "".join(
        f"<tr{' class=own' if emphasised and row[0] == emphasised else ''}>"
        f'<th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def pairs(given: Iterable[tuple[str, str]], *, code: bool = False) -> str:
    tag = "code" if code else "span"
    return "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd><{tag}>{escape(v)}</{tag}></dd>" for k, v in given) + "</dl>"


def details(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def tiles(given: Iterable[tuple[str, str]]) -> str:
    """Large figures with what they are."""
    each = (f"<div><strong>{escape(value)}</strong><span>{escape(what)}</span></div>" for value, what in given)
    return f'<div class="tiles">{"".join(each)}</div>'


def legend(given: Iterable[tuple[str, str]]) -> str:
    """Classes of colours, and what they mean."""
    each = (
        f'<li><svg width="12" height="12"><rect width="12" height="12" rx="2" class="{kind}"/></svg>{escape(what)}</li>'
        for kind, what in given
    )
    return f'<ul class="legend">{"".join(each)}</ul>'
