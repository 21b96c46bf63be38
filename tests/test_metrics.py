"""The figures of a run, on records small enough to be worked out by hand, and read back from a trace."""

from __future__ import annotations

from pathlib import Path

import pytest
from group import VARIANTS

from paceline.core.messages import (
    ApplyUpdate,
    Command,
    DiscardGradient,
    Event,
    Gradient,
    GradientArrived,
    InterruptWorker,
    SendParameters,
    Statistics,
    UpdateApplied,
    WorkerJoined,
    WorkerLeft,
)
from paceline.experiment import Simulation, simulate
from paceline.recording.metrics import Departure, LongestWait, RunMetrics, Summary, WorkerSummary
from paceline.recording.timeline import Span, Timeline
from paceline.recording.trace import Record, Trace


def joined(now: float, worker: int, *commands: Command) -> Record:
    return Record(now, WorkerJoined(worker), commands or (SendParameters(worker),))


def pushed(now: float, worker: int, clock: int, version: int, *commands: Command, reason: str = "") -> Record:
    return Record(now, GradientArrived(Gradient(worker, clock), version), commands, reason)


def happened(now: float, event: Event, *commands: Command) -> Record:
    return Record(now, event, commands)


def applied(*gradients: tuple[int, int]) -> ApplyUpdate:
    return ApplyUpdate(tuple(Gradient(*each) for each in gradients))


def measured(records: list[Record], end: float) -> Summary:
    metrics = RunMetrics()
    for record in records:
        metrics.observe(record)
    return metrics.summary("by hand", end)


def spans(records: list[Record], end: float, until: float = float("inf")) -> dict[int, list[Span]]:
    timeline = Timeline(until)
    for record in records:
        timeline.observe(record)
    return timeline.spans(end)


#: Two workers, one round: worker 1 pushes at 1 and waits until worker 0 pushes at 3; then worker 1 pushes again at 4.
ROUND = [
    joined(0.0, 0),
    joined(0.0, 1),
    pushed(1.0, 1, 1, 0, reason="worker 1 waits for worker 0"),
    pushed(3.0, 0, 1, 0, applied((1, 1), (0, 1)), SendParameters(1), SendParameters(0)),
    pushed(4.0, 1, 2, 1, reason="worker 1 waits again"),
]


def test_all_figures_of_one_round_and_a_half() -> None:
    assert measured(ROUND, 10.0) == Summary(
        policy="by hand",
        seconds=10.0,
        updates=1,
        pushes=3,
        applied=2,
        discarded=0,
        pending=1,
        interrupted=0,
        iterations_per_second=0.3,
        max_lead=1,
        max_staleness=0,
        mean_staleness=0.0,
        waiting_seconds=8.0,  # worker 1 from 1 to 3, and from 4 until the end at 10
        waiting_share=0.4,
        supersteps=1,
        longest_wait=LongestWait(worker=1, began=4.0, seconds=6.0, reason="worker 1 waits again"),
        workers=[WorkerSummary(0, 1, 0.0, 10.0), WorkerSummary(1, 2, 8.0, 10.0)],
    )


def test_nothing_happened() -> None:
    summary = measured([], 0.0)
    assert (summary.iterations_per_second, summary.waiting_share, summary.mean_staleness) == (0.0, 0.0, 0.0)
    assert summary.longest_wait is None and summary.workers == []
    joined_only = measured([joined(0.0, 0)], 5.0)
    assert joined_only.workers == [WorkerSummary(0, 0, 0.0, 5.0)] and joined_only.supersteps == 0


def test_the_lead_is_taken_at_an_arrival_after_counting_it() -> None:
    def at_once(now: float, worker: int, clock: int, version: int) -> Record:
        return pushed(now, worker, clock, version, applied((worker, clock)), SendParameters(worker))

    records = [joined(0.0, 0), joined(0.0, 1), at_once(1.0, 0, 1, 0), at_once(2.0, 0, 2, 1), at_once(3.0, 0, 3, 2)]
    assert measured(records, 3.0).max_lead == 3
    assert measured([*records, at_once(4.0, 1, 1, 0), at_once(5.0, 0, 4, 3)], 5.0).max_lead == 3


