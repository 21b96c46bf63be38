"""What runs of paceline a cluster holds, on a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from paceline.runtimes.ray_cluster.found import ClusterRuns, RunOnCluster


def cluster_view(found: ClusterRuns) -> RenderableType:
    if not found.runs:
        return Text(f"no run of paceline on the Ray cluster at {found.address}")
    where = Text("`paceline status RUN` on the machine that launched it tells more", style="dim")
    return Group(*(_lines_of(run) for run in found.runs), where)


def _lines_of(run: RunOnCluster) -> Text:
    """The directory, by which a run is known, may take a line of its own."""
    parts = [_counted(len(run.workers), "worker")]
    parts.append(_counted(len(run.servers), "server") if run.servers else "the launching process as server")
    if run.unplaced:
        parts.append(f"{run.unplaced} not placed yet")
    where = ", ".join(f"{node} ({count})" for node, count in run.nodes.items())
    told = f"  {', '.join(parts)}" + (f"; on {where}" if where else "")
    return Text.assemble((run.run, "bold"), f"  launched on {run.host}\n", told)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
