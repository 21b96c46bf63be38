"""A group of workers driven by hand: the tests' own runtime. It checks the contract after every event.

It keeps its own books, from commands alone, as naively as possible: what the coordinator and a policy believe is
compared with what a worker would really have seen.
"""

from __future__ import annotations

import functools

import msgspec

from paceline.core.coordinator import Coordinator, State
from paceline.core.messages import (
    Answered,
    ApplyUpdate,
    Ask,
    DeadlinePassed,
    DiscardGradient,
    Event,
    Follow,
    Gradient,
    GradientArrived,
    InterruptWorker,
    PolicyChanged,
    Record,
    SendParameters,
    Statistics,
    UpdateApplied,
    WorkerJoined,
    WorkerLeft,
)
from paceline.experiment import foresight
from paceline.policies import POLICIES, Policy, policy

foresee = functools.cache(foresight.foresee)  # an answer is a function of its question

#: Every policy by its name; `auto` tries its candidates for a shorter time.
QUICK = [*(name for name in POLICIES if name != "auto"), "auto:tried=20"]

#: Every policy, and every parameter that changes how it decides.
VARIANTS = [
    "bsp",
    "asp",
    "ssp:staleness=0",
    "ssp:staleness=1",
    "ssp",
    "dssp:lower=0,upper=2",
    "dssp:lower=1,upper=3,wait=next",
    "dssp:lower=1,upper=3,literal_grant=true",
    "dssp:lower=1,upper=3,capped=false",
    "dssp:lower=0,upper=2,capped=false,wait=next,literal_grant=true",
    "elastic-bsp:lookahead=3",
    "elastic-bsp:lookahead=4,monitoring=first",
    "elastic-bsp:lookahead=2,inside=gather",
    "elastic-bsp:lookahead=3,monitoring=first,inside=gather",
    "elastic-bsp:lookahead=3,search=zipline-opt-bs,interval=mean,window=2",
    "elastic-bsp:lookahead=3,monitoring=first,objective=share,interval=smoothed",
    "backup",
    "backup:k=1",
    "backup:k=2,late=interrupt",
    "backup:k=2,late=pull",
    "dbw",
    "dbw:blind=true",
    "dbw:late=interrupt",
    "dbw:late=pull",
    "dbw:estimator=paper",
    "dbw:estimator=paper,blind=true",
    "dbw:estimator=paper,blind=true,late=interrupt",
    "dbw:estimator=paper,blind=true,late=pull",
    "buffered:size=2",
    "buffered:size=3,max_staleness=1,divide=weights",
    "auto:tried=20",
]


def lead_limit(text: str | Policy) -> int | None:
    """The largest lead that may be seen at an arrival, where the policy promises one."""
    chosen = policy(text) if isinstance(text, str) else text
    if chosen.name == "ssp":
        return chosen.staleness + 1  # type: ignore[attr-defined]
    if chosen.name == "dssp" and chosen.capped:  # type: ignore[attr-defined]
        return chosen.upper + 1  # type: ignore[attr-defined]
    return 1 if chosen.name == "bsp" else None


