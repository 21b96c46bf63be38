"""A process of a local run, just forked: looks like the one that launched it, and does its duty."""

from __future__ import annotations

import io
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TextIO

from paceline.core.errors import ConfigurationError
from paceline.runtimes.local.children import let_children_die_with_this
from paceline.runtimes.local.process_title import show_as
from paceline.runtimes.local.surroundings import Surroundings
from paceline.runtimes.local.zygote import Given
from paceline.runtimes.serving.channel import Channel
from paceline.runtimes.serving.duties import Assignment, begin, evaluate, work
from paceline.runtimes.serving.last_words import remember_stderr
from paceline.runtimes.serving.link import ChannelLink
from paceline.runtimes.serving.memory import unpack
from paceline.runtimes.serving.messages import Evaluate, Evaluated, Failed, Stop, ToServer, ToWorker

WORKER, EVALUATOR = "paceline worker", "paceline evaluator"


class Letter(NamedTuple):
    """What a new process reads first."""

    evaluates: bool
    assignment: Assignment
    surroundings: Surroundings

    @property
    def name(self) -> str:
        return EVALUATOR if self.evaluates else f"{WORKER} {self.assignment.index}"


def run(given: Given) -> None:
    """The main function of a process that was just forked."""
    for descriptor, stream in ((given.output, sys.stdout), (given.errors, sys.stderr)):
        os.dup2(descriptor, stream.fileno())
        os.close(descriptor)
        _write_lines_to_a_terminal(stream)
    with open(given.letter, "rb") as file:
        letter: Letter = pickle.load(file)
    number = "e" if letter.evaluates else f"w{letter.assignment.index}"
    show_as(letter.name, f"paceline {number}")
    letter.surroundings.take_over(letter.name)
    let_children_die_with_this()
    (_evaluate if letter.evaluates else _work)(given, letter)


def _write_lines_to_a_terminal(stream: TextIO) -> None:
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(line_buffering=stream is sys.stderr or stream.isatty())


def _work(given: Given, letter: Letter) -> None:
    remember_stderr(given.words)
    channel: Channel[ToWorker, ToServer] = Channel(given.reading, given.writing, ToWorker)
    work(letter.assignment, ChannelLink(channel, given.segment), lambda: _functions(given, letter)[0])


def _evaluate(given: Given, letter: Letter) -> None:
    channel: Channel[Evaluate | Stop, Evaluated | Failed] = Channel(given.reading, given.writing, Evaluate | Stop)
    evaluate(channel, given.segment, lambda: _functions(given, letter)[1])


def _functions(given: Given, letter: Letter) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The functions of the user: what a worker runs, and what evaluates."""
    letter.surroundings.import_main()
    begin(letter.assignment)
    try:
        content: tuple[Callable[..., Any], Callable[..., Any]] = unpack(given.parcel)
    except (AttributeError, ImportError) as problem:
        raise ConfigurationError(
            f"a new process cannot find what it is to run: {problem}; it must stand at the top level of a module or a"
            " script that can be imported"
        ) from None
    return content
