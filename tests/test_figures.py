"""The figures of a run by name: what they are, that TensorBoard reads them, and the hook for all other programs."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import callback_functions
import pytest
import training_functions as functions

import paceline
from paceline.core.errors import ConfigurationError
from paceline.core.messages import (
    ApplyUpdate,
    Gradient,
    GradientArrived,
    Record,
    SendParameters,
    WorkerJoined,
    WorkerLeft,
)
from paceline.experiment.callbacks import CallbackCaller
from paceline.experiment.metrics_hook import MetricsHook
from paceline.experiment.run_files import tensorboards
from paceline.experiment.training import launch
from paceline.recording.event_file import EventFile, checksum
from paceline.recording.figures import MOST_WORKERS, Figures
from paceline.recording.metrics import RunMetrics
from paceline.recording.progress_log import Evaluation, Logged, Measurement
from paceline.recording.tensorboard import TensorBoard


def group(workers: int = 2) -> RunMetrics:
    metrics = RunMetrics()
    for worker in range(workers):
        metrics.observe(Record(0.0, WorkerJoined(worker), (SendParameters(worker),)))
    return metrics


def train(metrics: RunMetrics, rounds: range, workers: int = 2) -> RunMetrics:
    """Under BSP, rounds of 2 seconds, 10 samples of every worker: worker 0 computes for 0.5 s, the others for 2."""
    for number in rounds:
        update = ApplyUpdate(tuple(Gradient(worker, number) for worker in range(workers)))
        release = tuple(SendParameters(worker) for worker in range(workers))
        for worker in range(workers):
            now = 2.0 * number - (0.0 if worker else 1.5)
            commands = (update, *release) if worker == workers - 1 else ()
            event = GradientArrived(Gradient(worker, number), number - 1, 10)
            metrics.observe(Record(now, event, commands, "" if commands else "it waits"))
    return metrics


def measurement(seconds: float, samples: int, loss: float | None = 0.5) -> Measurement:
    return Measurement(seconds, samples, samples / 100, 2, samples // 20, 2, 0.1, loss)


# -- the figures --


def test_what_happened_lately_by_hand() -> None:
    metrics = group()
    figures = Figures(metrics)
    begun = figures.at(Measurement(0.0, 0, None, None, 0, 2, 0.1, None))
    assert begun == {"train/learning_rate": 0.1, "train/updates": 0, "train/seconds": 0.0, "group/workers": 2}
    train(metrics, range(1, 4))
    found = figures.at(measurement(6.0, 60))
    assert found == {
        "train/learning_rate": 0.1,
        "train/loss": 0.5,
        "train/epoch": 0.6,
        "train/updates": 3,
        "train/seconds": 6.0,
        "group/workers": 2,
        "group/samples_per_second": 10.0,
        "group/staleness": 0.0,
        "group/waiting_share": pytest.approx(4.5 / 12),
        "pace/worker_0": 5.0,
        "pace/worker_1": 5.0,
    }


def test_a_worker_that_slows_down_is_seen_within_seconds() -> None:
    """Figures are over the last ten seconds, whoever asks how often."""
    metrics = group()
    figures = Figures(metrics)
    for number in range(1, 51):
        train(metrics, range(number, number + 1))
        figures.at(measurement(2.0 * number, 20 * number))
    for half_seconds in range(1, 22):
        found = figures.at(measurement(100.0 + half_seconds / 2, 1000))
    assert found["group/samples_per_second"] == found["pace/worker_0"] == found["group/waiting_share"] == 0.0
    metrics.observe(Record(112.0, WorkerLeft(0, "it was set aside")))
    assert "pace/worker_0" not in [figures.at(measurement(at, 1000)) for at in (112.0, 122.0, 123.0)][-1]


@pytest.mark.parametrize(("workers", "curves"), [(MOST_WORKERS, MOST_WORKERS), (MOST_WORKERS + 1, 0)])
def test_a_thousand_workers_have_no_thousand_curves(workers: int, curves: int) -> None:
    metrics = group(workers)
    figures = Figures(metrics)
    figures.at(measurement(0.0, 0))
    train(metrics, range(1, 3), workers)
    assert sum(name.startswith("pace/") for name in figures.at(measurement(4.0, 1))) == curves


def test_own_figures_are_told_once_as_means_over_the_workers() -> None:
    figures = Figures(group())
    figures.note(Logged(1.0, 0, {"norm": 8.0}))
    figures.note(Logged(2.0, 0, {"norm": 1.0}))
    figures.note(Logged(2.0, 1, {"norm": 3.0, "lr": 0.1}))
    found = figures.at(measurement(2.0, 20))
    assert (found["logged/norm"], found["logged/lr"]) == (2.0, 0.1)
    assert "logged/norm" not in figures.at(measurement(2.2, 20))


# -- TensorBoard --


def scalars(directory: Path) -> dict[str, list[tuple[float, int, float]]]:
    """Of each curve its points (wall time, step, value), as TensorBoard's own reader finds them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    found = EventAccumulator(str(directory))
    found.Reload()
    return {
        name: [(point.wall_time, point.step, point.value) for point in found.Scalars(name)]
        for name in found.Tags()["scalars"]
    }


