"""Whether the correction of stale gradients holds where it was not made: other seeds, models, data and groups.

The settings of paceline.experiment.reproduction.optimizers were looked at while the correction was built, so that they
confirm it and do not test it. Those here were fixed before the first of their runs.
"""

from __future__ import annotations

from dataclasses import replace

from paceline.experiment.reproduction.optimizers import GOAL, HOW_READ, KINDS, Model, optimizer_page, setting_of
from paceline.experiment.reproduction.page import Page
from paceline.experiment.reproduction.request import ExperimentRequest
from paceline.experiment.simulation import Simulation

FIRST_SEED = 10
POLICIES = ("bsp", "asp", "ssp", "dssp", "elastic-bsp", "buffered")
GROUPS = {
    "8": Simulation(intervals=(1.0,) * 5 + (2.0, 2.0, 5.0), jitter=0.05),
    "24": Simulation(workers=24, speed="exponential:a=0.2"),
}
LENET = Model("lenet", 3_072, 128, 500)
DIGITS = Model("mlp", 1_437, 96, 360, task="digits", epochs=6)
RESNET = Model("resnet20", 2_048, 128, 200)
LARGE = ("momentum", "AdamW")  # that a large model is trained with


def unseen_optimizers(request: ExperimentRequest) -> Page:
    request = replace(request, first_seed=FIRST_SEED)
    settings = [
        setting_of(request, kind, name, group, model)
        for model in (DIGITS, LENET)
        for name, group in GROUPS.items()
        for kind in KINDS
    ]
    settings += [setting_of(request, kind, "8", GROUPS["8"], RESNET) for kind in KINDS if kind.name in LARGE]
    return optimizer_page(
        request,
        settings,
        "Momentum and Adam where the correction was not made",
        f"{GOAL} The same goal as on [optimizers](optimizers.md), in settings that nobody looked at while the"
        " correction was built: other seeds, models, data and groups.",
        "In virtual time with real gradients: an MLP on handwritten digits (6 epochs of 1,437 samples, 96 in a round),"
        " LeNet on Fashion-MNIST (3,072 samples, 128 in a round), and ResNet-20, which has BatchNorm, on Fashion-MNIST"
        f" (2,048 samples, 128 in a round; momentum and AdamW, the first group). {HOW_READ} Groups: 8 workers, two of"
        " them 2 times and one 5 times slower; 24 with exponential times.",
        POLICIES,
        as_they_are=False,
    )
