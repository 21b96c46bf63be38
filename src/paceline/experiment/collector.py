"""What a run tells whoever launched it: evaluations and deaths for the result, and warnings at once."""

from __future__ import annotations

import sys
import warnings

from paceline.core.messages import NO_CORRECTION_EXPECTED, PolicyChanged, Record, UpdateRule, WorkerSuspected
from paceline.recording.observer import Observer
from paceline.recording.progress_log import Evaluation, Failure


class Collector(Observer):
    def __init__(self, *, tells: bool = True) -> None:
        """`tells`: say on stderr that a worker died; somebody else does not."""
        self.evaluations: list[Evaluation] = []
        self.failures: list[Failure] = []
        self._tells = tells

    def begun(self, rule: UpdateRule) -> None:
        warned(rule)

    def observe(self, record: Record) -> None:
        if isinstance(record.event, WorkerSuspected):
            warnings.warn(str(record.event), SilentWorkerWarning, stacklevel=2)
        elif isinstance(record.event, PolicyChanged) and record.event.updates is not None:
            warned(record.event.updates)

    def evaluated(self, evaluation: Evaluation) -> None:
        self.evaluations.append(evaluation)

    def worker_failed(self, failure: Failure) -> None:
        self.failures.append(failure)
        if self._tells:
            print(f"paceline: {failure}", file=sys.stderr, flush=True)


class SilentWorkerWarning(UserWarning):
    """A worker has been silent for longer than is usual for it."""


def warned(rule: UpdateRule) -> UpdateRule:
    """This rule, of which users are told what they may not expect."""
    warn_if_not_corrected(rule)
    warn_of_doubt(rule)
    return rule


def warn_of_doubt(rule: UpdateRule) -> None:
    """An optimizer that the policy does not know."""
    if rule.doubt:
        warnings.warn(rule.doubt, stacklevel=2)


def warn_if_not_corrected(rule: UpdateRule) -> None:
    """Stale gradients that nobody expects to be applied as they are."""
    if rule.correction == "none" and rule.why not in NO_CORRECTION_EXPECTED:
        warnings.warn(f"stale gradients are applied as they are: {rule.why}", stacklevel=2)
