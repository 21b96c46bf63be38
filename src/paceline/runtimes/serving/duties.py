"""What a process of a run does, wherever it runs: the user's function, and what became of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import torch

from paceline.core.errors import ConfigurationError, PacelineError
from paceline.runtimes.pace import Pace
from paceline.runtimes.serving.channel import Channel, ClosedError
from paceline.runtimes.serving.link import ChannelLink, Stopped
from paceline.runtimes.serving.memory import map_segment
from paceline.runtimes.serving.messages import Evaluate, Evaluated, Failed, Finished, Running, Stop
from paceline.runtimes.serving.their_code import traceback_from_there, with_line
from paceline.training.worker import Worker, seed_everything
from paceline.training.worker_state import unpacked


class Assignment(msgspec.Struct, frozen=True):
    """All that one process is told beside what it is to run."""

    index: int
    seed: int
    epochs: int | None
    threads: int
    device: str = "cpu"
    not_finite: str = "stop"
    pace: Pace | None = None
    kept: bytes | None = None  # of a run that is resumed: what its worker knew


def work(assignment: Assignment, link: ChannelLink, find: Callable[[], Callable[[Worker], None]]) -> None:
    """Be a worker until the user's function returns, or the server ends it. `find`: gives that function."""
    index = assignment.index
    pace = None if assignment.pace is None else assignment.pace.start(f"{assignment.seed}/{index}/speed")
    worker = Worker(
        index,
        link,
        seed=assignment.seed,
        epochs=assignment.epochs,
        device=torch.device(assignment.device),
        not_finite=assignment.not_finite,
        pace=pace,
        kept=None if assignment.kept is None else unpacked(assignment.kept),
    )

    def act() -> None:
        train = find()
        link.send(Running())
        train(worker)

    try:
        problem = _problem_of(f"worker {index}", act)
        worker.send_log()
        link.send(Finished(worker.unused) if problem is None else problem)
    except Stopped:
        return


def evaluate(
    channel: Channel[Evaluate | Stop, Evaluated | Failed], segment: int, find: Callable[[], Callable[..., Any]]
) -> None:
    """Figures of every state of the model that the server hands over. `segment`: where it lies."""

    def serve() -> None:
        evaluation = find()
        while isinstance(message := channel.receive(), Evaluate):
            state = map_segment(segment, message.layout).state()
            channel.send(Evaluated(figures_of(evaluation(state))))

    try:
        problem = _problem_of("the evaluation", serve)
        if problem is not None:
            channel.send(problem)
    except ClosedError:
        return


def begin(assignment: Assignment) -> None:
    """All processes begin with the same random numbers."""
    torch.set_num_threads(assignment.threads)
    seed_everything(assignment.seed)


def _problem_of(who: str, act: Callable[[], Any]) -> Failed | None:
    """Do it, and say in words what went wrong: a sentence and a line for our own errors, a traceback for the user's."""
    try:
        act()
    except PacelineError as problem:
        return Failed(with_line(problem), isinstance(problem, ConfigurationError))
    except ClosedError:
        raise
    except (Exception, SystemExit) as problem:
        return Failed(f"{who} raised:\n{traceback_from_there(problem)}", ends_the_run=False)
    return None


def figures_of(found: Any) -> dict[str, float]:
    """What an evaluation returned, as names and numbers."""
    try:
        if isinstance(found, dict):
            return {str(name): float(value) for name, value in found.items()}
        return {"accuracy": float(found)}
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"the evaluation must return a number or a dict of numbers, not {found!r:.80}"
        ) from None
