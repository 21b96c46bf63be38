"""The learning rate of an update that is a share of a round."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from fake_link import store_of
from torch import nn, optim

from paceline.training.choices import UpdateOptions
from paceline.training.scaling import edge_of, rate_scale, scaled_options, scaling_for
from paceline.training.updates import Contribution


def two_ones() -> nn.Module:
    model = nn.Linear(2, 1, bias=False)
    nn.init.ones_(model.weight)
    return model


def test_auto_is_the_rule_that_suits_the_optimizer() -> None:
    assert {scaling_for(kind, "auto") for kind in (optim.SGD, optim.Adagrad, optim.ASGD)} == {"linear"}
    assert {
        scaling_for(kind, "auto") for kind in (optim.Adam, optim.AdamW, optim.NAdam, optim.Adamax, optim.RMSprop)
    } == {"sqrt"}
    assert scaling_for(optim.AdamW, "linear") == "linear" and scaling_for(optim.SGD, "none") == "none"


@pytest.mark.parametrize(("scaling", "scale"), [("linear", 0.25), ("sqrt", 0.5), ("none", 1.0)])
def test_a_full_round_has_the_full_rate(scaling: str, scale: float) -> None:
    assert rate_scale(scaling, 0.25) == scale and rate_scale(scaling, 1.0) == rate_scale(scaling, 3.0) == 1.0
    assert scaled_options(optim.Adam, {"lr": 1.0, "betas": (0.9, 0.99)}, scaling, 1.0) == {}


def test_the_square_root_rule_changes_betas_epsilon_and_decay() -> None:
    group = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.04}
    found = scaled_options(optim.AdamW, group, "sqrt", 0.25)
    assert found["lr"] == pytest.approx(0.05) and found["betas"] == pytest.approx((0.975, 0.9975))
    assert found["eps"] == pytest.approx(2e-8) and found["lr"] * found["weight_decay"] == pytest.approx(
        0.25 * 0.1 * 0.04
    )
    assert scaled_options(optim.RMSprop, {"lr": 1.0, "alpha": 0.9, "eps": 1.0}, "sqrt", 0.25)["alpha"] == pytest.approx(
        0.975
    )
    assert scaled_options(optim.AdamW, group, "linear", 0.25) == {"lr": 0.025}
    assert "weight_decay" not in scaled_options(optim.Adam, group, "sqrt", 0.25)  # it is part of the gradient there
    assert "weight_decay" in scaled_options(optim.NAdam, {**group, "decoupled_weight_decay": True}, "sqrt", 0.25)
    assert scaled_options(optim.SGD, {"lr": 1.0, "weight_decay": 0.1}, "sqrt", 0.25)["weight_decay"] == 0.05


@pytest.mark.parametrize("kind", [optim.SGD, optim.AdamW])
def test_weight_decay_keeps_its_size_per_round(kind: Any) -> None:
    store = store_of(two_ones(), kind, lr_scaling="auto", lr=0.1, weight_decay=0.2)
    for _ in range(8):
        store.apply([Contribution(torch.zeros(2), 1)], 8)
    assert store.flat.tolist() == pytest.approx([1 - 0.1 * 0.2] * 2, rel=1e-3)
    assert store.optimizer.param_groups[0]["weight_decay"] == 0.2  # as it was


def test_dbw_is_told_how_far_a_gradient_moves_a_parameter() -> None:
    store = store_of(two_ones(), optim.Adam, lr_scaling="auto", lr=0.1)
    assert store.step_size is None  # nothing is known before the first gradient
    for _ in range(5):
        before = store.flat.clone()
        gradient = torch.tensor([4.0, 4.0])
        store.apply([Contribution(gradient.clone(), 1)], 1)
    moved = float((before - store.flat)[0])
    assert store.step_size == pytest.approx(moved / 4.0, rel=1e-3)
    seen = store.apply([Contribution(torch.ones(2), 1), Contribution(torch.ones(2), 1)], 2, statistics=True)
    assert seen is not None and seen.lr_scaling == "sqrt"
    assert store_of(two_ones(), optim.Adagrad, lr_scaling="auto", lr=0.1).step_size == 0.1
    assert store_of(two_ones(), optim.SGD, lr_scaling="auto", lr=0.1, momentum=0.9).step_size == pytest.approx(1.0)


def test_bias_correction_follows_the_rounds_however_unequal_the_updates_are() -> None:
    """With a gradient that never changes every step of Adam is the rate, scaled by its update's share."""
    store = store_of(two_ones(), optim.Adam, lr_scaling="auto", lr=0.01)
    for share in (1 / 16,) * 16 + (1.0, 1 / 4, 1.0, 1 / 16):
        before = store.flat.clone()
        store.apply([Contribution(torch.ones(2), 1)], 1 / share)
        assert (before - store.flat).tolist() == pytest.approx([0.01 * math.sqrt(share)] * 2, rel=0.03)


def test_the_size_of_a_step_is_known_of_every_kind() -> None:
    for kind in (optim.ASGD, optim.Adagrad):
        assert store_of(two_ones(), kind, lr_scaling="auto", lr=0.1).step_size == 0.1
    store = store_of(two_ones(), optim.Adamax, lr_scaling="auto", lr=0.1)
    store.apply([Contribution(4 * torch.ones(2), 1)], 1)
    assert store.step_size == pytest.approx(0.1 / 4, rel=1e-3)


def test_a_second_moment_of_nothing_says_nothing() -> None:
    store = store_of(two_ones(), optim.RMSprop, lr_scaling="auto", lr=0.1)
    store.apply([Contribution(torch.zeros(2), 1)], 1)
    assert store.step_size is None and not math.isnan(float(store.flat.sum()))
    assert UpdateOptions().lr_scaling == "auto"


@pytest.mark.parametrize(
    ("kind", "options", "eta"),
    [
        (torch.optim.SGD, {}, 1.0),
        (torch.optim.SGD, {"momentum": 0.9}, 0.1),
        (torch.optim.SGD, {"momentum": 0.5, "dampening": 0.5}, 1.0),
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}, 0.1),
    ],
)
def test_steps_on_a_parabola_fade_below_the_edge_and_grow_above_it(
    kind: type[torch.optim.SGD], options: dict[str, Any], eta: float
) -> None:
    """`eta`: the rate with which a gradient that lasts moves a parameter by itself per step."""
    for share, fades in ((0.98, True), (1.02, False)):
        x = torch.ones(1, dtype=torch.float64, requires_grad=True)
        optimizer = kind([x], lr=eta, **options)
        curvature = share * edge_of(optimizer)
        for _ in range(2_000):
            optimizer.zero_grad()
            (curvature * x.square().sum() / 2).backward()
            optimizer.step()
        assert (abs(x.item()) < 1e-3) is fades


def test_adams_first_moment_raises_the_edge_as_momentum_does() -> None:
    parameter = [torch.zeros(1)]
    assert edge_of(torch.optim.Adam(parameter, betas=(0.9, 0.99))) == pytest.approx(38.0)
    assert edge_of(torch.optim.RMSprop(parameter)) == 2.0
