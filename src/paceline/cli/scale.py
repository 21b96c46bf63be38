"""`paceline scale` and `paceline switch`: more or fewer workers, or another policy, for a run that goes on."""

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
    from paceline.runtimes.serving.control import Scale, Scaled, ask

    group = read_configuration(run).group
    least, most = group.least or 1, group.most
    if workers < least or (most is not None and workers > most):
        limits = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ConfigurationError(f"{workers} workers: this run may have {limits}")
    granted = ask(run, Scale(workers))
    assert isinstance(granted, Scaled)
    print(f"{run}: {granted.workers} workers; a new one needs a few seconds to start, one that leaves pushes first")


def switch_command(
    run: Annotated[Path, Argument(help="The directory of a run that goes on.")],
    policy: Annotated[str, Argument(help="The policy that shall take over, such as ssp:staleness=3.")],
) -> None:
    """Let another policy take over in a run that goes on, without a restart; no gradient is lost."""
    from paceline.experiment.configuration import read_configuration
    from paceline.policies import policy as build_policy
    from paceline.runtimes.serving.control import Switch, Switched, ask

    read_configuration(run)
    build_policy(policy)
    answer = ask(run, Switch(policy))
    assert isinstance(answer, Switched)
    if answer.policy == answer.before:
        print(f"{run}: {answer.policy} is in force already")
    else:
        print(f"{run}: {answer.policy} takes over from {answer.before}")
    if answer.doubt:
        print(f"{run}: {answer.doubt}")
