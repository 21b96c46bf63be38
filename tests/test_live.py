"""What people see of a run while it goes on: drawn beside it, never in its way."""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence

import pytest
from rich.console import Console

from paceline.core.messages import (
    Gradient,
    GradientArrived,
    PolicyChanged,
    SendParameters,
    UpdateRule,
    WorkerJoined,
    WorkerLeft,
)
from paceline.recording.progress_log import Evaluation, Measurement
from paceline.recording.trace import Record
from paceline.report.live import Drawer, LiveTable, Quiet, Snapshot, table_of, view_of


class SlowTerminal:
    """Takes nothing until it is let go on."""

    def __init__(self) -> None:
        self.drawn: list[tuple[list[str], float | None]] = []
        self.began, self.go_on = threading.Event(), threading.Event()

    def draw(self, lines: Sequence[str], snapshot: Snapshot | None) -> None:
        self.began.set()
        assert self.go_on.wait(10)
        self.drawn.append((list(lines), None if snapshot is None else snapshot.measurement.seconds))


def at(seconds: float, samples: int = 0) -> Measurement:
    return Measurement(seconds, samples, None, 1, 0, 2, 0.1, None)


def snapshot(seconds: float) -> Snapshot:
    return Snapshot(at(seconds), (), 0, {})


def text_of(table: object) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def drawers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "paceline drawer"]


def test_a_terminal_that_takes_nothing_holds_up_nobody_and_misses_no_line() -> None:
    terminal = SlowTerminal()
    with Drawer(terminal.draw) as drawer:
        drawer.show(snapshot(0.0))
        assert terminal.began.wait(10)
        for number in range(1, 100):  # all of it while the terminal is stuck
            drawer.show(snapshot(number))
            drawer.print(f"line {number}")
        terminal.go_on.set()
    assert terminal.drawn == [([], 0.0), ([f"line {number}" for number in range(1, 100)], 99)]
    assert drawers() == []


def test_what_is_handed_over_last_is_drawn_before_the_block_is_left() -> None:
    for _ in range(50):
        terminal = SlowTerminal()
        terminal.go_on.set()
        with Drawer(terminal.draw) as drawer:
            drawer.print("the last word")
        assert terminal.drawn == [(["the last word"], None)]


def broken(problem: BaseException) -> Drawer:
    def draw(lines: Sequence[str], snapshot: Snapshot | None) -> None:
        raise problem

    return Drawer(draw)


@pytest.mark.parametrize("problem", [OSError("no room"), SystemExit(1)])
def test_what_the_drawing_raises_is_raised_once_at_the_next_hand_over(problem: BaseException) -> None:
    with broken(problem) as drawer:
        drawer.print("never seen")
        drawers()[0].join(10)
        with pytest.raises(type(problem)):
            drawer.show(snapshot(1.0))
        drawer.show(snapshot(2.0))  # a run that ends because of it measures once more
    assert drawers() == []


def test_what_the_last_drawing_raises_is_raised_at_the_end() -> None:
    with pytest.raises(OSError, match="no room"), broken(OSError("no room")) as drawer:
        drawer.print("never seen")
    assert drawers() == []


def test_the_loss_of_a_worker_is_told_and_the_end_of_its_work_is_not() -> None:
    console = Console(file=io.StringIO(), width=100)
    with view_of("asp", console) as view:
        view.observe(Record(3.25, WorkerLeft(2, "its process died")))
        view.observe(Record(4.0, WorkerLeft(1, "no work left")))
        view.observe(Record(4.0, WorkerLeft(0, "finished")))
    assert console.file.getvalue() == "asp: worker 2 left after 3.2 s: its process died\n"  # type: ignore[attr-defined]


def test_who_joins_later_is_told_and_who_begins_is_not() -> None:
    console = Console(file=io.StringIO(), width=100)
    with view_of("asp", console) as view:
        for worker in (0, 1):
            view.observe(Record(7.5, WorkerJoined(worker)))  # a run that is resumed does not begin at 0
        view.observe(Record(9.0, WorkerJoined(2)))
    assert console.file.getvalue() == "asp: worker 2 joined after 9.0 s\n"  # type: ignore[attr-defined]


def test_plain_lines_tell_of_progress_and_evaluations_now_and_then() -> None:
    console = Console(file=io.StringIO(), width=100)
    with view_of("asp", console) as view:
        for seconds in (1.0, 9.9, 10.0, 10.25, 20.25):
            view.measured(at(seconds, 100))
        for seconds in (21.0, 22.9, 23.0):
            view.evaluated(Evaluation(seconds, 100, 1, {"accuracy": 0.5}))
    assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "asp: 10 s, 100 samples, 10 samples/s",
        "asp: 20 s, 100 samples, 5 samples/s",
        "asp: 21.0 s, 100 samples: accuracy 50.0%",
        "asp: 23.0 s, 100 samples: accuracy 50.0%",
    ]


