"""What other policies would have made of a run: its own iteration times, simulated again.

If a policy lets a worker do more iterations than it did, its times begin again from the first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from paceline.core.messages import ApplyUpdate, PolicyChanged
from paceline.core.questions import NO_COSTS, Answer, Costs, Prospect
from paceline.experiment.foresight import try_out
from paceline.experiment.simulation import policy_for
from paceline.policies.auto import Auto
from paceline.policies.weighing import choose
from paceline.recording.iteration_times import Recording, iteration_times
from paceline.recording.metrics import RunMetrics, Summary
from paceline.recording.newest_answer import BEGINS_WITH
from paceline.recording.trace import Trace, UnreadableTraceError
from paceline.runtimes.simulated.simulator import SimulatedWorker
from paceline.runtimes.speeds import Recorded

AS_GOOD_AS_THE_BEST = 0.95
SLACK = Auto().slack  # so much fewer gradients may be used where they are fresher


def whatif(trace: Trace, policies: Sequence[str]) -> list[Summary]:
    """The figures that each policy would have had in the time that the run took."""
    times = iteration_times(trace)
    workers = times.workers()
    if not workers or trace.end is None or trace.end <= 0:
        raise UnreadableTraceError(f"{trace.path}: nobody pushed anything, so there are no iteration times in it")
    return simulated_again(workers, trace.end, policies, times.costs)


def simulated_again(
    workers: Mapping[int, Recording], end: float, policies: Sequence[str], costs: Costs = NO_COSTS
) -> list[Summary]:
    """The figures of each policy with these workers, up to this time. `costs`: of the server, if they are known."""
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
        simulator = try_out(chosen, simulated, [metrics], typical, end, costs)
        summaries.append(metrics.summary(str(chosen), simulator.now))
    return summaries


class Chosen(msgspec.Struct):
    """What a policy that chooses others did in a run."""

    by: str
    policies: list[str]  # that it chose, and before them the one that it began with
    used: int  # gradients, in the whole run


def changed_in(trace: Trace) -> Summary | None:
    """The run as it was, if its policy changed on the way."""
    metrics = RunMetrics()
    for record in trace:
        metrics.observe(record)
    summary = metrics.summary("as it was", trace.end or 0.0)
    return summary if summary.changes else None


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


def recommendation(summaries: Sequence[Summary], recorded: str, run: Summary | None = None) -> str:
    """Which policy to take, and why: the one that `auto` would take. `recorded`: the policy of the run. `run`: the run
    as it was, where its policy changed on the way, so that none of these is what it was."""
    workers = max(len(summary.workers) for summary in summaries)
    answer = Answer(tuple(_prospect(summary) for summary in summaries))
    choice = choose(answer, "" if run is not None else recorded, workers, SLACK)
    best = summaries[0] if choice is None else next(each for each in summaries if each.policy == choice.policy)
    fastest = max(summaries, key=lambda summary: summary.used_per_second)
    why = f"its workers would wait {best.waiting_share:.0%} of their time, mean staleness {best.mean_staleness:.2f}"
    if fastest.used_per_second > 1.005 * best.used_per_second:
        more = fastest.used_per_second / best.used_per_second - 1
        but = "which are older" if best.mean_staleness < fastest.mean_staleness else "in larger updates"
        why += f"; {fastest.policy} would use {more:.0%} more, {but}"
    if run is not None:
        return _beside(run, best, why)
    present = next((summary for summary in summaries if summary.policy == recorded), None)
    if present is None or present is best:
        return f"{'take' if present is None else 'stay with'} {best.policy}: {why}"
    gain = best.used_per_second / present.used_per_second if present.used_per_second else float("inf")
    if gain < 1 / AS_GOOD_AS_THE_BEST:
        over = f"over {gain - 1:.0%} more" if gain >= 1.005 else "more"
        return f"stay with {recorded}: no other policy would use {over} gradients in the same time"
    return f"take {best.policy}: {gain:.2f} times the gradients of {recorded} in the same time; {why}"


def _beside(run: Summary, best: Summary, why: str) -> str:
    """What the best policy alone would have come to, beside a run whose policy changed."""
    gain = best.used_per_second / run.used_per_second - 1 if run.used_per_second else math.inf
    found = "as many gradients as" if abs(gain) < 0.005 else f"{abs(gain):.0%} {_more(gain)} gradients than"
    return f"{best.policy} alone would have used {found} the run as it was; {why}"


def _more(gain: float) -> str:
    return "more" if gain > 0 else "fewer"


def _prospect(summary: Summary) -> Prospect:
    fates = summary.applied + summary.discarded
    return Prospect(
        summary.policy,
        summary.used_per_second,
        summary.mean_staleness,
        summary.discarded / fates if fates else 0.0,
        summary.waiting_share,
        summary.updates / summary.seconds if summary.seconds else 0.0,
    )
