"""What somebody wants of a run that goes on: another size of its group, another policy, that a worker goes, that it
ends; or the policy an answer.

A callback speaks in the middle of an event, so what it wants is checked at once and done between two. If it has become
impossible by then, a line on stderr says why, and the run goes on as it was.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
from typing_extensions import assert_never

from paceline.core.coordinator import Decides
from paceline.core.errors import ConfigurationError
from paceline.core.messages import NO_CORRECTION_EXPECTED, Ask, UpdateRule
from paceline.lifecycle.lifecycle import Lifecycle
from paceline.lifecycle.messages import EvictionRequested, GroupEvent, PolicyReplaced, SizeRequested
from paceline.lifecycle.sizing import NOT_YET
from paceline.runtimes.serving.control import (
    Answer,
    Control,
    Evict,
    Evicted,
    Refused,
    Request,
    Scale,
    Scaled,
    Stop,
    Stopping,
    Switch,
    Switched,
)
from paceline.runtimes.serving.loop import Loop
from paceline.runtimes.serving.port import ProcessPort
from paceline.training.update_rules import Applies, corrects, rule_under

# From what somebody calls a policy, and the size of the group: a fresh one. ConfigurationError: it cannot be.
ChoosePolicy: TypeAlias = Callable[[Any, int], Decides]

STOPPED = "somebody asked it to (paceline stop)"
BEING_STOPPED = "the run is being stopped, and waits for all of its workers once more"


class Requests:
    def __init__(
        self,
        lifecycle: Lifecycle,
        port: ProcessPort,
        control: Control | None,
        choose: ChoosePolicy | None,
        *,
        largest: int,
    ) -> None:
        """`largest`: how many workers the group may come to have, as far as is known at its beginning."""
        self._lifecycle = lifecycle
        self._port = port
        self._control = control
        self._largest = largest
        self._choose = choose
        self._deliver: Callable[[GroupEvent], None] = lambda event: None
        self._is_over: Callable[[], bool] = lambda: False
        self._ends: Callable[[], bool] = lambda: False
        self.stopped = ""  # why somebody wants it to end before all is done
        self._wanted: deque[Decides | EvictionRequested] = deque()

    def attach(
        self,
        loop: Loop,
        deliver: Callable[[GroupEvent], None],
        is_over: Callable[[], bool],
        ends: Callable[[], bool],
    ) -> None:
        """The loop begins. `is_over`: whether training is; `ends`: whether it comes to its end before its time."""
        self._deliver, self._is_over, self._ends = deliver, is_over, ends
        if self._control is not None:
            loop.watch(self._control, self._receive)

    def want(self, policy: Any) -> None:
        """Switch to this policy between two events. ConfigurationError, at once, if that is impossible."""
        if not self._is_over():
            self._wanted.append(self._chosen(policy)[0])

    def stop(self, reason: str) -> None:
        """End the run before all is done. Any thread may say so at any time; once training is over, it does nothing."""
        if not (self._is_over() or self.stopped):
            self.stopped = reason

    def want_gone(self, worker: int) -> None:
        """Send this worker away between two events. ConfigurationError, at once, if that is impossible."""
        if not (self._is_over() or self._is_stopping):
            self._wanted.append(self._eviction(worker))

    def look(self) -> None:
        """Between two events."""
        while self._wanted:
            wanted = self._wanted.popleft()
            evicts = isinstance(wanted, EvictionRequested)
            try:
                if isinstance(wanted, EvictionRequested):
                    self._deliver(self._eviction(wanted.worker))
                else:
                    self._switch(wanted)
            except ConfigurationError as problem:
                what = "a worker was to be sent away" if evicts else f"the policy was to be {wanted}"
                print(
                    f"paceline: a callback asked for what cannot be any more: {what}: {problem}",
                    file=sys.stderr,
                    flush=True,
                )

    def _receive(self) -> None:
        assert self._control is not None
        for asked in self._control.requests():
            self._control.answer(asked, self._answer(asked.request))

    def _answer(self, request: Request) -> Answer:
        if self._is_over():
            return Refused("its training is over")
        try:
            if self._is_stopping and not isinstance(request, Stop):
                raise ConfigurationError(BEING_STOPPED)
            match request:
                case Scale(workers):
                    return self._scale(workers)
                case Switch(policy):
                    return self._switch(policy)
                case Evict(worker):
                    return self._evict(worker)
                case Stop():
                    self.stop(STOPPED)
                    return Stopping(begun=self._port.aggregation is not None)
                case _:
                    assert_never(request)
        except ConfigurationError as problem:
            return Refused(str(problem))

    def _scale(self, workers: int) -> Scaled:
        if workers < 1:
            raise ConfigurationError(f"{workers} workers: there must be at least 1")
        policy = self._lifecycle.coordinator.policy
        try:
            policy.check_group(workers)
        except ValueError as problem:
            raise ConfigurationError(f"policy {str(policy)!r}: {problem}") from None
        self._deliver(SizeRequested(workers))
        return Scaled(self._lifecycle.staffing.wanted)

    def _evict(self, worker: int) -> Evicted:
        self._deliver(self._eviction(worker))
        return Evicted(worker, len(self._lifecycle.active))

    @property
    def _is_stopping(self) -> bool:
        return bool(self.stopped) or self._ends()

    def _eviction(self, worker: int) -> EvictionRequested:
        if self._is_stopping:
            raise ConfigurationError(BEING_STOPPED)
        refusal = self._lifecycle.refusal_to_evict(worker)
        if refusal:
            raise ConfigurationError(refusal)
        return EvictionRequested(worker)

    def _switch(self, policy: Any) -> Switched:
        before = str(self._lifecycle.coordinator.policy)
        chosen, rule = self._chosen(policy)
        if str(chosen) != before:
            self._deliver(PolicyReplaced(chosen, rule))
        as_they_are = rule.correction == "none" and rule.why not in NO_CORRECTION_EXPECTED
        said = [rule.doubt, f"stale gradients are applied as they are: {rule.why}" if as_they_are else ""]
        return Switched(str(chosen), before, "; ".join(filter(None, said)))

    def _chosen(self, policy: Any) -> tuple[Decides, UpdateRule]:
        """A fresh one, and how updates are made under it."""
        if self._choose is None:
            raise ConfigurationError("the policy of this run cannot be switched")
        if self._port.aggregation is None:
            raise ConfigurationError(NOT_YET)
        chosen = self._choose(policy, max(1, len(self._lifecycle.active)))
        return chosen, self.rule_under(chosen)

    def completed(self, asked: Ask) -> Ask:
        """With what the server knows better than the policy that asks."""
        question = self._port.meter.complete(asked.question, self._lifecycle.members)
        corrected = self._port.aggregation is None or corrects(self._port.store)
        return Ask(asked.number, msgspec.structs.replace(question, corrected=corrected))

    def rule_under(self, policy: Applies) -> UpdateRule:
        """How updates are made under this policy."""
        several = max(self._largest, len(self._lifecycle.active), self._lifecycle.staffing.wanted) > 1
        return rule_under(self._port.store, policy, several=several)
