"""What a policy may ask: what candidates would have made of the times that workers needed lately. And the answer.

A question says all that an answer hangs on, so that an answer can be found anywhere, and is always the same.
"""

from __future__ import annotations

import msgspec


class Costs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Seconds for which the server is busy, or the wire, as measured in this run. Whoever comes meanwhile waits."""

    push: float = 0.0  # to take in one gradient
    gradient: float = 0.0  # to add it to an update
    update: float = 0.0  # to make one, of however many gradients
    pull: float = 0.0  # to hand out the parameters to one worker
    wire: float = 0.0  # of the wire, in each of its directions: for one gradient, or the parameters once


NO_COSTS = Costs()


class Question(msgspec.Struct, frozen=True, array_like=True, gc=False):
    candidates: tuple[str, ...]  # policies, as one names them
    workers: tuple[int, ...]
    times: tuple[tuple[float, ...], ...]  # of each worker: what its latest iterations took, oldest first
    horizon: float  # for how long to try each of them, in the same unit
    costs: Costs = NO_COSTS  # whoever is asked knows them, or not; and the next as well
    corrected: bool = True  # whether stale gradients are made up for
    samples: tuple[int, ...] = ()  # of each worker: in one gradient; none: all have as many


class Prospect(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one candidate would make of it in the long run. Where gradients have not as many samples, each counts by its
    own: pace is told in gradients of their mean over the workers."""

    policy: str
    pace: float  # gradients that become part of updates, per second
    staleness: float  # of gradients, their mean
    discarded: float  # of all samples, the share that is thrown away
    waiting: float  # the share of the workers' time
    updates: float  # per second
    server: float = 0.0  # the share of the time for which it is busy


class Answer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    prospects: tuple[Prospect, ...] = ()  # in the order of the candidates; none: nobody could tell
    seconds: float = 0.0  # of a processor that it took; in virtual time none
    costs: Costs = NO_COSTS  # that were reckoned with
    corrected: bool = True  # whether stale gradients are made up for, where a policy applies them


def short(value: float) -> float:
    """So many digits as mean anything: a question and its answer are lines of the trace."""
    return float(f"{value:.4g}")
