"""`paceline replay`: does a recorded run give the same commands again?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from typer import Argument, Option

from paceline.core.errors import TraceError
from paceline.recording.replay import first_difference
from paceline.recording.trace import Trace, trace_in


def replay(
    trace: Annotated[Path, Argument(help="A trace.jsonl, or the run directory that holds it.")],
    weights: Annotated[
        bool, Option("--weights", help="Train it again in one process, and compare the weights to the bit.")
    ] = False,
) -> None:
    """Feed a recorded run to its policy again and check that the same commands come out, byte for byte."""
    path = trace_in(trace) if trace.is_dir() else trace
    recording = Trace(path, allow_cut_off=weights)
    different = first_difference(recording)
    if different is not None:
        line, recorded, replayed = different
        raise TraceError(
            f"{path}, line {line}: the replay departs here\n  recorded: {msgspec.json.encode(recorded).decode()}"
            f"\n  replayed: {msgspec.json.encode(replayed).decode()}"
        )
    print(f"{path}: {recording.header.policy}, {recording.records:,} events replay to the same commands")
    if weights:
        _compare_weights(path.parent)


def _compare_weights(run_dir: Path) -> None:
    from paceline.experiment.verification import train_again  # torch takes a second to import

    verdict = train_again(run_dir)
    if verdict.differs_at is not None:
        where = f" (parameter {verdict.parameter!r})" if verdict.parameter else ""
        raise TraceError(
            f"{run_dir}: trained again, the weights differ after update {verdict.differs_at:,}{where}; up to update"
            f" {verdict.alike_until:,} nothing differs"
        )
    times = ", ".join(f"{version:,}" for version in verdict.agreed)
    print(f"{run_dir}: {verdict.updates:,} updates made again: the weights are the same to the bit (after {times})")
