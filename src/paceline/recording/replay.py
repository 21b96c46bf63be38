"""Feeds the events of a trace to a policy again. Policies are deterministic, so the commands come out byte for byte."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from paceline.core.coordinator import Coordinator, Decides
from paceline.policies import policy as build_policy
from paceline.recording.trace import Record, Trace


def replay(trace: Trace, policy: Decides | None = None) -> Iterator[Record]:
    """Feed the recorded events to a fresh policy (the trace's own unless another is given) and yield what it does."""
    coordinator = Coordinator(policy or build_policy(trace.header.policy))
    for record in trace:
        reaction = coordinator.handle(record.event, record.now)
        yield Record(record.now, record.event, reaction.commands, reaction.reason)


def first_difference(trace: Trace) -> tuple[int, Record, Record] | None:
    """Where a replay departs from the trace: line, recorded, replayed; None: it is the same to the byte."""
    encode = msgspec.json.Encoder().encode
    recorded = iter(trace)
    for number, replayed in enumerate(replay(Trace(trace.path)), start=2):
        original = next(recorded)
        if encode(original) != encode(replayed):
            return number, original, replayed
    next(recorded, None)  # read to the closing line
    return None
