"""DBW against every static number of backup workers: 16 workers, round trips of 1 - a + a Exp(1)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paceline.experiment.comparison import ChosenK, Comparison, Outcome
from paceline.experiment.pictures import draw_estimates
from paceline.experiment.reproduction.page import Claim, Page, Section
from paceline.experiment.reproduction.request import (
    ExperimentRequest,
    as_published,
    mean_time,
    ratio,
    rows_by_policy,
    seconds,
)
from paceline.experiment.rows import Row
from paceline.experiment.simulation import Simulation
from paceline.report.plots import Curve, draw
from paceline.runtimes.speeds import Slowdown

WORKERS = 16
STATIC = [f"backup:k={k}" for k in range(1, WORKERS + 1)]
DBW_VARIANTS = ["dbw", "dbw:window=20,loss_rule=false"]
BLIND = "dbw:blind=true"
TARGET = 0.82
SLOWER = 5.0


@dataclass(frozen=True)
class Case:
    part: str
    title: str
    a: float
    rate: str  # fixed or proportional
    duration: float
    slow_from: float | None = None


CASES = (
    Case("a02-fixed", "a = 0.2, fixed learning rate", 0.2, "fixed", 400.0),
    Case("a02-proportional", "a = 0.2, learning rate proportional to k", 0.2, "proportional", 400.0),
    Case("a1-fixed", "a = 1, fixed learning rate", 1.0, "fixed", 700.0),
    Case("a1-proportional", "a = 1, learning rate proportional to k", 1.0, "proportional", 700.0),
    Case(
        "slow-down",
        f"a = 0.2, proportional, half of the workers {SLOWER:g} times slower from 75 s on",
        0.2,
        "proportional",
        700.0,
        slow_from=75.0,
    ),
)


@dataclass(frozen=True)
class Result:
    case: Case
    outcomes: list[Outcome]
    rows: dict[str, Row]

    def time(self, policy: str) -> float:
        return mean_time(self.rows[policy])

    def beside(self, one: str, other: str) -> float:
        """How many times as long the one takes; 0 where the other never gets there."""
        return self.time(one) / self.time(other) if self.time(other) < float("inf") else 0.0

    @property
    def best_static(self) -> str:
        return min(STATIC, key=self.time)

    @property
    def best_dbw(self) -> str:
        return min(DBW_VARIANTS, key=self.time)


def dbw_static(request: ExperimentRequest) -> Page:
    results = []
    for case in CASES:
        outcomes = request.run(case.part, _comparison(case, request), request.trials([*STATIC, *DBW_VARIANTS, BLIND]))
        results.append(Result(case, outcomes, rows_by_policy(outcomes, TARGET)))
    return Page(
        "DBW against every static number of backup workers",
        "C. Xu, G. Neglia, N. Sebastianelli, Dynamic backup workers for parallel machine learning, IFIP Networking 2020"
        " (arXiv 2004.14696): 16 workers on a virtual clock, MNIST and CIFAR-10, round trips 1 - a + a Exp(1).",
        f"{WORKERS} workers in virtual time with real gradients. {_size(request.full)} SGD without momentum, 0.3 for a"
        " full round; `fixed`: every update has that rate; `proportional`: k / 16 of it. An update takes the first k"
        " gradients; a worker that is late finishes, and its gradient is discarded (PsW). DBW is run as in the"
        " paper (means over 5 updates, one more gradient after the loss rose) and with calmer estimates (20 updates,"
        f" without that rule); blind maximises k / T(k). Times are to an accuracy of {TARGET:.0%}, as means over the"
        " seeds; never: one of the seeds was not there when the run ended.",
        _claims(results),
        [_summary(results), *(_section(result, request.folder) for result in results)],
    )


def _claims(results: list[Result]) -> list[Claim]:
    factors = {result.case.part: result.beside(result.best_static, result.best_dbw) for result in results}
    printed = {result.case.part: result.beside(result.best_static, DBW_VARIANTS[0]) for result in results}
    blind = {result.case.part: result.beside(BLIND, result.best_dbw) for result in results}
    best = {result.case.part: result.best_static.removeprefix("backup:") for result in results}
    changing = results[-1]
    before = results[1]  # the same group before half of it slows down
    held = changing.time(before.best_static)
    return [
        Claim(
            "the best static k depends on the round trips and on the learning rate",
            ", ".join(f"{part}: {k}" for part, k in best.items()),
            len(set(best.values())) > 1,
        ),
        Claim(
            "without tuning, DBW is as fast as the best static k",
            "the best static k takes "
            + ", ".join(f"{part}: {factor:.2f}x" for part, factor in printed.items())
            + " of the time of DBW as printed; with calmer estimates at best "
            + ", ".join(f"{factor:.2f}x" for factor in factors.values()),
            min(printed.values()) >= 0.9,
        ),
        Claim(
            "up to 3 times faster than the best static k",
            f"at most {max(factors.values()):.2f}x",
            max(factors.values()) >= 2,
        ),
        Claim(
            "DBW is faster than the blind variant, which knows times but no gains",
            "blind takes " + ", ".join(f"{part}: {factor:.2f}x" for part, factor in blind.items()) + " of DBW's time",
            min(blind.values()) >= 1,
        ),
        Claim(
            "when half of the workers slow down in mid-run DBW adapts: it beats the k that was best before",
            f"{before.best_static} then takes {seconds(held)}, DBW {seconds(changing.time(DBW_VARIANTS[0]))},"
            f" calmer {seconds(changing.time(DBW_VARIANTS[1]))}: {ratio(held, changing.time(changing.best_dbw))}",
            held > changing.time(changing.best_dbw),
        ),
    ]


def _summary(results: list[Result]) -> Section:
    headings = ["policy", *(result.case.part for result in results)]
    cells = [[name, *(_with_mark(result, name) for result in results)] for name in (*STATIC, BLIND, *DBW_VARIANTS)]
    return Section(f"Time to {TARGET:.0%}", "The best of each column in bold.", headings, cells)


def _with_mark(result: Result, name: str) -> str:
    time = result.time(name)
    text = seconds(time)
    return f"**{text}**" if time == min(result.time(policy) for policy in result.rows) else text


def _section(result: Result, folder: Path) -> Section:
    case = result.case
    times: Curve = [(k, result.time(name)) for k, name in enumerate(STATIC, 1) if result.time(name) < float("inf")]
    across: dict[str, list[Curve]] = {"static k": [times]}
    for name in (*DBW_VARIANTS, BLIND):
        if result.time(name) < float("inf"):
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
            learning_rate=0.3,
            batch_size=500 if request.full else 32,
            lr_scaling="none" if case.rate == "fixed" else "linear",
            evaluate_every=2_560,
            stop_at=TARGET,
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
