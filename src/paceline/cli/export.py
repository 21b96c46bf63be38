"""`paceline export`: a run as files that other programs open."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from paceline.core.errors import ConfigurationError
from paceline.experiment.exporting import SUFFIX, TABLES, Exporter
from paceline.recording.table_files import CsvFiles, ParquetFiles, TableFiles, replaceable


def export_command(
    run: Annotated[Path, Argument(help="A run directory, or its trace.")],
    perfetto: Annotated[bool, Option("--perfetto", help="A trace for ui.perfetto.dev.")] = False,
    output: Annotated[
        Path | None, Option("--output", "-o", help=f"Of --perfetto. Default: the run's name, with {SUFFIX}, here.")
    ] = None,
    csv: Annotated[Path | None, Option(metavar="DIR", help="Tables as CSV, into this directory.")] = None,
    parquet: Annotated[Path | None, Option(metavar="DIR", help="Tables as Parquet, into this directory.")] = None,
    force: Annotated[bool, Option("--force", help="Replace files that are there.")] = False,
) -> None:
    """Export a run: as a trace for ui.perfetto.dev, or its pushes, updates, workers and metrics as tables."""
    if not perfetto and csv is None and parquet is None:
        raise ConfigurationError("what shall be exported? --perfetto, --csv DIR or --parquet DIR, or several of them")
    if output is not None and not perfetto:
        raise ConfigurationError("-o is the file that --perfetto writes; add --perfetto")
    exporter = Exporter(run)
    trace = output or Path(exporter.name + SUFFIX)
    if perfetto:  # whatever is in the way is told before anything is written
        replaceable(trace, force=force)
    kinds: list[tuple[type[TableFiles], Path | None]] = [(CsvFiles, csv), (ParquetFiles, parquet)]
    wanted = [kind(directory, TABLES, force=force) for kind, directory in kinds if directory is not None]
    if perfetto:
        exporter.export_perfetto(trace, force=force)
        print(f"{trace}: open it at https://ui.perfetto.dev")
    for files in wanted:
        exporter.export_tables(files)
        for path in files.written:
            print(path)
    if exporter.note:
        print(f"paceline: {exporter.note}", file=sys.stderr)
    if exporter.problem:
        print(f"paceline: error: {exporter.problem}", file=sys.stderr)
        raise Exit(2)
