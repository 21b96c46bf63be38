"""`paceline scale`: more or fewer workers for a run that goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument

from paceline.core.errors import ConfigurationError


def scale_command(
    run: Annotated[Path, Argument(help="The directory of a run that goes on.")],
    workers: Annotated[int, Argument(help="How many workers it shall have.")],
) -> None:
    """Let workers join or leave a run that goes on, without a restart."""
    from paceline.experiment.configuration import read_configuration
    from paceline.experiment.simulation import policy_for
    from paceline.runtimes.serving.control import request

    configuration = read_configuration(run)
    group = configuration.group
    least, most = group.least or 1, group.most
    if workers < least or (most is not None and workers > most):
        limits = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ConfigurationError(f"{workers} workers: this run may have {limits}")
    policy_for(configuration.policy, workers)
    granted = request(run, workers)
    print(f"{run}: {granted} workers; a new one needs a few seconds to start, one that leaves pushes first")
