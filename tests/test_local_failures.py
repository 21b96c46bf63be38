"""What used to hold up, spoil or leak: with real processes, each in one run."""

from __future__ import annotations

import gc
import json
import os
import signal
from contextlib import suppress
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path

import pytest
import training_functions as functions
from record_keeper import RecordKeeper

from paceline.core.errors import PacelineError
from paceline.core.messages import InterruptWorker, Record, WorkerJoined, WorkerLeft
from paceline.experiment.collector import SilentWorkerWarning
from paceline.experiment.training import launch
from paceline.recording.observer import Observer
from paceline.runtimes.serving.port import WorkerFailedError, WorkerFailedWarning

pytestmark = pytest.mark.slow


def test_the_buffers_of_workers_that_were_killed_do_not_count() -> None:
    result = launch(functions.two_of_three_die, workers=3, policy="asp")
    assert result.model_state["mark"].tolist() == [1.0]


def test_a_worker_that_reads_nothing_holds_nobody_up_however_often_it_is_interrupted(tmp_path: Path) -> None:
    keeper = RecordKeeper()
    result = launch(
        partial(functions.thousands_of_updates_beside_a_sleeper, directory=str(tmp_path)),
        workers=2,
        policy="backup:k=1,late=interrupt",
        patience="off",
        observers=[keeper],
    )
    commands = [command for record in keeper.records for command in record.commands]
    assert commands.count(InterruptWorker(1)) > 4000  # a pipe holds about 3,000 of them
    # Batches of one's own are used, or counted as dropped, whether discarded or interrupted.
    assert result.samples + result.dropped == 5000 + 3


def test_a_killed_worker_is_noticed_though_a_child_of_it_lives(tmp_path: Path) -> None:
    keeper = RecordKeeper()
    try:
        result = launch(
            partial(functions.dies_with_a_living_child, directory=str(tmp_path)),
            workers=2,
            policy="bsp",
            observers=[keeper],
        )
        assert result.samples == functions.SAMPLES
        left = [record.event for record in keeper.records if isinstance(record.event, WorkerLeft)]
        assert WorkerLeft(1, "its process was killed by SIGKILL (out of memory?)") in left
        os.kill(json.loads((tmp_path / "child").read_text()), 0)  # it still lives
    finally:
        with suppress(FileNotFoundError, ProcessLookupError):
            os.kill(json.loads((tmp_path / "child").read_text()), signal.SIGKILL)


