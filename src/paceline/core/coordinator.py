"""Turns events into commands: the only writer of progress, and the judge of workers and policies.

What it holds, whatever a worker or a policy does:
- every gradient has exactly one fate: applied or discarded, once;
- only a waiting worker is released, only a computing one is interrupted;
- a worker that left blocks nobody, and its id is never used again;
- a gradient delivered twice changes nothing;
- nobody waits without a reason, and never everybody at once.

A breach by a worker is a ProtocolError and leaves the state as it was. A breach by a policy is a PolicyError: a bug,
reported with the recent decisions.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

import msgspec
from typing_extensions import assert_never

from paceline.core.errors import PolicyError, ProtocolError
from paceline.core.messages import (
    Answered,
    ApplyUpdate,
    Ask,
    Command,
    DeadlinePassed,
    Decision,
    DiscardGradient,
    Event,
    GradientArrived,
    InterruptWorker,
    Note,
    PolicyChanged,
    Record,
    SendParameters,
    UpdateApplied,
    UpdateRule,
    WorkerJoined,
    WorkerLeft,
    WorkerReturned,
)
from paceline.core.progress import Progress, ProgressState

RECENT = 20  # decisions kept for the report on a faulty policy


class Decides(Protocol):
    """What the coordinator needs of a policy."""

    def decide(self, event: Event, progress: Progress, now: float) -> Decision: ...

    def deadline(self) -> float | None: ...

    def take_over(self, progress: Progress, now: float) -> Decision: ...

    def state(self) -> dict[str, Any]: ...

    def resume(self, state: dict[str, Any], progress: Progress) -> None: ...

    def check_group(self, workers: int) -> None: ...

    @property
    def applies_stale(self) -> bool: ...

    @property
    def wants_statistics(self) -> bool: ...


class State(msgspec.Struct, frozen=True):
    """All that decides what a coordinator does next, beside its policy's parameters; JSON can hold it."""

    progress: ProgressState
    policy: dict[str, Any]
    changed: PolicyChanged | None = None  # the latest change of policy; None: the run's first one is in force
    asking: Ask | None = None  # the question that the policy waits to be answered
    questions: int = 0  # so far


