"""How updates are made, in words: with an optimizer, under a policy that may apply stale gradients, or may not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
import torch

from paceline.core.errors import ConfigurationError
from paceline.core.messages import NOT_STALE, NOT_WANTED, UpdateRule
from paceline.training.choices import STALE, UpdateOptions
from paceline.training.layout import Layout
from paceline.training.optimizers import OptimizerSpec
from paceline.training.scaling import STEP_IS_KNOWN, scaling_for
from paceline.training.stale import description_of, refusal


def update_rule(
    layout: Layout, spec: OptimizerSpec, groups: Sequence[Mapping[str, Any]], options: UpdateOptions
) -> UpdateRule:
    """`groups`: of the optimizer. ConfigurationError where stale gradients must be corrected, and cannot be."""
    stale = options.stale if spec.stale is None else spec.stale
    if stale not in STALE:
        raise ConfigurationError(f"unknown stale {stale!r}; there are: {', '.join(STALE)}")
    scaling = scaling_for(spec.kind, options.lr_scaling)
    if why := _why_not(layout, spec, groups, stale, options.may_be_stale):
        return UpdateRule(spec.kind.__name__, scaling, why=why)
    automatic = options.lr_scaling == "auto"
    description = description_of(spec.kind, groups, automatic=automatic)
    return UpdateRule(spec.kind.__name__, "auto" if automatic else scaling, description)


def _why_not(
    layout: Layout, spec: OptimizerSpec, groups: Sequence[Mapping[str, Any]], stale: str, may_be_stale: bool
) -> str:
    """Why stale gradients are not made up for; empty: they are."""
    if not may_be_stale:
        return NOT_STALE
    if stale == "none":
        return NOT_WANTED
    why = refusal(spec.kind, groups, layout.dtype)
    if layout.mixed:
        why = "parameters of several types cannot be corrected; those of one can"
    if not any(names for names, _ in spec.groups):
        why = "the optimizer has no parameters"
    if why and stale == "correct":
        raise ConfigurationError(f"stale='correct' is impossible: {why}. stale='auto' takes it as it is")
    return why


class MakesUpdates(Protocol):
    """A parameter store, or what stands for several."""

    def rule_for(self, may_be_stale: bool | None = None, *, statistics: bool = False) -> UpdateRule: ...


class Applies(Protocol):
    """What updates have to know of a policy."""

    @property
    def applies_stale(self) -> bool: ...
    @property
    def wants_statistics(self) -> bool: ...


def rule_under(store: MakesUpdates, policy: Applies, *, several: bool) -> UpdateRule:
    """How updates are made once this policy is in force. `several`: the group may have more than one worker."""
    return store.rule_for(policy.applies_stale and several, statistics=policy.wants_statistics)


def corrects(store: MakesUpdates) -> bool:
    """Whether stale gradients would be made up for."""
    try:
        return store.rule_for(True).correction != "none"
    except ConfigurationError:
        return False


def with_doubt(rule: UpdateRule, kind: type[torch.optim.Optimizer], *, statistics: bool) -> UpdateRule:
    """The rule, and a doubt if a policy wants `statistics` and this optimizer's steps are not what it expects."""
    if not statistics or kind in STEP_IS_KNOWN:
        return rule
    doubt = (
        f"the policy reckons with the steps of SGD or Adam's kind, and those of {kind.__name__} may be larger or"
        " smaller, so it may misjudge what an update gains; dbw:blind=true goes by time alone"
    )
    return msgspec.structs.replace(rule, doubt=doubt)
