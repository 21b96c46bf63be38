"""Optimizers as people use them, under every policy, at BSP's own best rate: what staleness costs, corrected and not.

One part per optimizer, group and model. First BSP alone finds its best rate among five, in the first group: its rounds
are the same in all. Then every policy runs at that rate, untuned: those that apply stale gradients with the correction,
and as they are.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import msgspec

from paceline.experiment.comparison import Comparison, Outcome, Trial
from paceline.experiment.reproduction.page import Claim, Page, Section
from paceline.experiment.reproduction.request import ExperimentRequest
from paceline.experiment.simulation import Simulation, worker_speeds
from paceline.policies import policy

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
CLOSE = 0.01  # of BSP's mean accuracy: what we set out to reach
PACE_KEPT = 0.9  # of the gain in pace
EVALUATIONS = 20
POLICIES = ("bsp", "asp", "ssp", "dssp", "elastic-bsp", "buffered", "backup", "dbw:estimator=paper")


class Kind(NamedTuple):
    """An optimizer with the middle one of its five rates."""

    name: str
    optimizer: str
    rate: float
    momentum: float | None = None
    nesterov: bool = False


KINDS = (
    Kind("SGD", "sgd", 0.3, 0.0),
    Kind("momentum", "sgd", 0.03, 0.9),
    Kind("nesterov", "sgd", 0.03, 0.9, nesterov=True),
    Kind("AdamW", "adamw", 0.002),
)


class Model(NamedTuple):
    """A model, how many samples it is trained on, and how many a round of all workers has."""

    name: str
    samples: int
    round: int
    tested: int  # pictures of the test set that it is evaluated on
    task: str = "fashion-mnist"
    epochs: int = 1


class Setting(NamedTuple):
    kind: Kind
    group: str
    model: str
    comparison: Comparison


class Measured(NamedTuple):
    """One policy in one setting, over all seeds."""

    setting: Setting
    policy: str
    corrected: bool | None  # None: none of its gradients is stale
    accuracy: float  # mean over the curve: at equal numbers of samples
    samples: float | None  # to the target; None: never
    time: float | None
    pace: float  # samples per second

    @property
    def label(self) -> str:
        return self.policy if self.corrected is not False else f"{self.policy}, as it is"


def optimizers(request: ExperimentRequest) -> Page:
    groups = {
        "4": Simulation(intervals=(1.0, 1.0, 1.0, 4.0), jitter=0.05),
        "16": Simulation(intervals=(1.0,) * 12 + (3.0,) * 4, jitter=0.05),
        "32": Simulation(workers=32, speed="lognormal:seconds=1.0"),
    }
    if request.trace is not None:
        recorded = Simulation(trace=str(request.trace))
        workers = str(len(worker_speeds(recorded)))
        del groups["32"]
        groups[f"{workers} recorded" if workers in groups else workers] = recorded
    models = (
        (Model("mlp", 60_000, 1_024, 2_000), Model("cnn", 60_000, 1_024, 2_000))
        if request.full
        else (Model("mlp", 20_480, 512, 2_000), Model("cnn", 4_096, 128, 500))
    )
    size = "; ".join(
        f"{model.name.upper()}, {model.samples:,} samples, {model.round} in a round, {model.tested:,} tested"
        for model in models
    )
    settings = [
        setting_of(request, kind, name, simulation, model)
        for model in models
        for name, simulation in groups.items()
        for kind in KINDS
    ]
    return optimizer_page(
        request,
        settings,
        "Momentum and Adam under every policy",
        GOAL,
        f"In virtual time with real gradients, on Fashion-MNIST ({size}); evaluated 20 times on the first pictures of"
        f" the test set. {HOW_READ} Groups: 4 workers, one of them 4 times slower; 16, a quarter of"
        f" them 3 times slower; {'the recorded times' if request.trace else '32 with lognormal times'}. Policies whose"
        " gradients can be stale run with the correction (`stale=auto`) with all seeds, and as they are"
        " (`stale=none`) with the first.",
        POLICIES,
    )


GOAL = (
    "No paper's claim but our own goal: with stale gradients corrected, an optimizer learns as much per sample"
    " under every policy as under BSP, at BSP's own best rate, so that a gain in pace is a gain in time."
)
HOW_READ = (
    f"The rate is the one of {', '.join(f'{factor:g}' for factor in FACTORS)} times a middle one at which BSP has the"
    " best mean accuracy over its curve, found with the first seed and in the first group; all others run at that"
    " rate, untuned. The target is BSP's accuracy after two thirds of its samples. It, and the times and samples to"
    " it, are read from the mean curve of all seeds, made to rise only (isotonic regression, whose steps are read at"
    " their middles, with straight lines in between). A single evaluation goes up and down by points, most of all"
    " where BSP's best rate is at the edge of what it bears: the best of them would be a target that BSP itself met by"
    " chance."
)


def optimizer_page(
    request: ExperimentRequest,
    settings: Sequence[Setting],
    title: str,
    goal: str,
    set_up: str,
    policies: Sequence[str],
    *,
    as_they_are: bool = True,
) -> Page:
    """Every policy in every setting, at the best rate that BSP has with this optimizer and model in its first group."""
    rows: list[list[str]] = []
    claims_of: dict[tuple[str, str], list[tuple[Measured, Measured]]] = {}
    factors: dict[tuple[str, str], float] = {}
    for setting in settings:
        of_all_groups = setting.kind.name, setting.model
        if of_all_groups not in factors:
            factors[of_all_groups] = _best_factor(request, setting)
        factor = factors[of_all_groups]
        bsp, target, measured = _measure(request, setting, factor, policies, as_they_are=as_they_are)
        for one in measured:
            rows.append(_row(one, bsp, factor, target))
            if one.corrected:
                claims_of.setdefault((setting.kind.name, one.policy), []).append((one, bsp))
    headings = ("setting", "policy", "accuracy", "against bsp", "samples to target", "time to target", "of its pace")
    text = (
        "Accuracy: mean over 20 evaluations, evenly spread over the samples. Of its pace: the gain in time to the"
        " target over the gain in samples per second, both against BSP."
    )
    return Page(
        title,
        goal,
        set_up,
        [claim for (kind, name), pairs in claims_of.items() for claim in _claims(kind, name, pairs)],
        [Section("All figures", text, headings, rows)],
        request.first_seed,
    )


def _claims(kind: str, name: str, pairs: Sequence[tuple[Measured, Measured]]) -> list[Claim]:
    """The goal, over all groups and models: the worst of them counts."""
    gaps = [one.accuracy - bsp.accuracy for one, bsp in pairs]
    kept = [_kept(one, bsp) for one, bsp in pairs]
    reached = sorted(share for share in kept if share is not None)
    never = len(kept) - len(reached)
    times = f"{reached[0]:.0%} to {reached[-1]:.0%}, median {statistics.median(reached):.0%}" if reached else "none"
    told = f"; {never} of {len(kept)} never reached the target" if never else ""
    return [
        Claim(
            f"{kind}, {name}: mean accuracy at equal samples within {CLOSE:.0%} of BSP's",
            f"{min(gaps):+.1%} to {max(gaps):+.1%}, median {statistics.median(gaps):+.1%}",
            min(gaps) >= -CLOSE,
        ),
        Claim(
            f"{kind}, {name}: at least {PACE_KEPT:.0%} of the gain in pace is a gain in time",
            f"{times}{told}",
            not never and reached[0] >= PACE_KEPT,
        ),
    ]


def _part(setting: Setting) -> str:
    return f"{setting.kind.name}-{setting.group}-{setting.model}"


def _best_factor(request: ExperimentRequest, setting: Setting) -> float:
    """BSP's."""
    tuning = request.run(
        _part(setting), setting.comparison, [Trial("bsp", request.first_seed, factor) for factor in FACTORS]
    )
    return max(tuning, key=lambda outcome: (_accuracy(outcome), -outcome.trial.factor)).trial.factor