def test_staleness_is_the_version_before_the_update_minus_the_version_computed_on() -> None:
    records = [
        joined(0.0, 0),
        joined(0.0, 1),
        pushed(1.0, 0, 1, 0, applied((0, 1)), SendParameters(0)),  # staleness 0
        pushed(2.0, 0, 2, 1, applied((0, 2)), SendParameters(0)),  # 0
        pushed(2.5, 1, 1, 0, applied((1, 1)), SendParameters(1)),  # 2
        pushed(3.0, 0, 3, 2, SendParameters(0)),
        pushed(4.0, 0, 4, 3, applied((0, 3), (0, 4)), SendParameters(0)),  # 3 - 2 and 3 - 3
    ]
    summary = measured(records, 4.0)
    assert summary.max_staleness == 2 and summary.mean_staleness == 3 / 5
    assert (summary.updates, summary.applied, summary.pending) == (4, 5, 0)


def test_a_member_that_leaves_while_it_waits_waited_until_then() -> None:
    records = [
        joined(0.0, 0),
        joined(0.0, 1),
        pushed(1.0, 1, 1, 0, reason="worker 1 waits for worker 0"),
        happened(2.5, WorkerLeft(1, "failed")),
        happened(2.75, WorkerLeft(1, "failed")),  # reported twice
        pushed(4.0, 0, 1, 0, applied((1, 1), (0, 1)), SendParameters(0)),
    ]
    summary = measured(records, 8.0)
    assert summary.workers == [WorkerSummary(0, 1, 0.0, 8.0), WorkerSummary(1, 1, 1.5, 2.5)]
    assert summary.departures == [Departure(1, 2.5, "failed")]
    assert summary.waiting_seconds == 1.5 and summary.waiting_share == 1.5 / 10.5
    assert summary.longest_wait == LongestWait(1, 1.0, 1.5, "worker 1 waits for worker 0")
    assert summary.supersteps == 1  # worker 0 is all that is left
    assert spans(records, 8.0) == {
        0: [Span(0.0, 4.0, False), Span(4.0, 8.0, False)],
        1: [Span(0.0, 1.0, False), Span(1.0, 2.5, True)],
    }


def test_those_who_waited_for_a_worker_that_left_go_on_together() -> None:
    records = [*ROUND[:3], happened(2.0, WorkerLeft(0, "failed"), applied((1, 1)), SendParameters(1))]
    summary = measured(records, 3.0)
    assert summary.supersteps == 1
    assert summary.workers == [WorkerSummary(0, 0, 0.0, 2.0), WorkerSummary(1, 1, 1.0, 3.0)]


def test_a_joiner_counts_from_the_slowest_and_from_when_it_enters() -> None:
    records = [
        joined(0.0, 0),
        pushed(1.0, 0, 1, 0, applied((0, 1)), SendParameters(0)),
        pushed(2.0, 0, 2, 1, applied((0, 2)), SendParameters(0)),
        happened(2.5, WorkerJoined(1)),  # it must wait for the next barrier
        pushed(3.0, 0, 3, 2, applied((0, 3)), SendParameters(0), SendParameters(1)),
        pushed(4.0, 1, 1, 3, applied((1, 1)), SendParameters(1)),
        pushed(4.5, 1, 2, 4, applied((1, 2)), SendParameters(1)),
    ]
    summary = measured(records, 5.0)
    assert summary.max_lead == 2  # at 5 against 3: worker 1 entered at worker 0's clock
    assert summary.workers == [WorkerSummary(0, 3, 0.0, 5.0), WorkerSummary(1, 2, 0.0, 2.0)]
    assert summary.supersteps == 3
    assert spans(records, 5.0)[1] == [Span(3.0, 4.0, False), Span(4.0, 4.5, False), Span(4.5, 5.0, False)]


