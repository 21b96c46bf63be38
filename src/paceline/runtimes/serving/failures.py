"""Why a worker died, or did nothing, in words."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Mapping

from paceline.core.errors import ConfigurationError
from paceline.recording.progress_log import Failure
from paceline.runtimes.serving.launching import LAUNCHED_BY_A_WORKER

HINTS = {"SIGKILL": " (out of memory?)", "SIGSEGV": " (a segmentation fault)"}


def cause_of(exit_code: int | None) -> str:
    """Why a process ended."""
    name = _signal_of(exit_code)
    if not name:
        return f"its process died (exit code {exit_code})"
    return f"its process was killed by {name}{HINTS.get(name, '')}"


def died(worker: int, seconds: float, cause: str, exit_code: int | None, last_words: str) -> Failure:
    """Its process ended, and had not said that it would."""
    name = _signal_of(exit_code)
    return Failure(worker, seconds, cause, None if name else exit_code, name, last_words)


def raised(worker: int, seconds: float, traceback: str) -> Failure:
    """The user's function raised in it."""
    last_line = traceback.strip().splitlines()[-1]
    return Failure(worker, seconds, f"it raised {last_line}", last_words=last_line)


def _signal_of(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return ""
    known = {number.value: number.name for number in signal.Signals}
    return known.get(-exit_code, f"signal {-exit_code}")


def complain_of_unused_batches(unused: Mapping[int, int], *, trained: bool) -> None:
    """`unused`: by worker, the batches that it took without ever calling step. If others have `trained`, that is only
    said."""
    for worker, batches in unused.items():
        if not batches:
            continue
        said = (
            f"worker {worker} took {batches:,} batches and never called optimizer.step(): call it after backward(), on"
            " the optimizer that worker.optimizer returned"
        )
        if not trained:
            raise ConfigurationError(said)
        warnings.warn(said, stacklevel=2)


def refuse_launch_by_a_worker(exit_code: int | None) -> None:
    if exit_code == LAUNCHED_BY_A_WORKER:
        raise ConfigurationError(
            "a new process imports your script, and the script launches again: put the call of launch or fit under"
            " `if __name__ == '__main__':`"
        )
