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
from typing import Any

import msgspec
import torch
from torch import Tensor

from paceline.core.errors import ConfigurationError
from paceline.core.messages import NOT_STALE, NOT_WANTED, DataOpened, Statistics, UpdateRule
from paceline.training.choices import AS_USUAL, LR_SCALINGS, STALE, UpdateOptions
from paceline.training.layout import Layout, typed, views
from paceline.training.optimizers import OptimizerSpec, bare_step, make_optimizer
from paceline.training.pieces import load_exactly, load_state, pieces_of, state_dict_of, tell_apart, tensors_of
from paceline.training.rates import Rates
from paceline.training.scaling import NOISE_SIZED, STEP_IS_KNOWN, scaled_options, scaling_for
from paceline.training.schedule import Figure
from paceline.training.stale import Correction, Partition, blocks_of, partition_of, refusal
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
        stale = options.stale if spec.stale is None else spec.stale
        self._correction, why = self._make_correction(spec, options._replace(stale=stale), partition)
        self.rule = UpdateRule(
            spec.kind.__name__,
            lr_scaling if self._correction is not None and lr_scaling == "auto" else self._scaling,
            "none" if self._correction is None else self._correction.description,
            why,
        )

    def _make_correction(
        self, spec: OptimizerSpec, options: UpdateOptions, partition: Partition | None
    ) -> tuple[Correction | None, str]:
        """How stale gradients are made up for; None: not at all, and why."""
        stale = options.stale
        if stale not in STALE:
            raise ConfigurationError(f"unknown stale {stale!r}; there are: {', '.join(STALE)}")
        if not options.may_be_stale:
            return None, NOT_STALE
        if stale == "none":
            return None, NOT_WANTED
        why = refusal(spec.kind, self.optimizer.param_groups, self.layout.dtype)
        if self.layout.mixed:
            why = "parameters of several types cannot be corrected; those of one can"
        if not self._pieces:
            why = "the optimizer has no parameters"
        if why and stale == "correct":
            raise ConfigurationError(f"stale='correct' is impossible: {why}. stale='auto' takes it as it is")
        if why:
            return None, why
        if spec.state is not None:
            raise ConfigurationError(
                "worker.optimizer(state=...) is not possible where stale gradients are corrected: every worker has"
                " moments of its own then; stale='none' applies them as they are"
            )
        if self._rates.scheduled:
            self.optimizer.step()  # without a gradient it does nothing, and no schedule complains that it came first
        partition = partition_of(blocks_of(self.layout, spec)) if partition is None else partition
        return Correction(self.flat, partition, self.optimizer, options.lr_scaling), ""

    def rule_for(self, *, statistics: bool) -> UpdateRule:
        """The rule, and a doubt if a policy wants `statistics` and this optimizer's steps are not what it expects."""
        kind = type(self.optimizer)
        if not statistics or kind in STEP_IS_KNOWN:
            return self.rule
        doubt = (
            f"the policy reckons with the steps of SGD or Adam's kind, and those of {kind.__name__} may be larger or"
            " smaller, so it may misjudge what an update gains; dbw:blind=true goes by time alone"
        )
        return msgspec.structs.replace(self.rule, doubt=doubt)

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
        if self._correction is not None:
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
    ) -> Statistics | None:
        """Make one update of these gradients, and say what they were like if that is asked for.

        `departed`: the workers that left the group since the last update.
        """
        rate = Rate(self.step_size, self._scaling) if statistics else None
        share = sum(contribution.samples for contribution in contributions) / samples_per_round
        absent = absent_in_all(contributions)
        if self._correction is None:
            # In the order of their samples: the sum shall not hang on who came first.
            gradient, seen = combine(sorted(contributions, key=_place), rate)
            self._step(gradient, share, absent)
        else:
            seen = None if rate is None else statistics_of(contributions, rate)
            stay = self._stretches(absent)
            self._correction.step(contributions, min(1.0, share))
            for view, before in stay:
                view.copy_(before)
            for worker in departed:
                self._correction.forget(worker)
        self._rates.advance([contribution.samples for contribution in contributions], samples_per_round)
        return seen

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
