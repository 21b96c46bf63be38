"""Turns how runs are into Prometheus' text format (0.0.4), for a page that is asked for it, or for a file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from paceline.recording.status import (
    FINISHED,
    GOING_ON,
    KILLED,
    RUNNING,
    STARTING,
    STOPPED,
    UNREADABLE,
    RunStatus,
    as_text,
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STATES = (STARTING, RUNNING, FINISHED, STOPPED, KILLED, UNREADABLE)
ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class _Sample(NamedTuple):
    value: float | None  # None: nobody knows, and there is no line
    labels: Mapping[str, str] = {}


class _Family(NamedTuple):
    name: str
    kind: str  # counter or gauge
    about: str
    samples: Sequence[_Sample]


def prometheus_text(runs: Iterable[RunStatus]) -> str:
    """One page about all of these runs; of each run every line has its directory as the label `run`."""
    families: dict[str, list[str]] = {}
    for run in runs:
        for family in (*_of_run(run), *_of_workers(run)):
            head = [f"# HELP {family.name} {family.about}", f"# TYPE {family.name} {family.kind}"]
            lines = families.setdefault(family.name, head)
            for value, labels in family.samples:
                if value is not None:
                    lines.append(f"{family.name}{{{_labels({'run': run.run, **labels})}}} {_number(value)}")
    return "".join(f"{line}\n" for lines in families.values() if len(lines) > 2 for line in lines)


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{as_text(value).translate(ESCAPED)}"' for name, value in labels.items())


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _one(name: str, kind: str, about: str, value: float | None, labels: Mapping[str, str] | None = None) -> _Family:
    return _Family(f"paceline_{name}", kind, about, [_Sample(value, labels or {})])


def _of_run(run: RunStatus) -> list[_Family]:
    measured, checkpoint = run.measurement, run.checkpoint
    about = {"policy": run.policy, "optimizer": run.optimizer, "correction": run.correction, "cluster": run.cluster}
    evaluated = run.evaluations[-1] if run.evaluations else None
    figures = (
        [] if evaluated is None else [_Sample(value, {"figure": name}) for name, value in evaluated.figures.items()]
    )
    states = [_Sample(int(run.state == state), {"state": state}) for state in STATES]
    return [
        _one("run_info", "gauge", "What the run is; always 1.", 1, about),
        _Family("paceline_run_state", "gauge", "1 for the state that the run is in, 0 for the others.", states),
        _one("run_began_seconds", "gauge", "When the run began, in seconds since 1970.", run.began),
        _one("training_seconds_total", "counter", "Seconds that the group has trained.", run.seconds),
        _one("samples_total", "counter", "Samples whose gradients became part of an update.", run.samples),
        _one("samples_asked", "gauge", "Samples that the run shall come to.", run.samples_asked),
        _one("updates_total", "counter", "Updates of the parameters.", run.updates),
        _one("samples_per_second", "gauge", "Samples of the group per second, lately.", run.samples_per_second),
        _one("seconds_left", "gauge", "Seconds that are left at this pace.", run.seconds_left),
        _one("epoch", "gauge", "Passes over the data set.", None if measured is None else measured.epoch),
        _one("workers", "gauge", "Members of the group.", None if measured is None else measured.workers),
        _one(
            "training_loss",
            "gauge",
            "Loss, a mean over the latest pushes.",
            None if measured is None else measured.loss,
        ),
        _one("learning_rate", "gauge", "Rate of a full round.", None if measured is None else measured.learning_rate),
        _Family("paceline_evaluation", "gauge", "What the latest evaluation found.", figures),
        _one(
            "evaluation_samples",
            "gauge",
            "Samples that the state had learned that was evaluated last.",
            None if evaluated is None else evaluated.samples,
        ),
        _one("worker_deaths_total", "counter", "Workers that died.", len(run.failures)),
        _one(
            "checkpoint_age_seconds",
            "gauge",
            "Seconds since the newest checkpoint was written.",
            None if checkpoint is None or run.state not in GOING_ON else checkpoint.age,
        ),
        _one(
            "checkpoint_updates",
            "gauge",
            "Updates that are in the newest checkpoint.",
            None if checkpoint is None else checkpoint.updates,
        ),
    ]


def _of_workers(run: RunStatus) -> list[_Family]:
    by_name = [({"worker": str(worker.worker)}, worker) for worker in run.workers]
    return [
        _Family(
            "paceline_worker_state",
            "gauge",
            "1 for the state that the worker is in: computes, waits, silent or left.",
            [_Sample(1, {**label, "state": worker.state}) for label, worker in by_name],
        ),
        _Family(
            "paceline_worker_pushes_total",
            "counter",
            "Gradients that the worker has pushed.",
            [_Sample(worker.iterations, label) for label, worker in by_name],
        ),
        _Family(
            "paceline_worker_samples_per_second",
            "gauge",
            "Samples of the worker per second, lately.",
            [_Sample(worker.samples_per_second, label) for label, worker in by_name],
        ),
        _Family(
            "paceline_worker_waiting_share",
            "gauge",
            "Share of its time that the worker waited, lately.",
            [_Sample(worker.waiting_share, label) for label, worker in by_name],
        ),
        _Family(
            "paceline_worker_staleness",
            "gauge",
            "Mean staleness of the worker's gradients, lately.",
            [_Sample(worker.staleness, label) for label, worker in by_name],
        ),
    ]
