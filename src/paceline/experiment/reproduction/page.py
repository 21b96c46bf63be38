"""A page of results: claims with what we saw, tables and pictures, and the command that gives all of it again.

Whether a claim holds is computed from the results, never written by hand.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class Claim(NamedTuple):
    text: str  # of the paper
    seen: str  # what we measured
    holds: bool


@dataclass(frozen=True)
class Section:
    heading: str
    text: str = ""
    headings: Sequence[str] = ()
    cells: Sequence[Sequence[str]] = ()
    pictures: Sequence[tuple[str, Path]] = ()  # what it shows, where it is


@dataclass(frozen=True)
class Page:
    title: str
    paper: str
    set_up: str
    claims: Sequence[Claim]
    sections: Sequence[Section] = field(default_factory=tuple)
    first_seed: int = 0

    @property
    def verdict(self) -> str:
        hold = sum(claim.holds for claim in self.claims)
        if hold == len(self.claims):
            return "reproduced"
        return "partly reproduced" if hold else "not reproduced"

    def markdown(self, command: str, seeds: int, below: Path) -> str:
        """The whole page; pictures are linked relative to `below`, the folder of the page."""
        hold = sum(claim.holds for claim in self.claims)
        used = range(self.first_seed, self.first_seed + seeds)
        given = "no random numbers" if seeds == 0 else "seeds " + ", ".join(map(str, used))
        parts = [
            f"# {self.title}",
            f"{self.paper}",
            f"**{self.verdict.capitalize()}**: {hold} of {len(self.claims)} claims hold here.",
            f"```\n{command}\n```",
            f"Written by this command ({given}).",
            "## What the paper claims, and what we saw",
            table(
                ("claim", "what we saw", "holds"),
                [(claim.text, claim.seen, "yes" if claim.holds else "**no**") for claim in self.claims],
            ),
            "## Set-up",
            self.set_up,
        ]
        for section in self.sections:
            parts.append(f"## {section.heading}")
            if section.text:
                parts.append(section.text)
            if section.cells:
                parts.append(table(section.headings, section.cells))
            parts += [f"![{what}]({Path(os.path.relpath(path, below)).as_posix()})" for what, path in section.pictures]
        return "\n\n".join(parts) + "\n"


def index(folder: Path) -> str:
    """A page about all pages in a folder: what each is about, and its verdict."""
    cells = []
    for path in sorted(folder.glob("*.md")):
        lines = path.read_text().splitlines()
        verdict = next((line for line in lines if line.startswith("**")), None)
        if lines and lines[0].startswith("# ") and verdict is not None:
            word, _, rest = verdict.lstrip("*").partition("**: ")
            cells.append((f"[{path.stem}]({path.name})", lines[0].removeprefix("# "), word.lower(), rest))
    headings = ("experiment", "what it is about", "verdict", "")
    return (
        "# Published experiments, run again\n\n"
        "Each page is written by `paceline reproduce NAME`: what the paper claims, what we saw, tables, pictures, the"
        " exact command. Whether a claim holds is computed from the results beside it. All are scaled down to about a"
        f" quarter of an hour on two cores, as each page says.\n\n{table(headings, cells)}\n"
    )


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown; all columns but the first are set to the right if they hold figures."""
    aligned = [":--" if column == 0 or _is_text(rows, column) else "--:" for column in range(len(headings))]
    escaped = [[cell.strip().replace("\n", " ").replace("|", "\\|") for cell in line] for line in (headings, *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (escaped[0], aligned, *escaped[1:]))


def _is_text(rows: Sequence[Sequence[str]], column: int) -> bool:
    return any(len(row[column]) > 12 for row in rows)
