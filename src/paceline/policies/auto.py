"""Auto: measures the workers, asks the simulator which policy suits them, and decides as that one would.

Paper: none. The rule: it begins as BSP. After FIRST rounds, and whenever a rest is over or a worker is not as usual, it
asks what candidates would have made of the latest iterations (paceline.core.questions). Of those within `slack` of the
best it takes the one whose gradients are freshest (paceline.policies.weighing), and says why with figures.

- Nothing waits for an answer. Until it is here the policy in force decides.
- Rests between questions double while the answers stay the same. Those between changes are as long as changes deserve:
  where the pace came out as foretold the next may come sooner, where it did not, later.
- An answer says what it took of a processor. Questions may have 0.5 % of one, and 0.2 seconds to begin with.
- Where stale gradients are not corrected it keeps to fresh ones. Where the loss rises under a policy that applies stale
  ones it leaves that at once, without a question, and keeps to fresh ones for a while.
- What policies come to is measured while they are in force, and counts if it is not about what is foretold of them.
- A worker that others wait for, and that takes much longer than usual, is reason to ask before it has pushed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from paceline.core.messages import (
    AT_THE_END,
    NOTHING,
    Answered,
    Decision,
    Event,
    Follow,
    GradientArrived,
    PolicyChanged,
    WorkerLeft,
)
from paceline.core.progress import Progress
from paceline.core.questions import Answer
from paceline.core.spec import parameter
from paceline.core.state import kept
from paceline.policies.base import Policy
from paceline.policies.batches import Batches
from paceline.policies.bsp import BSP
from paceline.policies.latest import MOST_TIMES
from paceline.policies.loss_watch import LossWatch
from paceline.policies.measured import Pace, Stretch
from paceline.policies.recent_times import lasting
from paceline.policies.rests import Rests
from paceline.policies.vigil import LATELY, Vigil
from paceline.policies.weighing import Choice, candidates, choose, scatter_of, shares

MEASURED = 2  # rounds that must have been counted, before it is known what a policy comes to
KNOWN_FOR = 256  # rounds, as long as nothing else changes
LEAST_ROUNDS = 40  # for which a candidate is tried, in however large a group


def _fresh(name: str) -> Policy:
    from paceline.policies import policy  # which knows this one, too

    return policy(name)


class InForce:
    """The policy that decides; a kept value of the one that chose it."""

    def __init__(self) -> None:
        self.policy: Policy = BSP()
        self._saved: dict[str, Any] = {}  # its state, until there is the progress that belongs to it

    def state(self) -> list[Any]:
        return [str(self.policy), self.policy.state()]

    def resume(self, state: list[Any]) -> None:
        name, self._saved = state
        self.policy = _fresh(name)

    def rebuild(self, progress: Progress) -> None:
        self.policy.resume(self._saved, progress)


@dataclass(eq=False)
class Auto(Policy):
    name = "auto"
    summary = "measures the workers, and decides as the policy that suits them"
    paper = "none"

    slack: float = parameter(0.03, "share of the best pace that fresher gradients may cost", least=0, most=0.9)

    tried: int = parameter(400, "pushes for which each candidate is tried in the simulator", least=10, most=100_000)

    _asked: bool = kept(False)  # and there is no answer yet
    _about: list[int] = kept(factory=list)  # workers, of the latest question
    _late: list[int] = kept(factory=list)  # those whose time until then stood for an iteration
    _since: Stretch = kept(factory=Stretch)  # the last answer, or the last time that somebody was not as usual
    _rounds: float = kept(0.0)  # a push of every worker each
    _known: dict[str, tuple[float, float, float]] = kept(factory=dict)  # policy: its pace, which round
    _freshest: str = kept("bsp")  # of the candidates without stale gradients, the one to go to
    _shares: dict[str, float] = kept(factory=dict)  # what candidates were worth by the last answer, beside the best
    _thin: bool = kept(False)  # the question went by so few iterations that the next answer may be another one
    _batches: Batches = kept(factory=Batches)
    _vigil: Vigil = kept(factory=Vigil)
    _rests: Rests = kept(factory=Rests)
    _loss: LossWatch = kept(factory=LossWatch)
    _look_at: float | None = kept(None)  # when the worker that others wait for is overdue
    _in_force: InForce = kept(factory=InForce)

    @property
    def _inner(self) -> Policy:
        return self._in_force.policy

    @property
    def applies_stale(self) -> bool:
        return self._inner.applies_stale

    @property
    def wants_statistics(self) -> bool:
        return self._inner.wants_statistics

    def deadline(self) -> float | None:
        return self._look_at

    def decide(self, event: Event, progress: Progress, now: float) -> Decision:
        match event:
            case Answered(_, answer):
                return self._weigh(answer, progress, now)
            case PolicyChanged(name):
                self._in_force.policy = _fresh(name)
                return self._inner.take_over(progress, now)
            case _:
                rose = self._watch(event, progress, now)
        decision = self._inner.decide(event, progress, now)
        used = self._batches.weight(decision.apply)
        self._rests.since.note(used, now)
        self._since.note(used, now)
        if rose:
            return self._leave_stale(decision, rose)
        late = self._vigil.late(progress, now)
        self._look_at = None if self._asked else self._vigil.overdue_at(progress)
        wanted = self._rests.may_ask(now, at_once=self._vigil.sees_others(progress)) or (
            bool(late) and self._rests.can_afford(now, urgent=True)
        )
        if self._asked or len(progress.members) < 2 or not wanted:
            return decision
        return self._ask(decision, progress, now, late)

    def _watch(self, event: Event, progress: Progress, now: float) -> str:
        """What happened to the loss, if it rose."""
        rose = ""
        if isinstance(event, GradientArrived):
            workers = len(progress.members)
            self._rounds += 1 / workers
            self._batches.observe(event)
            self._vigil.observe(event, progress, now)
            self._rests.push(workers, now)
            if self._rests.may_judge:
                self._rests.judge(self._vigil.noise)
            rose = self._loss.observe(event.loss, workers)
        elif isinstance(event, WorkerLeft):
            self._batches.forget(event.worker)
            self._vigil.forget(event.worker, at_the_end=event.reason in AT_THE_END)
            self._freshest = "bsp"  # of fewer workers a part may be too many
        if self._vigil.sees_others(progress):
            self._forget_measured()
        return rose

    def _forget_measured(self) -> None:
        """It is of another time."""
        self._since.begin()
        self._known.clear()

    def _leave_stale(self, decision: Decision, rose: str) -> Decision:
        why = f"{rose} under {self._inner}: only fresh gradients for {self._loss.avoid:.0f} rounds"
        self._rests.leave()
        return msgspec.structs.replace(decision, follow=self._followed(self._freshest, why))

    def _followed(self, name: str, why: str) -> Follow:
        chosen = _fresh(name)
        self._loss.change(stale=chosen.applies_stale)
        self._since.begin()
        return Follow(name, str(self), why, chosen.applies_stale, chosen.wants_statistics)

    def _ask(self, decision: Decision, progress: Progress, now: float, late: tuple[int, ...]) -> Decision:
        tried = candidates(len(progress.members), str(self._inner))
        question = self._vigil.times.question(tried, progress, 1.0, now=now, late=late)
        if question is None:
            return decision
        question = lasting(question, max(self.tried, LEAST_ROUNDS * len(progress.members)))
        self._asked, self._about, self._late, self._look_at = True, list(question.workers), list(late), None
        enough = min(LATELY, MOST_TIMES // len(question.workers))
        if late:
            self._forget_measured()
        self._thin = sum(map(len, question.times)) < enough * len(question.workers)
        self._vigil.note_asked(progress)
        self._rests.ask()
        question = msgspec.structs.replace(question, samples=self._batches.of(question.workers))
        return msgspec.structs.replace(decision, ask=question)

    def _measure(self, present: str, workers: int) -> dict[str, Pace]:
        """What policies came to, the present one as far as it is known."""
        found = self._since.pace(self._vigil.noise)
        if found is not None and self._since.used >= MEASURED * workers:
            self._known[present] = (*found, self._rounds)
        self._since.begin()
        self._known = {name: known for name, known in self._known.items() if self._rounds - known[2] <= KNOWN_FOR}
        return {name: Pace(pace, chance) for name, (pace, chance, _) in self._known.items()}

    def _weigh(self, answer: Answer, progress: Progress, now: float) -> Decision:
        self._asked = False
        self._rests.hear(answer.seconds)
        workers, present = len(progress.members), str(self._inner)
        if self._about != list(progress.members):  # it is about another group, and asks again soon
            self._since.begin()
            return NOTHING
        measured = self._measure(present, workers)
        only_fresh = not answer.corrected or self._loss.avoid > 0
        before, self._shares = self._shares, shares(answer, workers)
        scatter = scatter_of(before, self._shares, self.slack)

        def chosen(only_fresh: bool) -> Choice | None:
            return choose(
                answer, present, workers, self.slack, only_fresh=only_fresh, measured=measured, scatter=scatter
            )

        choice, fresh = chosen(only_fresh), chosen(True)
        self._freshest = self._freshest if fresh is None else fresh.policy
        if choice is None or choice.policy == present:
            self._rests.stay()
            return NOTHING
        if not self._rests.may_change and not (only_fresh and self.applies_stale):
            return NOTHING
        why = choice.why
        if self._late:
            why += f"; if worker {self._late[0]}, which is late, needs no longer than it has so far"
        if self._loss.avoid > 0:
            why += f"; the loss rose: no stale gradients for {self._loss.avoid:.0f} more rounds"
        self._rests.change(choice.pace, at_rest=not self._thin)
        return Decision(follow=self._followed(choice.policy, why), reason=why)

    def take_over(self, progress: Progress, now: float) -> Decision:
        self._vigil.other = True
        self._since.begin()
        return self._inner.take_over(progress, now)

    def rebuild(self, progress: Progress) -> None:
        self._in_force.rebuild(progress)
