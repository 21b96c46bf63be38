"""One readable scenario per policy: what happened, what was decided, and why. Read them; they are the documentation.

A file in tests/transcripts begins with the scenario and goes on with the transcript. After a change that is meant to
change decisions, `pytest tests/test_transcripts.py --rewrite-transcripts` writes them anew; review the difference.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from record_keeper import RecordKeeper

from paceline.core.messages import (
    Answered,
    ApplyUpdate,
    Ask,
    Command,
    DiscardGradient,
    Event,
    Follow,
    GradientArrived,
    InterruptWorker,
    PolicyChanged,
    SendParameters,
    WorkerJoined,
    WorkerLeft,
)
from paceline.experiment import Simulation, simulate
from paceline.policies import POLICIES

TRANSCRIPTS = Path(__file__).parent / "transcripts"


def event_line(event: Event) -> str:
    match event:
        case WorkerJoined(worker):
            return f"worker {worker} joined"
        case WorkerLeft(worker, reason):
            return f"worker {worker} left: {reason}"
        case GradientArrived(gradient, version):
            return f"worker {gradient.worker} pushed gradient {gradient.clock}, computed on version {version}"
        case Answered(number, answer):
            found = (f"{one.policy} {one.pace:g} a second, staleness {one.staleness:g}" for one in answer.prospects)
            return f"question {number} is answered: {'; '.join(found)}"
        case PolicyChanged(name, _, by):
            return f"{by} goes on as {name}"
        case _:
            return str(event)


def command_line(command: Command) -> str:
    match command:
        case ApplyUpdate(gradients, weights):
            parts = [f"{each.worker}.{each.clock}" for each in gradients]
            if weights:
                parts = [f"{part} x {weight:.3g}" for part, weight in zip(parts, weights, strict=True)]
            return f"update from {', '.join(parts)}"
        case DiscardGradient(gradient, _):
            return f"discard {gradient.worker}.{gradient.clock}"
        case SendParameters(worker):
            return f"release {worker}"
        case InterruptWorker(worker):
            return f"interrupt {worker}"
        case Ask(number, question):
            return f"question {number}: what would {len(question.candidates)} policies make of {question.times}?"
        case Follow(name):
            return f"follow {name}"


def transcript(scenario: dict[str, str]) -> str:
    def times(name: str) -> dict[int, float]:
        pairs = (pair.split("@") for pair in scenario.get(name, "").split(",") if pair)
        return {int(worker): float(time) for worker, time in pairs}

    simulation = Simulation(
        intervals=tuple(map(float, scenario["intervals"].split(","))),
        duration=float(scenario["duration"]),
        joins=times("join"),
        failures=times("fail"),
        evictions=times("evict"),
    )
    keeper = RecordKeeper()
    simulate(scenario["policy"], simulation, observers=[keeper])
    lines = []
    for record in keeper.records:
        lines.append(f"{record.now:5g}  {event_line(record.event)}")
        for command in record.commands:
            lines.append(f"         {command_line(command)}")
        if record.reason:
            lines.append(f"         because {record.reason}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", sorted(TRANSCRIPTS.glob("*.txt")), ids=lambda path: path.stem)
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    head, _, recorded = path.read_text().partition("\n\n")
    scenario = dict(line.split(": ", 1) for line in head.splitlines())
    now = transcript(scenario)
    if request.config.getoption("--rewrite-transcripts"):
        path.write_text(f"{head}\n\n{now}")
    assert now == recorded or request.config.getoption("--rewrite-transcripts")


def test_every_policy_has_a_scenario() -> None:
    first_lines = (path.read_text().splitlines()[0] for path in TRANSCRIPTS.glob("*.txt"))
    told = {line.removeprefix("policy: ").partition(":")[0] for line in first_lines}
    assert told == set(POLICIES)
