"""The balance of a run's samples, from all that its directory holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from paceline.core.messages import Record
from paceline.recording.ledger import Balance, Ledger, Lost, lost_work
from paceline.recording.lines import lines_of
from paceline.recording.trace import Trace, trace_in


def balance_of(run_dir: Path) -> Balance:
    trace = Trace(trace_in(run_dir), allow_cut_off=True)
    ledger, again = begun_ledger(run_dir, trace)
    for record in trace:
        ledger.observe(record)
    return ledger.balance(again)


def begun_ledger(run_dir: Path, trace: Trace) -> tuple[Ledger, int]:
    """One that knows what was lost with crashes, and how many samples that had been applied; the trace is to follow."""
    ledger, again = Ledger(), 0
    for path in sorted(run_dir.glob("trace.lost-*.jsonl*")):  # what was lost came before what is there in its place
        again += lost_work(_records(path), trace).samples
        for record in _records(path):
            ledger.note_return(record)
    return ledger, again


NOTHING_LOST = Lost(0, 0, 0.0)


def lost_with(path: Path, run_dir: Path) -> Lost:
    """What had been applied in this part of a trace, which was cut off when the run went back to a checkpoint."""
    return lost_work(_records(path), Trace(trace_in(run_dir), allow_cut_off=True))


def _records(path: Path) -> Iterator[Record]:
    """The whole records of what was lost; its first line may be the header of a trace."""
    decoder = msgspec.json.Decoder(Record)
    for line in lines_of(path):
        if line.endswith(b"\n") and line.startswith(b'{"now"'):
            yield decoder.decode(line)
