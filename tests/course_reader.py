"""What a page makes of a course that it is told piece by piece: the same as of all at once."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from paceline.recording.course import Course

LISTS = ("reasons", "updates", "barriers", "marks")


class Reader:
    """What a page makes of the pieces."""

    def __init__(self) -> None:
        self.rows: list[list[tuple[Any, ...]]] = []
        self.lists: dict[str, list[Any]] = {name: [] for name in LISTS}
        self.rest: dict[str, Any] = {}

    def take(self, told: dict[str, Any]) -> None:
        for number, row in enumerate(told["rows"]):
            if number == len(self.rows):
                self.rows.append([])
            known = self.rows[number]
            del known[row["kept"] :]
            known += iterations(row, known[-1][2] if known else 0)
        for name in LISTS:
            own, new = self.lists[name], told[name]
            if name in ("updates", "barriers"):
                new = [*accumulate(new, initial=own[-1] if own else 0)][1:]
            own += new
        self.rest = {
            **{name: told[name] for name in ("end", "tick", "usual", "pace", "staleness", "leads")},
            "workers": [row["workers"] for row in told["rows"]],
        }


def iterations(row: dict[str, Any], at: int) -> list[tuple[Any, ...]]:
    """When each began, was pushed, and went on; its fate, and why and until when its worker waited."""
    fates = dict(zip(accumulate(row["odd"]), row["fates"], strict=True))
    waits = dict(zip(accumulate(row["waited"]), zip(row["reasons"], row["until"], strict=True), strict=True))
    found = []
    for number, (gap, compute, wait) in enumerate(zip(row["gaps"], row["computes"], row["waits"], strict=True)):
        begin, push, at = at + gap, at + gap + compute, at + gap + compute + wait
        found.append((begin, push, at, fates.get(number, 0), waits.get(number)))
    return found


def whole(course: Course, end: float, tick: float) -> Reader:
    reader = Reader()
    reader.take(course.data(end, tick))
    return reader
