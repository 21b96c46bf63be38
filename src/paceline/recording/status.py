"""A run as somebody outside sees it: what `paceline status` and `paceline runs` tell, as data."""

from __future__ import annotations

import msgspec

from paceline.recording.metrics import WorkerNow
from paceline.recording.progress_log import Evaluation, Failure, Measurement

STARTING = "starting"  # a process is at the run, and no worker has begun
RUNNING = "running"
FINISHED = "finished"
STOPPED = "stopped"  # it ended in order before its work was done: Ctrl-C, or an error
KILLED = "killed"  # nobody is at it, and it was not closed
UNREADABLE = "unreadable"
GOING_ON = (STARTING, RUNNING)

COMPUTES, WAITS, SILENT, LEFT = "computes", "waits", "silent", "left"


class WorkerStatus(msgspec.Struct, frozen=True):
    """One worker, with figures over the latest part of a run: see `RunStatus.since`."""

    worker: int
    state: str  # computes, waits, silent or left
    iterations: int  # since it joined, not only lately
    samples_per_second: float
    waiting_share: float
    staleness: float | None  # mean of its gradients that became part of updates; None: there were none
    reason: str  # why it waits, how long it has been silent, or why it left
    latest_wait: str  # the reason of its latest wait, also if that is over

    def as_row(self) -> WorkerNow:
        """As the live table has it."""
        return WorkerNow(
            self.worker,
            self.iterations,
            self.samples_per_second,
            self.waiting_share,
            self.state == WAITS,
            self.reason.removeprefix(f"worker {self.worker} "),
            self.staleness,
            self.reason if self.state in (SILENT, LEFT) else "",
        )


class CheckpointStatus(msgspec.Struct, frozen=True):
    """The newest one that is whole."""

    updates: int
    age: float  # seconds since it was written


class RunStatus(msgspec.Struct, frozen=True):
    run: str  # its directory
    state: str
    began: float  # seconds since 1970
    policy: str = ""  # in force
    began_with: str = ""  # the policy, if that was another one
    chosen_by: str = ""  # a policy that chose it, and may choose another
    optimizer: str = ""
    correction: str = ""  # of stale gradients
    cluster: str = ""
    workers_asked: int | None = None
    seconds: float = 0.0  # that the group has trained
    samples: int = 0  # whose gradients became part of an update
    samples_asked: int | None = None  # None: nobody knows
    updates: int = 0
    samples_per_second: float = 0.0  # of the group, lately
    seconds_left: float | None = None  # at that pace; None: nobody knows, or it has ended
    since: float = 0.0  # from then to `seconds` is what figures of workers, and the pace, are over; 0: the whole run
    workers: tuple[WorkerStatus, ...] = ()
    unseen: int = 0  # further members, of which nothing was heard since then
    measurement: Measurement | None = None  # the latest
    evaluations: tuple[Evaluation, ...] = ()  # the last few
    failures: tuple[Failure, ...] = ()  # all of them
    checkpoint: CheckpointStatus | None = None
    why: str = ""  # it ended before its work was done
    problem: str = ""  # why there is not more to say


def as_text(path: object) -> str:
    """In letters that can be written anywhere: the name of a directory may have others."""
    return str(path).encode(errors="surrogateescape").decode(errors="replace")
