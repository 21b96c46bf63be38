"""The course of a run told piece by piece is the course told at once, whatever is still under way."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from course_reader import Reader, whole
from report_runs import EVENTFUL, simulated_run

from paceline.core.messages import Estimates, Record, UpdateApplied, WorkerJoined
from paceline.experiment.simulation import Simulation, Switch, simulate
from paceline.recording.bill import Billing
from paceline.recording.course import LEFT, MOST_CHOICES, NOBODY, Course
from paceline.recording.metrics import RunMetrics
from paceline.recording.trace import Trace

TICK = 0.001


@pytest.mark.parametrize("policy", ["bsp", "backup:k=2", "ssp", "asp"])
def test_pieces_come_to_the_whole(policy: str, tmp_path: Path) -> None:
    run = simulated_run(tmp_path / "mine", policy, EVENTFUL)
    records, random = list(Trace(run / "trace.jsonl")), Random(policy)
    course, reader = Course(), Reader()
    for number, record in enumerate(records):
        course.observe(record)
        if random.random() < 0.1:
            later = records[number + 1].now if number + 1 < len(records) else record.now + 1
            end = random.choice([record.now, (record.now + later) / 2])
            reader.take(course.news(end, TICK))
            assert vars(reader) == vars(whole(course, end, TICK))
    reader.take(course.news(200.0, TICK))
    assert vars(reader) == vars(whole(course, 200.0, TICK))


def course_of(policy: str, simulation: Simulation) -> Course:
    course = Course()
    simulate(policy, simulation, observers=[course])
    return course


def waits_of(told: dict[str, Any], number: int) -> list[tuple[str, int]]:
    row = told["rows"][number]
    return [(told["reasons"][reason], until) for reason, until in zip(row["reasons"], row["until"], strict=True)]


def test_reasons_are_those_of_waits_however_much_else_is_said() -> None:
    """What is said of a gradient that came late has its version in it, and is never said twice."""
    group = Simulation(workers=8, speed="exponential:a=0.5", duration=600, seed=1, switches=(Switch("ssp", 590.0),))
    told = course_of("backup:k=6", group).data(600.0)
    waits = [wait for number in range(8) for wait in waits_of(told, number)]
    assert len(waits) > 2_000 and len(told["reasons"]) < 1_000
    assert "waits" not in told["reasons"] and not any("was late" in reason for reason, _ in waits)
    assert any("ahead" in reason for reason, _ in waits), "after the switch as well"


def test_a_wait_that_ends_because_somebody_left_says_so() -> None:
    for leaving in ({"failures": {2: 3.0}}, {"evictions": {2: 3.0}}):
        told = course_of("bsp", Simulation(intervals=(1.0, 1.0, 10.0), duration=6, **leaving)).data(6.0)  # type: ignore[arg-type]
        (reason, until), *later = waits_of(told, 0)
        assert "the round still needs" in reason and until == LEFT - 2
        assert {until for _, until in waits_of(told, 1) + later} <= {LEFT - 2, 0, 1, NOBODY}


def test_who_waits_when_another_policy_takes_over_does_so_for_its_reason() -> None:
    told = course_of(
        "ssp:staleness=3", Simulation(intervals=(1.0, 9.0), duration=9, switches=(Switch("ssp:staleness=2", 5.5),))
    )
    assert "limit 3" not in waits_of(told.data(9.0), 0)[-1][0] and "2" in waits_of(told.data(9.0), 0)[-1][0]


def test_paces_are_as_fine_as_those_who_stayed_allow() -> None:
    """One that was there for a moment only is no reason to draw all others roughly."""
    group = Simulation(intervals=(1.0, 1.0, 1.0, 1.0), duration=600)
    for there_for_a_moment in ({"evictions": {3: 3.0}}, {"joins": {3: 595.0}}):
        told = course_of("asp", msgspec.structs.replace(group, **there_for_a_moment)).data(600.0)
        assert len(told["pace"][0]) == 100 and told["pace"][0][50] == 1.0


def test_choices_of_a_long_run_are_thinned_out_evenly() -> None:
    course = Course()
    for number in range(3 * MOST_CHOICES):
        estimates = Estimates(number, (1.0,), (1.0,), None, None)
        course.observe(Record(float(number), UpdateApplied(number), estimates=estimates))
    times = [now for now, _ in course.choices]
    assert len(times) <= MOST_CHOICES and times == [4.0 * number for number in range(len(times))]
    assert course.chosen == 3 * MOST_CHOICES and times[-1] >= course.chosen - 4


def test_marks_come_to_an_end_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.recording.course.MOST_MARKS", 20)
    course = Course()
    for worker in range(25):
        course.observe(Record(1.0 + worker, WorkerJoined(worker)))
    assert len(course.marks) == 21 and "in the trace alone" in course.marks[-1][2]


def test_pieces_are_small(tmp_path: Path) -> None:
    """What was told, and has its fate, is not told again."""
    run = simulated_run(tmp_path / "mine", "bsp", EVENTFUL)
    course, most = Course(), 0
    for record in Trace(run / "trace.jsonl"):
        course.observe(record)
        most = max(most, *(len(row["gaps"]) for row in course.news(record.now, TICK)["rows"]), 0)
    assert most <= 3


def test_figures_may_be_asked_for_in_the_middle(tmp_path: Path) -> None:
    """Asking changes nothing: the next answers are those of somebody who never asked before."""
    run = simulated_run(tmp_path / "mine", "bsp", EVENTFUL)
    records = list(Trace(run / "trace.jsonl"))
    billing, metrics = Billing("bsp"), RunMetrics()
    for number, record in enumerate(records):
        billing.observe(record)
        metrics.observe(record)
        if number % 97 == 0:
            billing.bill(record.now), metrics.summary("bsp", record.now)
    fresh_billing, fresh_metrics = Billing("bsp"), RunMetrics()
    for record in records:
        fresh_billing.observe(record)
        fresh_metrics.observe(record)
    assert billing.bill(200.0) == fresh_billing.bill(200.0)
    assert metrics.summary("bsp", 200.0) == fresh_metrics.summary("bsp", 200.0)