class Descriptors(Observer):
    """How many descriptors and mapped segments there are whenever a worker joins."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[int, int]] = {}

    def observe(self, record: Record) -> None:
        if isinstance(record.event, WorkerJoined):
            self.seen[record.event.worker] = (len(os.listdir("/proc/self/fd")), mapped_segments())


def mapped_segments() -> int:
    return sum("memfd:paceline" in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_a_replacement_leaks_nothing_and_after_a_run_nothing_is_mapped(tmp_path: Path) -> None:
    descriptors = Descriptors()
    resource_tracker.ensure_running()  # Python's own, which stays
    gc.collect()
    open_before, mapped_before = len(os.listdir("/proc/self/fd")), mapped_segments()
    gc.disable()
    try:
        train = partial(functions.workers_1_to_4_die, directory=str(tmp_path))
        launch(train, workers="2..2", policy="asp", observers=[descriptors])
        assert len(os.listdir("/proc/self/fd")) == open_before
        assert mapped_segments() == mapped_before
    finally:
        gc.enable()
    last = functions.SHORT_LIVED + 1
    assert descriptors.seen[last] == descriptors.seen[2]


def test_a_run_that_fails_leaves_what_it_had_come_to() -> None:
    with pytest.raises(PacelineError, match=r"the gradient of '2.bias' is not finite") as caught:
        launch(functions.not_finite, workers=2, policy="asp")
    assert set(caught.value.result.model_state) == set(functions.model().state_dict())
    with pytest.raises(PacelineError) as early:
        launch(functions.no_optimizer, workers=2)
    assert early.value.result is None


def test_a_last_evaluation_that_fails_does_not_lose_the_result(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="the last state could not be evaluated: .*"):
        result = launch(
            partial(functions.train_and_mark_the_end, directory=str(tmp_path)),
            workers=2,
            evaluate=partial(functions.evaluate_until_the_end, directory=str(tmp_path)),
            evaluate_every=10**9,
            run_dir=tmp_path / "run",
        )
    assert result.samples == functions.SAMPLES and result.evaluations == []
    assert "the disk is full" in result.evaluation_problem
    assert (tmp_path / "run" / "checkpoints" / "model.safetensors").exists()


@pytest.mark.parametrize("text", ["bsp", "asp", "ssp", "elastic-bsp", "backup:k=2"])
def test_a_worker_that_raises_is_named_and_the_others_go_on(text: str) -> None:
    with pytest.warns(WorkerFailedWarning, match=r"^worker 1 raised:\nTraceback(.|\n)*The others go on\.$"):
        result = launch(functions.raises_later, workers=3, policy=text, epochs=2)
    assert result.samples == 2 * functions.SAMPLES
    (gone,) = result.summary.departures
    assert (gone.worker, gone.reason) == (1, "it raised RuntimeError: a bug in the user's loop")


def test_if_the_last_worker_raises_the_run_fails_with_its_traceback() -> None:
    with (
        pytest.warns(WorkerFailedWarning),
        pytest.raises(WorkerFailedError, match="a bug in everybody"),
    ):
        launch(functions.everybody_raises, workers=2)


@pytest.mark.parametrize("text", ["bsp", "asp"])  # all policies: tests/test_chaos.py
def test_a_worker_that_is_stopped_is_set_aside_and_welcomed_when_it_goes_on(text: str, tmp_path: Path) -> None:
    keeper = RecordKeeper()
    with pytest.warns(SilentWorkerWarning, match=r"worker 1 has been silent for [\d.]+ s; it usually needs"):
        result = launch(
            partial(functions.stops_itself, directory=str(tmp_path), wakes=True),
            workers=3,
            policy=text,
            epochs=8,
            patience="0.5s",
            observers=[keeper],
        )
    assert result.samples == 8 * functions.SAMPLES
    gone = {gone.worker: gone.reason for gone in result.summary.departures}  # on a busy machine others may be slow, too
    assert gone[1].startswith("it was set aside: silent for")
    assert any(isinstance(record.event, WorkerJoined) and record.event.process == 1 for record in keeper.records)


def test_a_run_ends_though_a_worker_stays_stopped(tmp_path: Path) -> None:
    with pytest.warns(SilentWorkerWarning):
        result = launch(
            partial(functions.stops_itself, directory=str(tmp_path), wakes=False),
            workers=2,
            policy="bsp",
            patience="0.5s",
        )
    assert result.samples == functions.SAMPLES


def test_a_run_ends_though_a_worker_is_stopped_after_its_work() -> None:
    result = launch(functions.stops_after_its_work, workers=2, policy="asp", patience="0.5s")
    assert result.samples == functions.SAMPLES


def test_a_death_is_made_up_for_as_often_as_restart_says(tmp_path: Path) -> None:
    keeper = RecordKeeper()
    train = partial(functions.workers_1_to_4_die, directory=str(tmp_path))
    result = launch(train, workers=2, policy="asp", restart=functions.SHORT_LIVED, observers=[keeper])
    joined = [record.event.worker for record in keeper.records if isinstance(record.event, WorkerJoined)]
    assert joined[: functions.SHORT_LIVED + 2] == [0, 1, 2, 3, 4, 5]
    assert [gone.worker for gone in result.summary.departures] == [1, 2, 3, 4]


def test_a_run_ends_though_its_evaluator_was_stopped(tmp_path: Path) -> None:
    result = launch(
        functions.train_sgd,
        evaluate=partial(functions.evaluate_and_stop_once, directory=str(tmp_path)),
        evaluate_every=10**9,
        patience="0.5s",
    )
    assert [evaluation.figures for evaluation in result.evaluations] == [{"accuracy": 0.5}]
