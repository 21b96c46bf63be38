"""The latest few things of each worker, and what every question of a policy has in common.

Two policies keep the times of iterations, each for an end of its own (recent_times.py, round_trips.py); a third thing
that is kept is how many samples gradients have (batches.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from paceline.core.messages import GradientArrived
from paceline.core.progress import Progress

Seen = TypeVar("Seen")

MOST_TIMES = 4_096  # in one question, which is a line of the trace


class Latest(Generic[Seen]):
    def __init__(self, kind: type[Seen], most: int) -> None:
        self._kind, self._most = kind, most
        self._seen: dict[int, deque[Seen]] = {}

    def note(self, worker: int, seen: Seen) -> None:
        own = self._seen.get(worker)
        if own is None:
            own = self._seen[worker] = deque(maxlen=self._most)
        own.append(seen)

    def forget(self, worker: int) -> None:
        self._seen.pop(worker, None)

    def keep_only(self, worker: int, latest: int) -> None:
        """Those before were of another time."""
        seen = self._seen[worker]
        while len(seen) > latest:
            seen.popleft()

    def of(self, worker: int) -> Sequence[Seen]:
        """Oldest first; none: nothing is known."""
        return self._seen.get(worker, ())

    def __len__(self) -> int:
        """So many workers are known."""
        return len(self._seen)

    def __contains__(self, worker: int) -> bool:
        return worker in self._seen

    def state(self) -> dict[str, Any]:
        return {str(worker): msgspec.to_builtins(list(seen)) for worker, seen in self._seen.items()}

    def resume(self, state: dict[str, Any]) -> None:
        for worker, seen in state.items():
            self._seen[int(worker)] = deque((msgspec.convert(one, self._kind) for one in seen), maxlen=self._most)


def seconds_of(event: GradientArrived, progress: Progress, now: float) -> float | None:
    """From the release of the worker to this push, so that no wait of one policy leaks into what is foretold of others.
    None: it was not released for it."""
    member = progress.members[event.gradient.worker]
    return None if member.came_late else now - member.released_at
