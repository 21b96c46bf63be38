"""The composition root: the only place that turns a configuration into objects.

`simulation` runs policies in virtual time, `training` trains for real. Importing this package does not import torch.
"""

from paceline.experiment.simulation import (
    Simulation,
    policy_for,
    run_directory,
    run_end,
    simulate,
    worker_speeds,
)
from paceline.runtimes.speeds import Slowdown

__all__ = ["Simulation", "Slowdown", "policy_for", "run_directory", "run_end", "simulate", "worker_speeds"]
