"""`paceline scale`, `switch`, `evict` and `stop`: what somebody wants of a run that goes on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from paceline.core.errors import ConfigurationError

if TYPE_CHECKING:
    from paceline.runtimes.serving.control import Request

GoesOn = Annotated[Path, Argument(help="The directory of a run that goes on.")]


def scale_command(
    run: GoesOn,
    workers: Annotated[int, Argument(help="How many workers it shall have.")],
) -> None:
    """Let workers join or leave a run that goes on, without a restart."""
    from paceline.runtimes.serving.control import Scale

    _ask(run, Scale(workers))


def switch_command(
    run: GoesOn,
    policy: Annotated[str, Argument(help="The policy that shall take over, such as ssp:staleness=3.")],
) -> None:
    """Let another policy take over in a run that goes on, without a restart; no gradient is lost."""
    from paceline.runtimes.serving.control import Switch

    _ask(run, Switch(policy))


def evict_command(
    run: GoesOn,
    worker: Annotated[str, Argument(help="The number of the worker, as `paceline status` has it.")],
) -> None:
    """Send one worker of a run away at once; what it computes is given to the others, and nobody takes its place."""
    from paceline.runtimes.serving.control import Evict

    if not worker.removeprefix("-").isdecimal() or len(worker) > 20:
        raise ConfigurationError(f"worker {worker!r}: must be a number, as `paceline status {run}` has it")
    _ask(run, Evict(int(worker)))


def stop_command(run: GoesOn) -> None:
    """End a run as Ctrl-C does: what was learned is saved, and it can be resumed."""
    from paceline.runtimes.serving.control import Stop

    _ask(run, Stop())


def _ask(run: Path, request: Request) -> None:
    from paceline.experiment.steering import steer

    for line in steer(run, request):
        print(f"{run}: {line}")
