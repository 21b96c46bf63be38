"""What a run does when a shard is lost, and a part of the parameters with it: all go back to the last checkpoint.

What was done since is done again. A note in the trace says how much that is, whoever lost it: a shard, or a crash.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

from paceline.core.messages import Record, WentBack
from paceline.experiment.balance import NOTHING_LOST, lost_with
from paceline.experiment.configuration import CHECKPOINTS
from paceline.experiment.result import RunResult
from paceline.experiment.resuming import AUTO
from paceline.experiment.run_files import RunFiles
from paceline.recording.observer import Observer
from paceline.runtimes.sockets.shards import ShardLostError
from paceline.training.checkpoint import Facts, checkpoints_in

MOST_RETURNS = 5  # to one checkpoint
RESUMED = "the run had ended, and was resumed"

P = ParamSpec("P")


class ShardLostWarning(UserWarning):
    """A shard was lost, and the run goes on from its last checkpoint."""


class Back(str):
    """`auto`, as what a run resumes from that lost a shard."""

    reason: str

    def __new__(cls, reason: str) -> Back:
        back = super().__new__(cls, AUTO)
        back.reason = reason
        return back


def goes_back(launch: Callable[P, RunResult]) -> Callable[P, RunResult]:
    """The same launch, which begins again from the last checkpoint of its run when a shard is lost."""

    @wraps(launch)
    def launching(*arguments: P.args, **options: P.kwargs) -> RunResult:
        returns, seen = 0, None
        while True:
            try:
                return launch(*arguments, **options)
            except ShardLostError as lost:
                directory = _directory_of(options)
                if directory is None:
                    raise ShardLostError(
                        f"{lost}; with a run_dir the run would go back to its last checkpoint"
                    ) from None
                newest = max(checkpoints_in(directory / CHECKPOINTS), default=None)
                returns, seen = returns + 1 if newest == seen else 1, newest
                if returns > MOST_RETURNS:
                    raise ShardLostError(
                        f"{lost}; it went back {MOST_RETURNS} times, and never came to another checkpoint: make them"
                        " more often (checkpoint_every), or see why servers die"
                    ) from None
                options["resume"], options["run_dir"] = Back(str(lost)), directory

    return launching


def _directory_of(options: dict[str, Any]) -> Path | None:
    """Of the run: the one it was given, or the one that it goes on with."""
    run_dir, resume = options.get("run_dir"), options.get("resume")
    if run_dir is not None:
        return Path(run_dir)
    if resume is None or resume == AUTO:
        return None
    path = Path(resume)
    return path.parent.parent if path.parent.name == "checkpoints" else path


class Returned(Observer):
    """Tells the others what the run went back from, once it goes on; it is the last of the observers. A trace begins
    with a worker, so the note comes after the first record."""

    def __init__(self, note: WentBack, others: Sequence[Observer]) -> None:
        self._note: WentBack | None = note
        self._others = others

    def observe(self, record: Record) -> None:
        if self._note is not None:
            note, self._note = Record(record.now, self._note), None
            for observer in self._others:
                observer.observe(note)


def returned(
    files: RunFiles | None, resume: Path | str | None, facts: Facts | None, others: Sequence[Observer]
) -> list[Observer]:
    """Who tells them, if there is anything to tell. `facts`: of the checkpoint that the run goes on from."""
    if files is None or resume is None:
        return []
    reason = resume.reason if isinstance(resume, Back) else RESUMED
    lost = NOTHING_LOST if files.lost is None else lost_with(files.lost, files.directory)
    note = WentBack(0 if facts is None else facts.updates, lost.updates, lost.samples, reason, lost.seconds)
    if isinstance(resume, Back):
        where = "its last checkpoint" if facts is not None else "its beginning, because there is no checkpoint yet"
        warnings.warn(f"{reason}: the run goes back to {where}; {note.undone}", ShardLostWarning, stacklevel=4)
    elif not lost.updates:
        return []
    return [Returned(note, others)]