def test_a_joiner_that_leaves_before_it_enters_leaves_no_trace_in_the_figures() -> None:
    records = [joined(0.0, 0), happened(1.0, WorkerJoined(1)), happened(2.0, WorkerLeft(1, "failed"))]
    assert measured(records, 3.0).workers == [WorkerSummary(0, 0, 0.0, 3.0)]
    assert spans(records, 3.0) == {0: [Span(0.0, 3.0, False)]}


def test_a_gradient_delivered_twice_counts_once() -> None:
    while_it_waits = [*ROUND[:3], pushed(1.5, 1, 1, 0), *ROUND[3:]]
    while_it_computes = [*ROUND[:4], pushed(3.5, 1, 1, 0), *ROUND[4:]]
    for records in (while_it_waits, while_it_computes):
        assert measured(records, 10.0) == measured(ROUND, 10.0)
        assert spans(records, 10.0) == spans(ROUND, 10.0)


def test_discards_and_interruptions() -> None:
    late = "worker 1 was late"
    records = [
        joined(0.0, 0),
        joined(0.0, 1),
        joined(0.0, 2),
        pushed(1.0, 0, 1, 0, applied((0, 1)), SendParameters(0), InterruptWorker(2)),
        pushed(2.0, 1, 1, 0, DiscardGradient(Gradient(1, 1), late), SendParameters(1), reason=late),
        happened(2.0, UpdateApplied(1, Statistics(1, 0.5))),
    ]
    summary = measured(records, 2.0)
    assert (summary.pushes, summary.applied, summary.discarded, summary.pending) == (2, 1, 1, 0)
    assert summary.interrupted == 1 and summary.waiting_seconds == 0.0 and summary.longest_wait is None
    assert spans(records, 2.0)[2] == [Span(0.0, 1.0, False), Span(1.0, 2.0, False)]


def test_the_longest_wait_is_the_first_of_its_length() -> None:
    records = [
        *ROUND[:4],
        pushed(5.0, 0, 2, 1, reason="worker 0 waits as long"),
        pushed(7.0, 1, 2, 1, applied((0, 2), (1, 2)), SendParameters(0), SendParameters(1)),
    ]
    summary = measured(records, 8.0)
    assert summary.longest_wait == LongestWait(1, 1.0, 2.0, "worker 1 waits for worker 0")
    assert summary.supersteps == 2 and summary.waiting_seconds == 4.0


def test_spans_of_a_round() -> None:
    assert spans(ROUND, 10.0) == {
        0: [Span(0.0, 3.0, False), Span(3.0, 10.0, False)],
        1: [Span(0.0, 1.0, False), Span(1.0, 3.0, True), Span(3.0, 4.0, False), Span(4.0, 10.0, True)],
    }


@pytest.mark.parametrize(
    ("until", "of_worker_1"),
    [
        (0.5, [Span(0.0, 0.5, False)]),
        (1.0, [Span(0.0, 1.0, False)]),
        (2.0, [Span(0.0, 1.0, False), Span(1.0, 2.0, True)]),
        (3.0, [Span(0.0, 1.0, False), Span(1.0, 3.0, True)]),
    ],
)
def test_spans_of_the_first_seconds_only(until: float, of_worker_1: list[Span]) -> None:
    assert spans(ROUND, 10.0, until)[1] == of_worker_1


@pytest.mark.parametrize("text", VARIANTS)
def test_a_trace_gives_the_figures_of_the_live_run(text: str, tmp_path: Path) -> None:
    simulation = Simulation(
        intervals=(1.0, 1.3, 1.9), jitter=0.1, joins={2: 3.3}, failures={1: 17.1}, duration=30.05, seed=3
    )
    live, path = Timeline(12.0), tmp_path / "trace.jsonl"
    summary = simulate(text, simulation, trace_file=path, observers=[live])
    trace, metrics, timeline = Trace(path), RunMetrics(), Timeline(12.0)
    for record in trace:
        metrics.observe(record)
        timeline.observe(record)
    assert trace.end is not None
    assert metrics.summary(trace.header.policy, trace.end) == summary
    assert timeline.spans(trace.end) == live.spans(summary.seconds)
