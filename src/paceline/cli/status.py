"""`paceline status`: how a run is, or what runs a Ray cluster holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text
from typer import Argument, Option

from paceline.core.errors import ConfigurationError
from paceline.recording.status import GOING_ON, RunStatus
from paceline.report.console import output

EVERY = 1.0  # seconds between two looks


def status_command(
    run: Annotated[Path | None, Argument(help="A run directory. Default: the newest run below ./runs.")] = None,
    watch: Annotated[bool, Option("--watch", help="Look every second until the run ends, or Ctrl-C.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print JSON; with --watch one object per line.")] = False,
    address: Annotated[
        str | None, Option(help="Say instead which runs a Ray cluster holds: auto, or host:6379.")
    ] = None,
) -> None:
    """Say how a run is: its workers, what they wait for, how far it is. Reads its directory, and costs it nothing."""
    if address is not None:
        if run is not None:
            raise ConfigurationError("give the directory of a run, or the address of a cluster, not both")
        _show_cluster(address, watch, as_json)
        return
    from paceline.experiment.run_list import newest_run
    from paceline.experiment.run_status import RunReader
    from paceline.report.status import status_view

    reader = RunReader(newest_run(Path("runs")) if run is None else run)
    looks = _looks(reader.look, lambda status: watch and status.state in GOING_ON)
    if as_json:
        _print_json(looks, watch)
        return
    console = output()
    if watch and console.is_terminal:
        _draw(looks, lambda status: status_view(status, console.width, wrap=False), console)
    elif watch:
        _print_lines(looks, console)
    else:
        for status in looks:
            console.print(status_view(status, console.width))


def _looks(look: Callable[[], Any], goes_on: Callable[[Any], bool]) -> Iterator[Any]:
    """One, and then one every second for as long as it goes on."""
    while True:
        found = look()
        yield found
        if not goes_on(found):
            return
        time.sleep(EVERY)


def _print_json(looks: Iterator[Any], watch: bool) -> None:
    for found in looks:
        line = msgspec.json.encode(found)
        print((line if watch else msgspec.json.format(line)).decode(), flush=True)


def _draw(looks: Iterator[Any], view: Callable[[Any], RenderableType], console: Console) -> None:
    """The latest stays on the screen."""
    with Live(Text(""), console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for found in looks:
            live.update(view(found), refresh=True)


def _print_lines(looks: Iterator[RunStatus], console: Console) -> None:
    """Where nothing can be drawn over: all there is at first and at the end, and a line now and then between them."""
    from paceline.report.live import LINE_EVERY
    from paceline.report.status import run_line, status_view

    following, told = 0.0, 0
    status: RunStatus | None = None
    for status in looks:
        if not following or status.state not in GOING_ON:
            console.print(status_view(status, console.width))
            told = len(status.failures)
        for failure in status.failures[told:]:
            console.print(str(failure), highlight=False, markup=False, soft_wrap=True)
        told = len(status.failures)
        if following and status.state in GOING_ON and status.seconds >= following:
            console.print(run_line(status), highlight=False, markup=False, soft_wrap=True)
        if status.seconds >= following:
            following = status.seconds + LINE_EVERY


def _show_cluster(address: str, watch: bool, as_json: bool) -> None:
    from paceline.report.cluster import cluster_view
    from paceline.runtimes.ray_cluster.listing import ClusterReader

    with ClusterReader(address) as reader:
        looks = _looks(reader.look, lambda found: watch and bool(found.runs))
        console = output()
        if as_json:
            _print_json(looks, watch)
        elif watch and console.is_terminal:
            _draw(looks, cluster_view, console)
        else:
            for found in looks:
                console.print(cluster_view(found))