class Group:
    def __init__(self, text: str | Policy, *, statistics: Statistics | None = None) -> None:
        self.text = str(text)
        self.first_text = self.text
        self.limit = lead_limit(text)
        self.coordinator = Coordinator(policy(text) if isinstance(text, str) else text)
        self.statistics = statistics
        self.unchecked: dict[int, None] = {}  # computed when the policy changed, so that it may still lead too far
        self.now = 0.0
        self.version = 0
        self.computing: dict[int, int] = {}  # worker -> version it computes on
        self.waiting: dict[int, None] = {}
        self.newcomers: dict[int, None] = {}
        self.clock: dict[int, int] = {}
        self.standing: dict[int, int] = {}  # of the members
        self.open: dict[Gradient, None] = {}  # arrived, no fate yet
        self.fates: dict[Gradient, str] = {}
        self.history: list[tuple[float, Event, Record]] = []
        self.questions: list[Ask] = []  # without an answer
        self.answers_at_once = True

    # -- what workers do --

    def join(self, worker: int, after: float = 0.0) -> Record:
        self.newcomers[worker] = None
        return self._send(WorkerJoined(worker), after)

    def push(self, worker: int, after: float = 1.0) -> Record:
        version = self.computing.pop(worker)
        self.waiting[worker] = None
        self.clock[worker] = self.clock.get(worker, 0) + 1
        self.standing[worker] += 1
        if worker in self.unchecked:
            del self.unchecked[worker]
        else:
            self._check_lead(worker, self.limit)
        gradient = Gradient(worker, self.clock[worker])
        self.open[gradient] = None
        return self._send(GradientArrived(gradient, version), after)

    def push_again(self, worker: int) -> Record:
        """Deliver the worker's last gradient a second time."""
        return self._send(GradientArrived(Gradient(worker, self.clock[worker]), self.version), 0.0)

    def leave(self, worker: int, after: float = 0.0) -> Record:
        for books in (self.computing, self.waiting, self.newcomers, self.standing, self.unchecked):
            books.pop(worker, None)
        return self._send(WorkerLeft(worker, "gone"), after)

    def deadline(self, after: float = 0.0) -> Record:
        return self._send(DeadlinePassed(), after)

    def change(self, text: str, after: float = 0.0) -> Record:
        """From here on another policy decides."""
        self.text = text
        self.limit = None if text == "bsp" else lead_limit(text)  # rounds do not make up for the leads of before
        self.unchecked = dict.fromkeys(self.computing)
        return self._send(PolicyChanged(text), after)

    def why(self, worker: int) -> str:
        return self.coordinator.progress.why(worker)

    # -- what must hold --

    def _send(self, event: Event, after: float) -> Record:
        self.now += after
        reaction = self._handle(event)
        self.history.append((self.now, event, reaction))
        were_waiting = list(self.waiting)
        updated = self._obey(event, reaction)
        self._answer(reaction)
        statistics = self._measure()
        if updated and statistics is not None:
            self._send(UpdateApplied(self.version, statistics), 0.0)
        self._check(event, reaction, were_waiting)
        if self.questions and self.answers_at_once:
            self.answer()
        return reaction

    def _answer(self, reaction: Record) -> None:
        """What the policy asks, and that it may decide as another would."""
        for command in reaction.commands:
            if isinstance(command, Ask):
                self.questions.append(command)
            elif isinstance(command, Follow):
                self.text, self.limit = command.policy, None if command.policy == "bsp" else lead_limit(command.policy)
                self.unchecked = dict.fromkeys(self.computing)
                self._send(PolicyChanged(command.policy, None, command.by, command.why), 0.0)

    def answer(self) -> None:
        asked = self.questions[-1]
        self.questions.clear()
        self._send(Answered(asked.number, foresee(asked.question)), 0.0)

    def _handle(self, event: Event) -> Record:
        return handle(event, self.coordinator, self.now)

    def _measure(self) -> Statistics | None:
        """What the parameter store saw of the gradients of the last update."""
        return self.statistics

    def _obey(self, event: Event, reaction: Record) -> bool:
        updated = False
        for command in reaction.commands:
            match command:
                case ApplyUpdate(gradients, weights):
                    assert gradients and len(weights) in (0, len(gradients))
                    if self.text == "bsp" and not isinstance(event, PolicyChanged):
                        assert len({gradient.worker for gradient in gradients}) == len(gradients)
                    for gradient in gradients:
                        del self.open[gradient]
                        self.fates[gradient] = "applied"
                    self.version += 1
                    updated = True
                case DiscardGradient(gradient, reason):
                    assert reason
                    del self.open[gradient]
                    self.fates[gradient] = "discarded"
                case InterruptWorker(worker):
                    assert worker in self.computing
                    self.computing[worker] = self.version
                case SendParameters(worker):
                    if worker in self.newcomers:
                        del self.newcomers[worker]
                        self.standing[worker] = min(self.standing.values(), default=0)
                    else:
                        del self.waiting[worker]
                        self._check_lead(worker, None if self.limit is None else self.limit - 1)
                    self.computing[worker] = self.version
        return updated

    def _check_lead(self, worker: int, limit: int | None) -> None:
        lead = self.standing[worker] - min(self.standing.values())
        assert limit is None or lead <= limit, f"worker {worker} leads by {lead} under {self.text}"

    def _check(self, event: Event, reaction: Record, were_waiting: list[int]) -> None:
        progress = self.coordinator.progress
        assert progress.version == self.version
        assert list(progress.waiting) == list(self.waiting)
        assert list(progress.newcomers) == list(self.newcomers)
        assert progress.members.keys() == self.standing.keys()
        assert list(progress.pending) == list(self.open)
        if self.waiting or self.newcomers:
            assert self.computing, f"nobody can move under {self.text}"
        for worker in (*self.waiting, *self.newcomers):
            assert self.why(worker), f"worker {worker} waits without a reason"
        if isinstance(event, PolicyChanged):
            assert not self.open, "a gradient was lost in the change"
        elif self.coordinator.policy.name == "elastic-bsp":  # type: ignore[attr-defined]
            pusher = event.gradient.worker if isinstance(event, GradientArrived) else None
            if any(worker in self.computing for worker in were_waiting if worker != pusher):  # a barrier
                assert set(self.computing.values()) == {self.version} and not self.waiting
        if not self.standing:
            assert not self.open, "the last worker left, and a gradient has no fate"

    def everybody_moves(self, rounds: int) -> None:
        """Nobody starves: while everybody who can push does, every member pushes again."""
        before = dict(self.clock)
        for _ in range(rounds):
            for worker in sorted(self.computing):
                if worker in self.computing:
                    self.push(worker)
        for worker in self.standing:
            assert self.clock.get(worker, 0) > before.get(worker, 0), f"worker {worker} starves under {self.text}"
        assert not self.newcomers, "a newcomer was never let in"

    def replays(self) -> None:
        """A fresh policy gives the same commands for the same events."""
        again = Coordinator(policy(self.first_text))
        for now, event, reaction in self.history:
            assert handle(event, again, now) == reaction


