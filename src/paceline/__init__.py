"""paceline: train one PyTorch model on many workers that do not run at the same speed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.experiment.own_comparison import ComparisonResult, compare
    from paceline.experiment.simulation import Simulation, simulate
    from paceline.experiment.training import InterruptedRun, RunResult, fit, launch
    from paceline.policies import policy
    from paceline.training.worker import Worker

__version__ = "0.1.0"
__all__ = [
    "ComparisonResult",
    "InterruptedRun",
    "RunResult",
    "Simulation",
    "Worker",
    "__version__",
    "compare",
    "fit",
    "launch",
    "policy",
    "simulate",
]

# Looked up when first used: torch takes seconds to import, and a simulation does not need it.
_HOMES = {
    "ComparisonResult": "paceline.experiment.own_comparison",
    "compare": "paceline.experiment.own_comparison",
    "InterruptedRun": "paceline.experiment.training",
    "RunResult": "paceline.experiment.training",
    "Simulation": "paceline.experiment.simulation",
    "Worker": "paceline.training.worker",
    "fit": "paceline.experiment.training",
    "launch": "paceline.experiment.training",
    "policy": "paceline.policies",
    "simulate": "paceline.experiment.simulation",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
