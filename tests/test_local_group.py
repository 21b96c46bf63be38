"""Groups that change while they train: who is killed, who joins, who is sent away, and who is interrupted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
import training_functions as functions

from paceline.core.errors import PacelineError
from paceline.core.messages import (
    ApplyUpdate,
    DiscardGradient,
    GradientArrived,
    InterruptWorker,
    SendParameters,
    WorkerJoined,
    WorkerLeft,
)
from paceline.experiment.training import launch
from paceline.recording.replay import first_difference
from paceline.recording.trace import Record, Trace
from paceline.runtimes.serving.control import Scale, ask

pytestmark = pytest.mark.slow


@contextmanager
def beside(act: Callable[[], None]) -> Iterator[None]:
    """Do this while the run goes on; its errors are the test's."""
    with ThreadPoolExecutor(1) as pool:
        acting = pool.submit(act)
        yield
        acting.result()


def applied_before(records: list[Record], worker: int) -> int:
    """Samples in all updates before this worker joined."""
    samples, total = {}, 0
    for record in records:
        if record.event == WorkerJoined(worker):
            break
        if isinstance(record.event, GradientArrived):
            samples[record.event.gradient] = record.event.samples
        for command in record.commands:
            if isinstance(command, ApplyUpdate):
                total += sum(samples[each] for each in command.gradients)
    return total


def test_a_group_replaces_the_dead_grows_and_shrinks_and_loses_no_sample(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def grow_and_shrink() -> None:
        functions.wait_for(tmp_path / "joined-2")  # in the place of worker 1
        ask(run, Scale(4))
        for index in (3, 4):
            functions.wait_for(tmp_path / f"joined-{index}")
        ask(run, Scale(2))
        functions.write(tmp_path / "go", True)

    with beside(grow_and_shrink):
        result = launch(
            partial(functions.count_elastically, directory=str(tmp_path)),
            workers="2..4",
            policy="asp",
            epochs=2,
            run_dir=run,
        )
    counted = result.model_state["samples"]
    torch.testing.assert_close(counted, torch.full_like(counted, 2.0))
    assert result.samples == functions.SAMPLES * 2
    trace = Trace(run / "trace.jsonl")
    assert first_difference(trace) is None
    records = list(trace)
    joined = [each.event.worker for each in records if isinstance(each.event, WorkerJoined)]
    assert joined[:3] == [0, 1, 2] and set(joined[3:5]) == {3, 4}
    left = {each.event.worker: each.event.reason for each in records if isinstance(each.event, WorkerLeft)}
    assert left[1] == "its process was killed by SIGKILL (out of memory?)"
    assert left[3] == left[4] == "the group was made smaller"
    for index in (2, 3, 4):
        begun_with = json.loads((tmp_path / f"joined-{index}").read_text())
        assert sum(begun_with) == pytest.approx(applied_before(records, index))
    assert applied_before(records, 2) > 0


def test_who_joins_with_another_model_is_refused() -> None:
    with pytest.raises(
        PacelineError, match="the model of worker 2 differs from the others': it has no parameter 'samp"
    ):
        launch(functions.another_model_later, workers="2..3", policy="asp")


def test_a_worker_that_only_skips_can_be_sent_away(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def shrink() -> None:
        functions.wait_for(tmp_path / "joined-1")
        ask(run, Scale(1))
        functions.write(tmp_path / "go", True)

    with beside(shrink):
        result = launch(
            partial(functions.skip_until_dismissed, directory=str(tmp_path)),
            workers=2,
            policy="asp",
            not_finite="skip",
            run_dir=run,
        )
    left = [each.event for each in Trace(run / "trace.jsonl") if isinstance(each.event, WorkerLeft)]
    assert left == [WorkerLeft(1, "the group was made smaller"), WorkerLeft(0, "finished")]
    assert result.samples > 0


def test_an_interrupted_worker_starts_over_with_the_newest_parameters_and_gives_its_batch_back(tmp_path: Path) -> None:
    """Worker 1 needs longer for an iteration than worker 0 for all of its own, and is interrupted at each of those."""
    run = tmp_path / "run"
    result = launch(
        partial(functions.count_until_both_pushed, directory=str(tmp_path)),
        workers=2,
        policy="backup:k=1,late=interrupt",
        epochs=2,
        run_dir=run,
        speed="constant:seconds=0.02",
        slowdown={1: 50.0},
    )
    counted = result.model_state["samples"]
    torch.testing.assert_close(counted, torch.full_like(counted, 2.0))
    assert result.samples == functions.SAMPLES * 2
    trace = Trace(run / "trace.jsonl")
    assert first_difference(trace) is None
    version = began_with = restarted = (
        0  # worker 1: the version that it was last given, and how often after an interrupt
    )
    interrupted = False
    for record in trace:
        event = record.event
        if isinstance(event, GradientArrived) and event.gradient.worker == 1:
            if event.version == began_with:
                restarted += interrupted
            else:  # it was on its way when the interrupt was
                assert interrupted and DiscardGradient(event.gradient, record.reason) in record.commands
        for command in record.commands:
            if isinstance(command, ApplyUpdate):
                version += 1
            elif command in (InterruptWorker(1), SendParameters(1)):
                began_with, interrupted = version, isinstance(command, InterruptWorker)
    assert restarted > 0
    assert result.summary.interrupted >= 15