class StoppingGroup(Group):
    """Beside its coordinator it has a second one, which is stopped after every event, saved as JSON, and made again
    from that. Whatever happens, the two must do and remember the same. The loss that it measures moves up and down."""

    def __init__(self, text: str | Policy, *, statistics: Statistics | None = None) -> None:
        super().__init__(text, statistics=statistics)
        self.stopped = msgspec.json.encode(self.coordinator.state())

    def _handle(self, event: Event) -> Record:
        policy_before = str(self.coordinator.policy)
        reaction = super()._handle(event)
        resumed = Coordinator(policy(policy_before))
        resumed.resume(msgspec.json.decode(self.stopped, type=State))
        assert handle(event, resumed, self.now) == reaction
        assert resumed.deadline() == self.coordinator.deadline()
        self.stopped = msgspec.json.encode(resumed.state())
        assert self.stopped == msgspec.json.encode(self.coordinator.state())
        return reaction

    def _measure(self) -> Statistics | None:
        if self.statistics is None:
            return None
        return msgspec.structs.replace(self.statistics, loss=1.0 / (1 + self.version) + 0.1 * (self.version % 3))


def handle(event: Event, coordinator: Coordinator, now: float) -> Record:
    """What any runtime does: an event goes to the coordinator, a change of policy with the policy that it names."""
    if isinstance(event, PolicyChanged) and event.by:
        return coordinator.follow(event, now)
    if isinstance(event, PolicyChanged):
        return coordinator.change_policy(policy(event.policy), now)
    return coordinator.handle(event, now)
