"""The options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeAlias

from typer import Context, Option

from paceline.cli.arguments import numbers, slowdown
from paceline.core.errors import ConfigurationError
from paceline.experiment.group import Group, size_of
from paceline.runtimes.ray_cluster.options import RayCluster

Workers: TypeAlias = Annotated[
    str, Option(help="Number of workers; 2..4: begin with 2, replace those that die, and let `scale` go up to 4.")
]
SimulatedWorkers: TypeAlias = Annotated[
    str | None, Option(help="Number of workers, with --speed; or groups of them with their times: 3x1.0,1x4.0")
]
Policies: TypeAlias = Annotated[
    list[str] | None,
    Option("--policy", "-p", help="A policy such as ssp:staleness=3; repeat it to compare. Default: auto."),
]
Seed: TypeAlias = Annotated[int, Option(help="Decides the order of the data and all random numbers.")]
Epochs: TypeAlias = Annotated[
    int | None, Option(help="Passes over the data set; not limited if another limit is given.")
]
Steps: TypeAlias = Annotated[
    int | None, Option(help="End after so many full rounds: one batch of every worker that the group begins with.")
]
Samples: TypeAlias = Annotated[int | None, Option(help="End after so many samples of the whole group.")]
Budget: TypeAlias = Annotated[float | None, Option(help="End after so many seconds of training.")]
Slow: TypeAlias = Annotated[
    list[str] | None, Option(help="WORKER=FACTOR[@BEGIN..END]: this worker is slower, for a while (seconds).")
]
Switches: TypeAlias = Annotated[
    list[str] | None, Option(help="POLICY@TIME: from that time on this policy is in force; repeat it.")
]
Speed: TypeAlias = Annotated[
    str | None,
    Option(help="Emulated time of an iteration, such as constant:seconds=0.02 or exponential:a=0.2"),
]
EmulatedIntervals: TypeAlias = Annotated[
    str | None, Option(help="Emulated time of an iteration of each worker, in seconds: 0.02,0.02,0.08")
]
EmulatedTrace: TypeAlias = Annotated[
    Path | None, Option(help="Emulated times from a CSV of iteration times: worker,iteration,seconds.")
]
Restart: TypeAlias = Annotated[int, Option(help="So many deaths of workers are made up for by new ones.")]
Patience: TypeAlias = Annotated[
    str,
    Option(
        help="A worker that is silent for much longer than is usual for it is set aside, not before this;"
        " 10s..5m: after 5 minutes in any case; off: never."
    ),
]
Model: TypeAlias = Annotated[str | None, Option(help="mlp, cnn, lenet, alexnet, resnet20 or resnet110.")]
Data: TypeAlias = Annotated[Path | None, Option(help="Where the data set is, if it is not where it usually is.")]
Optimizer: TypeAlias = Annotated[str, Option(help="sgd, adam, adamw, nadam, adamax, rmsprop or adagrad.")]
LearningRate: TypeAlias = Annotated[float | None, Option(help="Learning rate for a full round of the group.")]
Momentum: TypeAlias = Annotated[float | None, Option(help="Of sgd.")]
Nesterov: TypeAlias = Annotated[bool, Option("--nesterov", help="Nesterov's momentum.")]
WeightDecay: TypeAlias = Annotated[float | None, Option(help="Decay of the weights, as the optimizer takes it.")]
BatchSize: TypeAlias = Annotated[int | None, Option(help="Samples in a worker's batch.")]
LrScaling: TypeAlias = Annotated[
    str, Option(help="How the learning rate follows an update's share of a round: auto, linear, sqrt, none.")
]
Stale: TypeAlias = Annotated[
    str, Option(help="Make up for stale gradients: auto (where it helps), correct (or refuse to begin), none.")
]
Device: TypeAlias = Annotated[str, Option(help="cpu, cuda, cuda:1; auto: the GPUs in turn, or the CPU.")]
NotFinite: TypeAlias = Annotated[str, Option(help="At a NaN or infinite gradient: stop, or skip and count.")]
EvaluateEvery: TypeAlias = Annotated[int | None, Option(help="Samples between two evaluations. Default: an epoch.")]
TargetAccuracy: TypeAlias = Annotated[
    float | None, Option(help="Measure the time until the evaluation finds this accuracy, from 0 to 1.")
]
RunsDirectory: TypeAlias = Annotated[Path, Option(help="Every run gets a directory of its own below this one.")]
CheckpointEvery: TypeAlias = Annotated[
    str, Option(help="How often all that is needed to go on is written: 30s, 5m, '10000 samples', '500 updates'.")
]
Keep: TypeAlias = Annotated[int, Option(help="So many of the newest checkpoints are kept.")]
CompressTrace: TypeAlias = Annotated[
    bool, Option("--compress-trace", help="Write the trace compressed: about 30 instead of 250 bytes per push.")
]
MakesReport: TypeAlias = Annotated[
    bool, Option("--report/--no-report", help="Write a page about the run at its end: report.html in its directory.")
]
Resume: TypeAlias = Annotated[
    Path | None, Option(help="Go on with the run in this directory, from its newest checkpoint; all else is known.")
]
AsJson: TypeAlias = Annotated[bool, Option("--json", help="Print JSON instead of a table, and no progress.")]
TensorBoard: TypeAlias = Annotated[
    bool | None,
    Option("--tensorboard/--no-tensorboard", help="Write a file for TensorBoard; default: where that is installed."),
]
Gantt: TypeAlias = Annotated[
    bool | None, Option("--gantt/--no-gantt", help="Show when every worker computes and waits; on a terminal: yes.")
]


Cluster: TypeAlias = Annotated[str, Option(help="Where workers run: local (this machine) or ray (a Ray cluster).")]
Address: TypeAlias = Annotated[
    str, Option(help="Of the Ray cluster: auto (the one of this machine), host:6379, or local: one for this run.")
]
Servers: TypeAlias = Annotated[
    int, Option(help="Processes of the cluster that the parameters are spread over; 1: this one holds them.")
]
Resources: TypeAlias = Annotated[
    str, Option(help="What Ray sets aside for each worker: CPU=1, or CPU=2,GPU=1, or CPU=1,spot=1.")
]
Transport: TypeAlias = Annotated[str, Option(help="auto: workers on a server's host share memory with it; tcp: none.")]
Compression: TypeAlias = Annotated[
    str, Option(help="Of gradients that leave a host: none, bf16, int8, topk:share=0.01.")
]


def is_ray(cluster: str) -> bool:
    """And not this machine."""
    if cluster not in ("local", "ray"):
        raise ConfigurationError(f"unknown --cluster {cluster!r}; there are: local, ray")
    return cluster == "ray"


def cluster_from(
    cluster: str, address: str, servers: int, resources: str, transport: str, compression: str
) -> RayCluster | None:
    """None: this machine."""
    if not is_ray(cluster):
        beyond = {"--address": address != "auto", "--servers": servers != 1, "--transport": transport != "auto"}
        beyond |= {"--compression": compression != "none"}
        for name, given in beyond.items():
            if given:
                raise ConfigurationError(f"{name} is for a cluster: add --cluster ray")
        return None
    found = RayCluster(address, _amounts(resources), servers, transport=transport, compression=compression)
    found.check()
    return found


def _amounts(text: str) -> dict[str, float]:
    amounts = {}
    for part in text.split(","):
        name, equals, amount = part.strip().partition("=")
        try:
            amounts[name] = float(amount)
        except ValueError:
            equals = ""
        if not (name and equals):
            raise ConfigurationError(f"--resources {text!r}: must be names with amounts, as in CPU=1,GPU=1")
    return amounts


# What may be given along with --resume: how the run is shown, and by how many it goes on.
WITH_RESUME = {"resume", "workers", "restart", "patience", "target_accuracy", "as_json", "strip", "tensorboard"}
OF_CLUSTERS = ("cluster", "address", "servers", "resources", "transport", "compression")
WITH_RESUME |= set(OF_CLUSTERS)


def given_beside_resume(context: Context) -> dict[str, Any]:
    """The options that were typed. All else about a run that goes on is in its directory, and refused here."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    typed = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    for name in typed:
        if name not in WITH_RESUME:
            raise ConfigurationError(
                f"{name.replace('_', '-')} cannot be given along with --resume: the run goes on as it began"
            )
    return {name: context.params[name] for name in typed}


def group_from(
    workers: str,
    slow: list[str] | None,
    speed: str | None,
    intervals: str | None,
    trace: Path | None,
    device: str,
    restart: int,
    patience: str,
) -> Group:
    number, least, most = size_of(workers)
    return Group(
        number,
        least,
        most,
        device,
        tuple(slowdown(text, "--slow") for text in slow or ()),
        None if intervals is None else numbers(intervals, "--intervals"),
        speed,
        None if trace is None else str(trace),
        restart,
        patience,
    )
