"""Evaluation beside training, and the part of a model that no gradient reaches: buffers, frozen and tied tensors."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
import training_functions as functions

from paceline.core.errors import PacelineError
from paceline.core.messages import GradientArrived
from paceline.experiment.training import launch
from paceline.recording.progress_log import Evaluation, read_metrics
from paceline.recording.replay import first_difference
from paceline.recording.trace import Trace
from paceline.training.checkpoint import load_state

pytestmark = pytest.mark.slow


def test_training_goes_on_while_an_evaluation_takes_its_time(tmp_path: Path) -> None:
    """The first one lasts until all is trained; those due meanwhile are left out, and the last state is evaluated."""
    run = tmp_path / "run"
    result = launch(
        partial(functions.train_and_say_so, directory=str(tmp_path)),
        workers=2,
        policy="asp",
        epochs=2,
        evaluate=partial(functions.evaluate_until_trained, directory=str(tmp_path)),
        evaluate_every=16,
        run_dir=run,
    )
    first, last = result.evaluations
    assert 16 <= first.samples < last.samples == result.samples == functions.SAMPLES * 2
    assert first.version < last.version == result.summary.updates
    assert last.figures == {"weight": pytest.approx(float(result.model_state["0.weight"].sum()))}
    best = max(result.evaluations, key=lambda evaluation: evaluation.figures["weight"])
    kept = load_state(run / "checkpoints" / "best.safetensors")
    assert best.figures == {"weight": pytest.approx(float(kept["0.weight"].sum()))}
    records = list(Trace(run / "trace.jsonl"))
    later = [each for each in records if each.now > first.seconds and isinstance(each.event, GradientArrived)]
    assert len(later) >= last.version - first.version
    assert [line for line in read_metrics(run / "metrics.jsonl") if isinstance(line, Evaluation)] == [first, last]


def test_an_evaluation_that_raises_fails_the_run_and_all_is_written(tmp_path: Path) -> None:
    with pytest.raises(PacelineError, match="the evaluation raised:\nTraceback") as caught:
        launch(
            functions.train_sgd,
            workers=1,
            epochs=60,  # long enough for an evaluation before the last one
            speed="constant:seconds=0.02",
            evaluate=functions.evaluate_badly,
            evaluate_every=functions.BATCH,
            run_dir=tmp_path / "run",
            tensorboard=False,
        )
    message = str(caught.value)
    assert message.count("Traceback") == message.count("RuntimeError: a bug in the user's evaluation") == 1
    run = tmp_path / "run"
    assert first_difference(Trace(run / "trace.jsonl")) is None
    assert {each.name for each in run.iterdir()} == {
        *("checkpoints", "config.json", "metrics.jsonl", "summary.json", "trace.jsonl")
    }
    functions.model().load_state_dict(load_state(run / "checkpoints" / "model.safetensors"))


def test_buffers_are_the_mean_over_the_workers_and_frozen_and_tied_tensors_survive(tmp_path: Path) -> None:
    result = launch(
        partial(functions.train_composite, directory=str(tmp_path)),
        workers=3,
        policy="bsp",
        evaluate=partial(functions.evaluate_composite, directory=str(tmp_path)),
        run_dir=tmp_path / "run",
    )
    state, fresh = result.model_state, functions.Composite()
    assert list(state) == list(fresh.state_dict())
    held = [torch.load(tmp_path / f"buffers-{index}.pt") for index in range(3)]
    for key in ("norm.running_mean", "norm.running_var"):
        assert not torch.allclose(held[0][key], held[1][key])
        torch.testing.assert_close(state[key], torch.stack([each[key] for each in held]).mean(0))
    assert state["norm.num_batches_tracked"] in [each["norm.num_batches_tracked"] for each in held]
    assert state["norm.num_batches_tracked"] > 0
    for key in ("frozen.weight", "frozen.bias"):
        assert torch.equal(state[key], fresh.state_dict()[key])
    assert torch.equal(state["first.weight"], state["second.weight"])
    assert not torch.equal(state["first.weight"], fresh.first.weight)
    evaluated = torch.load(tmp_path / "evaluated.pt")
    saved = load_state(tmp_path / "run" / "checkpoints" / "model.safetensors")
    for key, each in state.items():
        torch.testing.assert_close(evaluated[key], each)
        assert torch.equal(saved[key], each)
    fresh.load_state_dict(saved)
