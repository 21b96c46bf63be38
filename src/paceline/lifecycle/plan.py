"""How much work a run will be, as soon as its data set and its batches are known."""

from __future__ import annotations

from paceline.core.messages import DataOpened
from paceline.lifecycle.work import Limit, Work


def plan_of(work: Work, epochs: int | None, limit: Limit, workers: int) -> DataOpened:
    """Of a group of so many workers, all with batches of this size; None: without an end that could be foretold.

    `limit`: in units of the work, which may be whole batches.
    """
    parts = workers if work.sharding == "static" else 1
    per_epoch = sum(-(-len(range(part, work.samples, parts)) // work.batch_size) for part in range(parts))
    ends: list[tuple[int, int]] = []  # samples and batches
    if epochs is not None:
        ends.append((epochs * work.samples, epochs * per_epoch))
    if limit.batches is not None:
        whole, rest = divmod(limit.batches, per_epoch)
        ends.append((whole * work.samples + min(work.samples, rest * work.batch_size), limit.batches))
    if limit.samples is not None:
        whole, rest = divmod(limit.samples, work.samples)
        ends.append((limit.samples, whole * per_epoch + -(-rest // work.batch_size)))
    if not ends:
        return DataOpened(work.samples, epochs, whole=work.whole)
    samples, batches = min(ends)
    total = samples * work.epoch_samples // work.samples
    return DataOpened(work.samples, epochs, total, -(-batches // workers), work.whole)
