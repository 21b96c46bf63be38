"""How many samples the gradients of each worker have, and so how much each of them counts.

Every worker may have batches of a size of its own. The last one of an epoch is often smaller, which says nothing about
those to come: what counts is the median of the latest ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from paceline.core.messages import Gradient, GradientArrived
from paceline.policies.latest import Latest

LATEST = 5


class Batches:
    def __init__(self) -> None:
        self._latest = Latest(int, LATEST)
        self._usual: dict[int, int] = {}  # samples, by worker
        self._samples = 0  # of one gradient of each
        self._steady: dict[int, int] = {}  # the usual samples of those whose latest gradients are all alike

    def observe(self, event: GradientArrived) -> None:
        worker = event.gradient.worker
        if self._steady.get(worker) != event.samples:  # else one more of them changes nothing
            self._latest.note(worker, event.samples)
            self._learn(worker)

    def forget(self, worker: int) -> None:
        self._latest.forget(worker)
        self._steady.pop(worker, None)
        self._samples -= self._usual.pop(worker, 0)

    def _learn(self, worker: int) -> None:
        seen = sorted(self._latest.of(worker))
        usual = seen[len(seen) // 2]
        self._samples += usual - self._usual.get(worker, 0)
        self._usual[worker] = usual
        if len(seen) == LATEST and seen[0] == seen[-1]:
            self._steady[worker] = usual
        else:
            self._steady.pop(worker, None)

    def weight(self, gradients: Iterable[Gradient]) -> float:
        """As how many gradients these count, of the mean size over the workers."""
        found = 0.0
        for gradient in gradients:
            usual = self._usual.get(gradient.worker)
            found += 1.0 if usual is None else usual * len(self._usual) / self._samples
        return found

    def of(self, workers: Iterable[int]) -> tuple[int, ...]:
        """The usual samples of each; none: all have as many."""
        mean = round(self._samples / max(1, len(self._usual)))  # of one that has not pushed yet
        found = tuple(self._usual.get(worker, mean) for worker in workers)
        return found if len(set(found)) > 1 else ()

    def state(self) -> dict[str, Any]:
        return self._latest.state()

    def resume(self, state: dict[str, Any]) -> None:
        self._latest.resume(state)
        for worker in state:
            self._learn(int(worker))
