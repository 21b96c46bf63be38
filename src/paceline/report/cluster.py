"""What runs of paceline a cluster holds, on a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from paceline.runtimes.ray_cluster.found import ClusterRuns, RunOnCluster


def cluster_view(found: ClusterRuns) -> RenderableType:
    if not found.runs:
        return Text(f"no run of paceline on the Ray cluster at {found.address}")
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("run", overflow="fold")
    for heading in ("workers", "waiting for room", "servers"):
        table.add_column(heading, justify="right")
    table.add_column("on nodes", overflow="fold", ratio=1)
    for run in found.runs:
        table.add_row(
            Text(run.name),
            str(len(run.workers)),
            str(run.unplaced or "-"),
            _servers(run),
            ", ".join(_nodes(run)) or "?",
        )
    where = "A run's directory lies where it was launched; `paceline status RUN` there tells more."
    return Group(table, Text(where, style="dim"))


def _servers(run: RunOnCluster) -> str:
    """Without actors of their own the parameters are with the process that launched the run."""
    return str(len(run.servers)) if run.servers else "launcher"


def _nodes(run: RunOnCluster) -> list[str]:
    return [f"{node} ({count})" for node, count in run.nodes.items()]