class Coordinator:
    def __init__(self, policy: Decides) -> None:
        self.policy = policy
        self.progress = Progress()
        self.changed: PolicyChanged | None = None  # the latest change; None: the run's first policy is in force
        self.asking: Ask | None = None  # what the policy waits to be answered; nothing else may wait for it
        self.settled: list[GradientArrived] = []  # what got its fate with the last decision that gave any
        self.deadline = policy.deadline  # when the policy wants to be woken by a DeadlinePassed, if at all
        self._questions = 0
        self._recent: deque[tuple[float, Event, Decision]] = deque(maxlen=RECENT)

    def handle(self, event: Event, now: float) -> Record:
        """Take in one event, ask the policy, and return what is to be done, in order."""
        if isinstance(event, GradientArrived):
            changed = self._note_gradient(event, now)
        elif isinstance(event, WorkerReturned):
            return Record(now, event, self._bring_back(event.worker, now))
        elif isinstance(event, Note):
            return Record(now, event)
        elif isinstance(event, Answered):
            changed = self._note_answer(event)
        else:
            changed = self._note_membership(event)
        if not changed:
            return Record(now, event)
        decision = self.policy.decide(event, self.progress, now)
        self._recent.append((now, event, decision))
        commands = self._carry_out(decision, now)
        if self.progress.waiting or self.progress.newcomers:
            self._explain(event, decision)
        return Record(now, event, commands, decision.reason, decision.estimates)

    def change_policy(self, policy: Decides, now: float, updates: UpdateRule | None = None) -> Record:
        """Let another policy, a fresh one, go on from here, and return what is to be done, in order.

        `updates`: how they are made from then on, in a run that trains. After it no gradient is pending, and every
        worker that still waits does so for the new policy's reason.
        """
        self.policy, self.deadline, self.asking = policy, policy.deadline, None
        event = self.changed = PolicyChanged(str(policy), updates)
        return self._go_on(event, policy.take_over(self.progress, now), now)

    def follow(self, event: PolicyChanged, now: float) -> Record:
        """The policy has said that it wants to decide as another one would, and does so from here on."""
        self.changed = event
        return self._go_on(event, self.policy.decide(event, self.progress, now), now)

    def _go_on(self, event: PolicyChanged, decision: Decision, now: float) -> Record:
        self._recent.append((now, event, decision))
        commands = self._carry_out(decision, now)
        if self.progress.pending:
            raise self._breach(f"takes over and leaves {next(iter(self.progress.pending))} without a fate")
        if self.progress.waiting or self.progress.newcomers:
            self._explain(event, decision)
        return Record(now, event, commands, decision.reason, decision.estimates)

    def state(self) -> State:
        """Where the run stands between two events."""
        return State(self.progress.state(), self.policy.state(), self.changed, self.asking, self._questions)

    def resume(self, state: State) -> None:
        """Go on where another coordinator stopped. This one is fresh, and so is its policy: the one that was in
        force, with the same parameters. Whoever was to answer `asking` is gone, and another is to be asked."""
        self.changed, self.asking, self._questions = state.changed, state.asking, state.questions
        self.progress.resume(state.progress)
        self.policy.resume(state.policy, self.progress)

    # -- events: what a worker may do --

    # They write the event into progress and return whether anything changed: if not, nobody needs to decide.

    def _note_membership(
        self, event: WorkerJoined | WorkerLeft | UpdateApplied | DeadlinePassed | PolicyChanged
    ) -> bool:
        progress = self.progress
        match event:
            case WorkerJoined(worker):
                if worker in progress.members or worker in progress.newcomers:
                    raise ProtocolError(worker, self._state(worker), "joined, but it is already here")
                if worker in progress.departed:
                    raise ProtocolError(
                        worker, self._state(worker), "joined again; a worker that comes back needs a new id"
                    )
                progress.announce(worker)
            case WorkerLeft(worker, reason):
                if worker in progress.departed:
                    return False
                if worker not in progress.members and worker not in progress.newcomers:
                    raise ProtocolError(worker, self._state(worker), "left, but it never joined")
                progress.leave(worker, reason)
            case UpdateApplied() | DeadlinePassed():
                pass
            case PolicyChanged(policy):
                raise AssertionError(
                    f"a change to {policy} is made with change_policy, which is given the policy itself"
                )
            case _:
                assert_never(event)
        return True

    def _note_answer(self, event: Answered) -> bool:
        if self.asking is None or self.asking.number != event.number:
            return False  # nobody waits for it any more
        self.asking = None
        return True

    def _bring_back(self, worker: int, now: float) -> tuple[Command, ...]:
        """Nothing has changed for a policy; a worker that waits or was not let in yet goes on doing so."""
        member = self.progress.members.get(worker)
        if member is None and worker not in self.progress.newcomers:
            raise ProtocolError(worker, self._state(worker), "came back, but it is not here")
        if member is None or member.waiting:
            return ()
        self.progress.restart(member, now)
        return (SendParameters(worker),)

    def _note_gradient(self, event: GradientArrived, now: float) -> bool:
        gradient = event.gradient
        worker = gradient.worker
        member = self.progress.members.get(worker)
        if member is None:
            raise ProtocolError(worker, self._state(worker), f"pushed {gradient}, but it is not a member")
        if gradient.clock < 1:
            raise ProtocolError(worker, self._state(worker), f"pushed {gradient}; gradients are numbered from 1")
        if gradient.clock <= member.clock:
            return False  # delivered twice
        if member.waiting:
            raise ProtocolError(worker, self._state(worker), f"pushed {gradient} while it waits")
        if gradient.clock != member.clock + 1:
            raise ProtocolError(worker, self._state(worker), f"pushed {gradient}; expected gradient {member.clock + 1}")
        if not 0 <= event.version <= self.progress.version:  # an interrupted worker may hold more than it was sent
            raise ProtocolError(
                worker,
                self._state(worker),
                f"claims version {event.version}, but the newest is version {self.progress.version}",
            )
        if event.samples < 1:
            raise ProtocolError(worker, self._state(worker), f"pushed {gradient} made of {event.samples} samples")
        self.progress.arrive(event, member, now)
        return True

    def _state(self, worker: int) -> str:
        progress = self.progress
        if worker in progress.members:
            return "waiting" if worker in progress.waiting else "computing"
        if worker in progress.newcomers:
            return "not yet admitted"
        if worker in progress.departed:
            return f"left: {progress.departed[worker]}"
        return "unknown"

    # -- decisions: what a policy may do --

    def _carry_out(self, decision: Decision, now: float) -> tuple[Command, ...]:
        commands: list[Command] = []
        if decision.apply or decision.discard:
            self._settle(decision, commands)
        progress = self.progress
        for worker in decision.release:
            member = progress.waiting.get(worker)
            if member is not None:
                progress.release(member, now)
            elif worker in progress.newcomers:
                progress.admit(worker, now)
            else:
                raise self._breach(f"releases worker {worker}, which is {self._state(worker)}")
            commands.append(SendParameters(worker))
        for worker in decision.interrupt:
            member = progress.members.get(worker)
            if member is None or member.waiting:
                raise self._breach(f"interrupts worker {worker}, which is {self._state(worker)}")
            progress.restart(member, now)
            commands.append(InterruptWorker(worker))
        if decision.ask is not None:
            self._questions += 1
            self.asking = Ask(self._questions, decision.ask)
            commands.append(self.asking)
        if decision.follow is not None:
            commands.append(decision.follow)
        return tuple(commands)

    def _settle(self, decision: Decision, commands: list[Command]) -> None:
        """Give gradients their fate."""
        pending = self.progress.pending
        settled = self.settled = []
        for gradient in decision.apply:
            arrived = pending.pop(gradient, None)
            if arrived is None:
                raise self._breach(f"applies {gradient}, which is not pending")
            settled.append(arrived)
        if decision.weights and len(decision.weights) != len(decision.apply):
            raise self._breach(f"gives {len(decision.weights)} weights to {len(decision.apply)} gradients")
        if decision.apply:
            self.progress.version += 1
            commands.append(ApplyUpdate(decision.apply, decision.weights))
        for gradient in decision.discard:
            arrived = pending.pop(gradient, None)
            if arrived is None:
                raise self._breach(f"discards {gradient}, which is not pending")
            settled.append(arrived)
            if not decision.reason:
                raise self._breach(f"discards {gradient} without a reason")
            commands.append(DiscardGradient(gradient, decision.reason))

    def _explain(self, event: Event, decision: Decision) -> None:
        """Keep the reason beside every worker that this event left waiting, and see that somebody can move."""
        progress = self.progress
        if isinstance(event, GradientArrived):
            member = progress.waiting.get(event.gradient.worker)
            if member is not None:
                member.reason = decision.reason or self._unexplained(member.worker)
        elif isinstance(event, WorkerJoined) and event.worker in progress.newcomers:
            progress.newcomers[event.worker] = decision.reason or self._unexplained(event.worker)
        elif isinstance(event, PolicyChanged):
            for member in progress.waiting.values():
                member.reason = decision.reason or self._unexplained(member.worker)
            for worker in progress.newcomers:
                progress.newcomers[worker] = decision.reason or self._unexplained(worker)
        if progress.computing == 0 and self.deadline() is None:
            raise self._breach("leaves everybody waiting, and nothing that could happen would wake it")

    def _unexplained(self, worker: int) -> str:
        raise self._breach(f"makes worker {worker} wait without a reason")

    def _breach(self, problem: str) -> PolicyError:
        recent = tuple(f"{now:g}  {event}  ->  {decision}" for now, event, decision in self._recent)
        return PolicyError(str(self.policy), problem, recent)
