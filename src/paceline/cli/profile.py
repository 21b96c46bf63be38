"""`paceline profile`: one short real run of a script, and what limits it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from rich.console import Console
from typer import Argument, Option

from paceline.cli import options
from paceline.cli.arguments import policy_names
from paceline.core.errors import ConfigurationError
from paceline.policies import DEFAULT


def profile_command(
    script: Annotated[Path, Argument(help="A Python file with train(worker).")],
    arguments: Annotated[list[str] | None, Argument(help="For the script, after --; they are in its sys.argv.")] = None,
    workers: options.Workers = "2",
    policy: Annotated[str, Option("--policy", "-p", help="A policy such as ssp:staleness=3.")] = DEFAULT,
    seconds: Annotated[float, Option(help="How long the workers run.")] = 20.0,
    slow: options.Slow = None,
    speed: options.Speed = None,
    intervals: options.EmulatedIntervals = None,
    trace: options.EmulatedTrace = None,
    device: options.Device = "auto",
    not_finite: options.NotFinite = "stop",
    seed: options.Seed = 0,
    out: options.RunsDirectory = Path("runs"),
    as_json: options.AsJson = False,
) -> None:
    """Run train(worker) of a script for a short while, and say where the time of every worker goes."""
    from paceline.experiment.profile import profile  # torch takes a second to import
    from paceline.experiment.run_files import fresh_directory
    from paceline.experiment.script import script_functions
    from paceline.report.console import output
    from paceline.report.live import view_of
    from paceline.report.profile import profile_table

    if not 0 < seconds < float("inf"):
        raise ConfigurationError(f"--seconds {seconds:g}: must be above 0")
    (name,) = policy_names([policy])
    group = options.group_from(workers, slow, speed, intervals, trace, device, 0, "20s")
    train, _ = script_functions(script, tuple(arguments or ()))
    directory = fresh_directory(out, f"{script.stem}-profile")
    with view_of(name, Console(stderr=True), quiet=as_json) as view:
        found = profile(
            train,
            directory,
            group=group,
            policy=name,
            seconds=seconds,
            seed=seed,
            not_finite=not_finite,
            observers=[view],
        )
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(found)).decode())
        return
    console = output()
    console.print(profile_table(found.shares), "")
    for line in (f"limited by {found.limit}", found.advice, f"the run: {found.run_dir}"):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
