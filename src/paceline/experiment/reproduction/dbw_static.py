"""DBW against every static number of backup workers: 16 workers, round trips of 1 - a + a Exp(1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.experiment.comparison import ChosenK, Comparison, Outcome, time_to
from paceline.experiment.pictures import draw_estimates
from paceline.experiment.reproduction.page import Claim, Page, Section
from paceline.experiment.reproduction.request import ExperimentRequest, as_published, rows_by_policy, seconds
from paceline.experiment.reproduction.request import mean_time as mean_row_time
from paceline.experiment.simulation import Simulation
from paceline.report.plots import Curve, draw
from paceline.runtimes.speeds import Slowdown

WORKERS = 16
STATIC = [f"backup:k={k}" for k in range(1, WORKERS + 1)]
OURS, PRINTED, BLIND = "dbw", "dbw:estimator=paper", "dbw:estimator=paper,blind=true"
DYNAMIC = [OURS, PRINTED, BLIND]
TARGET = 0.82
MEAN_OF = 20  # evaluations: a single one goes up and down by several per cent
SLOWER = 5.0
AS_GOOD, BETTER = 0.95, 1.2  # than the best static k: while nothing changes, and when half of the workers slow down
FRESH = 10  # the first of the seeds with which nothing was chosen, neither a k nor how DBW works
RATE, RATE_WITH_MOMENTUM, MOMENTUM = 0.3, 0.03, 0.9  # the same step of a lasting gradient
SLOW_FROM = 75.0


@dataclass(frozen=True)
class Case:
    a: float
    rate: str  # fixed or proportional
    momentum: float = 0.0
    slow_from: float | None = None

    @property
    def part(self) -> str:
        steady = self.slow_from is None
        name = f"a{self.a:g}-{self.rate}".replace(".", "")
        return name + ("-momentum" if self.momentum else "") + ("" if steady else "-slower")

    @property
    def title(self) -> str:
        rate = "fixed learning rate" if self.rate == "fixed" else "learning rate proportional to k"
        momentum = f", momentum {self.momentum:g}" if self.momentum else ""
        slower = f"half of the workers {SLOWER:g} times slower from {self.slow_from:g} s on" if self.slow_from else ""
        return f"a = {self.a:g}, {rate}{momentum}" + (f", {slower}" if slower else "")

    @property
    def duration(self) -> float:
        return 400.0 if self.a < 1 and self.slow_from is None else 700.0


STEADY = [
    Case(a, rate, momentum) for momentum in (0.0, MOMENTUM) for a in (0.2, 1.0) for rate in ("fixed", "proportional")
]
SLOWER_CASES = [Case(a, rate, 0.0, SLOW_FROM) for a in (0.2, 1.0) for rate in ("fixed", "proportional")]
CASES = (*STEADY, *SLOWER_CASES)


@dataclass(frozen=True)
class Result:
    case: Case
    outcomes: list[Outcome]
    fresh: list[Outcome]  # of other seeds: the best static k, and ours

    def time(self, policy: str) -> float:
        return mean_time(self.outcomes, policy)

    @property
    def best_static(self) -> str:
        return min(STATIC, key=self.time)

    def gain(self, policy: str) -> float:
        """How many times as long the best static k takes; 0 where the policy never gets there."""
        return quotient(self.time(self.best_static), self.time(policy))

    @property
    def fresh_gain(self) -> float:
        return quotient(mean_time(self.fresh, self.best_static), mean_time(self.fresh, OURS))


def mean_time(outcomes: Sequence[Outcome], policy: str) -> float:
    """To the target; infinite if a seed never got there."""
    found = [time_to(TARGET, each.curve, MEAN_OF) for each in outcomes if each.trial.policy == policy]
    times = [time for time in found if time is not None]
    return sum(times) / len(times) if times and len(times) == len(found) else math.inf


def limit(changing: Result, steady: Sequence[Result]) -> float:
    """How many times as long the best static k takes as the best one before the slow-down and then the best after it.

    Each k has some way left when the workers slow down; what it then took for it, a whole way would take so much more.
    """
    [before] = [each for each in steady if f"{each.case.part}-slower" == changing.case.part]
    begin = changing.case.slow_from or 0.0
    left = {k: 1 - begin / before.time(k) for k in STATIC if before.time(k) < math.inf}
    afterwards = min(((changing.time(k) - begin) / share for k, share in left.items() if share > 0), default=math.inf)
    return quotient(changing.time(changing.best_static), begin + left.get(before.best_static, 0.0) * afterwards)


def quotient(one: float, other: float) -> float:
    return one / other if other < math.inf else 0.0


def dbw_static(request: ExperimentRequest) -> Page:
    results = []
    for case in CASES:
        comparison = _comparison(case, request)
        outcomes = request.run(case.part, comparison, request.trials([*STATIC, *DYNAMIC]))
        fresh: list[Outcome] = []
        if case.slow_from is None:
            best = Result(case, outcomes, []).best_static
            others = replace(request, first_seed=request.first_seed + FRESH)
            fresh = request.run(f"{case.part}-fresh", comparison, others.trials([best, OURS]))
        results.append(Result(case, outcomes, fresh))
    return Page(
        "DBW against every static number of backup workers",
        "C. Xu, G. Neglia, N. Sebastianelli, Dynamic backup workers for parallel machine learning, IFIP Networking 2020"
        " (arXiv 2004.14696): 16 workers on a virtual clock, MNIST and CIFAR-10, round trips 1 - a + a Exp(1).",
        f"{WORKERS} workers in virtual time with real gradients. {_size(request.full)} SGD, {RATE:g} for a full round,"
        f" or momentum {MOMENTUM:g} and {RATE_WITH_MOMENTUM:g}; `fixed`: every update has that rate; `proportional`:"
        " k / 16 of it. An update takes the first k gradients; a worker that is late finishes, and its gradient is"
        f" discarded (PsW). `{OURS}` is our estimator ([dbw.md](../dbw.md)), `{PRINTED}` the printed one; blind"
        f" maximises k / T(k). Times are to an accuracy of {TARGET:.0%} as the mean of {MEAN_OF} evaluations, every 640"
        " samples on the first 2,500 test pictures, and are means over the seeds; never: one of the seeds was not there"
        f" when the run ended. Fresh seeds, from {FRESH} on, are those with which neither the best static k nor"
        " anything about DBW was chosen.",
        _claims(results),
        [_gains(results), _summary(results), *(_section(result, request.folder) for result in results)],
    )


def _claims(results: list[Result]) -> list[Claim]:
    steady = [result for result in results if result.case.slow_from is None]
    changing = [result for result in results if result.case.slow_from is not None]
    before = {(result.case.a, result.case.rate): result.best_static for result in steady if not result.case.momentum}
    held = {each.case.part: each.time(before[each.case.a, each.case.rate]) for each in changing}
    return [
        Claim(
            "the best static k depends on the round trips and on the learning rate",
            ", ".join(f"{result.case.part}: {result.best_static.removeprefix('backup:')}" for result in results),
            len({result.best_static for result in results}) > 1,
        ),
        Claim(
            "without tuning, DBW as printed is as fast as the best static k",
            f"the best static k takes {_listed(steady, lambda result: result.gain(PRINTED))} of its time",
            all(result.gain(PRINTED) >= AS_GOOD for result in steady),
        ),
        Claim(
            "DBW as printed is faster than its blind variant, which knows times but no gains",
            f"blind takes {_listed(results, lambda result: quotient(result.time(BLIND), result.time(PRINTED)))} of it",
            all(result.time(BLIND) >= result.time(PRINTED) for result in results),
        ),
        Claim(
            f"ours: {AS_GOOD:g} of the best static k, chosen in hindsight, or better, while nothing changes",
            f"the best static k takes {_listed(steady, lambda result: result.gain(OURS))} of its time",
            all(result.gain(OURS) >= AS_GOOD for result in steady),
        ),
        Claim(
            f"ours, on fresh seeds: {AS_GOOD:g} of the k that was the best static one before, or better",
            f"it takes {_listed(steady, lambda result: result.fresh_gain)} of its time",
            all(result.fresh_gain >= AS_GOOD for result in steady),
        ),
        Claim(
            f"ours: {BETTER:g} times as fast as the best static k, chosen in hindsight, when half of the workers slow"
            " down",
            f"the best static k takes {_listed(changing, lambda result: result.gain(OURS))} of its time; the best k"
            " before and, from the very moment on, the best one after would allow"
            f" {_listed(changing, lambda each: limit(each, steady))}",
            all(result.gain(OURS) >= BETTER for result in changing),
        ),
        Claim(
            "ours beats the k that was best before half of the workers slowed down",
            "which takes"
            f" {_listed(changing, lambda each: quotient(held[each.case.part], each.time(OURS)))} of its time",
            all(held[each.case.part] > each.time(OURS) for each in changing),
        ),
    ]


def _listed(results: Sequence[Result], factor_of: Callable[[Result], float]) -> str:
    return ", ".join(f"{result.case.part}: {_times(factor_of(result))}" for result in results)


def _times(factor: float) -> str:
    if factor == math.inf:
        return "the other never got there"
    return f"{factor:.2f}x" if factor else "never got there"


def _gains(results: list[Result]) -> Section:
    headings = [
        "case",
        "best static k",
        "its time",
        "ours",
        "printed",
        "blind",
        "ours, fresh seeds",
        "ours, one evaluation",
    ]
    rows = [
        [
            result.case.part,
            result.best_static.removeprefix("backup:k="),
            seconds(result.time(result.best_static)),
            *(_times(result.gain(policy)) for policy in DYNAMIC),
            _times(result.fresh_gain) if result.fresh else "",
            _times(_first_hit(result)),
        ]
        for result in results
    ]
    text = (
        "How many times as long the best static k takes. It is the best of 16 in hindsight, so chance favours it; on"
        " fresh seeds the same k competes. Last column: until a single evaluation is there for the first time, with the"
        " static k that is best at that."
    )
    return Section("Beside the best static k", text, headings, rows)


def _first_hit(result: Result) -> float:
    rows = rows_by_policy(result.outcomes, TARGET)
    return quotient(min(mean_row_time(rows[name]) for name in STATIC), mean_row_time(rows[OURS]))


def _summary(results: list[Result]) -> Section:
    headings = ["policy", *(result.case.part for result in results)]
    cells = [[name, *(_with_mark(result, name) for result in results)] for name in (*STATIC, *reversed(DYNAMIC))]
    return Section(f"Time to {TARGET:.0%}", "The best of each column in bold.", headings, cells)


def _with_mark(result: Result, name: str) -> str:
    time = result.time(name)
    text = seconds(time)
    return f"**{text}**" if time == min(result.time(policy) for policy in (*STATIC, *DYNAMIC)) else text


def _section(result: Result, folder: Path) -> Section:
    case = result.case
    times: Curve = [(k, result.time(name)) for k, name in enumerate(STATIC, 1) if result.time(name) < math.inf]
    across: dict[str, list[Curve]] = {"static k": [times]}
    for name in DYNAMIC:
        if result.time(name) < math.inf:
            across[name] = [[(1, result.time(name)), (WORKERS, result.time(name))]]
    over_k, estimates = folder / f"{case.part}-times.svg", folder / f"{case.part}-estimates.svg"
    draw(across, over_k, title=case.title, across="k", up=f"seconds to {TARGET:.0%}")
    choices: dict[str, list[ChosenK]] = {}
    for outcome in result.outcomes:
        if outcome.trial.seed == 0 and outcome.choices and outcome.trial.policy != BLIND:
            choices[outcome.trial.policy] = outcome.choices
    pictures = [(f"time to {TARGET:.0%} over k", over_k)]
    if choices:
        draw_estimates(choices, estimates)
        pictures.append(("what DBW chose k by", estimates))
    return Section(case.title[0].upper() + case.title[1:], "", pictures=pictures)


def _comparison(case: Case, request: ExperimentRequest) -> Comparison:
    slowdowns: tuple[Slowdown, ...] = ()
    if case.slow_from is not None:
        slowdowns = tuple(Slowdown(worker, SLOWER, case.slow_from, None) for worker in range(WORKERS // 2))
    return as_published(
        Comparison(
            "fashion-mnist",
            Simulation(workers=WORKERS, speed=f"exponential:a={case.a:g}", duration=case.duration, slowdowns=slowdowns),
            epochs=1_000,  # the duration ends it
            data=None if request.data is None else str(request.data),
            model="lenet" if request.full else "mlp",
            learning_rate=RATE_WITH_MOMENTUM if case.momentum else RATE,
            momentum=case.momentum,
            batch_size=500 if request.full else 32,
            lr_scaling="none" if case.rate == "fixed" else "linear",
            evaluate_every=640,
            test_samples=2_500,
            stop_at=TARGET,
            stop_mean_of=MEAN_OF,
            keep_spans=False,
        )
    )


def _size(full: bool) -> str:
    if full:
        return "A network of 2 convolutions and 2 linear layers on Fashion-MNIST (the paper: MNIST), batch 500."
    return (
        "Scaled down: one hidden layer of 128 on Fashion-MNIST, batch 32 (the paper: 2 convolutions and 2 linear"
        " layers on MNIST, batch 500, and ResNet-18 on CIFAR-10)."
    )
