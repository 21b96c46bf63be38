"""paceline: train one PyTorch model on many workers that do not run at the same speed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.experiment.callbacks import Callback, CallbackError, Run
    from paceline.experiment.own_comparison import ComparisonResult, compare
    from paceline.experiment.ready_callbacks import EarlyStopping, KeepBest
    from paceline.experiment.result import InterruptedRun, RunResult
    from paceline.experiment.simulation import Simulation, simulate
    from paceline.experiment.training import fit, launch
    from paceline.policies import policy
    from paceline.runtimes.ray_cluster.options import RayCluster
    from paceline.training.worker import Worker

__version__ = "0.1.0"
__all__ = [
    "Callback",
    "CallbackError",
    "ComparisonResult",
    "EarlyStopping",
    "InterruptedRun",
    "KeepBest",
    "RayCluster",
    "Run",
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
    "Callback": "paceline.experiment.callbacks",
    "CallbackError": "paceline.experiment.callbacks",
    "ComparisonResult": "paceline.experiment.own_comparison",
    "EarlyStopping": "paceline.experiment.ready_callbacks",
    "InterruptedRun": "paceline.experiment.result",
    "KeepBest": "paceline.experiment.ready_callbacks",
    "RayCluster": "paceline.runtimes.ray_cluster.options",
    "Run": "paceline.experiment.callbacks",
    "RunResult": "paceline.experiment.result",
    "compare": "paceline.experiment.own_comparison",
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


def __dir__() -> list[str]:
    """For tab completion: the public names, found or not yet."""
    return sorted({*globals(), *__all__} - {"Any", "TYPE_CHECKING", "annotations", "import_module"})
