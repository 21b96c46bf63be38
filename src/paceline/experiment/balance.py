"""The balance of a run's samples, from all that its directory holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from paceline.core.messages import Record
from paceline.recording.ledger import Balance, Ledger, undone
from paceline.recording.lines import lines_of
from paceline.recording.trace import Trace, trace_in


def balance_of(run_dir: Path) -> Balance:
    trace = Trace(trace_in(run_dir), allow_cut_off=True)
    ledger = Ledger()
    for record in trace:
        ledger.observe(record)
    again = sum(undone(_records(path), trace) for path in sorted(run_dir.glob("trace.lost-*.jsonl*")))
    return ledger.balance(again)


def _records(path: Path) -> Iterator[Record]:
    """The whole records of what was lost; its first line may be the header of a trace."""
    decoder = msgspec.json.Decoder(Record)
    for line in lines_of(path):
        if line.endswith(b"\n") and line.startswith(b'{"now"'):
            yield decoder.decode(line)
