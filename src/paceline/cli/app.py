"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline import __version__
from paceline.cli.chaos import chaos_command
from paceline.cli.compare import compare_command
from paceline.cli.download import download_command
from paceline.cli.export import export_command
from paceline.cli.ledger import ledger_command
from paceline.cli.policies import policies
from paceline.cli.profile import profile_command
from paceline.cli.replay import replay
from paceline.cli.report import report_command
from paceline.cli.reproduce import reproduce_command
from paceline.cli.run import run_command
from paceline.cli.runs import runs_command
from paceline.cli.simulate import simulate_command
from paceline.cli.status import status_command
from paceline.cli.steer import evict_command, scale_command, stop_command, switch_command
from paceline.cli.train import train_command
from paceline.cli.watch import watch_command
from paceline.cli.whatif import whatif_command

app = typer.Typer(
    name="paceline",
    help="Train one PyTorch model on many workers that do not run at the same speed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("train")(train_command)
app.command("run")(run_command)
app.command("status")(status_command)
app.command("runs")(runs_command)
app.command("watch")(watch_command)
app.command("report")(report_command)
app.command("scale")(scale_command)
app.command("switch")(switch_command)
app.command("evict", context_settings={"ignore_unknown_options": True})(evict_command)  # -1 is a number, too
app.command("stop")(stop_command)
app.command("compare")(compare_command)
app.command("profile")(profile_command)
app.command("download")(download_command)
app.command()(policies)
app.command("simulate")(simulate_command)
app.command()(replay)
app.command("export")(export_command)
app.command("ledger")(ledger_command)
app.command("chaos")(chaos_command)
app.command("reproduce")(reproduce_command)
app.command("whatif")(whatif_command)


def _version(asked: bool) -> None:
    if asked:
        print(f"paceline {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train one PyTorch model on many workers that do not run at the same speed."""
