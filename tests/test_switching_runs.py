"""Switching the policy of real runs, from outside and by callbacks; going on after it; training such a run again."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import callback_functions
import pytest
import training_functions as functions
from socket_group import over_sockets
from test_socket_runs import train_layers
from typer.testing import CliRunner

import paceline
from paceline.cli.app import app
from paceline.core.errors import ConfigurationError
from paceline.core.messages import PolicyChanged
from paceline.experiment.callbacks import CallbackError, Run
from paceline.experiment.configuration import read_configuration
from paceline.experiment.resuming import newest
from paceline.experiment.run_status import RunReader
from paceline.experiment.training import launch
from paceline.experiment.verification import train_again
from paceline.recording.progress_log import Measurement
from paceline.recording.replay import first_difference
from paceline.recording.trace import Trace
from paceline.runtimes.serving.control import Switch, ask

pytestmark = pytest.mark.slow

ENDLESS = 1_000_000  # epochs: only a callback ends such a run


class Switcher(paceline.Callback):
    """Switches with every measurement in which there were updates, and then ends the run."""

    def __init__(self, policies: Sequence[str], after: threading.Event | None = None) -> None:
        self.left = deque(policies)
        self.heard: list[str] = []
        self.refused: list[str] = []
        self.begun = threading.Event()
        self.began_under = ""
        self._after = after
        self._updates = 0

    def started(self, run: Run) -> None:
        self.began_under = run.policy

    def policy_changed(self, run: Run, policy: str) -> None:
        assert run.policy == policy
        self.heard.append(policy)

    def measured(self, run: Run, measurement: Measurement) -> None:
        if run.updates < self._updates + 10:
            return
        self._updates = run.updates
        self.begun.set()
        if self._after is not None and not self._after.is_set():
            return
        if not self.refused:
            for wrong in ("asap", "ssp:staleness=-1", "backup:k=9"):
                with pytest.raises(ConfigurationError) as problem:
                    run.switch(wrong)
                self.refused.append(str(problem.value))
        if self.left:
            run.switch(self.left.popleft())
        else:
            run.stop("enough")


def switch_by_hand(run: Path, begun: threading.Event, done: threading.Event) -> list[str]:
    """What `paceline switch` says."""
    try:
        begun.wait(60)
        said = []
        for policy in ("ssp:staleness=1", "ssp:staleness=1", "backup:k=9", "asap"):
            outcome = CliRunner().invoke(app, ["switch", str(run), policy])
            said.append(outcome.output or str(outcome.exception))
        return said
    finally:
        done.set()


@pytest.mark.parametrize(
    ("train", "last"), [(functions.train_momentum, "asp"), (functions.train_adam, "elastic-bsp:inside=gather")]
)
def test_a_run_is_switched_resumed_and_trained_again(train: object, last: str, tmp_path: Path) -> None:
    run, done = tmp_path / "run", threading.Event()
    switcher = Switcher(["asp", "elastic-bsp:lookahead=3", "dbw", "bsp", "buffered:size=2", last], done)
    with ThreadPoolExecutor(1) as pool:
        by_hand = pool.submit(switch_by_hand, run, switcher.begun, done)
        result = launch(
            train, workers=3, policy="bsp", epochs=ENDLESS, run_dir=run, callbacks=[switcher], resume="auto"
        )  # type: ignore[arg-type]
        said = by_hand.result()
    assert "ssp:staleness=1 takes over from bsp" in said[0] and "is in force already" in said[1]
    assert "need at least 9 workers, and there are 3" in said[2] and "unknown policy 'asap'" in said[3]
    assert "unknown policy 'asap'" in switcher.refused[0] and "staleness is int >= 0" in switcher.refused[1]
    expected = ["ssp:staleness=1", "asp", "elastic-bsp:lookahead=3", "dbw", "bsp", "buffered:size=2", last]
    assert switcher.heard == expected and [change.policy for change in result.summary.changes] == expected
    assert result.summary.policy == read_configuration(run).policy == "bsp" and switcher.began_under == "bsp"
    with pytest.raises(ConfigurationError, match="no run is going on there"):
        ask(run, Switch("asp"))
    # The checkpoint knows the policy in force, and the run goes on with it.
    changed = newest(run).facts.lifecycle.coordinator.changed
    assert changed is not None and changed.policy == last
    again = Switcher(["bsp"])
    launch(train, workers=3, policy="bsp", epochs=ENDLESS, run_dir=run, callbacks=[again], resume="auto")  # type: ignore[arg-type]
    assert again.began_under == last and again.heard == ["bsp"]
    trace = Trace(run / "trace.jsonl")
    assert first_difference(trace) is None
    changes = [record.event.policy for record in trace if isinstance(record.event, PolicyChanged)]
    assert changes == [*expected, "bsp"]
    verdict = train_again(run, train)  # type: ignore[arg-type]
    assert verdict.differs_at is None and len(verdict.agreed) >= 2
    status = RunReader(run).look()
    assert (status.policy, status.began_with, status.correction) == ("bsp", "", "none")


def test_shards_follow_every_switch_to_the_bit_and_go_on_as_one_store(tmp_path: Path) -> None:
    run = tmp_path / "run"
    switcher = Switcher(["bsp", "dbw", "ssp:staleness=1", "bsp", "asp"])
    with over_sockets("tcp", 2):
        launch(train_layers, workers=3, policy="asp", epochs=ENDLESS, run_dir=run, callbacks=[switcher])
    assert switcher.heard == ["bsp", "dbw", "ssp:staleness=1", "bsp", "asp"]
    again = Switcher(["bsp"])
    launch(train_layers, workers=3, policy="asp", epochs=ENDLESS, run_dir=run, callbacks=[again], resume="auto")
    assert again.heard == ["bsp"] and first_difference(Trace(run / "trace.jsonl")) is None
    verdict = train_again(run, train_layers)
    assert verdict.differs_at is None and len(verdict.agreed) >= 2


def test_a_run_that_cannot_correct_says_so_or_refuses(tmp_path: Path) -> None:
    class Once(paceline.Callback):
        def measured(self, run: Run, measurement: Measurement) -> None:
            if run.updates:
                run.switch("asp")
                if run.policy == "asp":
                    run.stop()

    run = tmp_path / "run"
    with pytest.warns(UserWarning, match="stale gradients are applied as they are: Adagrad cannot be corrected"):
        result = launch(
            callback_functions.train_adagrad, workers=2, policy="bsp", epochs=ENDLESS, run_dir=run, callbacks=[Once()]
        )
    assert [change.policy for change in result.summary.changes] == ["asp"]
    with pytest.raises(CallbackError, match="stale='correct' is impossible: Adagrad cannot be corrected"):
        launch(
            callback_functions.train_adagrad,
            workers=2,
            policy="bsp",
            stale="correct",
            epochs=ENDLESS,
            callbacks=[Once()],
        )
