"""What a run does when a shard is lost, and a part of the parameters with it: all go back to the last checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

from paceline.experiment.result import RunResult
from paceline.experiment.resuming import AUTO
from paceline.runtimes.sockets.shards import ShardLostError

MOST_RETURNS = 5  # in one run

P = ParamSpec("P")


class ShardLostWarning(UserWarning):
    """A shard was lost, and the run goes on from its last checkpoint."""


def goes_back(launch: Callable[P, RunResult]) -> Callable[P, RunResult]:
    """The same launch, which begins again from the last checkpoint of its run when a shard is lost. What was done since
    is done again; it stays beside the trace, and the ledger counts it."""

    @wraps(launch)
    def launching(*arguments: P.args, **options: P.kwargs) -> RunResult:
        for _ in range(MOST_RETURNS):
            try:
                return launch(*arguments, **options)
            except ShardLostError as lost:
                directory = _directory_of(options)
                if directory is None:
                    raise ShardLostError(
                        f"{lost}; with a run_dir the run would go back to its last checkpoint"
                    ) from None
                warnings.warn(f"{lost}: the run goes back to its last checkpoint", ShardLostWarning, stacklevel=2)
                options["resume"], options["run_dir"] = AUTO, directory
        return launch(*arguments, **options)

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
