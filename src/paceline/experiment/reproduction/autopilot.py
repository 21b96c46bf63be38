"""Whether the user has to choose: `auto` against every fixed policy, in groups of all kinds.

Nobody published this. The goals were fixed before the first run: what `auto` may lose against the policy that turns out
to be best afterwards.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from paceline.core.questions import Costs
from paceline.experiment.comparison import Comparison, CurvePoint
from paceline.experiment.reproduction.page import Claim, Page, Section
from paceline.experiment.reproduction.request import ExperimentRequest
from paceline.experiment.simulation import Simulation, simulate, worker_speeds
from paceline.runtimes.speeds import Slowdown

LEAST, MEAN, CLOSE = 0.90, 0.97, 0.97  # of the best in hindsight: everywhere, on average; and of BSP, among equals
AUTO = "auto"
FIXED = ("bsp", "asp", "ssp", "dssp", "elastic-bsp", "backup", "backup, 3/4", "buffered", "dbw")
TARGET = 0.95
ROUND = 128  # samples
SECONDS = 200.0  # for which paces are compared
PACES = 3  # seeds at most of which they are a mean: they scatter little
LIMIT = 1_500.0  # of a training run
RATE = 0.05
SMOOTHED = 3  # evaluations, whose mean counts: single ones go up and down
ENOUGH = 0.965  # of a single one
EQUAL = "nobody is slow"
GOALS = (
    f"Goals: in every scenario at least {LEAST:.0%} of what the best fixed policy, known afterwards, comes to;"
    f" {MEAN:.0%} on average; on average ahead of every fixed policy; and at most {1 - CLOSE:.0%} behind BSP where"
    f" {EQUAL}."
)
HOW_MEASURED = (
    f"In virtual time. Pace: gradients per second that become part of updates, over {SECONDS:g} s,"
    f" {PACES} seeds. Time: until the mean"
    f" of {SMOOTHED} evaluations is at {TARGET:.0%}, on handwritten digits; an MLP, {ROUND} samples in a round, SGD"
    f" with momentum 0.9, rate {RATE:g} per round, stale gradients corrected. Means over the seeds. A time unit is an"
    " iteration of a fast worker. `backup, 3/4` takes three quarters of the group, the others are as"
    " `paceline policies` describes them."
)


@dataclass(frozen=True)
class Scenario:
    name: str
    simulation: Simulation
    rate: float = RATE


def _spread(workers: int, fastest: float, slowest: float) -> tuple[float, ...]:
    return tuple(fastest + (slowest - fastest) * worker / (workers - 1) for worker in range(workers))


def _moving(workers: int, factor: float, seconds: float) -> tuple[Slowdown, ...]:
    """One after the other is slow for a while, again and again."""
    turns = range(int(LIMIT / seconds))
    return tuple(Slowdown(turn % workers, factor, turn * seconds, (turn + 1) * seconds) for turn in turns)


def scenarios(request: ExperimentRequest) -> list[Scenario]:
    intervals = {
        "2 workers, 1.3 times": _spread(2, 1.0, 1.3),
        "2 workers, one 4 times slower": (1.0, 4.0),
        "4 workers, mild": _spread(4, 1.0, 1.3),
        "4 workers, one 4 times slower": (1.0, 1.0, 1.0, 4.0),
        "4 workers, one 3 times faster": (1.0, 3.0, 3.0, 3.0),
        "16 workers, from 1 to 2": _spread(16, 1.0, 2.0),
        "16 workers, a quarter 4 times slower": (1.0,) * 12 + (4.0,) * 4,
        "64 workers, from 1 to 2": _spread(64, 1.0, 2.0),
    }
    eight = Simulation(workers=8, speed="lognormal:sigma=0.1")
    sixteen = Simulation(intervals=_spread(16, 1.0, 2.0), jitter=0.1)
    found = [
        Scenario(f"8 workers, {EQUAL}", Simulation(workers=8, speed="lognormal:sigma=0.02")),
        *(Scenario(name, Simulation(intervals=own, jitter=0.1)) for name, own in intervals.items()),
        Scenario("16 workers, exponential times", Simulation(workers=16, speed="exponential:a=1")),
        Scenario("16 workers, lognormal times", Simulation(workers=16, speed="lognormal:sigma=0.6")),
        Scenario("one of 8 slow for a while", _with(eight, slowdowns=(Slowdown(0, 5.0, 10.0, 60.0),))),
        Scenario(
            "half of 8 slow in mid-run",
            _with(eight, slowdowns=tuple(Slowdown(worker, 5.0, 20.0, None) for worker in range(4))),
        ),
        Scenario("slowness goes round 8", _with(eight, slowdowns=_moving(8, 4.0, 10.0))),
        Scenario(
            "8 workers, two join late and two leave",
            _with(eight, intervals=_spread(8, 1.0, 2.0), joins={6: 15.0, 7: 20.0}, failures={0: 30.0, 5: 40.0}),
        ),
        Scenario("8 workers, pushes take half a second", _with(eight, intervals=_spread(8, 1.0, 2.0), push_delay=0.5)),
        Scenario("16 workers, a rate near the edge", sixteen, rate=RATE * 16),
        Scenario("16 workers, the server is the limit", _with(sixteen, costs=Costs(update=0.2))),
    ]
    if request.trace is not None:
        found.append(Scenario("recorded times", Simulation(trace=str(request.trace))))
    return found


def _with(simulation: Simulation, **changes: object) -> Simulation:
    if "intervals" in changes:
        changes |= {"workers": None, "speed": None, "jitter": 0.1}
    return msgspec.structs.replace(simulation, **changes)


@dataclass(frozen=True)
class Shares:
    """What policies came to in one scenario, as shares of the best of the fixed ones in hindsight."""

    means: dict[str, float]  # by label
    error: float  # of that of `auto`: the standard error, by its own seeds and those of the best


def _shares(found: dict[str, list[float]], *, more_is_better: bool) -> Shares:
    """Of what every seed of every policy came to."""
    means = {label: statistics.fmean(own) for label, own in found.items()}
    if not more_is_better:
        means = {label: 1 / mean for label, mean in means.items()}  # 0: never got there
    best = max(FIXED, key=means.__getitem__)
    shares = {label: mean / means[best] if means[best] else 0.0 for label, mean in means.items()}
    return Shares(shares, shares[AUTO] * math.hypot(*(_relative_error(found[label]) for label in (AUTO, best))))


def _relative_error(values: Sequence[float]) -> float:
    """Of their mean."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return math.nan
    return statistics.stdev(values) / math.sqrt(len(values)) / statistics.fmean(values)


