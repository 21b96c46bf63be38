"""Evaluation beside training: a process of its own gets a copy of the model whenever it has time for one.

Training never waits for it. If it is slow, states are left out, never queued; the last state is always evaluated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess

from paceline.core.errors import PacelineError
from paceline.recording.progress_log import Evaluation
from paceline.runtimes.local.channel import Channel, ClosedError
from paceline.runtimes.local.memory import map_segment
from paceline.runtimes.local.messages import Evaluate, Evaluated, Failed, FromEvaluator, Stop
from paceline.training.layout import Segment, averaged_into
from paceline.training.parameters import ParameterStore


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
        """What it found; its pipe is readable."""
        try:
            message = self.channel.receive()
        except ClosedError:
            raise EvaluationFailedError("the evaluation's process died") from None
        if isinstance(message, Failed):
            raise EvaluationFailedError(message.problem)
        assert isinstance(message, Evaluated) and self._asked is not None
        asked, self._asked = self._asked, None
        return Evaluation(asked.seconds, asked.samples, asked.version, message.figures)
