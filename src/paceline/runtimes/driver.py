"""Carries events to the lifecycle and commands to the runtime, and shows every decision to whoever observes.

The same lines run in the simulator, on one machine and on a cluster; what differs is the port. An update may take time:
until it is done, all commands that come after it are held back, so that everything that is sent out follows from it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from paceline.core.messages import Ask, DeadlinePassed, Follow, Record, UpdateApplied
from paceline.lifecycle.lifecycle import Lifecycle
from paceline.lifecycle.messages import (
    BeginGroup,
    Discard,
    Dismiss,
    EndProcess,
    GiveUp,
    GroupEvent,
    Interrupt,
    Lease,
    MakeUpdate,
    Output,
    PolicyFollowed,
    Release,
    SetAside,
    StartProcess,
)
from paceline.lifecycle.validation import check_views
from paceline.recording.observer import Observer, observe_methods
from paceline.runtimes.port import Port


class Driver:
    validate = False  # all tests switch it on: compare the views of the layers after every event

    def __init__(self, lifecycle: Lifecycle, port: Port, observers: Sequence[Observer] = ()) -> None:
        self._lifecycle = lifecycle
        self._coordinator = lifecycle.coordinator
        self._port = port
        self._observe_methods = observe_methods(observers)
        self._woken_at = math.inf  # the wake-up call that was asked for last
        self._under_way: MakeUpdate | None = None
        self._held_back: deque[Output] = deque()  # until that update is done
        self._afterwards: list[Callable[[], object]] = []
        self._found: deque[GroupEvent] = deque()  # for the policy to see: statistics of updates that are done, answers
        self._carry_out: dict[type, Callable[[Any], None]] = {
            Release: port.release,
            StartProcess: port.start_process,
            BeginGroup: port.begin_group,
            Lease: port.lease,
            Interrupt: port.interrupt,
            Dismiss: port.dismiss,
            EndProcess: port.end_process,
            SetAside: port.set_aside,
            Discard: port.discard,
            GiveUp: port.give_up,
            Ask: self._ask,
            Follow: self._follow,
        }

    @property
    def busy(self) -> bool:
        """Whether an update is under way: the lifecycle is ahead of what has been done."""
        return self._under_way is not None

    def when_idle(self, call: Callable[[], object]) -> None:
        """At once, or when all that is held back has been sent: it may need what this does away with."""
        if self.busy:
            self._afterwards.append(call)
        else:
            call()

    def start(self) -> None:
        self._send(self._lifecycle.start())

    def deliver(self, event: GroupEvent, now: float) -> None:
        """One event in, its commands out, and so on with what those brought to light."""
        if type(event) is UpdateApplied:
            self._complete(event)
        else:
            self._send(self._lifecycle.handle(event, now))
        self._conclude(now)

    def _conclude(self, now: float) -> None:
        while self._found:
            self._send(self._lifecycle.handle(self._found.popleft(), now))
        due = self._due()
        if due != self._woken_at:
            self._woken_at = due
            self._port.wake_at(due)
        if self.validate:
            check_views(self._lifecycle, self._port.view() if self._under_way is None else None)

    def wake(self, now: float) -> None:
        """The port's clock reached a time given to wake_at. The policy may have changed its mind meanwhile."""
        self._woken_at = math.inf
        deadline = self._lifecycle.deadline()
        if deadline is not None and deadline <= now:
            self.deliver(DeadlinePassed(), now)
        if self._lifecycle.next_look <= now:
            self._send(self._lifecycle.look(now))
        self._conclude(now)

    def _due(self) -> float:
        """When the policy, or whoever waits for a silent worker, wants to be woken; infinity: never."""
        deadline = self._lifecycle.deadline()
        look = self._lifecycle.next_look
        return look if deadline is None else min(look, deadline)

    def _send(self, outputs: Iterable[Output]) -> None:
        """Carry out what may be carried out now, and hold back the rest."""
        for output in outputs:
            kind = type(output)
            if kind is Record:
                for observe in self._observe_methods:
                    observe(output)  # type: ignore[arg-type]
            elif self._under_way is not None:
                self._held_back.append(output)
            elif kind is MakeUpdate:
                done = self._port.make_update(output)  # type: ignore[arg-type]
                if done is None:
                    self._under_way = output  # type: ignore[assignment]
                elif done.statistics is not None:
                    self._found.append(done)
            else:
                self._carry_out[kind](output)

    def _ask(self, command: Ask) -> None:
        answered = self._port.ask(command)
        if answered is not None:
            self._found.append(answered)

    def _follow(self, command: Follow) -> None:
        self._found.append(PolicyFollowed(command, self._port.rule_under(command)))

    def _complete(self, event: UpdateApplied) -> None:
        """An update that was under way is done: send what was held back, up to the next one."""
        assert self._under_way is not None and self._under_way.version == event.version, f"nobody awaits {event}"
        self._under_way = None
        if event.statistics is not None:
            self._found.append(event)
        held_back, self._held_back = self._held_back, deque()
        self._send(held_back)
        if not self.busy:
            afterwards, self._afterwards = self._afterwards, []
            for call in afterwards:
                call()