def _measure(
    request: ExperimentRequest, setting: Setting, factor: float, policies: Sequence[str], *, as_they_are: bool
) -> tuple[Measured, float, list[Measured]]:
    """BSP, its target, and every policy, with this factor on the rate."""
    part, comparison = _part(setting), setting.comparison
    outcomes = request.run(part, comparison, request.trials(policies, factor))
    stale = [name for name in policies if policy(name).applies_stale]
    uncorrected = []
    if as_they_are:
        trials = [Trial(name, request.first_seed, factor) for name in stale]
        uncorrected = request.run(f"{part}-as-it-is", msgspec.structs.replace(comparison, stale="none"), trials)
    assert comparison.train_samples is not None and comparison.epochs is not None
    samples = comparison.epochs * comparison.train_samples
    target = _target([outcome for outcome in outcomes if outcome.trial.policy == "bsp"], samples)
    found = []
    for name in policies:
        own = [outcome for outcome in outcomes if outcome.trial.policy == name]
        found.append(_measured(setting, name, True if name in stale else None, own, target))
        if name in stale and as_they_are:
            own = [outcome for outcome in uncorrected if outcome.trial.policy == name]
            found.append(_measured(setting, name, False, own, target))
    return found[0], target, found


def _measured(
    setting: Setting, name: str, corrected: bool | None, outcomes: Sequence[Outcome], target: float
) -> Measured:
    reached = _reached(_curve(outcomes), target)
    return Measured(
        setting,
        name,
        corrected,
        statistics.mean(map(_accuracy, outcomes)),
        None if reached is None else reached[0],
        None if reached is None else reached[1],
        statistics.mean(outcome.samples / outcome.seconds if outcome.seconds else 0.0 for outcome in outcomes),
    )


