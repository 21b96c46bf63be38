"""Where the processes of a run are started: on this machine, or on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paceline.runtimes.local.launcher import Launcher
from paceline.runtimes.ray_cluster.options import RayCluster
from paceline.runtimes.serving.duties import Assignment
from paceline.training.worker import Worker

if TYPE_CHECKING:
    from paceline.runtimes.ray_cluster.launcher import RayLauncher


def launcher_for(
    cluster: RayCluster | None,
    train: Callable[[Worker], None],
    evaluate: Callable[..., Any] | None,
    assignment: Callable[[int], Assignment],
    *,
    elastic: bool,
    name: str,
) -> Launcher | RayLauncher:
    """`name`: what a cluster shall call the run."""
    if cluster is None:
        return Launcher(train, evaluate, assignment)
    from paceline.runtimes.ray_cluster.launcher import RayLauncher

    return RayLauncher(cluster, train, evaluate, assignment, elastic=elastic, name=name)