@dataclass(frozen=True)
class Found:
    scenario: Scenario
    pace: Shares  # gradients that count per second
    time: Shares  # to the target


def autopilot(request: ExperimentRequest) -> Page:
    recorded = "" if request.trace is None else f" Recorded times: {request.trace.name}."
    return regret_page(
        request,
        scenarios(request),
        "The policy that chooses the policy",
        "`auto` measures the workers, asks the simulator what each candidate would make of their times, and changes"
        f" the policy while the run goes on. {GOALS}",
        f"{HOW_MEASURED} The goals were fixed before the first run; `auto` was built while looking at these groups, so"
        f" that they are no independent test; [autopilot-unseen](autopilot-unseen.md) is one.{recorded}",
    )


def regret_page(
    request: ExperimentRequest, groups: Sequence[Scenario], title: str, about: str, set_up: str, first_seed: int = 0
) -> Page:
    """What `auto` loses in these groups against the policy that turns out to be best."""
    found = [_look_at(number, scenario, request) for number, scenario in enumerate(groups)]
    return Page(
        title,
        about,
        set_up,
        _claims(found),
        [
            _table("Pace, of the best in hindsight", found, [each.pace for each in found]),
            _table("Time, of the best in hindsight", found, [each.time for each in found]),
        ],
        first_seed,
    )


