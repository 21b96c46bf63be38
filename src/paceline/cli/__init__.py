"""The command line. Exit codes: 0 done, 1 the run failed, 2 the input was wrong, 130 interrupted."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from paceline.cli.policies import policies
from paceline.cli.replay import replay
from paceline.cli.simulate import simulate_command
from paceline.core.errors import ConfigurationError, PacelineError

app = typer.Typer(
    name="paceline",
    help="Train one PyTorch model on many workers that do not run at the same speed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(policies)
app.command("simulate")(simulate_command)
app.command()(replay)


def _version(asked: bool) -> None:
    if asked:
        from paceline import __version__

        print(f"paceline {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train one PyTorch model on many workers that do not run at the same speed."""


def main() -> None:
    """Run the command and turn errors into a sentence and an exit code."""
    try:
        app(standalone_mode=True)
    except ConfigurationError as problem:
        _fail(problem, 2)
    except PacelineError as problem:
        _fail(problem, 1)
    except BrokenPipeError:  # the reader of our output is gone, as with `| head`
        sys.stderr.close()
        sys.exit(0)


def _fail(problem: PacelineError, code: int) -> None:
    print(f"paceline: error: {problem}", file=sys.stderr)
    sys.exit(code)