def test_checksums_are_those_of_tensorboard() -> None:
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    for content in (b"", b"123456789", bytes(range(256)) * 3):
        assert checksum(content) == masked_crc32c(content)


def test_tensorboard_reads_the_curves_with_their_steps_and_times(tmp_path: Path) -> None:
    clock = [1000.0]
    board = TensorBoard(tmp_path, group(), clock=lambda: clock[0])
    for seconds, samples in ((0.0, 0), (0.5, 20), (2.0, 20), (2.5, 40)):
        clock[0] = 1000.0 + seconds
        board.measured(measurement(seconds, samples))
    clock[0] = 1006.0
    board.evaluated(Evaluation(4.0, 40, 2, {"accuracy": 0.75, "loss": math.nan, "größe": 1e300}))
    board.logged(Logged(6.0, 0, {"gradient norm": 2.0}))
    board.close()
    read = scalars(tmp_path)
    assert read["train/loss"] == [(1000.0, 0, 0.5), (1002.0, 20, 0.5), (1002.5, 40, 0.5)]  # the last, at the end
    assert read["evaluation/accuracy"] == [(1004.0, 40, 0.75)]  # when training had come there
    assert math.isnan(read["evaluation/loss"][0][2]) and read["evaluation/größe"][0][2] > 3e38
    assert read["logged/gradient norm"] == [(1002.5, 40, 2.0)]
    assert [step for _, step, _ in read["pace/worker_1"]] == [20, 40]


def test_what_was_lost_with_a_crash_is_not_shown(tmp_path: Path) -> None:
    first = EventFile(tmp_path, 1000.0)
    for step in (0, 10, 20, 30):
        first.write(1000.0 + step, step, {"train/loss": 1.0})
    second = EventFile(tmp_path, 1000.0, begins_at=20)  # in the same second
    second.write(2000.0, 30, {"train/loss": 2.0})
    assert scalars(tmp_path)["train/loss"] == [(1000.0, 0, 1.0), (1010.0, 10, 1.0), (2000.0, 30, 2.0)]
    first.close()
    second.close()


def test_a_disk_that_is_full_is_told_once_and_stops_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    board = TensorBoard(tmp_path / "is not there", group())
    for seconds in (0.0, 2.0, 4.0):
        board.measured(measurement(seconds, 20))
    board.close()
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "No such file or directory; the run goes on without it" in err


def test_it_is_on_where_tensorboard_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import ExitStack
    from types import SimpleNamespace

    def board(wanted: bool | None, directory: Path | None = tmp_path) -> bool:
        files: Any = None if directory is None else SimpleNamespace(directory=directory)
        with ExitStack() as stack:
            return bool(tensorboards(wanted, files, RunMetrics(), None, stack))

    assert board(None) and board(True) and not board(False) and not board(None, None)
    with pytest.raises(ConfigurationError, match="tensorboard=True writes into the directory of the run; give run_dir"):
        board(True, None)
    monkeypatch.setattr("paceline.experiment.run_files.find_spec", lambda name: None)
    assert not board(None) and board(True)


def test_to_write_for_tensorboard_imports_nothing_of_it() -> None:
    asked = "import paceline.recording.tensorboard, sys; print([name for name in sys.modules if 'tensorb' in name])"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout == "['paceline.recording.tensorboard']\n"