class Point(NamedTuple):
    samples: float
    seconds: float
    accuracy: float


START = Point(0.0, 0.0, 0.0)


def _curve(outcomes: Sequence[Outcome]) -> list[Point]:
    """The mean over the seeds, as a curve that only rises: single evaluations go up and down by points. Every step of
    it is one point, at its middle: its beginning would be early for whoever set the target on that very step."""
    rows = list(zip(*(outcome.curve for outcome in outcomes), strict=False))[:EVALUATIONS]
    risen = rising([statistics.mean(point.accuracy for point in row) for row in rows])
    points = []
    for accuracy, same in groupby(zip(rows, risen, strict=True), key=lambda pair: pair[1]):
        step = [point for row, _ in same for point in row]
        samples, seconds = (statistics.mean(getattr(point, name) for point in step) for name in ("samples", "seconds"))
        points.append(Point(samples, seconds, accuracy))
    return points


def rising(values: Sequence[float]) -> list[float]:
    """The closest values, by squares, that never fall: what falls is pooled with what it falls from."""
    pools: list[tuple[float, int]] = []  # the mean, and of how many
    for value in values:
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (left, before), (right, after) = pools[-2:]
            pools[-2:] = [((left * before + right * after) / (before + after), before + after)]
    return [mean for mean, count in pools for _ in range(count)]


def _target(bsp: Sequence[Outcome], samples: int) -> float:
    """Where BSP is after two thirds of its run: whoever is a little later still has time to get there."""
    curve, at = _curve(bsp), samples * 2 / 3
    for before, after in pairwise([START, *curve]):
        if before.samples <= at < after.samples:
            part = (at - before.samples) / (after.samples - before.samples)
            return before.accuracy + part * (after.accuracy - before.accuracy)
    return curve[-1].accuracy if curve else 0.0


def _reached(curve: Sequence[Point], target: float) -> tuple[float, float] | None:
    """Samples and seconds at which the curve is at the target, between two points; None: never."""
    for before, after in pairwise([START, *curve]):
        if after.accuracy >= target:
            part = (target - before.accuracy) / (after.accuracy - before.accuracy)
            return (
                before.samples + part * (after.samples - before.samples),
                before.seconds + part * (after.seconds - before.seconds),
            )
    return None


def _accuracy(outcome: Outcome) -> float:
    """Mean over the curve. A run that diverged goes on as a guess."""
    points = [point.accuracy for point in outcome.curve[:EVALUATIONS]]
    return (sum(points) + 0.1 * (EVALUATIONS - len(points))) / EVALUATIONS


def _kept(one: Measured, bsp: Measured) -> float | None:
    """What is left of the gain in pace as a gain in time; None: it never reached the target."""
    if one.time is None or bsp.time is None or not bsp.pace:
        return None
    return (bsp.time / one.time) / (one.pace / bsp.pace)


def _row(one: Measured, bsp: Measured, factor: float, target: float) -> list[str]:
    setting, kept = one.setting, _kept(one, bsp)
    name = f"{setting.kind.name}, {setting.group} workers, {setting.model}"
    return [
        f"{name}, rate {setting.kind.rate * factor:g}, target {target:.1%}",
        one.label,
        f"{one.accuracy:.3f}",
        "" if one is bsp else f"{one.accuracy - bsp.accuracy:+.3f}",
        "never" if one.samples is None else f"{one.samples:,.0f}",
        "never" if one.time is None else f"{one.time:,.0f} s",
        "never" if kept is None else f"{kept:.2f}",
    ]


def setting_of(request: ExperimentRequest, kind: Kind, group: str, simulation: Simulation, model: Model) -> Setting:
    comparison = Comparison(
        model.task,
        simulation,
        model.epochs,
        None if request.data is None else str(request.data),
        model.name,
        kind.optimizer,
        kind.rate,
        kind.momentum,
        max(1, model.round // len(worker_speeds(simulation))),
        evaluate_every=model.epochs * model.samples // EVALUATIONS,
        test_samples=model.tested,
        keep_spans=False,
        nesterov=kind.nesterov,
        train_samples=model.samples,
    )
    return Setting(kind, group, model.name, comparison)
