"""DSSP's table I: two workers on unequal GPUs, time to two levels of accuracy."""

from __future__ import annotations

from paceline.experiment.comparison import Comparison
from paceline.experiment.pictures import caption_of, draw_comparison
from paceline.experiment.reproduction.page import Claim, Page, Section
from paceline.experiment.reproduction.request import (
    SCALED_DOWN,
    ExperimentRequest,
    as_published,
    mean_time,
    reached_by_all,
    rows_by_policy,
    seconds,
    small_comparison,
)
from paceline.experiment.rows import Row, learning_rows, rows_of
from paceline.experiment.simulation import Simulation
from paceline.report.tables import learning_cells

# Single precision peaks: GTX 1080 Ti 11.3 TFLOPS, GTX 1060 4.4 TFLOPS.
RATIO = 2.6
STEP = 0.005  # from the first level to the second
CAPPED, PRINTED = "dssp:lower=3,upper=15", "dssp:lower=3,upper=15,capped=false,literal_grant=true"
PUBLISHED: dict[str, tuple[int, int | None]] = {
    "bsp": (6159, None),
    "asp": (2993, 3017),
    "ssp:staleness=3": (5678, None),
    "ssp:staleness=6": (5704, 6908),
    "ssp:staleness=15": (5565, 7256),
    PRINTED: (3016, 3046),
}
COMPARED = [*PUBLISHED, CAPPED]
SHARED = "bsp, shared rate"


def dssp_table(request: ExperimentRequest) -> Page:
    comparison = _comparison(request)
    trials = [*request.trials(COMPARED), *request.trials(["bsp"], 0.5)]
    outcomes = request.run("table", comparison, trials)
    low = reached_by_all(
        [outcome for outcome in outcomes if outcome.trial.policy == "bsp" and outcome.trial.factor == 1], STEP
    )
    high = round(low + STEP, 6)
    labels = {("bsp", 0.5): SHARED}
    first, second = rows_by_policy(outcomes, low, labels), rows_by_policy(outcomes, high, labels)
    fair = [outcome for outcome in outcomes if outcome.trial.factor == 1]
    written = caption_of(comparison)
    pictures = draw_comparison(fair, rows_of(fair, COMPARED, low), request.folder, target=low, caption=written)
    headings, cells = learning_cells(learning_rows(first.values()), low)
    return Page(
        "DSSP, table I: two unequal GPUs",
        "X. Zhao, A. An, J. Liu, B. X. Chen, Dynamic stale synchronous parallel distributed training for deep learning,"
        " ICDCS 2019 (arXiv 1908.11848), table I: ResNet-110 on CIFAR-100 with one GTX 1060 and one GTX 1080 Ti.",
        f"Two workers in virtual time with real gradients, one {RATIO} times slower than the other (the ratio of the"
        " two GPUs' peaks, 4.4 and 11.3 TFLOPS), lognormal jitter 5 %."
        f" {_size(comparison)} DSSP has s_L=3 and r up to 12, once capped at s_U and once as printed, where it is"
        " not. Learning rate: each update is scaled by its share of a round;"
        f" `{SHARED}` is BSP without that, as in the paper. The first level is the highest, in half percents, that"
        f" every run of BSP reached ({low:.1%}), the second half a percent more ({high:.1%}): the paper's levels, 0.67"
        " and 0.68, stand to its BSP in the same way.",
        _claims(first, second),
        [
            Section("Seconds to both levels", "", *_table(first, second, low, high)),
            Section("All figures", f"To {low:.1%}.", headings, cells),
            Section("Pictures", "", pictures=[(path.stem.replace("-", " "), path) for path in pictures]),
        ],
    )


def _table(first: dict[str, Row], second: dict[str, Row], low: float, high: float) -> tuple[list[str], list[list[str]]]:
    headings = ["policy", f"to {low:.1%}", f"to {high:.1%}", "beside BSP", "paper, 0.67", "paper, 0.68", "beside BSP"]
    cells = []
    bsp = mean_time(first["bsp"])
    for name in first:
        printed = PUBLISHED.get(name)
        line = [name, seconds(mean_time(first[name])), seconds(mean_time(second[name]))]
        line.append(f"{bsp / mean_time(first[name]):.2f}x" if first[name].time else "-")
        if printed is None:
            line += ["-", "-", "-"]
        else:
            line += [f"{printed[0]:,}", "never" if printed[1] is None else f"{printed[1]:,}"]
            line.append(f"{PUBLISHED['bsp'][0] / printed[0]:.2f}x")
        cells.append(line)
    return headings, cells


def _claims(first: dict[str, Row], second: dict[str, Row]) -> list[Claim]:
    time = {name: mean_time(row) for name, row in first.items()}
    later = {name: mean_time(row) for name, row in second.items()}
    ssp = [name for name in time if name.startswith("ssp")]
    pace = {name: row.seconds for name, row in first.items()}
    return [
        Claim(
            "DSSP is about as fast as ASP (3016 s and 2993 s)",
            f"as printed {seconds(time[PRINTED])}, ASP {seconds(time['asp'])}; capped at s_U {seconds(time[CAPPED])}",
            time[PRINTED] <= 1.1 * time["asp"],
        ),
        Claim(
            "DSSP is about twice as fast as BSP (6159 s / 3016 s = 2.04x)",
            f"as printed {time['bsp'] / time[PRINTED]:.2f}x, capped {time['bsp'] / time[CAPPED]:.2f}x at a fair rate;"
            f" against BSP at the shared rate {time[SHARED] / time[PRINTED]:.2f}x",
            time["bsp"] / time[PRINTED] >= 1.8,
        ),
        Claim(
            "SSP is little better than BSP (1.08x to 1.11x), for s = 3, 6 and 15",
            ", ".join(f"{name} {time['bsp'] / time[name]:.2f}x" for name in ssp)
            + "; the pace of whole runs: "
            + ", ".join(f"{pace['bsp'] / pace[name]:.2f}x" for name in ssp),
            all(0.95 <= time["bsp"] / time[name] <= 1.25 for name in ssp),
        ),
        Claim(
            "DSSP and ASP reach the second level, BSP never does",
            ", ".join(f"{name} {seconds(later[name])}" for name in ("bsp", "asp", PRINTED)),
            later["bsp"] == float("inf") and max(later["asp"], later[PRINTED]) < float("inf"),
        ),
        Claim(
            "with the lead bounded by s_U, as the paper's theorem needs it, DSSP is as fast",
            f"capped {seconds(time[CAPPED])}, as printed {seconds(time[PRINTED])}",
            time[CAPPED] <= 1.1 * time[PRINTED],
        ),
    ]


def _comparison(request: ExperimentRequest) -> Comparison:
    simulation = Simulation(intervals=(1.0, RATIO), jitter=0.05)
    data = None if request.data is None else str(request.data)
    if request.full:
        return as_published(
            Comparison("cifar10", simulation, 300, data, "resnet110", batch_size=128, evaluate_every=50_000)
        )
    return small_comparison(simulation, data)


def _size(comparison: Comparison) -> str:
    if comparison.task == "cifar10":
        return "ResNet-110 on CIFAR-10 (the paper: CIFAR-100), batch 128, 300 epochs."
    return SCALED_DOWN
