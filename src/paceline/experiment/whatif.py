"""What other policies would have made of a run: its own iteration times, simulated again.

If a policy lets a worker do more iterations than it did, its times begin again from the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from paceline.core.messages import ApplyUpdate, PolicyChanged
from paceline.experiment.foresight import try_out
from paceline.experiment.simulation import policy_for
from paceline.recording.iteration_times import Recording, recorded_workers
from paceline.recording.metrics import RunMetrics, Summary
from paceline.recording.newest_answer import BEGINS_WITH
from paceline.recording.trace import Trace, UnreadableTraceError
from paceline.runtimes.simulated.simulator import SimulatedWorker
from paceline.runtimes.speeds import Recorded

AS_GOOD_AS_THE_BEST = 0.95


def whatif(trace: Trace, policies: Sequence[str]) -> list[Summary]:
    """The figures that each policy would have had in the time that the run took."""
    workers = recorded_workers(trace)
    if not workers or trace.end is None or trace.end <= 0:
        raise UnreadableTraceError(f"{trace.path}: nobody pushed anything, so there are no iteration times in it")
    return simulated_again(workers, trace.end, policies)


def simulated_again(workers: Mapping[int, Recording], end: float, policies: Sequence[str]) -> list[Summary]:
    """The figures of each policy with these workers, up to this time."""
    summaries = []
    for name in policies:
        chosen = policy_for(name, len(workers))
        metrics = RunMetrics()
        speeds = {worker: Recorded(tuple(recording.times)) for worker, recording in workers.items()}
        simulated = [
            SimulatedWorker(worker, speeds[worker].start(""), recording.joined_at, recording.left_at)
            for worker, recording in workers.items()
        ]
        typical = min(speed.mean for speed in speeds.values())
        simulator = try_out(chosen, simulated, [metrics], typical, end)
        summaries.append(metrics.summary(str(chosen), simulator.now))
    return summaries


class Chosen(msgspec.Struct):
    """What a policy that chooses others did in a run."""

    by: str
    policies: list[str]  # that it chose, and before them the one that it began with
    used: int  # gradients, in the whole run


def chosen_in(trace: Trace) -> Chosen | None:
    """None: nobody chose a policy by itself."""
    chosen, used = Chosen("", [BEGINS_WITH], 0), 0
    for record in trace:
        if isinstance(record.event, PolicyChanged) and record.event.by:
            chosen.by = record.event.by
            chosen.policies.append(record.event.policy)
        used += sum(len(command.gradients) for command in record.commands if isinstance(command, ApplyUpdate))
    chosen.policies, chosen.used = list(dict.fromkeys(chosen.policies)), used
    return chosen if chosen.by else None


def cost_of_staying(chosen: Chosen, summaries: Sequence[Summary]) -> str:
    """How many gradients less it would have been with one of its policies alone."""
    alone = {summary.policy: summary.applied for summary in summaries}
    said = [
        f"{alone[name]:,} with {name} alone ({1 - alone[name] / chosen.used:.0%} less)"
        if alone[name] <= chosen.used
        else f"{alone[name]:,} with {name} alone ({alone[name] / chosen.used - 1:.0%} more)"
        for name in chosen.policies
        if name in alone
    ]
    return f"{chosen.by} used {chosen.used:,} gradients; it would have been {', '.join(said)}"


def recommendation(summaries: Sequence[Summary], recorded: str) -> str:
    """Which policy to take, and why: of those about as fast as the fastest, the one with the freshest gradients."""
    useful = {summary.policy: summary.used_per_second for summary in summaries}
    most = max(useful.values())
    good = [summary for summary in summaries if useful[summary.policy] >= AS_GOOD_AS_THE_BEST * most]
    best = min(good, key=lambda summary: (summary.mean_staleness, -useful[summary.policy]))
    present = next((summary for summary in summaries if summary.policy == recorded), None)
    why = f"its workers would wait {best.waiting_share:.0%} of their time, mean staleness {best.mean_staleness:.2f}"
    if present is None or present is best:
        return f"{'take' if present is None else 'stay with'} {best.policy}: {why}"
    gain = useful[best.policy] / useful[present.policy] if useful[present.policy] else float("inf")
    if gain < 1 / AS_GOOD_AS_THE_BEST:
        more = f"over {gain - 1:.0%} more" if gain >= 1.005 else "more"
        return f"stay with {recorded}: no other policy would use {more} gradients in the same time"
    return f"take {best.policy}: {gain:.2f} times the gradients of {recorded} in the same time; {why}"
