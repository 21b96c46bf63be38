"""Run directories to make pages of: simulated, with metrics as a real run writes them, whole or as they grow."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from paceline.experiment.configuration import Configuration, Origin
from paceline.experiment.group import Group
from paceline.experiment.run_lock import lock
from paceline.experiment.simulation import Simulation, Switch, simulate
from paceline.recording.progress_log import Evaluation, Failure, Logged, Measurement, MetricsWriter

EVIL = "<img src=x onerror=window.hacked=1>"  # of names, reasons and figures: a page must show it as it is
EVENTFUL = Simulation(
    intervals=(1.0, 1.1, 4.0, 1.0),
    joins={3: 21.0},
    failures={1: 61.5},
    switches=(Switch("elastic-bsp", 101.0),),
    jitter=0.02,
    duration=200,
)


def simulated_run(directory: Path, policy: str, simulation: Simulation, figures: Sequence[str] = ("accuracy",)) -> Path:
    """A run directory as training leaves it, but for the weights."""
    directory.mkdir(parents=True)
    simulate(policy, simulation, trace_file=directory / "trace.jsonl")
    workers = len(simulation.intervals or ())
    task = Configuration(policy, Group(workers), 3, 7, "auto", "mine.train", origin=Origin("digits", script="/a b.py"))
    (directory / "config.json").write_bytes(msgspec.json.encode(task))
    metrics = MetricsWriter(directory / "metrics.jsonl", every=0.0)
    for number in range(1, 41):
        seconds = number * (simulation.duration or 0.0) / 40
        metrics.measured(Measurement(seconds, 8 * number, 0.1, 3, 2 * number, workers, 0.1, 2.0 / number))
        metrics.logged(Logged(seconds, number % 2, {f"norm {EVIL}": 1.0 / number}))
        if number % 4 == 0:
            metrics.evaluated(Evaluation(seconds, 8 * number, 2 * number, dict.fromkeys(figures, number / 50)))
    metrics.worker_failed(Failure(1, 61.5, f"raised {EVIL}"))
    metrics.close()
    return directory


class Growing:
    """A run directory into which a run that was simulated is written again, as by one that goes on."""

    def __init__(self, run: Path, directory: Path) -> None:
        self.directory, self._run = directory, run
        directory.mkdir()
        shutil.copy(run / "config.json", directory)
        self._held = lock(directory)
        self.names = ("trace.jsonl", "metrics.jsonl")

    def write(self, share: float) -> None:
        """So much of its files, wherever that cuts them."""
        for name in self.names:
            content = (self._run / name).read_bytes()
            first = content.index(b"\n") + 1  # a header is written at once
            (self.directory / name).write_bytes(content[: max(first, int(share * len(content)))])

    def end(self) -> None:
        os.close(self._held)

    def go_on(self) -> None:
        self._held = lock(self.directory)
