"""An observer that keeps every record of a run."""

from __future__ import annotations

from paceline.recording.observer import Observer
from paceline.recording.trace import Record


class RecordKeeper(Observer):
    def __init__(self) -> None:
        self.records: list[Record] = []

    def observe(self, record: Record) -> None:
        self.records.append(record)
