"""Evaluation beside training: a process of its own gets a copy of the model whenever it has time for one.

Training never waits for it. If it is slow, states are left out, never queued; the last state is always evaluated.
"""

from __future__ import annotations

import contextlib
import selectors
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import TypeAlias

from paceline.core.errors import PacelineError
from paceline.recording.progress_log import Evaluation, finite_or_nan
from paceline.runtimes.local.channel import Channel, ClosedError
from paceline.runtimes.local.memory import map_segment
from paceline.runtimes.local.messages import Evaluate, Evaluated, Failed, FromEvaluator, Stop
from paceline.training.layout import Segment, averaged_into
from paceline.training.parameters import ParameterStore

TICK = 0.25  # seconds between two looks at whether the run was interrupted
MOST_REPLACEMENTS = 3  # in a row

Replicas: TypeAlias = Callable[[], Iterable[Segment]]


class EvaluationFailedError(PacelineError):
    """The user's evaluation raised; the message is its traceback."""


@dataclass(eq=False)
class Evaluator:
    process: BaseProcess
    channel: Channel[FromEvaluator, Evaluate | Stop]
    descriptor: int
    _segment: Segment | None = None
    _asked: Evaluation | None = None  # without figures yet
    _latest: int = -1  # version

    @property
    def busy(self) -> bool:
        return self._asked is not None

    def knows(self, version: int) -> bool:
        """Whether this state was evaluated, or is at present."""
        return self._latest == version

    def ask(self, store: ParameterStore, replicas: Iterable[Segment], now: float) -> None:
        """Hand over the present state. Buffers are averaged over the workers' replicas."""
        if self._segment is None:
            self._segment = map_segment(self.descriptor, store.layout)
        self._segment.parameters.copy_(store.flat)
        averaged_into(self._segment, replicas)
        self._asked = Evaluation(now, store.samples, store.version, {})
        self._latest = store.version
        with contextlib.suppress(ClosedError):  # the end of its pipe will say so
            self.channel.send(Evaluate(store.layout))

    def answer(self) -> Evaluation:
        """What it found; waits for it. ClosedError: its process died."""
        message = self.channel.receive()
        if isinstance(message, Failed):
            raise EvaluationFailedError(message.problem)
        assert isinstance(message, Evaluated) and self._asked is not None
        asked, self._asked = self._asked, None
        return Evaluation(asked.seconds, asked.samples, asked.version, finite_or_nan(message.figures))


class Evaluations:
    """Decides when to evaluate: every so many samples, if the evaluator has time, and at the end in any case."""

    def __init__(
        self,
        start: Callable[[], Evaluator | None],
        selector: selectors.BaseSelector,
        tell: Callable[[Evaluation], None],
        every: int | None,
    ) -> None:
        """`every`: samples; None: nobody knows yet."""
        self.every = every
        self._start = start
        self._selector = selector
        self._tell = tell
        self._evaluator: Evaluator | None = None
        self._since = 0  # samples at which it was due last
        self._started = 0  # evaluators since the last answer

    def start(self) -> None:
        if self._started > MOST_REPLACEMENTS:
            raise EvaluationFailedError(f"the evaluation's process died {self._started} times in a row")
        self._started += 1
        self._evaluator = self._start()
        if self._evaluator is not None:
            self._selector.register(self._evaluator.channel, selectors.EVENT_READ, self._hear)

    def _hear(self) -> None:
        """An evaluation is done. An evaluator that dies is replaced: training has nothing to do with it."""
        assert self._evaluator is not None
        try:
            self._tell(self._evaluator.answer())
            self._started = 0
        except ClosedError:
            self._selector.unregister(self._evaluator.channel)
            self.start()

    def ask_if_due(self, store: ParameterStore, replicas: Replicas, now: float) -> None:
        if self._evaluator is None or self._evaluator.busy or self.every is None:
            return
        if store.samples >= self._since + self.every:
            self._since = store.samples // self.every * self.every
            self._evaluator.ask(store, replicas(), now)

    def finish(
        self, store: ParameterStore, replicas: Replicas, ended_at: float, interrupted: Callable[[], bool]
    ) -> None:
        """See that the last state is evaluated. Nobody trains any more, so this may wait."""
        while self._evaluator is not None and not interrupted():
            if self._evaluator.busy:
                if self._evaluator.channel.has_message(TICK):
                    self._hear()
            elif self._evaluator.knows(store.version):
                return
            else:
                self._evaluator.ask(store, replicas(), ended_at)