def test_how_updates_are_made_is_said_at_the_start() -> None:
    corrected = UpdateRule("SGD", "auto", "worker moments + secant")
    as_it_is = UpdateRule("Adagrad", "linear", "none", "Adagrad cannot be corrected; SGD can")
    fresh = UpdateRule("SGD", "linear", "none", "no gradient is stale")
    told = ["asp: SGD, stale gradients: worker moments + secant"]
    told += ["asp: Adagrad", f"asp: stale gradients are applied as they are: {as_it_is.why}", "asp: SGD"]
    console = Console(file=io.StringIO(), width=100)
    with view_of("asp", console) as view:
        for rule in (corrected, as_it_is, fresh):
            view.begun(rule)
    assert console.file.getvalue().splitlines() == told  # type: ignore[attr-defined]
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    with view_of("asp", console) as view:
        view.begun(as_it_is)
        view.begun(corrected)
        view.measured(at(2.0))
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert "SGD, stale gradients: worker moments + secant" in written and told[2] in written


def test_the_policy_in_force_is_named_also_where_a_run_goes_on_with_it() -> None:
    changed = PolicyChanged("ssp", UpdateRule("Adagrad", "linear", "none", "Adagrad cannot be corrected"))
    plain, terminal = (
        Console(file=io.StringIO(), width=100),
        Console(file=io.StringIO(), width=100, force_terminal=True),
    )
    for console in (plain, terminal):
        with view_of("bsp", console) as view:
            view.begun(UpdateRule("SGD", "linear", "none", "no gradient is stale"))
            view.observe(Record(1.5, PolicyChanged("asp", UpdateRule("SGD", "auto", "secant"))))
            view.measured(at(20.0))
            view.goes_on_with(changed)
    lines = plain.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[:2] == ["bsp: SGD", "bsp: asp takes over after 1.5 s"] and lines[2].startswith("asp: 20 s")
    assert lines[3] == "ssp: stale gradients are applied as they are: Adagrad cannot be corrected"
    written = terminal.file.getvalue()  # type: ignore[attr-defined]
    assert "SGD, stale gradients: secant" in written and "bsp: asp takes over after 1.5 s" in written
    shown = shown_by(Record(1.0, PolicyChanged("ssp")), seconds=2.0)
    assert text_of(table_of("asp", shown)).startswith("ssp  2 s")


def test_a_quiet_view_sees_nothing() -> None:
    with view_of("asp", Console(file=io.StringIO()), quiet=True) as view:
        assert type(view) is Quiet
        view.starting("starting 2 workers")
    assert drawers() == []


def test_a_terminal_gets_the_table_its_latest_figures_and_every_loss() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    with view_of("asp", console) as view:
        view.observe(Record(0.0, WorkerJoined(0), (SendParameters(0),)))
        view.observe(Record(1.0, WorkerLeft(0, "its process died")))
        view.evaluated(Evaluation(1.0, 10, 1, {"accuracy": 0.875}))
        view.measured(at(2.0))
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert "starting the workers" in written and "worker 0 left after 1.0 s: its process died" in written
    assert "accuracy 87.5%" in written and "samples/s" in written


def shown_by(*records: Record, seconds: float) -> Snapshot:
    seen: list[Snapshot] = []

    class Kept(Drawer):
        def show(self, snapshot: Snapshot) -> None:
            seen.append(snapshot)

    table = LiveTable("asp", Kept(lambda lines, snapshot: None))
    for record in records:
        table.observe(record)
    table.measured(at(seconds))
    return seen[0]


def test_the_rate_of_a_late_joiner_is_over_the_time_that_it_was_there() -> None:
    found = shown_by(
        Record(0.0, WorkerJoined(0), (SendParameters(0),)),
        Record(5.0, GradientArrived(Gradient(0, 1), 0, samples=40), (SendParameters(0),)),
        Record(8.0, WorkerJoined(1), (SendParameters(1),)),
        Record(9.0, GradientArrived(Gradient(1, 1), 0, samples=40), (SendParameters(1),)),
        seconds=10.0,
    )
    first, second = text_of(table_of("asp", found)).splitlines()[2:4]
    assert first.split()[:3] == ["0", "1", "4"] and second.split()[:3] == ["1", "1", "20"]


def test_a_large_group_is_shown_in_part() -> None:
    found = shown_by(*(Record(0.0, WorkerJoined(n), (SendParameters(n),)) for n in range(20)), seconds=1.0)
    assert len(found.members) == 16 and "and 4 more" in text_of(table_of("asp", found))
