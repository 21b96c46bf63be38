"""One learning rate for all policies: what suits BSP diverges nowhere, in a group of eight unequal workers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from paceline.experiment.simulation import Simulation
from paceline.experiment.virtual_training import train_virtually
from paceline.policies import POLICIES
from paceline.training.gradients import DivergedError
from paceline.training.task import Task

pytestmark = pytest.mark.slow

GROUP = Simulation(intervals=(1.0, 1.0, 1.1, 1.2, 1.3, 1.5, 2.0, 4.0), jitter=0.05)
VARIANTS = [*POLICIES, "dssp:capped=false", "elastic-bsp:inside=gather", "backup:k=5,late=interrupt", "dbw:blind=true"]
RATE = 0.02  # two thirds of the rate at which BSP diverges
BEGINS_AT = 40.0  # the loss


def task(rate: float) -> Task:
    """A quadratic, noisy and badly scaled."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2048, 10, generator=generator) * torch.logspace(0, 0.8, 10)
    y = x @ torch.randn(10, 1, generator=generator) + 0.1 * torch.randn(2048, 1, generator=generator)
    data = TensorDataset(x, y)
    torch.manual_seed(1)
    return Task(nn.Linear(10, 1), F.mse_loss, data, data, partial(torch.optim.SGD, lr=rate), batch_size=16)


def final_loss(policy: str, lr_scaling: str = "linear", rate: float = RATE) -> float:
    result = train_virtually(task(rate), policy, GROUP, epochs=4, lr_scaling=lr_scaling, stale="none")
    return result.evaluations[-1].figures["loss"]


@pytest.mark.parametrize("policy", VARIANTS)
def test_a_rate_that_suits_bsp_does_not_diverge_under_any_policy(policy: str) -> None:
    assert final_loss(policy) < BEGINS_AT / 20


@pytest.mark.parametrize("policy", ["asp", "ssp", "elastic-bsp", "buffered"])
def test_the_last_gradients_of_a_run_which_are_the_stalest_do_not_spoil_it(policy: str) -> None:
    # When the work runs out the fast ones leave; what the slow ones still bring is no whole round of the group.
    result = train_virtually(task(RATE), policy, GROUP, epochs=2, evaluate_every=512)
    losses = [each.figures["loss"] for each in result.evaluations]
    assert losses[-1] < 1.2 * min(losses)


def test_without_the_rule_asynchronous_models_diverge_at_that_rate() -> None:
    begins_at = task(RATE).evaluate(task(RATE).model.state_dict())["loss"]
    assert begins_at > BEGINS_AT
    assert final_loss("bsp", "none") < BEGINS_AT / 20
    assert not final_loss("bsp", "none", rate=1.5 * RATE) < BEGINS_AT
    with pytest.raises(DivergedError):
        final_loss("asp", "none")


def test_a_gradient_that_is_not_finite_is_found_with_the_next_loss_and_the_parameter_is_named() -> None:
    broken = replace(task(RATE), loss=lambda output, target: F.mse_loss(output, target) + (0 * output.sum()).sqrt())
    with pytest.raises(
        DivergedError, match=r"^worker 0: the loss is not finite, nor is parameter 'weight' that it was"
    ):
        train_virtually(broken, "bsp", Simulation(intervals=(1.0,)), epochs=1)


def test_a_last_gradient_that_is_not_finite_is_found_at_the_end() -> None:
    broken = replace(task(RATE), loss=lambda output, target: F.mse_loss(output, target) + (0 * output.sum()).sqrt())
    with pytest.raises(DivergedError, match="a parameter is not finite at the end"):
        train_virtually(broken, "bsp", Simulation(intervals=(1.0,), pushes=1), epochs=1)


def test_a_loss_that_is_not_finite_though_the_parameters_are_is_named_alone() -> None:
    broken = replace(task(RATE), loss=lambda output, target: F.mse_loss(output, target) / 0.0)
    with pytest.raises(DivergedError, match=r"^worker 0: the loss is not finite: the run diverged$"):
        train_virtually(broken, "bsp", Simulation(intervals=(1.0,)), epochs=1)
