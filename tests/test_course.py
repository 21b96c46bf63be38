"""The course of a run told piece by piece is the course told at once, whatever is still under way."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from course_reader import Reader, whole
from report_runs import EVENTFUL, simulated_run

from paceline.recording.bill import Billing
from paceline.recording.course import Course
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
