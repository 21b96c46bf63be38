"""Static backup workers: each update takes the first k gradients of the current version; late ones are discarded.

Paper: J. Chen, X. Pan, R. Monga, S. Bengio, R. Jozefowicz, Revisiting distributed synchronous SGD, 2016
(arXiv 1604.00981). The other n - k workers are the backup. See paceline.policies.fresh for the rule and for `late`.
Decision: when fewer than k workers are left, an update takes all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.progress import Progress
from paceline.core.spec import parameter
from paceline.policies.fresh import FreshGradients


@dataclass(eq=False)
class BackupWorkers(FreshGradients):
    name = "backup"
    summary = "the first k gradients make the update, late ones are discarded"
    paper = "Chen et al. 2016, arXiv 1604.00981"

    k: int | None = parameter(None, "gradients per update; none: all workers but one", least=1)

    def wanted(self, progress: Progress) -> int:
        return max(1, len(progress.members) - 1) if self.k is None else self.k

    def check_group(self, workers: int) -> None:
        if self.k is not None and self.k > workers:
            raise ValueError(f"k={self.k} gradients per update need at least {self.k} workers, and there are {workers}")
