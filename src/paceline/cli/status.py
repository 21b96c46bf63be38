"""`paceline status`: how a run is, or what runs a Ray cluster holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text
from typer import Argument, Option

from paceline.core.errors import ConfigurationError
from paceline.recording.prometheus import prometheus_text
from paceline.recording.status import GOING_ON
from paceline.report.console import output

if TYPE_CHECKING:  # it takes a while to import
    from paceline.experiment.run_status import RunReader

EVERY = 1.0  # seconds between two looks
PRINT_EVERY = 10  # looks, where nothing can be drawn over
T = TypeVar("T", bound=msgspec.Struct)


def status_command(
    run: Annotated[Path | None, Argument(help="A run directory. Default: the newest run below ./runs.")] = None,
    watch: Annotated[bool, Option("--watch", help="Look every second until the run ends, or Ctrl-C.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print JSON; with --watch one object per line.")] = False,
    prometheus: Annotated[bool, Option("--prometheus", help="Print it as Prometheus reads it.")] = False,
    address: Annotated[
        str | None, Option(help="Say instead which runs a Ray cluster holds: auto, or host:6379.")
    ] = None,
) -> None:
    """Say how a run is: its workers, what they wait for, how far it is. Reads its directory, and costs it nothing."""
    if prometheus and (watch or as_json or address is not None):
        raise ConfigurationError("--prometheus is about one look at one run: leave out --watch, --json and --address")
    if prometheus:
        print(prometheus_text([_reader(run).look()]), end="")
    elif address is None:
        _show_run(run, watch, as_json)
    elif run is not None:
        raise ConfigurationError("give the directory of a run, or the address of a cluster, not both")
    else:
        _show_cluster(address, watch, as_json)


def _show_run(run: Path | None, watch: bool, as_json: bool) -> None:
    from paceline.report.status import status_view

    reader = _reader(run)
    looks = _looks(reader.look, lambda status: watch and status.state in GOING_ON)
    _show(looks, lambda status, width: status_view(status, width, wrap=not watch), watch, as_json)


def _reader(run: Path | None) -> RunReader:
    from paceline.experiment.run_list import newest_run
    from paceline.experiment.run_status import RunReader

    return RunReader(newest_run(Path("runs")) if run is None else run)


def _show_cluster(address: str, watch: bool, as_json: bool) -> None:
    from paceline.report.cluster import cluster_view
    from paceline.runtimes.ray_cluster.listing import looking_at

    with looking_at(address) as look:
        _show(
            _looks(look, lambda found: watch and bool(found.runs)), lambda found, _: cluster_view(found), watch, as_json
        )


def _looks(look: Callable[[], T], goes_on: Callable[[T], bool]) -> Iterator[tuple[T, bool]]:
    """One, and then one every second for as long as it goes on; and whether it is the last."""
    while True:
        found = look()
        last = not goes_on(found)
        yield found, last
        if last:
            return
        time.sleep(EVERY)


def _show(
    looks: Iterator[tuple[T, bool]], view: Callable[[T, int], RenderableType], watch: bool, as_json: bool
) -> None:
    """On a terminal the latest look stays; where nothing can be drawn over, the first, the last, and some between."""
    console = output()
    if as_json:
        for found, _ in looks:
            line = msgspec.json.encode(found)
            print((line if watch else msgspec.json.format(line)).decode(), flush=True)
    elif watch and console.is_terminal:
        with Live(Text(""), console=console, auto_refresh=False, vertical_overflow="crop") as live:
            for found, _ in looks:
                live.update(view(found, console.width), refresh=True)
    else:
        for number, (found, last) in enumerate(looks):
            if last or number % PRINT_EVERY == 0:
                console.print(view(found, console.width))
