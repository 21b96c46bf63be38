"""Evaluation beside training: a process of its own gets a copy of the model whenever it has time for one.

Training never waits for it. If it is slow, states are left out, never queued; the last state is always evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from torch import Tensor

from paceline.core.errors import PacelineError
from paceline.recording.progress_log import Evaluation, finite_or_nan
from paceline.runtimes.serving.channel import ClosedError
from paceline.runtimes.serving.holding import Store
from paceline.runtimes.serving.launching import Launches, Started
from paceline.runtimes.serving.loop import Loop
from paceline.runtimes.serving.memory import map_segment
from paceline.runtimes.serving.messages import Evaluate, Evaluated, Failed
from paceline.training.layout import Segment, averaged_into

MOST_EVALUATORS = 3  # that die in a row before the run does

Replicas: TypeAlias = Callable[[], Sequence[Mapping[str, Tensor]]]


class EvaluationFailedError(PacelineError):
    """The user's evaluation raised; the message is its traceback."""


class Evaluations:
    """Decides when to evaluate: every so many samples, if the evaluator has time, and at the end in any case."""

    def __init__(self, launcher: Launches, loop: Loop, tell: Callable[[Evaluation], None], every: int | None) -> None:
        """`every`: samples; None: nobody knows yet."""
        self.every = every
        self._launcher = launcher
        self._loop = loop
        self._tell = tell
        self._evaluator: Started | None = None
        self._segment: Segment | None = None  # of the evaluator, once it is needed
        self._asked: Evaluation | None = None  # what it is at, without figures yet
        self._latest = -1  # the version that it was asked for last
        self._due_at = 0  # samples at which it was due last
        self._started = 0  # evaluators since the last answer
        self._stopped_since: float | None = None

    def resumed_at(self, samples: int) -> None:
        """Of what was before, everything was evaluated that was due."""
        self._due_at = samples if self.every is None else samples // self.every * self.every

    def start(self) -> None:
        if self._started > MOST_EVALUATORS:
            raise EvaluationFailedError(f"the evaluation's process died {self._started} times in a row")
        self._started += 1
        self._evaluator = self._launcher.start_evaluator()
        if self._evaluator is not None:
            self._loop.watch(self._evaluator.channel, self._receive)
            self._loop.watch(self._evaluator.ended, self._replace)

    @property
    def exist(self) -> bool:
        """Whether there is anything that evaluates."""
        return self._evaluator is not None

    def _receive(self) -> None:
        assert self._evaluator is not None
        try:
            messages = self._evaluator.channel.received()
        except ClosedError:
            self._loop.forget(self._evaluator.channel)  # its end says the rest
            return
        for message in messages:
            if isinstance(message, Failed):
                raise EvaluationFailedError(message.problem)
            assert isinstance(message, Evaluated) and self._asked is not None
            asked, self._asked = self._asked, None
            self._started = 0
            self._tell(Evaluation(asked.seconds, asked.samples, asked.version, finite_or_nan(message.figures)))

    def state(self) -> dict[str, Tensor]:
        """A copy of what was evaluated last, while its figures are told."""
        assert self._segment is not None
        return {key: tensor.clone() for key, tensor in self._segment.state().items()}

    def _replace(self) -> None:
        """An evaluator that dies is replaced: training has nothing to do with it."""
        assert self._evaluator is not None
        self._receive()  # its last words
        self._loop.forget_channel(self._evaluator.channel)
        self._loop.forget(self._evaluator.ended)
        self._launcher.close(self._evaluator)
        self._evaluator, self._segment, self._asked, self._latest = None, None, None, -1
        self.start()

    def ask_if_due(self, store: Store, replicas: Replicas, now: float) -> None:
        if self._evaluator is None or self._asked is not None or self.every is None:
            return
        if store.samples >= self._due_at + self.every:
            self._due_at = store.samples // self.every * self.every
            self._ask(store, replicas, now)

    def last_is_known(self, store: Store, replicas: Replicas, ended_at: float) -> bool:
        """Whether the last state was evaluated; if it was not, this sees that it will be."""
        if self._evaluator is None:
            return True
        if self._asked is not None:
            return False
        if self._latest == store.version:
            return True
        self._ask(store, replicas, ended_at)
        return False

    def _ask(self, store: Store, replicas: Replicas, now: float) -> None:
        """Hand over the present state. Buffers are averaged over the workers' replicas."""
        assert self._evaluator is not None
        if self._segment is None:
            self._segment = map_segment(self._evaluator.descriptor, store.layout)
        self._segment.parameters.copy_(store.flat)
        averaged_into(self._segment, replicas())
        self._asked = Evaluation(now, store.samples, store.version, {})
        self._latest = store.version
        self._loop.send(self._evaluator.channel, Evaluate(store.layout))

    def end_if_stopped(self, now: float, patience: float) -> None:
        """One that somebody stopped with a signal, for so long, is ended: another takes its place."""
        if self._evaluator is None or not self._evaluator.stopped:
            self._stopped_since = None
        else:
            self._stopped_since = now if self._stopped_since is None else self._stopped_since
            if now - self._stopped_since > patience:
                self._evaluator.process.kill()

    def give_up(self) -> None:
        """Evaluate nothing any more."""
        if self._evaluator is not None:
            self._loop.forget_channel(self._evaluator.channel)
            self._loop.forget(self._evaluator.ended)
        self._evaluator, self._asked = None, None

    def close(self) -> None:
        self._segment = None