# -- the hook --


def hook_of(call: Callable[[dict[str, float], int], object]) -> tuple[CallbackCaller, Any]:
    class FakeRun:
        stopped = ""

        def stop(self, reason: str) -> None:
            self.stopped = reason

    caller = CallbackCaller([MetricsHook(call, group())])
    run: Any = FakeRun()
    caller.run = run
    return caller, run


def test_steps_of_the_hook_never_go_back() -> None:
    told: list[tuple[int, dict[str, float]]] = []
    caller, _ = hook_of(lambda figures, step: told.append((step, figures)))
    caller.measured(measurement(2.0, 20))
    caller.measured(measurement(4.0, 40))
    caller.evaluated(Evaluation(2.0, 20, 1, {"accuracy": 0.75}))
    caller.logged(Logged(5.0, 1, {"norm": 2.0}))
    caller.end("the result")  # type: ignore[arg-type]
    assert [step for step, _ in told] == [20, 40, 40, 40]
    assert told[2][1] == {"evaluation/accuracy": 0.75, "evaluation/samples": 20}
    assert told[3][1] == {"logged/norm": 2.0}  # what came after the last measurement
    assert all(isinstance(value, int | float) for _, figures in told for value in figures.values())


def test_a_hook_that_raises_ends_the_run_and_is_not_called_again() -> None:
    calls: list[int] = []

    def raises(figures: dict[str, float], step: int) -> None:
        calls.append(step)
        raise ConnectionError("no network")

    caller, run = hook_of(raises)
    caller.measured(measurement(2.0, 20))
    caller.logged(Logged(5.0, 1, {"norm": 2.0}))
    caller.measured(measurement(4.0, 40))
    caller.end("the result")  # type: ignore[arg-type]
    assert calls == [20]
    assert run.stopped == str(caller.problem) == "callback on_metrics raised: ConnectionError: no network"


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"on_metrics": 3}, "on_metrics is 3; it must be a function on_metrics"),
        ({"on_metrics": lambda figures: None}, "cannot be called as <lambda>"),
        ({"tensorboard": "yes"}, "tensorboard is 'yes'; it must be True, False, or None"),
        ({"tensorboard": True}, "give run_dir as well"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(option: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        launch(callback_functions.train_and_log, **option)


@pytest.mark.slow
def test_a_real_run_tells_its_figures_to_all(tmp_path: Path) -> None:
    """Loops log figures of their own: they come to metrics.jsonl, TensorBoard, the hook and the tables."""
    from paceline.experiment.exporting import TABLES, Exporter
    from paceline.recording.progress_log import read_metrics
    from paceline.recording.table_files import CsvFiles

    told: list[tuple[int, dict[str, float]]] = []
    result = paceline.launch(
        callback_functions.train_and_log,
        workers=2,
        policy="asp",
        evaluate=callback_functions.evaluate,
        run_dir=tmp_path / "run",
        on_metrics=lambda figures, step: told.append((step, figures)),
    )
    assert [step for step, _ in told] == sorted(step for step, _ in told)
    assert told[-1][0] == result.samples == functions.SAMPLES
    together = {name: value for _, figures in told for name, value in figures.items()}
    assert together["evaluation/loss"] == 1.0 and together["logged/one"] == 1.0
    assert 0 <= together["group/waiting_share"] <= 1 and together["group/samples_per_second"] > 0
    read = scalars(tmp_path / "run")
    assert read["logged/one"][-1][2] == 1.0 and read["evaluation/loss"][-1][1:] == (functions.SAMPLES, 1.0)
    assert set(read) >= {"train/loss", "train/learning_rate", "group/workers", "pace/worker_0", "pace/worker_1"}
    Exporter(tmp_path / "run").export_tables(CsvFiles(tmp_path / "csv", TABLES, force=False))
    logged = [line for line in read_metrics(tmp_path / "run/metrics.jsonl") if isinstance(line, Logged)]
    assert {line.figures["number"] for line in logged} == {0.0, 1.0}
    table = (tmp_path / "csv/logged.csv").read_text().splitlines()
    assert table[0] == "seconds,worker,number,one" and len(table) == 1 + len(logged)
