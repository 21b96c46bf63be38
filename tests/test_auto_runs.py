"""Real runs that change their policy often, by themselves or because somebody says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import training_functions as functions
from test_policy_change import PAIRED

import paceline
from paceline.core.messages import Answered, Ask, GradientArrived, Record
from paceline.experiment.callbacks import Run
from paceline.experiment.training import launch
from paceline.experiment.verification import train_again
from paceline.recording.observer import Observer
from paceline.recording.replay import first_difference
from paceline.recording.trace import Trace

pytestmark = pytest.mark.slow

ENDLESS = 1_000_000  # epochs
SWITCHES, PUSHES = 50, 4  # between two of them


class Heard(paceline.Callback):
    def __init__(self) -> None:
        self.run: Run | None = None
        self.policies: list[str] = []

    def started(self, run: Run) -> None:
        self.run = run

    def policy_changed(self, run: Run, policy: str) -> None:
        self.policies.append(policy)


class Restless(Observer):
    """Switches in the middle of every fourth push, and then ends the run."""

    def __init__(self, heard: Heard) -> None:
        self.heard = heard
        self.pushes = self.switches = 0

    def observe(self, record: Record) -> None:
        run = self.heard.run
        if run is None or not isinstance(record.event, GradientArrived):
            return
        self.pushes += 1
        if self.pushes % PUSHES:
            return
        if self.switches == SWITCHES:
            run.stop()
        else:
            run.switch([*PAIRED, "auto"][self.switches % (len(PAIRED) + 1)])
            self.switches += 1


def test_fifty_switches_in_a_row_lose_nothing(tmp_path: Path) -> None:
    heard = Heard()
    result = launch(
        functions.train_momentum,
        workers=3,
        policy="asp",
        epochs=ENDLESS,
        run_dir=tmp_path,
        observers=[Restless(heard)],
        callbacks=[heard],
    )
    assert len(heard.policies) == len(result.summary.changes) == SWITCHES
    assert result.summary.applied + result.summary.discarded + result.summary.pending == result.summary.pushes
    trace = Trace(tmp_path / "trace.jsonl")
    assert first_difference(trace) is None
    verdict = train_again(tmp_path, functions.train_momentum)
    assert verdict.differs_at is None and verdict.updates == result.summary.updates


class Enough(paceline.Callback):
    """Ends the run some time after so many changes of policy."""

    def __init__(self, changes: int) -> None:
        self.left, self.until = changes, 0
        self.chosen: list[str] = []

    def policy_changed(self, run: Run, policy: str) -> None:
        assert run.policy == policy != "auto"
        self.chosen.append(policy)
        self.left -= 1
        self.until = run.updates + 40

    def measured(self, run: Run, measurement: object) -> None:
        if self.left <= 0 and run.updates >= self.until:
            run.stop()


def test_auto_chooses_in_a_real_run_which_replays_goes_on_and_is_trained_again(tmp_path: Path) -> None:
    group = {"workers": 3, "speed": "constant:seconds=0.01", "slowdown": {2: 6.0}, "run_dir": tmp_path}
    first, again = Enough(1), Enough(0)
    result = launch(functions.train_momentum, policy="auto", epochs=ENDLESS, callbacks=[first], **group)  # type: ignore[arg-type]
    assert result.summary.policy == "auto" and result.summary.changes[0].policy == first.chosen[0]
    assert "bsp waits" in result.summary.changes[0].why
    launch(functions.train_momentum, policy="auto", epochs=ENDLESS, callbacks=[again], resume="auto", **group)  # type: ignore[arg-type]
    records = [*Trace(tmp_path / "trace.jsonl")]
    asked = [command for record in records for command in record.commands if isinstance(command, Ask)]
    answers = [record.event for record in records if isinstance(record.event, Answered)]
    assert answers and len(asked) - len(answers) <= 1
    [slow] = [times for worker, times in zip(asked[-1].question.workers, asked[-1].question.times, strict=True)
              if worker == 2]  # fmt: skip
    assert min(slow) > 0.05 and answers[-1].answer.costs.update + answers[-1].answer.costs.gradient > 0
    assert all(answer.answer.prospects and answer.answer.seconds > 0 for answer in answers)
    assert first_difference(Trace(tmp_path / "trace.jsonl")) is None
    assert train_again(tmp_path, functions.train_momentum).differs_at is None
