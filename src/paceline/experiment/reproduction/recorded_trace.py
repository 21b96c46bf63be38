"""All policies on the iteration times of a recorded run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

import msgspec

from paceline.core.errors import ConfigurationError
from paceline.experiment.comparison import Comparison
from paceline.experiment.pictures import caption_of, draw_comparison
from paceline.experiment.reproduction.page import Claim, Page, Section
from paceline.experiment.reproduction.request import (
    ExperimentRequest,
    as_published,
    mean_time,
    ratio,
    reached_by_all,
    rows_by_policy,
    seconds,
)
from paceline.experiment.rows import Row, learning_rows, rows_of
from paceline.experiment.simulation import Simulation, worker_speeds
from paceline.policies import POLICIES
from paceline.report.tables import learning_cells
from paceline.runtimes.speeds import Recorded, SpeedModel

PRINTED = "dssp:capped=false,literal_grant=true"
GATHER = "elastic-bsp:inside=gather"
PRINTED_DBW = "dbw:estimator=paper"
CALM = f"{PRINTED_DBW},window=20,loss_rule=false"
REMEMBERING = ["bsp", "asp", "ssp", "elastic-bsp"]  # and `buffered` are run with momentum as well
ROUND = 512  # samples in a round of all workers, as nearly as batches of whole samples allow


def recorded_trace(request: ExperimentRequest) -> Page:
    if request.trace is None:
        raise ConfigurationError("give --trace FILE: a CSV of iteration times, worker,iteration,seconds")
    simulation = Simulation(trace=str(request.trace))
    speeds = worker_speeds(simulation)
    workers = len(speeds)
    comparison = _comparison(request, simulation, workers)
    whole = f"buffered:size={workers},divide=size"  # an update has as many gradients as a round of BSP
    names = [whole if name == "buffered" else name for name in POLICIES]
    if workers > 1:
        names += [PRINTED, GATHER, PRINTED_DBW, CALM, f"{PRINTED_DBW},blind=true"]
        names += [f"backup:k={max(1, workers * 3 // 4)}"]
    policies = list(dict.fromkeys(names))
    outcomes = request.run("policies", comparison, request.trials(policies))
    target = reached_by_all([outcome for outcome in outcomes if outcome.trial.policy == "bsp"])
    rows = rows_by_policy(outcomes, target)
    ordered = sorted(rows.values(), key=lambda row: (row.policy != "bsp", mean_time(row), -row.accuracy))
    headings, cells = learning_cells(learning_rows(ordered), target)
    written = caption_of(comparison)
    pictures = draw_comparison(
        outcomes, rows_of(outcomes, policies, target), request.folder, target=target, caption=written
    )
    again = msgspec.structs.replace(comparison, learning_rate=0.05, momentum=0.9)
    remembering = request.run("momentum", again, request.trials([*REMEMBERING, whole]))
    with_momentum = rows_by_policy(remembering, target)
    more_headings, more_cells = learning_cells(learning_rows(with_momentum.values()), target)
    return Page(
        "All policies on a recorded trace",
        f"Iteration times: {request.trace.name}, {workers} workers. What each paper claims for itself in general is put"
        " to the test on these times.",
        f"{_about(speeds)} In virtual time with real gradients; a worker whose times are used up begins again with the"
        f" first. {_size(comparison)} The target is the highest accuracy, in half percents, that every run of BSP"
        f" reached: {target:.1%}. Each update's learning rate is scaled by its share of a round.",
        _claims(rows),
        [
            Section("Time to BSP's accuracy", "BSP first, then by time.", headings, cells),
            Section(
                "With momentum",
                "The same with momentum 0.9 and a sixth of the rate. A stale gradient is then remembered for ten more"
                " updates: what BSP can bear need not suit those whose gradients are a round old.",
                more_headings,
                more_cells,
            ),
            Section("Pictures", "", pictures=[(path.stem.replace("-", " "), path) for path in pictures]),
        ],
    )


def _claims(rows: dict[str, Row]) -> list[Claim]:
    bsp = mean_time(rows["bsp"])
    claims = []
    for name, text in (
        ("asp", "ASP, where nobody waits, is faster than BSP"),
        ("ssp", "SSP is faster than BSP (Ho et al. 2013)"),
        (PRINTED, "DSSP, as printed, is faster than BSP (Zhao et al. 2019)"),
        ("elastic-bsp", "ElasticBSP is faster than BSP (Zhao et al. 2019)"),
        ("backup", "backup workers are faster than BSP (Chen et al. 2016)"),
        (PRINTED_DBW, "DBW, as printed, is faster than BSP (Xu et al. 2020)"),
    ):
        if name in rows:
            time = mean_time(rows[name])
            claims.append(Claim(text, f"{seconds(time)}, BSP {seconds(bsp)}: {ratio(bsp, time)}", time < bsp))
    return claims


def _about(speeds: Mapping[int, SpeedModel]) -> str:
    times = [speed.times for speed in speeds.values() if isinstance(speed, Recorded)]
    means = [statistics.mean(own) for own in times]
    within = [statistics.stdev(own) / statistics.mean(own) for own in times if len(own) > 1]
    varies = f", and within a worker by {statistics.mean(within):.0%} of its mean" if within else ""
    return (
        f"Mean times of an iteration go from {min(means):.3g} to {max(means):.3g} s from worker to worker"
        f" (slowest over fastest {max(means) / min(means):.2f}){varies}."
    )


def _comparison(request: ExperimentRequest, simulation: Simulation, workers: int) -> Comparison:
    data = None if request.data is None else str(request.data)
    if request.full:
        return as_published(Comparison("cifar10", simulation, 100, data, "resnet20", evaluate_every=50_000))
    return as_published(
        Comparison(
            "fashion-mnist",
            simulation,
            5,
            data,
            "mlp",
            learning_rate=0.3,
            batch_size=max(1, ROUND // workers),
            evaluate_every=6_000,
        )
    )


def _size(comparison: Comparison) -> str:
    if comparison.task == "cifar10":
        return "ResNet-20 on CIFAR-10, batch 64, 100 epochs."
    return (
        f"One hidden layer of 128 on Fashion-MNIST, batch {comparison.batch_size}, plain SGD with a rate of 0.3 per"
        " round, 5 epochs, evaluated every 6,000 samples."
    )