def _look_at(number: int, scenario: Scenario, request: ExperimentRequest) -> Found:
    workers = len(worker_speeds(scenario.simulation))
    policies = {policy_of(label, workers): label for label in (*FIXED, AUTO)}
    seeds = range(request.first_seed, request.first_seed + min(request.seeds, PACES))
    pace = {
        label: [_pace(policy, scenario.simulation, workers, seed) for seed in seeds]
        for policy, label in policies.items()
    }
    outcomes = request.run(f"{number + 1:02}", _comparison(scenario, workers, request), request.trials([*policies]))
    times: dict[str, list[float]] = {label: [] for label in policies.values()}
    for outcome in outcomes:
        times[policies[outcome.trial.policy]].append(_time_to(outcome.curve))
    return Found(scenario, _shares(pace, more_is_better=True), _shares(times, more_is_better=False))


def policy_of(label: str, workers: int) -> str:
    return f"backup:k={max(1, workers * 3 // 4)}" if label == "backup, 3/4" else label


def _pace(policy: str, simulation: Simulation, workers: int, seed: int) -> float:
    summary = simulate(policy, msgspec.structs.replace(simulation, seed=seed, duration=SECONDS))
    return summary.used_per_second


def _time_to(curve: list[CurvePoint]) -> float:
    for number in range(SMOOTHED, len(curve) + 1):
        latest = curve[number - SMOOTHED : number]
        if statistics.fmean(point.accuracy for point in latest) >= TARGET or latest[-1].accuracy >= ENOUGH:
            return latest[-1].seconds
    return float("inf")


def _comparison(scenario: Scenario, workers: int, request: ExperimentRequest) -> Comparison:
    return Comparison(
        "digits",
        msgspec.structs.replace(scenario.simulation, duration=LIMIT),
        15,
        None if request.data is None else str(request.data),
        "mlp",
        learning_rate=scenario.rate,
        momentum=0.9,
        batch_size=max(1, ROUND // workers),
        evaluate_every=ROUND,
        stop_at=ENOUGH,
        keep_spans=False,
        weight_decay=0.0,
        schedule=False,
    )


def _claims(found: list[Found]) -> list[Claim]:
    claims = []
    for what, shares in (("pace", [each.pace for each in found]), ("time", [each.time for each in found])):
        own = [each.means[AUTO] for each in shares]
        worst = min(range(len(own)), key=own.__getitem__)
        claims.append(
            Claim(
                f"{what}: in every scenario at least {LEAST:g} of the best in hindsight",
                f"{own[worst]:.3f} +- {shares[worst].error:.3f} at worst ({found[worst].scenario.name}); below it in"
                f" {sum(share < LEAST for share in own)} of {len(own)}",
                own[worst] >= LEAST,
            )
        )
        claims.append(
            Claim(f"{what}: on average {MEAN:g} of it", f"{statistics.fmean(own):.3f}", statistics.fmean(own) >= MEAN)
        )
        others = {label: statistics.fmean(each.means[label] for each in shares) for label in FIXED}
        best = max(others, key=others.__getitem__)
        claims.append(
            Claim(
                f"{what}: on average ahead of every single fixed policy",
                f"{statistics.fmean(own):.3f}; the best of them is {best}, {others[best]:.3f}",
                statistics.fmean(own) > others[best],
            )
        )
        for each, one in zip(shares, found, strict=True):
            if EQUAL in one.scenario.name:
                beside = each.means[AUTO] / each.means["bsp"] if each.means["bsp"] else math.inf
                text = f"{what}: within {1 - CLOSE:.0%} of BSP where {EQUAL}"
                claims.append(Claim(text, f"{beside:.3f} of it", beside >= CLOSE))
    return claims


def _table(heading: str, found: list[Found], shares: list[Shares]) -> Section:
    labels = (AUTO, *FIXED)
    cells = [
        [one.scenario.name, *(f"{each.means[label]:.2f}" for label in labels)]
        for one, each in zip(found, shares, strict=True)
    ]
    means = [statistics.fmean(each.means[label] for each in shares) for label in labels]
    cells.append(["**mean**", *(f"**{mean:.3f}**" for mean in means)])
    return Section(heading, "0: never, within the limit.", ["scenario", *labels], cells)
