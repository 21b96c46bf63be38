"""`paceline replay`: does a recorded run give the same commands again?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from typer import Argument

from paceline.core.errors import TraceError
from paceline.recording.replay import first_difference
from paceline.recording.trace import Trace


def replay(
    trace: Annotated[Path, Argument(help="A trace.jsonl, or the run directory that holds it.")],
) -> None:
    """Feed a recorded run to its policy again and check that the same commands come out, byte for byte."""
    path = trace / "trace.jsonl" if trace.is_dir() else trace
    recording = Trace(path)
    different = first_difference(recording)
    if different is not None:
        line, recorded, replayed = different
        raise TraceError(
            f"{path}, line {line}: the replay departs here\n  recorded: {msgspec.json.encode(recorded).decode()}"
            f"\n  replayed: {msgspec.json.encode(replayed).decode()}"
        )
    print(f"{path}: {recording.header.policy}, {recording.records:,} events replay to the same commands")
