"""The parameter store: the one true copy of the parameters, and the optimizer that updates it.

An update takes four steps: combine, correct, step, schedule. It is the mean over the samples in it. Gradients that may
be stale are corrected one by one, as they are combined, and that makes the step as well (paceline.training.stale);
otherwise torch's own optimizer steps. The learning rate that the user gives is meant for one full round of the group;
that of a smaller update is scaled (paceline.training.scaling). Schedules count samples of the whole group for the same
reason.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from paceline.core.errors import ConfigurationError
from paceline.core.messages import DataOpened, Statistics, UpdateRule
from paceline.training.choices import AS_USUAL, LR_SCALINGS, UpdateOptions
from paceline.training.layout import Layout, typed, views
from paceline.training.optimizers import OptimizerSpec, bare_step, make_optimizer
from paceline.training.pieces import Piece, load_exactly, load_state, pieces_of, state_dict_of, tell_apart, tensors_of
from paceline.training.rates import Rates
from paceline.training.scaling import NOISE_SIZED, edge_of, scaled_options, scaling_for
from paceline.training.schedule import Figure
from paceline.training.stale import Correction, Partition, blocks_of, partition_of
from paceline.training.stale.handover import hand_over, taken_from
from paceline.training.update_rules import update_rule, with_doubt
from paceline.training.updates import Contribution, Rate, absent_in_all, combine, statistics_of

LOOKED_AT = 1024  # numbers of the second moment, for the size of a step
DIGESTED = 4096  # parameters in a digest


class ParameterStore:
    def __init__(
        self,
        layout: Layout,
        initial: Tensor,
        spec: OptimizerSpec,
        options: UpdateOptions = AS_USUAL,
        partition: Partition | None = None,
    ) -> None:
        """`partition`: for the correction of stale gradients, where these are only a part of a model's parameters."""
        lr_scaling = options.lr_scaling
        if lr_scaling not in LR_SCALINGS:
            raise ConfigurationError(f"unknown lr_scaling {lr_scaling!r}; there are: {', '.join(LR_SCALINGS)}")
        self.layout = layout
        self.flat = initial.clone()
        self._mixed = layout.mixed
        self._scaling = scaling_for(spec.kind, lr_scaling)
        self._rounds = 0.0  # that the updates so far make up
        self._uneven = False  # whether some of them were smaller than a round
        self._missed: dict[int, float] = {}  # rounds in which a parameter, by its number, had no gradient
        self.spec = spec._replace(state=None)
        self._pieces = pieces_of(layout, spec)
        self._tensors = tensors_of(self._pieces, self.flat)
        self._apart = False  # whether the optimizer sees every parameter by itself
        groups = (piece.group for piece in self._pieces)
        self.optimizer = make_optimizer(spec, zip(groups, self._tensors, strict=True))
        self._rates = Rates(spec, self.optimizer)
        self._bare_step = bare_step(self.optimizer)
        if spec.state is not None and not load_state(self.optimizer, layout, spec, self._pieces, self._tensors):
            self._tell_apart()
            load_state(self.optimizer, layout, spec, self._pieces, self._tensors)
        self._count_loaded_rounds()
        self._options, self._partition = options, partition
        self.rule = self.rule_for(options.may_be_stale)  # that it begins with
        self._correction: Correction | None = None
        if self.rule.correction != "none":
            if spec.state is not None:
                raise ConfigurationError(
                    "worker.optimizer(state=...) is not possible where stale gradients are corrected: every worker has"
                    " moments of its own then; stale='none' applies them as they are"
                )
            self._correction = self._make_correction()

    def rule_for(self, may_be_stale: bool | None = None, *, statistics: bool = False) -> UpdateRule:
        """How updates are made under a policy that may apply stale gradients or not, None: that of the beginning; with
        a doubt if it wants `statistics` and this optimizer's steps are not what it expects."""
        rule = self.rule if may_be_stale is None else self._rule_with(may_be_stale)
        return with_doubt(rule, self.spec.kind, statistics=statistics)

    def _rule_with(self, may_be_stale: bool) -> UpdateRule:
        options = self._options._replace(may_be_stale=may_be_stale)
        return update_rule(self.layout, self.spec, self.optimizer.param_groups, options)

    @cached_property
    def can_correct(self) -> bool:
        """Whether it would under a policy that applies stale gradients."""
        try:
            return self._rule_with(True).correction != "none"
        except ConfigurationError:  # it must, and cannot: nobody switches to such a policy
            return False

    def _make_correction(self) -> Correction:
        if self._rates.scheduled:
            self.optimizer.step()  # without a gradient it does nothing, and no schedule complains that it came first
        partition = self._partition or partition_of(blocks_of(self.layout, self.spec))
        return Correction(self.flat, partition, self.optimizer, self._options.lr_scaling)

    @property
    def corrects(self) -> bool:
        """Whether a contribution must come with the parameters that its gradient was computed on."""
        return self._correction is not None

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Every parameter by its name, as it is now."""
        return typed(self.flat, self.layout.parameters)

    @property
    def digest(self) -> int:
        """A number that changes with the parameters: a checksum of some of them, so that it costs next to nothing."""
        sampled = self.flat[:: max(1, self.flat.numel() // DIGESTED)].contiguous()
        return zlib.crc32(sampled.view(torch.uint8).numpy().tobytes())

    def state(self) -> dict[str, Any]:
        """All that decides the next update, beside the parameters; its tensors are not copies."""
        return {
            **self._rates.state(),
            "rounds": self._rounds,
            "uneven": self._uneven,
            "apart": self._apart,
            "missed": dict(self._missed),
            "optimizer": self.optimizer.state_dict(),
            "correction": None if self._correction is None else self._correction.state(),
        }

    def optimizer_state(self) -> dict[str, Any]:
        """What state_dict() of the optimizer would be in a loop of one process; copies."""
        return state_dict_of(self.optimizer, self.layout, self.spec, self._pieces, self._tensors)

    def resume(self, flat: Tensor, state: dict[str, Any]) -> None:
        """Go on where another store stopped; this one is fresh, and of the same model and optimizer."""
        self.flat.copy_(flat)
        if state["apart"]:
            self._tell_apart()
        for piece, tensor in self._copies():
            tensor.data.copy_(piece)
        self._rounds, self._uneven, self._missed = state["rounds"], state["uneven"], dict(state["missed"])
        self._rates.resume(state)
        if self._rates.scheduled:
            self._schedule_is_made()
        load_exactly(self.optimizer, state["optimizer"])
        if state["correction"] is None:
            self._correction = None
        else:
            self._correction = self._correction or self._make_correction()
            self._correction.resume(state["correction"])

    # -- the learning rate --

    @property
    def version(self) -> int:
        return self._rates.version

    @property
    def samples(self) -> int:
        """Seen by the whole group."""
        return self._rates.samples

    @property
    def epoch_samples(self) -> int | None:
        """Where the data set is known."""
        return self._rates.epoch_samples

    @epoch_samples.setter
    def epoch_samples(self, samples: int) -> None:
        self._rates.epoch_samples = samples

    @property
    def rates(self) -> tuple[float, ...]:
        """Of the parameter groups; another object whenever they change."""
        return self._rates.rates

    @property
    def learning_rate(self) -> float:
        return self._rates.learning_rate

    def open(self, opened: DataOpened) -> None:
        """It is known how much work there is."""
        if self._rates.open(opened):
            self._schedule_is_made()

    def _schedule_is_made(self) -> None:
        """It may have wrapped the optimizer's step, and complains if that is not called before its own."""
        self._bare_step = bare_step(self.optimizer)
        if self._correction is not None:
            self.optimizer.step()

    @property
    def wants_figures(self) -> bool:
        """Whether the schedule goes by what evaluations find."""
        return self._rates.wants_figures

    def figure_of(self, figures: Mapping[str, float]) -> Figure | None:
        """The one that the schedule goes by."""
        return self._rates.figure_of(figures)

    def feed(self, value: float) -> None:
        """The evaluation found this."""
        self._rates.feed(value)

    # -- updates --

    def apply(
        self,
        contributions: Sequence[Contribution],
        samples_per_round: float,
        *,
        departed: Sequence[int] = (),
        statistics: bool = False,
        may_be_stale: bool | None = None,
    ) -> Statistics | None:
        """Make one update of these gradients, and say what they were like if that is asked for.

        `departed`: the workers that left the group since the last update. `may_be_stale`: whether the policy in force
        applies stale gradients; None: as it was said at the beginning.
        """
        if may_be_stale is not None:
            self._follow_policy(may_be_stale, contributions)
        rate = Rate(self.step_size, self._scaling, edge_of(self.optimizer)) if statistics else None
        share = sum(contribution.samples for contribution in contributions) / samples_per_round
        absent = absent_in_all(contributions)
        if self._correction is None:
            # In the order of their samples: the sum shall not hang on who came first.
            gradient, seen = combine(sorted(contributions, key=_place), rate)
            self._step(gradient, share, absent)
        else:
            seen = None if rate is None else statistics_of(contributions, rate)
            stay = self._stretches(absent)
            self._correction.step([self._with_pulled(own) for own in contributions], min(1.0, share))
            self._rounds += 1.0 if self._scaling == "none" else min(1.0, share)
            for view, before in stay:
                view.copy_(before)
            for worker in departed:
                self._correction.forget(worker)
        self._rates.advance([contribution.samples for contribution in contributions], samples_per_round)
        return seen

    def _with_pulled(self, contribution: Contribution) -> Contribution:
        """Where nobody kept what a gradient was computed on it was not stale, and that is what the parameters are."""
        return contribution._replace(pulled=self.flat) if contribution.pulled is None else contribution

    def _follow_policy(self, may_be_stale: bool, contributions: Sequence[Contribution]) -> None:
        """Correct from now on, or, once no gradient is stale, let torch's optimizer step; moments are carried over."""
        if may_be_stale == self.corrects:
            return
        if not may_be_stale:
            if not any(contribution.staleness for contribution in contributions):
                self._stop_correcting()
        elif self.can_correct:
            self._correction = self._make_correction()
            rules = self._correction.rules()
            found = taken_from(self.optimizer, self._seen, self.flat, rules, self._rounds, self._rounds_of)
            if found is not None:
                self._correction.begin_with(found)
            self.optimizer.state.clear()
            self._missed.clear()

    def _stop_correcting(self) -> None:
        assert self._correction is not None
        found, rules = self._correction.gathered(), self._correction.rules()
        if found is not None:
            hand_over(self.optimizer, self._seen, found, rules, self._rounds)
        self._uneven = True  # steps are counted in rounds, which need not have been whole ones
        self._correction = None

    @property
    def _seen(self) -> list[tuple[Piece, nn.Parameter]]:
        """By the optimizer."""
        return list(zip(self._pieces, self._tensors, strict=True))

    def _rounds_of(self, piece: Piece, about: Mapping[str, Any]) -> float:
        """In which it had gradients, as Adam's kind counts them."""
        if self._scaling == "sqrt" or "step" not in about:
            return self._rounds - self._missed.get(piece.numbers[0], 0.0)
        return float(about["step"])

    @property
    def step_size(self) -> float | None:
        """How far a lasting gradient of 1 moves a parameter per full round; None: not known yet.

        With momentum that is more than the rate. Adam and its kind divide by the size of gradients: on average over
        what they have seen, by the square of a gradient.
        """
        group = self.optimizer.param_groups[0]
        if isinstance(self.optimizer, torch.optim.SGD):
            momentum, dampening = group["momentum"], group["dampening"]
            return self.learning_rate * (1 - dampening) / (1 - momentum) if 0 < momentum < 1 else self.learning_rate
        if not isinstance(self.optimizer, NOISE_SIZED):
            return self.learning_rate
        pairs = zip(self._pieces, self._tensors, strict=True)
        known = [self.optimizer.state.get(tensor, {}) for piece, tensor in pairs if piece.group == 0]
        names = ("exp_avg_sq", "square_avg", "exp_inf")
        found = [(name, about[name].flatten()) for about in known for name in names if name in about]
        if not found:
            return None
        name, every = found[0][0], -(-sum(seen.numel() for _, seen in found) // LOOKED_AT)
        looked_at = torch.cat([seen[::every] for _, seen in found]).double()
        squares = looked_at.square() if name == "exp_inf" else looked_at
        if name == "exp_avg_sq":
            squares = squares / (1 - group["betas"][1] ** self._rounds)
        size = float((squares / (squares.sqrt() + group["eps"])).sum() / squares.sum())
        return self.learning_rate * size if math.isfinite(size) else None

    def _stretches(self, numbers: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Of these parameters, where they lie, and what they are."""
        if not numbers:
            return []
        places = list(views(self.flat, self.layout.parameters).values())
        return [(places[number], places[number].clone()) for number in numbers]

    def _tell_apart(self) -> None:
        """Show the optimizer every parameter by itself, so that it can step some of them and not others."""
        if not self._apart:
            self._apart = True
            pieces = pieces_of(self.layout, self.spec, apart=True)
            tensors = tensors_of(pieces, self.flat)
            tell_apart(self.optimizer, (self._pieces, self._tensors), (pieces, tensors))
            self._pieces, self._tensors = pieces, tensors

    def _copies(self) -> list[tuple[Tensor, Tensor]]:
        """Those that the optimizer steps in another type, and where they lie."""
        pairs = zip(self._pieces, self._tensors, strict=True)
        return [(piece.of(self.flat), tensor) for piece, tensor in pairs if piece.dtype != self.flat.dtype]

    def _step(self, gradient: Tensor, share: float, absent: Sequence[int] = ()) -> None:
        """One step of the optimizer, at the rate that an update of this share of a round has. As torch does it, a
        parameter without a gradient is left as it is, and so is what is known about it."""
        if absent:
            self._tell_apart()
        for parameter, piece in zip(self._tensors, self._pieces, strict=True):
            if not absent or piece.numbers[0] not in absent:
                part = piece.of(gradient)
                parameter.grad = part if part.dtype == piece.dtype else part.to(piece.dtype)
        share = 1.0 if self._scaling == "none" else min(1.0, share)
        self._rounds += share
        self._uneven = self._uneven or share < 1
        for number in absent:
            self._missed[number] = self._missed.get(number, 0.0) + share
        if self._uneven and self._scaling == "sqrt":
            self._count_rounds(share)
        if share == 1.0:
            self._bare_step()
        else:
            self._scaled_step(share)
        for parameter in self._tensors:
            parameter.grad = None  # it lies in the memory of a process, which may be gone soon
        if self._mixed:
            for place, tensor in self._copies():
                place.copy_(tensor.detach())

    def _count_loaded_rounds(self) -> None:
        """A state that the optimizer begins with stands for as many rounds as it has made steps."""
        steps = [float(self.optimizer.state.get(tensor, {}).get("step", 0.0)) for tensor in self._tensors]
        self._rounds = max(steps, default=0.0)
        for piece, step in zip(self._pieces, steps, strict=True):
            for number in piece.numbers if step < self._rounds else ():
                self._missed[number] = self._rounds - step

    def _count_rounds(self, share: float) -> None:
        """Adam divides by 1 - beta ** step: with betas of this share, so many steps of it as make up all rounds."""
        for piece, tensor in zip(self._pieces, self._tensors, strict=True):
            state = self.optimizer.state.get(tensor, {})
            if "step" in state:
                state["step"].fill_((self._rounds - self._missed.get(piece.numbers[0], 0.0)) / share - 1)

    def _scaled_step(self, share: float) -> None:
        groups = self.optimizer.param_groups
        scaled = [scaled_options(type(self.optimizer), group, self._scaling, share) for group in groups]
        before = [{name: group[name] for name in options} for group, options in zip(groups, scaled, strict=True)]
        for group, options in zip(groups, scaled, strict=True):
            group.update(options)
        try:
            self._bare_step()
        finally:
            for group, options in zip(groups, before, strict=True):
                group.update(options)


def _place(contribution: Contribution) -> tuple[int, ...]:
    first = contribution.units[0] if contribution.units else None
    return (contribution.worker,) if first is None else (first.epoch, first.part, first.begin)
