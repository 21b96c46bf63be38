"""Which of several policies suits a group: the least stale of those that are about as good as the best.

Staleness is told in rounds, a gradient of every worker each. The worth of a candidate is the samples per second that
count, told in gradients of the mean size. An update of more samples than a round has counts as one of so many, because
the learning rate is that of a round at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from paceline.core.questions import Answer, Prospect
from paceline.policies.measured import Pace

KEPT = 0.9  # share of a pace that was foretold, with which it is kept
A_LITTLE = 0.3  # rounds by which the policy in force may be staler than the freshest, and stay
NOTHING_MEASURED: Mapping[str, Pace] = {}
ELASTIC = "elastic-bsp:monitoring=first,interval=mean"


def candidates(workers: int, also: str) -> tuple[str, ...]:
    """What to try with so many workers, freshest first. `also`: what is in force."""
    fewer = {workers - 1, workers - 2, workers * 7 // 8, workers * 3 // 4, workers // 2}
    backup = [f"backup:k={k}" for k in sorted(fewer, reverse=True) if 1 <= k < workers]
    buffered = [f"buffered:size={size}" for size in sorted({workers // 8, workers // 3}) if size > 1]
    stale = ["ssp:staleness=1", "ssp", ELASTIC, f"{ELASTIC},objective=share", *buffered, "asp"]
    return tuple(dict.fromkeys(["bsp", *backup, f"{ELASTIC},inside=gather", *stale, also]))


class Weighed(NamedTuple):
    prospect: Prospect
    worth: float
    age: float
    share: float = 1.0  # of what was foretold, that it came to when it was in force


class Choice(NamedTuple):
    policy: str
    pace: float  # that is expected of it, in gradients of the mean size per second
    why: str  # in one sentence


def choose(
    answer: Answer,
    present: str,
    workers: int,
    slack: float,
    *,
    only_fresh: bool = False,
    measured: Mapping[str, Pace] = NOTHING_MEASURED,
    scatter: float = 0.0,
) -> Choice | None:
    """None: nobody could tell. `slack`: the share of the best worth that fresher gradients may cost. `only_fresh`: take
    none with stale gradients. `measured`: what policies came to while they were in force, which counts if it is much
    less or more than what is foretold of them. `scatter`: of worths, as shares of the best, half of the slack at most:
    by so much a fresher one must be better than it has to be, or it would go to and fro between two that differ by
    chance."""
    weighed = [
        _weighed(prospect, workers, measured.get(prospect.policy))
        for prospect in answer.prospects
        if prospect.staleness == 0 or not only_fresh
    ]
    if not weighed or (most := max(one.worth for one in weighed)) <= 0:
        return None
    good = [
        one for one in weighed if one.worth >= (1 - slack + (0.0 if one.prospect.policy == present else scatter)) * most
    ]
    freshest = min(good, key=lambda one: (one.age, -one.worth))
    # What is in force stays if it is about as fresh: every change settles what is pending in one update.
    little = A_LITTLE if freshest.age else 0.0
    stays = (one for one in good if one.prospect.policy == present and one.age <= freshest.age + little)
    best = next(stays, freshest)
    return Choice(best.prospect.policy, best.prospect.pace, _why(best, weighed, answer))


def _weighed(prospect: Prospect, workers: int, measured: Pace | None) -> Weighed:
    """Times that were measured under one policy do not tell all about another: workers that wait, for one, leave their
    cores to those that compute. What was tried is known."""
    found = Weighed(prospect, worth_of(prospect, workers), age_of(prospect, workers))
    if measured is None or not prospect.pace:
        return found
    if measured.most < KEPT * prospect.pace:
        share = measured.most / prospect.pace
    elif KEPT * measured.least > prospect.pace:
        share = measured.least / prospect.pace
    else:
        return found
    return found._replace(worth=share * found.worth, share=share)


def worth_of(prospect: Prospect, workers: int) -> float:
    return min(prospect.pace, prospect.updates * workers)


def shares(answer: Answer, workers: int) -> dict[str, float]:
    """What candidates are worth, as shares of the best."""
    worths = {prospect.policy: worth_of(prospect, workers) for prospect in answer.prospects}
    most = max(worths.values(), default=0.0)
    return {policy: worth / most for policy, worth in worths.items()} if most > 0 else {}


def scatter_of(before: Mapping[str, float], after: Mapping[str, float], slack: float) -> float:
    """By how much shares differ from one answer to the next where nothing else is known to have changed. Half of the
    slack at most: what differs by more is no chance."""
    both = [abs(after[policy] - before[policy]) for policy in after if policy in before]
    return min(fmean(both), slack / 2) if both else 0.0


def age_of(prospect: Prospect, workers: int) -> float:
    """How old gradients are when they are used, in rounds; 0: none is stale. An update of several gradients moves the
    parameters as far as several updates: staleness in updates does not tell the two apart."""
    if not prospect.staleness:
        return 0.0
    gradients = prospect.pace / prospect.updates
    return (prospect.staleness * gradients + (gradients - 1) / 2) / workers


def _why(best: Weighed, weighed: Sequence[Weighed], answer: Answer) -> str:
    """One sentence with figures: this one, the best of the other kind, and what waits under bsp."""
    bsp = next((one for one in weighed if one.prospect.policy == "bsp"), best)

    def times(one: Weighed) -> str:
        if one is bsp:
            return "nothing is worth more"
        return f"{one.worth / bsp.worth:.2f} times bsp's pace" if bsp.worth else "bsp makes no progress"

    said = f"{best.prospect.policy}: {times(best)}, {_staleness(best.prospect)}"
    stale = best.prospect.staleness > 0
    others = [one for one in weighed if (one.prospect.staleness > 0) != stale]
    if others:
        other = max(others, key=lambda one: one.worth)
        if other is not bsp:
            said += f"; {other.prospect.policy} has {times(other)}, {_staleness(other.prospect)}"
    if bsp is not best:
        seen = f"; bsp was tried, and came to {bsp.share:.0%} of what is foretold of it"
        said += f"; bsp waits {bsp.prospect.waiting:.0%}" if bsp.share == 1 else seen
    busy = max((one.prospect.server for one in weighed), default=0.0)
    if busy > 0.5:
        said += f"; under some the server is busy for {min(busy, 1.0):.0%}"
        said += f", {answer.costs.update:.2g} s an update" if answer.costs.update else ""
    return said


def _staleness(prospect: Prospect) -> str:
    said = f"staleness {prospect.staleness:.2g}" if prospect.staleness else "none is stale"
    return f"{said}, {prospect.discarded:.0%} thrown away" if prospect.discarded >= 0.005 else said
