"""The run that is tormented, in a process of its own: its workers repeat and delay messages if asked.

Whoever torments it needs to know when the group began, who left when, and how it ended: that is written beside the run.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from paceline.core.messages import (
    AT_THE_END,
    ApplyUpdate,
    Record,
    UpdateRule,
    WorkerJoined,
    WorkerLeft,
    WorkerSuspected,
)
from paceline.experiment.chaos.setting import CHECKPOINT_EVERY, PATIENCE, Setting, Subject, in_words
from paceline.experiment.configuration import Origin
from paceline.experiment.script import script_functions
from paceline.experiment.tasks import TaskOptions, task_of
from paceline.experiment.training import launch
from paceline.recording.observer import Observer
from paceline.runtimes.driver import Driver
from paceline.runtimes.ray_cluster.options import RayCluster
from paceline.runtimes.serving.messages import Push
from paceline.runtimes.serving.port import WorkerFailedError
from paceline.training.worker import Worker

REPEAT, DELAY = signal.SIGUSR1, signal.SIGUSR2  # what a worker is asked to do with its next push
DELAYED_BY = 0.4  # seconds
SPEED = "lognormal:seconds=0.03"
EPOCHS_PER_SECOND = {"digits": 2.0}

LOG, OUTCOME = "chaos.jsonl", "outcome.json"
SAID = "launcher.txt"  # what Ray says of nodes and workers that die is not for the user's eyes


class Seen(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the log. `at`: of the clock that all processes of a machine share."""

    at: float
    what: str  # process, begun, suspected, left, update
    worker: int = -1
    pid: int = 0
    reason: str = ""
    usual: float | None = None
    others: int = 0  # workers that are left


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    problem: str = ""
    gave_up: bool = False  # nobody was left who could have gone on
    updates: int = 0
    samples: int = 0


class _Watcher(Observer):
    """Writes down what a tormentor wants to know, at once."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._somebody_left = False
        self._members: set[int] = set()

    def begun(self, rule: UpdateRule) -> None:
        self._write(Seen(time.monotonic(), "begun"))

    def observe(self, record: Record) -> None:
        event = record.event
        if isinstance(event, WorkerJoined):
            self._members.add(event.worker)
        elif isinstance(event, WorkerLeft):
            self._members.discard(event.worker)
        if isinstance(event, WorkerSuspected):
            self._write(Seen(time.monotonic(), "suspected", event.worker, usual=event.usual))
        elif isinstance(event, WorkerLeft) and event.reason not in AT_THE_END:
            others = len(self._members)
            self._write(Seen(time.monotonic(), "left", event.worker, reason=event.reason, others=others))
            self._somebody_left = True
        if self._somebody_left and any(isinstance(command, ApplyUpdate) for command in record.commands):
            self._write(Seen(time.monotonic(), "update"))
            self._somebody_left = False

    def _write(self, seen: Seen) -> None:
        self._file.write(msgspec.json.encode(seen) + b"\n")


class Misbehaving:
    """A train function whose messages are repeated and delayed when its process gets a signal."""

    description = "chaos"

    def __init__(self, learn: Callable[[Worker], None], log: Path) -> None:
        self._learn = learn
        self._log = log

    def __call__(self, worker: Worker) -> None:
        with self._log.open("ab", buffering=0) as log:
            log.write(msgspec.json.encode(Seen(time.monotonic(), "process", worker.index, os.getpid())) + b"\n")
        asked: set[int] = set()

        def note(number: int, frame: FrameType | None) -> None:
            asked.add(number)

        link: Any = worker._link
        send = link.send

        def send_badly(message: Any) -> None:
            if isinstance(message, Push):
                if DELAY in asked:
                    asked.discard(DELAY)
                    time.sleep(DELAYED_BY)
                send(message)
                if REPEAT in asked:
                    asked.discard(REPEAT)
                    send(message)
            else:
                send(message)

        link.send = send_badly
        for number in (REPEAT, DELAY):
            signal.signal(number, note)
        self._learn(worker)


def _what_is_run(subject: Subject, seed: int, seconds: float) -> tuple[Callable[[Worker], None], int, Origin]:
    """The function, for how many epochs, and where it comes from."""
    if subject.is_script:
        path = Path(subject.name).resolve()
        origin = Origin(path.stem, script=str(path), arguments=subject.arguments)
        return script_functions(path, subject.arguments)[0], subject.epochs or 1, origin
    epochs = subject.epochs or max(1, round(seconds * EPOCHS_PER_SECOND[subject.name]))
    wanted = TaskOptions(subject.name, epochs=epochs)
    return task_of(wanted, seed=seed).learn, epochs, Origin(subject.name, task=wanted.as_written())


def _speak_into(path: Path) -> None:
    with path.open("ab") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)


def live(
    run_dir: Path, subject: Subject, seed: int, setting: Setting, seconds: float, cluster: RayCluster | None = None
) -> None:
    """One life of the run: begun in this directory, or gone on with. Says how it ended, unless it is killed."""
    if cluster is not None:
        _speak_into(run_dir.parent / SAID)
    Driver.validate = True
    multiprocessing.set_start_method(None, force=True)  # this process was forked from a server: workers shall not be
    warnings.simplefilter("ignore")
    outcome, log = Outcome(), run_dir.parent / LOG
    try:
        learn, epochs, origin = _what_is_run(subject, seed, seconds)
        result = launch(
            Misbehaving(learn, log),
            workers=setting.workers,
            policy=setting.policy,
            epochs=epochs,
            seed=seed,
            speed=SPEED,
            restart=setting.restart,
            patience=f"{PATIENCE:g}s",
            run_dir=run_dir,
            checkpoint_every=f"{CHECKPOINT_EVERY:g}s",
            resume="auto",
            observers=[_Watcher(log)],
            origin=origin,
            cluster=cluster,
        )
        outcome = Outcome(updates=result.summary.updates, samples=result.samples)
    except WorkerFailedError as problem:
        outcome = Outcome(str(problem), gave_up=True)
    except Exception as problem:  # whatever it is, it is a finding
        outcome = Outcome(in_words(problem))
    (run_dir.parent / OUTCOME).write_bytes(msgspec.json.encode(outcome))
