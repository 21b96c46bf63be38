"""The words that cross the border of the core: events come in, commands go out.

Events are what happened (past tense), commands are what to do next (imperative), and a Decision is a policy's
answer to one event. All are frozen, compare by value, and encode to JSON with their name as the tag, so a trace
is a list of these and nothing else. They are msgspec structs rather than dataclasses because one push creates
about six of them, and a struct costs a tenth of a frozen dataclass to build.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from paceline.core.questions import Answer, Question


class Gradient(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The name of one gradient: the clock-th that this worker pushed. A second delivery has the same name."""

    worker: int
    clock: int

    def __str__(self) -> str:
        return f"gradient {self.clock} of worker {self.worker}"


class Unit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A piece of work: positions begin..end of one epoch's order of the data set, or of one part of it."""

    epoch: int
    begin: int
    end: int
    part: int = 0
    parts: int = 1

    @property
    def samples(self) -> int:
        return self.end - self.begin


class Statistics(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What the parameter store saw of the gradients of one update: scalars, never tensors."""

    gradients: int
    squared_norm: float
    variance: float | None = None  # sum of |g_i - mean|^2 / (k - 1); None for a single gradient
    loss: float | None = None
    learning_rate: float | None = None  # of a full round: how far a lasting gradient of 1 moves a parameter
    lr_scaling: str | None = None  # how the rate follows an update's share of a round: linear, sqrt, none
    edge: float = 2.0  # learning_rate times curvature from which on steps grow and grow; momentum raises it


class WorkerJoined(msgspec.Struct, frozen=True, tag=True, gc=False, omit_defaults=True, repr_omit_defaults=True):
    worker: int
    process: int | None = None  # the first id that its process had, if it comes back under another one
    dropped: bool = False  # and the gradient that it came with: its samples had been given to others
    renewed: bool = False  # the run was resumed while it had no work, and its process is a new one
    forgot: bool = False  # which does not know what the old one knew


NO_WORK_LEFT, FINISHED = "no work left", "finished"
AT_THE_END = (NO_WORK_LEFT, FINISHED)  # reasons of leaving that only mean that the run comes to its end


class WorkerLeft(msgspec.Struct, frozen=True, tag=True, gc=False):
    worker: int
    reason: str


class GradientArrived(msgspec.Struct, frozen=True, tag=True, gc=False, omit_defaults=True):
    gradient: Gradient
    version: int  # of the parameters that it was computed on
    samples: int = 1
    loss: float | None = None
    units: tuple[Unit, ...] = ()  # which samples, where the runtime gave them out (paceline.lifecycle.work)


class UpdateApplied(msgspec.Struct, frozen=True, tag=True, gc=False):
    """An update is finished. A policy is told only if there are statistics."""

    version: int  # after the update
    statistics: Statistics | None = None


class DeadlinePassed(msgspec.Struct, frozen=True, tag=True, gc=False):
    pass


class Answered(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The answer to the question of this number. A policy is told if it still waits for it."""

    number: int
    answer: Answer


class PolicyChanged(msgspec.Struct, frozen=True, tag=True, gc=False, omit_defaults=True, repr_omit_defaults=True):
    """From here on another policy decides: the one that this string names."""

    policy: str
    updates: UpdateRule | None = None  # how they are made from then on, in a run that trains
    by: str = ""  # a policy that chose this one, and may choose another later; empty: somebody outside did
    why: str = ""  # in its words

    @property
    def may_be_stale(self) -> bool | None:
        """Whether an update may have stale gradients; None: in a run that only keeps time."""
        return None if self.updates is None else self.updates.why != NOT_STALE


class WorkerReturned(msgspec.Struct, frozen=True, tag=True, gc=False, omit_defaults=True, repr_omit_defaults=True):
    """The run was resumed, and this worker's process is a new one: what it was at is computed again."""

    worker: int
    forgot: bool = False  # the process does not know what the old one knew: that came too late for the checkpoint


class DataOpened(msgspec.Struct, frozen=True, tag=True, gc=False, omit_defaults=True):
    """The group shares a data set of so many samples, for so many epochs. A note for the ledger, and for schedules."""

    samples: int
    epochs: int | None  # None: as many as other limits allow
    total: int | None = None  # samples in all, as far as that can be foretold
    rounds: int | None = None  # that they make up
    whole: int | None = None  # samples of an epoch, where a sampler makes whole batches, and `samples` is their number

    @property
    def epoch_samples(self) -> int:
        return self.samples if self.whole is None else self.whole


class UnitsReturned(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The worker gave this work back, and it is given out again. No policy is asked: a note for the ledger."""

    worker: int
    units: tuple[Unit, ...]
    reason: str


class BatchSkipped(msgspec.Struct, frozen=True, tag=True, gc=False, omit_defaults=True):
    """The gradient of these samples was not finite, and was never handed in. A note for the ledger."""

    worker: int
    samples: int
    units: tuple[Unit, ...] = ()  # where the runtime gave them out


class WorkerSuspected(msgspec.Struct, frozen=True, tag=True, gc=False, omit_defaults=True):
    """A worker has been silent for longer than is usual for it. A note for people."""

    worker: int
    seconds: float
    usual: float | None = None  # None: it has not pushed often enough to know
    waiting: tuple[int, ...] = ()  # workers that cannot go on

    @property
    def how_long(self) -> str:
        usual = "" if self.usual is None else f"; it usually needs {self.usual:.2g} s"
        seconds = f"{self.seconds:.0f}" if self.seconds >= 10 else f"{self.seconds:.2g}"
        return f"silent for {seconds} s{usual}"

    def __str__(self) -> str:
        wait = "s" if len(self.waiting) == 1 else ""
        waiting = f"; {_workers(self.waiting)} wait{wait} for it" if self.waiting else ""
        return f"worker {self.worker} has been {self.how_long}{waiting}"


class FigureFound(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The evaluation found this, and the learning rate's schedule was told. A note for whoever trains a run again."""

    name: str
    value: float


class WentBack(msgspec.Struct, frozen=True, tag=True, gc=False, omit_defaults=True, repr_omit_defaults=True):
    """The run goes on from this version, a checkpoint's: the weights do not have the updates that were made after it,
    and their samples are given out again. A note for the ledger, and for people."""

    version: int
    updates: int  # that had been made after it
    samples: int  # that were in those
    reason: str
    seconds: float = 0.0  # from the checkpoint to what was recorded last: for so long the workers worked for nothing

    @property
    def undone(self) -> str:
        if not self.updates:
            return f"nothing had been done since version {self.version}"
        first, last = self.version + 1, self.version + self.updates
        which = f"update {first}" if first == last else f"updates {first} to {last}"
        return f"{which} ({self.samples:,} samples) {'is' if first == last else 'are'} done again"

    def __str__(self) -> str:
        return f"the run went back to version {self.version}: {self.undone} ({self.reason})"


def _workers(ids: tuple[int, ...]) -> str:
    *others, last = map(str, ids)
    return f"workers {', '.join(others)} and {last}" if others else f"worker {last}"


Note: TypeAlias = DataOpened | UnitsReturned | BatchSkipped | WorkerSuspected | FigureFound | WentBack
Event: TypeAlias = (
    WorkerJoined
    | WorkerLeft
    | GradientArrived
    | UpdateApplied
    | DeadlinePassed
    | Answered
    | PolicyChanged
    | WorkerReturned
    | Note
)


class ApplyUpdate(msgspec.Struct, frozen=True, tag=True, gc=False, omit_defaults=True):
    """One optimizer step from sum(weight * samples * gradient) / sum(samples). No weights: all are 1."""

    gradients: tuple[Gradient, ...]
    weights: tuple[float, ...] = ()


class DiscardGradient(msgspec.Struct, frozen=True, tag=True, gc=False):
    gradient: Gradient
    reason: str


class SendParameters(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Give a waiting worker the newest parameters; it goes on."""

    worker: int


class InterruptWorker(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Make a computing worker drop its gradient and start over with the newest parameters.

    A worker whose push is already on its way finishes that push; it arrives as a late gradient.
    """

    worker: int


class Ask(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Find the answer, without holding anybody up, and say so with `Answered`."""

    number: int
    question: Question


class Follow(msgspec.Struct, frozen=True, tag=True, gc=False, omit_defaults=True, repr_omit_defaults=True):
    """The policy wants to decide as another one would: find out how updates are made then, and say `PolicyChanged`."""

    policy: str
    by: str  # the policy that wants to
    why: str
    applies_stale: bool = False
    wants_statistics: bool = False


Command: TypeAlias = ApplyUpdate | DiscardGradient | SendParameters | InterruptWorker | Ask | Follow


NOT_STALE, NOT_WANTED = "no gradient is stale", "as asked for"
NO_CORRECTION_EXPECTED = (NOT_STALE, NOT_WANTED)  # reasons that nobody has to be told


class UpdateRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the parameter store makes updates, in words: what a trace must be retrained with."""

    optimizer: str
    lr_scaling: str
    correction: str = "none"  # of stale gradients
    why: str = ""  # there is none
    doubt: str = ""  # why a policy that reckons with the size of updates may be wrong about them


class Estimates(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What a policy reckoned with when it chose how many gradients the next update shall have."""

    k: int  # the choice
    gain: tuple[float, ...]  # expected of an update of 1, 2, ... gradients
    time: tuple[float, ...]  # until there are 1, 2, ... gradients
    variance: float | None = None  # of one gradient
    squared_norm: float | None = None  # of the true gradient
    smoothness: float | None = None  # of the loss
    slope: float | None = None  # by how much the loss falls while the way so far becomes e times as long


class Decision(msgspec.Struct, frozen=True, gc=False):
    """A policy's answer to one event. Carried out in this order: apply, discard, release, interrupt, ask, follow."""

    apply: tuple[Gradient, ...] = ()
    weights: tuple[float, ...] = ()
    discard: tuple[Gradient, ...] = ()
    release: tuple[int, ...] = ()
    interrupt: tuple[int, ...] = ()
    ask: Question | None = None  # the answer will be an event; a question before it is answered no more
    follow: Follow | None = None  # PolicyChanged will be the next event
    reason: str = ""  # one plain sentence; required when a worker is left waiting or a gradient is discarded
    estimates: Estimates | None = None  # for people to see


NOTHING = Decision()


class Record(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The coordinator's answer to one event, and a line of the trace: what happened, when, and what followed from it.

    `reason` and `estimates` are the policy's; the commands are to be carried out in their order.
    """

    now: float
    event: Event
    commands: tuple[Command, ...] = ()
    reason: str = ""
    estimates: Estimates | None = None
