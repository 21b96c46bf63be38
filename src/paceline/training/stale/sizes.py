"""How large gradients are in which part of the parameters: the metric of an optimizer that divides by nothing.

Where gradients are large the loss tends to curve: curvature times size is a better guess of it than one curvature for a
whole layer. A size is the mean of absolute values over RUN neighbours and over a round, so that it costs little memory
and no walk of its own worth mentioning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

RUN = 16  # neighbours; torch is slow with less, and more are too different
WHOLE = 8_192  # runs of a chunk that are looked at in every update; of a larger one a part, in turn
TURNS = 8
NEW = 0.25  # most weight of a single update


def runs_of(parts: Sequence[int]) -> list[int]:
    """How many neighbours share a size, for each chunk of so many numbers."""
    return [RUN if size % RUN == 0 else size for size in parts]


class Sizes:
    def __init__(self, parts: Sequence[int], positions: Tensor, like: Tensor) -> None:
        """`parts`: how many numbers each chunk has; `positions`: of the sample, in all of them."""
        self._runs = runs_of(parts)
        counts = [size // run for size, run in zip(parts, self._runs, strict=True)]
        self._flat = torch.zeros(sum(counts), dtype=like.dtype)
        self._sizes = torch.split(self._flat, counts)
        self._ones = {run: torch.full((run,), 1 / run, dtype=like.dtype) for run in set(self._runs)}
        self._scratch = torch.empty(max(parts, default=0), dtype=like.dtype)
        of_run = torch.cat([torch.full((count,), run) for count, run in zip(counts, self._runs, strict=True)])
        self._positions = torch.searchsorted(torch.cumsum(of_run, 0), positions, right=True)
        self._updates = 0

    def state(self) -> dict[str, Any]:
        return {"sizes": self._flat, "updates": self._updates}

    def resume(self, state: dict[str, Any]) -> None:
        self._flat.copy_(state["sizes"])
        self._updates = state["updates"]

    def begin(self) -> None:
        """Of an update."""
        self._updates += 1

    def gather(self, number: int, gradients: Sequence[tuple[Tensor, float]], share: float) -> None:
        """`gradients`: of one chunk, with their parts of an update that is `share` of a round."""
        sizes, run = self._sizes[number], self._runs[number]
        begin, end = 0, len(sizes)
        if len(sizes) > WHOLE and self._updates > 1:
            turn = self._updates % TURNS
            begin, end = turn * len(sizes) // TURNS, (turn + 1) * len(sizes) // TURNS
            share *= TURNS
        new = max(min(NEW, share), 1 / self._updates)  # the first round has no memory that is older
        left = 1 - new
        for gradient, part in gradients:
            seen = gradient[begin * run : end * run]
            absolute = torch.abs(seen, out=self._scratch[: len(seen)]).view(-1, run)
            sizes[begin:end].addmv_(absolute, self._ones[run], beta=left, alpha=new * part)
            left = 1.0

    def taken(self, number: int, back: float) -> Tensor:
        """What is taken back of a chunk, in rows of neighbours: never further than where it came from."""
        return (self._sizes[number] * back).clamp_(max=1.0).unsqueeze(1)

    def rows(self, number: int, chunk: Tensor) -> Tensor:
        return chunk.view(-1, self._runs[number])

    def sample(self) -> Tensor:
        return self._flat.index_select(0, self._positions)
