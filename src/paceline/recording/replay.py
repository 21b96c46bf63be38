"""Feeds the events of a trace to a policy again. Policies are deterministic, so the commands come out byte for byte."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from paceline.core.coordinator import Coordinator
from paceline.core.errors import ConfigurationError, PacelineError, TraceError
from paceline.core.messages import PolicyChanged
from paceline.policies import Policy
from paceline.policies import policy as build_policy
from paceline.recording.trace import Record, Trace, UnreadableTraceError


def replay(trace: Trace, policy: Policy | None = None) -> Iterator[Record]:
    """Feed the recorded events to a fresh policy (the trace's own unless another is given) and yield what it does.

    Where the run changed its policy the replay does, too.
    """
    try:
        coordinator = Coordinator(policy.fresh() if policy else build_policy(trace.header.policy))
    except ConfigurationError as problem:
        raise UnreadableTraceError(f"{trace.path}, line 1: {problem}") from None
    for number, record in enumerate(trace, start=2):
        try:
            yield repeat(record, coordinator)
        except PacelineError as problem:
            raise TraceError(f"{trace.path}, line {number}: {problem}") from problem


def repeat(record: Record, coordinator: Coordinator) -> Record:
    if isinstance(record.event, PolicyChanged) and record.event.by:
        return coordinator.follow(record.event, record.now)
    if isinstance(record.event, PolicyChanged):
        return coordinator.change_policy(build_policy(record.event.policy), record.now, record.event.updates)
    return coordinator.handle(record.event, record.now)


def first_difference(trace: Trace) -> tuple[int, Record, Record] | None:
    """Where a replay departs from the trace: line, recorded, replayed; None: it is the same to the byte."""
    encode = msgspec.json.Encoder().encode
    for number, (original, replayed) in enumerate(zip(trace, replay(trace), strict=True), start=2):
        if encode(original) != encode(replayed):
            return number, original, replayed
    return None
