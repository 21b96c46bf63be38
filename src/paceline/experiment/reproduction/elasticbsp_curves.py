"""ElasticBSP's learning curves: four workers of unequal speed under BSP, ASP, SSP, DSSP and ElasticBSP."""

from __future__ import annotations

import statistics

from paceline.experiment.comparison import Comparison
from paceline.experiment.pictures import caption_of, draw_comparison
from paceline.experiment.reproduction.page import Claim, Page, Section
from paceline.experiment.reproduction.request import (
    SCALED_DOWN,
    ExperimentRequest,
    as_published,
    mean_time,
    ratio,
    reached_by_all,
    rows_by_policy,
    seconds,
    small_comparison,
)
from paceline.experiment.rows import Row, learning_rows, rows_of
from paceline.experiment.simulation import Simulation
from paceline.report.tables import learning_cells

INTERVALS = (1.0, 1.1, 1.5, 3.0)
LOOKAHEADS = (15, 30, 60, 120, 240)
ELASTIC = [f"elastic-bsp:lookahead={lookahead}" for lookahead in LOOKAHEADS]
DSSP_PRINTED = "dssp:capped=false,literal_grant=true"
OTHERS = ["asp", "ssp:staleness=3", "dssp", DSSP_PRINTED]
SHARED = "bsp, shared rate"
HEADLINE = 1.77  # times as fast as BSP, printed


def elasticbsp_curves(request: ExperimentRequest) -> Page:
    comparison = _comparison(request)
    policies = ["bsp", *OTHERS, *ELASTIC]
    # One rate for every single update, as in the papers: BSP's updates, of a whole round each, then get a quarter.
    quarter = 1 / len(INTERVALS)
    outcomes = request.run("curves", comparison, [*request.trials(policies), *request.trials(["bsp"], quarter)])
    target = reached_by_all(
        [outcome for outcome in outcomes if outcome.trial.policy == "bsp" and outcome.trial.factor == 1]
    )
    rows = rows_by_policy(outcomes, target, {("bsp", quarter): SHARED})
    headings, cells = learning_cells(learning_rows(rows.values()), target)
    fair = [outcome for outcome in outcomes if outcome.trial.factor == 1]
    written = caption_of(comparison)
    pictures = draw_comparison(fair, rows_of(fair, policies, target), request.folder, target=target, caption=written)
    finished = sorted(rows.values(), key=lambda row: row.seconds)
    order = ", ".join(f"{row.policy} ({row.seconds:,.0f} s)" for row in finished)
    return Page(
        "ElasticBSP: accuracy over time with four unequal workers",
        "X. Zhao et al., Elastic bulk synchronous parallel model for distributed deep learning, ICDM 2019 (arXiv"
        " 2001.01347), section on training; the headline is that of VGG-16 on ImageNet.",
        f"Four workers, {', '.join(map(str, INTERVALS))} s per iteration with a lognormal jitter of 5 %, in virtual"
        f" time with real gradients. {_size(comparison)} The paper trained AlexNet on CIFAR-10, ResNet-50 on CIFAR-100"
        " and VGG-16 on ImageNet on four machines with four P100 each; its workers' speeds are not printed. Learning"
        " rate: each update is scaled by its share of a round, so that all policies move equally far per sample."
        f" `{SHARED}` is BSP without that, at the rate that all others have for one gradient, as in the papers. The"
        f" target is the highest accuracy, in half percents, that every run of BSP reached: {target:.1%}.",
        _claims(rows),
        [
            Section("Time to BSP's accuracy", "", headings, cells),
            Section("Finishing order", f"The same number of samples for all: {order}."),
            Section("Pictures", "", pictures=[(path.stem.replace("-", " "), path) for path in pictures]),
        ],
    )


def _claims(rows: dict[str, Row]) -> list[Claim]:
    """R is not tuned: where one figure stands for ElasticBSP it is the mean over all R."""
    bsp, shared = rows["bsp"], rows[SHARED]
    elastic = [rows[name] for name in ELASTIC]
    times = [mean_time(row) for row in elastic]
    typical = statistics.mean(times)
    accuracy = statistics.mean(row.accuracy for row in elastic)
    others = {name: mean_time(rows[name]) for name in OTHERS}
    listed = ", ".join(f"{name} {seconds(time)}" for name, time in others.items())
    by_lookahead = ", ".join(
        f"R={lookahead} {seconds(time)}" for lookahead, time in zip(LOOKAHEADS, times, strict=True)
    )
    gain, gain_shared = accuracy - bsp.accuracy, accuracy - shared.accuracy
    return [
        Claim(
            "ElasticBSP reaches BSP's accuracy sooner than BSP, whatever R",
            f"BSP {seconds(mean_time(bsp))}; {by_lookahead}",
            max(times) < mean_time(bsp),
        ),
        Claim(
            f"{HEADLINE} times as fast as BSP to BSP's accuracy",
            f"{ratio(mean_time(bsp), typical)} at a fair rate, as the mean over R;"
            f" against BSP at the shared rate {ratio(mean_time(shared), typical)}",
            mean_time(bsp) / typical >= HEADLINE,
        ),
        Claim(
            "it ends at a higher accuracy than BSP (12.6 points for VGG-16)",
            f"{gain * 100:+.1f} points at a fair rate; against BSP at the shared rate {gain_shared * 100:+.1f} points",
            gain > 0.01,
        ),
        Claim(
            "it is also sooner there than SSP and DSSP",
            f"{seconds(typical)} as the mean over R; {listed}",
            all(typical < time for name, time in others.items() if name != "asp"),
        ),
        Claim(
            "and sooner than ASP, whose gradients are staler",
            f"{seconds(typical)} as the mean over R, ASP {seconds(others['asp'])}; mean staleness"
            f" {statistics.mean(row.mean_staleness for row in elastic):.2f} and {rows['asp'].mean_staleness:.2f}",
            typical < others["asp"],
        ),
    ]


def _comparison(request: ExperimentRequest) -> Comparison:
    simulation = Simulation(intervals=INTERVALS, jitter=0.05)
    data = None if request.data is None else str(request.data)
    if request.full:
        return as_published(
            Comparison(
                "cifar10", simulation, 400, data, "alexnet", batch_size=128, learning_rate=0.05, evaluate_every=50_000
            )
        )
    return small_comparison(simulation, data)


def _size(comparison: Comparison) -> str:
    if comparison.task == "cifar10":
        return "AlexNet (3 convolutions, 2 linear layers) on CIFAR-10, batch 128, 400 epochs."
    return SCALED_DOWN
