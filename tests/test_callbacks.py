"""Callbacks: who is called when, what ends a run, and what is ready made."""

from __future__ import annotations

import math
import os
from functools import partial
from pathlib import Path
from typing import Any

import callback_functions
import pytest
import torch
import training_functions as functions

import paceline
from paceline.core.errors import ConfigurationError
from paceline.core.messages import PolicyChanged, Record, UpdateRule, WorkerJoined, WorkerLeft
from paceline.experiment.balance import balance_of
from paceline.experiment.callbacks import METHODS, CallbackCaller, check_callbacks
from paceline.experiment.ready_callbacks import without_gain
from paceline.experiment.training import launch
from paceline.recording.progress_log import Evaluation, Failure, Logged, Measurement, read_metrics
from paceline.runtimes.serving.port import WorkerFailedWarning
from paceline.training.checkpoint import load_state


class FakeRun:
    """A run without a server: remembers why it was stopped."""

    def __init__(self, *figures: dict[str, float]) -> None:
        self.evaluations = [Evaluation(at, at, at, found) for at, found in enumerate(figures)]
        self.stopped: list[str] = []
        self.failures: list[Failure] = []

    def stop(self, reason: str) -> None:
        self.stopped.append(reason)


class Everything(paceline.Callback):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def started(self, run: Any) -> None:
        self.told.append(("started", run))

    def measured(self, run: Any, measurement: Measurement) -> None:
        self.told.append(("measured", measurement))

    def evaluated(self, run: Any, evaluation: Evaluation) -> None:
        self.told.append(("evaluated", evaluation))

    def logged(self, run: Any, logged: Logged) -> None:
        self.told.append(("logged", logged))

    def policy_changed(self, run: Any, policy: str) -> None:
        self.told.append(("policy_changed", policy))

    def worker_joined(self, run: Any, worker: int) -> None:
        self.told.append(("worker_joined", worker))

    def worker_left(self, run: Any, worker: int, reason: str) -> None:
        self.told.append(("worker_left", (worker, reason)))

    def worker_failed(self, run: Any, failure: Failure) -> None:
        self.told.append(("worker_failed", failure))

    def checkpointed(self, run: Any, path: Path) -> None:
        self.told.append(("checkpointed", path))

    def ended(self, run: Any, result: Any) -> None:
        self.told.append(("ended", result))

    def of(self, method: str) -> list[Any]:
        return [what for name, what in self.told if name == method]


def caller_of(*callbacks: paceline.Callback, **options: Any) -> CallbackCaller:
    caller = CallbackCaller(callbacks, **options)
    caller.run = FakeRun()  # type: ignore[assignment]
    return caller


ENDLESS = 1_000_000  # epochs: only a callback ends such a run
RULE = UpdateRule("SGD", "linear")
MEASUREMENT = Measurement(1.0, 8, None, 1, 1, 2, 0.1, None)


def tell_all(caller: CallbackCaller) -> None:
    caller.begun(RULE)
    caller.observe(Record(0.0, WorkerJoined(0)))
    caller.measured(MEASUREMENT)
    caller.observe(Record(1.0, PolicyChanged("asp")))
    caller.evaluated(Evaluation(1.0, 8, 1, {"loss": 2.0}))
    caller.logged(Logged(1.0, 0, {"x": 1.0}))
    caller.worker_failed(Failure(0, 1.0, "it raised KeyError"))
    caller.observe(Record(1.0, WorkerLeft(0, "it raised KeyError")))
    caller.checkpointed(Path("checkpoints/000000001"))


def test_every_method_is_called_with_the_run_and_what_there_is_to_tell() -> None:
    everything = Everything()
    caller = caller_of(everything)
    tell_all(caller)
    caller.end("the result")  # type: ignore[arg-type]
    assert {name for name, _ in everything.told} == set(METHODS)
    assert everything.of("worker_left") == [(0, "it raised KeyError")]
    assert everything.of("ended") == ["the result"]
    assert caller.run is not None and caller.run.failures == everything.of("worker_failed")
    assert caller.run.measurement == MEASUREMENT


def test_a_callback_that_does_nothing_is_never_called() -> None:
    caller = caller_of(paceline.Callback())
    tell_all(caller)
    caller.end(None)
    assert not any(caller._methods.values())


class Misspelt(paceline.Callback):
    def evaluate(self) -> None:
        """A method of its own, that looks like nothing."""

    def on_evaluated(self, run: Any, evaluation: Any) -> None: ...


class Raises(paceline.Callback):
    def measured(self, run: Any, measurement: Measurement) -> None:
        raise KeyError("x")


