"""The sections of a page about a run: which there are, in which order, what words each has, and where charts go.

A report has those that have something in them. A page that follows a run has all of them, and hides the others until
there is something to show: what a section says is put between the marks of its `data-part`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from html import escape

import msgspec

from paceline.report.bill_view import bill_bar, bill_table, own_times
from paceline.report.contents import Contents
from paceline.report.markup import pairs, table
from paceline.report.run_view import candidates_view, ledger_view, run_tiles
from paceline.report.story import foresight_of, headline, policy_of, story

AS_IT_WAS = "this run, as it was"
ABOVE = ("notes", "now", "headline", "story")  # without a title of their own
DETAILS = {
    "happened": "Who joined and left, and other events",
    "steps": "Commands for this run",
    "settings": "Configuration",
}
TITLES = {
    "bill": "The straggler bill",
    "own": "How each worker spent its time",
    "gantt": "Who did what, when",
    "curves": "Learning curves",
    "pace": "Pace of each worker",
    "staleness": "Staleness of used gradients",
    "leads": "Lead over the slowest worker",
    "choices": "How k was chosen",
    "chosen": "How the policy was chosen",
    "advice": "What other policies would have made of it",
    "ledger": "What became of every sample",
}
CHARTS = ("gantt", "curves", "pace", "staleness", "leads", "choices")
GROUPS = (
    ("tiles",),
    ("bill", "own"),
    ("gantt",),
    ("curves",),
    ("pace", "staleness", "leads"),
    ("chosen",),
    ("choices",),
    ("advice",),
    ("ledger",),
)
CLASSES = {("bill", "own"): "beside", ("pace", "staleness", "leads"): "columns"}


def words_of(run: Contents) -> dict[str, str]:
    """What each section says; those that have nothing to say are missing."""
    has_begun = bool(run.summary.pushes)
    state = f'<span class="state {escape(run.state)}">{escape(run.state)}</span>' if run.state else ""
    marks = [(f"{seconds:,.2f} s", said) for seconds, _, said in run.course["marks"]]
    found = {
        "name": f"{escape(run.name)} {state}",
        "about": escape(", ".join(part for part in (policy_of(run.summary), run.began) if part)),
        "notes": "".join(f'<p class="note">{escape(note)}</p>' for note in run.notes),
        "headline": f'<p class="headline">{escape(headline(run))}</p>{bill_bar(run)}' if has_begun else "",
        "story": f'<div class="story">{_paragraphs(story(run))}</div>'
        + "".join(f'<p class="note">{escape(str(failure))}</p>' for failure in run.failures),
        "tiles": run_tiles(run) if has_begun else "",
        "bill": bill_table(run) if has_begun else "",
        "own": own_times(run) if has_begun else "",
        "chosen": candidates_view(run.told) if run.told is not None else "",
        "advice": _advice(run),
        "ledger": ledger_view(run.balance) if run.balance is not None and has_begun else "",
        "happened": pairs(marks) if marks else "",
        "steps": pairs(run.steps, code=True) if run.steps else "",
        "settings": pairs(run.settings) if run.settings else "",
    }
    return {part: words for part, words in found.items() if words}


def charts_of(run: Contents) -> set[str]:
    """Those that there is something to draw in."""
    if not run.summary.pushes:
        return set()
    found = set(CHARTS)
    if not _was_measured(run):
        found.remove("curves")
    if not run.curves["choices"]["seconds"]:
        found.remove("choices")
    return found


def article(
    words: Mapping[str, str],
    charts: Collection[str],
    number: int,
    *,
    heading: int,
    live: bool = False,
    controls: str = "",
) -> tuple[str, str]:
    """What stands first, and what comes below. `number`: of the run, among those of the page. `live`: with places for
    what has nothing to say yet. `controls`: above what is going on now."""
    page = _Page(words, charts, number, heading + 1, live)
    above = (
        f'<header><h{heading} data-part="name">{words.get("name", "")}</h{heading}>'
        f'<p class="dim" data-part="about">{words.get("about", "")}</p></header>'
        + "".join((controls if part == "now" else "") + page.words(part) for part in ABOVE)
    )
    below = "".join(page.group(group) for group in GROUPS) + "".join(page.folded(part) for part in DETAILS)
    return above, below


class _Page:
    def __init__(
        self, words: Mapping[str, str], charts: Collection[str], number: int, heading: int, live: bool
    ) -> None:
        self._words, self._charts, self._number, self._live = words, charts, number, live
        self._heading = f"h{heading}"

    def _shown(self, part: str, markup: str) -> str:
        if part in self._words or part in self._charts:
            return markup.replace(" hidden>", ">", 1)
        return markup if self._live else ""

    def words(self, part: str) -> str:
        return self._shown(part, f'<div data-part="{part}" hidden>{self._words.get(part, "")}</div>')

    def folded(self, part: str) -> str:
        content = f'<div data-part="{part}">{self._words.get(part, "")}</div>'
        title = f"<summary>{escape(DETAILS[part])}</summary>"
        return self._shown(part, f'<details data-section="{part}" hidden>{title}{content}</details>')

    def group(self, parts: tuple[str, ...]) -> str:
        sections = "".join(self.section(part) for part in parts)
        return f'<div class="{CLASSES[parts]}">{sections}</div>' if parts in CLASSES and sections else sections

    def section(self, part: str) -> str:
        if part not in TITLES:
            return self.words(part)
        if part in CHARTS:
            drawn, inside = (
                " class=when-drawn",
                f'<div class="chart" data-chart="{part}" data-run="{self._number}"></div>',
            )
        else:
            drawn, inside = "", f'<div data-part="{part}">{self._words.get(part, "")}</div>'
        title = f"<{self._heading}>{escape(TITLES[part])}</{self._heading}>"
        return self._shown(part, f'<section{drawn} data-section="{part}" hidden>{title}{inside}</section>')


def _paragraphs(sentences: list[str]) -> str:
    return "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)


def _was_measured(run: Contents) -> bool:
    """A simulation measures nothing on the way."""
    measured = run.curves.get("measured", {}).get("seconds")
    return bool(measured or run.curves.get("figures") or run.curves.get("logged"))


def _advice(run: Contents) -> str:
    if run.advice is None:
        return ""
    as_it_was = msgspec.structs.replace(run.summary, policy=AS_IT_WAS)
    rows = [
        (
            summary.policy,
            f"{summary.used_per_second:,.1f}",
            f"{summary.waiting_share:.0%}",
            f"{summary.mean_staleness:.2f}",
            f"{summary.discarded / fates:.0%}" if (fates := summary.applied + summary.discarded) else "-",
        )
        for summary in (as_it_was, *run.advice.summaries)
    ]
    heads = ("policy", "gradients used per second", "waited", "mean staleness", "thrown away")
    return f"<p>{escape(foresight_of(run))}; the first row is measured.</p>{table(heads, rows, emphasised=AS_IT_WAS)}"