def test_a_callback_that_raises_stops_the_run_is_named_and_the_others_may_still_clean_up() -> None:
    everything = Everything()
    caller = caller_of(Raises(), everything)
    tell_all(caller)
    caller.end("the result")  # type: ignore[arg-type]
    assert str(caller.problem) == "callback Raises.measured raised: KeyError: 'x'"
    assert caller.problem is not None and caller.problem.result == "the result"
    assert isinstance(caller.problem.__cause__, KeyError)
    assert caller.run is not None and caller.run.stopped == [str(caller.problem)]
    assert [name for name, _ in everything.told] == ["started", "worker_joined", "ended"]


def test_a_callback_that_takes_long_is_told_about_once(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 0.9, 1.0, 2.5, 3.0, 5.0])
    caller = caller_of(Everything(), clock=lambda: next(times))
    for _ in range(3):
        caller.measured(MEASUREMENT)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("paceline: callback Everything.measured took 1.5 s, and all workers")


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        (paceline.EarlyStopping(), r"callbacks is <.*; it must be a list"),
        ([paceline.EarlyStopping], r"callbacks\[0\] is <class .*; it must be an object of a class that derives"),
        ([paceline.EarlyStopping()], "EarlyStopping goes by evaluations, and the run has none"),
        ([Misspelt()], r"Misspelt.on_evaluated would never be called; did you mean evaluated\? There are: started, "),
    ],
)
def test_what_cannot_be_a_callback_is_refused(callbacks: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_callbacks(callbacks, evaluates=False)
    check_callbacks([paceline.EarlyStopping()], evaluates=True)


# -- the ready ones --


@pytest.mark.parametrize(
    ("worths", "least_gain", "expected"),
    [
        ([], 0.0, 0),
        ([0.5], 0.0, 0),
        ([0.5, 0.6, 0.6], 0.0, 1),
        ([0.5, 0.6, 0.65, 0.69], 0.1, 2),
        ([0.5, 0.65, 0.59, 0.7], 0.1, 2),
        ([-2.0, -1.0, -1.5, -1.2], 0.0, 2),
        ([math.nan, math.nan], 0.0, 2),
        ([math.nan, 0.5, math.nan], 0.0, 1),
    ],
)
def test_how_many_evaluations_brought_no_gain(worths: list[float], least_gain: float, expected: int) -> None:
    assert without_gain(worths, least_gain) == expected


def stopped_by(callback: paceline.EarlyStopping, *figures: dict[str, float]) -> list[str]:
    run = FakeRun(*figures)
    callback.evaluated(run, run.evaluations[-1])  # type: ignore[arg-type]
    return run.stopped


def test_early_stopping_waits_for_as_many_evaluations_as_its_patience() -> None:
    losses = [{"loss": value} for value in (2.0, 1.0, 1.1, 1.2)]
    assert stopped_by(paceline.EarlyStopping("loss", patience=3), *losses) == []
    assert stopped_by(paceline.EarlyStopping("loss", patience=2), *losses) == [
        "loss was no better than 1 in 2 evaluations"
    ]
    assert stopped_by(paceline.EarlyStopping("loss", patience=1, smaller_is_better=False), *losses) != []
    assert stopped_by(paceline.EarlyStopping(patience=1), {"accuracy": math.nan}) == [
        "accuracy was no better in 1 evaluations"
    ]
    with pytest.raises(ConfigurationError, match="the evaluation has no figure 'accuracy'; it has: loss"):
        stopped_by(paceline.EarlyStopping(), *losses)


@pytest.mark.parametrize("wrong", [{"patience": 0}, {"patience": 1.5}, {"least_gain": -1}, {"least_gain": math.nan}])
def test_early_stopping_refuses_what_makes_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        paceline.EarlyStopping(**wrong)


# -- with real processes --


class StopAt(Everything):
    def __init__(self, samples: int) -> None:
        super().__init__()
        self._samples = samples

    def evaluated(self, run: paceline.Run, evaluation: Evaluation) -> None:
        super().evaluated(run, evaluation)
        assert set(run.evaluated_state()) == set(functions.model().state_dict()) == set(run.model_state())
        assert run.samples >= evaluation.samples and run.updates >= evaluation.version and run.seconds > 0
        if evaluation.samples >= self._samples:
            run.stop("enough")


class StopAndMark(paceline.Callback):
    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def evaluated(self, run: Any, evaluation: Any) -> None:
        self._mark.touch()
        run.stop("enough")


@pytest.mark.slow
def test_a_run_that_a_callback_stops_is_returned_though_its_last_state_cannot_be_evaluated(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with pytest.warns(UserWarning, match="the last state could not be evaluated: .*"):
        result = launch(
            callback_functions.train_and_log,
            workers=2,
            epochs=ENDLESS,
            evaluate=partial(callback_functions.evaluate_until, mark=mark),
            callbacks=[StopAndMark(mark)],
        )
    assert result.stopped == "enough" and "the disk is full" in result.evaluation_problem and result.samples > 0


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["bsp", "asp"])
def test_a_run_that_a_callback_stops_is_saved_returned_and_can_be_resumed(policy: str, tmp_path: Path) -> None:
    stop, run = StopAt(functions.SAMPLES), tmp_path / "run"
    given: dict[str, Any] = {
        "workers": 2,
        "policy": policy,
        "epochs": ENDLESS,
        "evaluate": callback_functions.evaluate,
        "run_dir": run,
    }
    best = tmp_path / "best.safetensors"
    result = launch(callback_functions.train_and_log, callbacks=[stop, paceline.KeepBest(best, "weight")], **given)
    assert result.stopped == "enough"
    assert functions.SAMPLES <= result.samples < result.samples_asked == ENDLESS * functions.SAMPLES
    assert result.evaluations[-1].samples == result.samples  # the last state is evaluated
    assert stop.of("evaluated") == result.evaluations and stop.of("ended") == [result]
    assert stop.of("worker_joined") == [0, 1] and len(stop.of("started")) == 1
    assert stop.of("checkpointed")[-1] == max((run / "checkpoints").glob("0*"))
    saved = load_state(run / "checkpoints" / "model.safetensors")
    assert all(torch.equal(saved[key], value) for key, value in result.model_state.items())
    found = max(result.evaluations, key=lambda evaluation: evaluation.figures["weight"])
    assert float(load_state(best)["0.weight"].sum()) == pytest.approx(found.figures["weight"])

    again = launch(
        callback_functions.train_and_log, callbacks=[paceline.EarlyStopping("loss", patience=1)], resume=run, **given
    )  # the loss is always the same, also before it was resumed
    assert again.stopped.startswith("loss was no better than 1 in ")
    assert again.samples > result.samples
    assert again.evaluations[: len(result.evaluations)] == result.evaluations
    balance = balance_of(run)
    assert balance.adds_up and balance.applied == again.samples
    lines = [line for line in read_metrics(run / "metrics.jsonl") if isinstance(line, Logged)]
    assert {(line.worker, line.figures["number"], line.figures["one"]) for line in lines} <= {(0, 0, 1), (1, 1, 1)}


class Fails(paceline.Callback):
    def evaluated(self, run: paceline.Run, evaluation: Evaluation) -> None:
        raise OSError("the disk is full")


@pytest.mark.slow
def test_an_error_in_a_callback_ends_the_run_with_the_model_saved(tmp_path: Path) -> None:
    everything = Everything()
    with pytest.raises(
        paceline.CallbackError, match=r"^callback Fails.evaluated raised: OSError: the disk is full$"
    ) as found:
        launch(
            functions.train_sgd,
            epochs=ENDLESS,
            evaluate=callback_functions.evaluate,
            run_dir=tmp_path,
            callbacks=[Fails(), everything],
        )
    result = found.value.result
    assert result is not None and result.samples < ENDLESS * functions.SAMPLES and everything.of("ended") == [result]
    saved = load_state(tmp_path / "checkpoints" / "model.safetensors")
    assert all(torch.equal(saved[key], value) for key, value in result.model_state.items())
    assert list((tmp_path / "checkpoints").glob("0*"))  # it can be resumed


@pytest.mark.slow
def test_deaths_are_told_at_once_and_are_in_the_result_with_their_last_words(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    everything = Everything()
    before = os.umask(0)
    try:
        with pytest.warns(WorkerFailedWarning, match="ValueError: a bug"):
            result = launch(
                callback_functions.three_deaths,
                workers=4,
                policy="asp",
                epochs=4,
                run_dir=tmp_path / "run",
                callbacks=[everything],
            )
    finally:
        os.umask(before)
    assert result.samples == result.samples_asked == 4 * functions.SAMPLES and result.stopped == ""
    found = {failure.worker: failure for failure in result.failures}
    assert (found[1].signal, found[1].exit_code, found[1].last_words) == ("SIGKILL", None, "is on fire")
    assert (found[2].signal, found[2].exit_code, found[2].last_words) == ("", 3, "")
    assert (found[3].signal, found[3].exit_code, found[3].last_words) == ("", None, "ValueError: a bug")
    assert everything.of("worker_failed") == result.failures
    assert [line for line in read_metrics(tmp_path / "run" / "metrics.jsonl") if isinstance(line, Failure)] == (
        result.failures
    )
    said = capfd.readouterr().err.splitlines()
    for failure in result.failures:
        assert said.count(f"paceline: {failure}") == 1
    assert str(found[1]).endswith("was killed by SIGKILL (out of memory?); its last words: is on fire")
    rights = {path.stat().st_mode & 0o777 for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert rights == {0o600}
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_dir()} == {0o700}


@pytest.mark.slow
def test_dbw_says_that_it_does_not_know_the_steps_of_an_optimizer() -> None:
    with pytest.warns(UserWarning, match="those of Adagrad may be larger or smaller.*dbw:blind=true goes by time"):
        launch(callback_functions.train_adagrad, policy="dbw")
