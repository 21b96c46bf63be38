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
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from paceline.core.errors import ConfigurationError
from paceline.core.messages import NOT_STALE, NOT_WANTED, Statistics, UpdateRule
from paceline.training.choices import AS_USUAL, LR_SCALINGS, STALE, UpdateOptions
from paceline.training.layout import Layout, views
from paceline.training.optimizers import OptimizerSpec, bare_step, make_optimizer, make_scheduler, pieces_of
from paceline.training.scaling import NOISE_SIZED, scaled_options, scaling_for
from paceline.training.stale import Correction, refusal
from paceline.training.updates import Contribution, Rate, combine, statistics_of

LOOKED_AT = 1024  # numbers of the second moment, for the size of a step
DIGESTED = 4096  # parameters in a digest


class ParameterStore:
    def __init__(
        self,
        layout: Layout,
        initial: Tensor,
        spec: OptimizerSpec,
        options: UpdateOptions = AS_USUAL,
    ) -> None:
        lr_scaling = options.lr_scaling
        if lr_scaling not in LR_SCALINGS:
            raise ConfigurationError(f"unknown lr_scaling {lr_scaling!r}; there are: {', '.join(LR_SCALINGS)}")
        self.layout = layout
        self.flat = initial.clone()
        self.version = 0
        self.samples = 0  # seen by the whole group
        self.epoch_samples: int | None = None  # where the data set is known
        self._scaling = scaling_for(spec.kind, lr_scaling)
        self._rounds = 0.0  # that the updates so far make up
        self._uneven = False  # whether some of them were smaller than a round
        self._pieces = pieces_of(layout, spec)
        self._tensors = [nn.Parameter(view) for view in self._views(self.flat)]
        self.optimizer = make_optimizer(spec, self._pieces, self._tensors)
        self._every = spec.scheduler_every
        self._scheduler = make_scheduler(spec, self.optimizer)
        self._bare_step = bare_step(self.optimizer)
        self.learning_rate = float(self.optimizer.param_groups[0]["lr"])
        stale = options.stale if spec.stale is None else spec.stale
        self._correction, why = self._make_correction(spec, options._replace(stale=stale))
        self.rule = UpdateRule(
            spec.kind.__name__,
            lr_scaling if self._correction is not None and lr_scaling == "auto" else self._scaling,
            "none" if self._correction is None else self._correction.description,
            why,
        )

    def _make_correction(self, spec: OptimizerSpec, options: UpdateOptions) -> tuple[Correction | None, str]:
        """How stale gradients are made up for; None: not at all, and why."""
        stale = options.stale
        if stale not in STALE:
            raise ConfigurationError(f"unknown stale {stale!r}; there are: {', '.join(STALE)}")
        if not options.may_be_stale:
            return None, NOT_STALE
        if stale == "none":
            return None, NOT_WANTED
        why = refusal(spec.kind, self.optimizer.param_groups, self.layout.dtype)
        if not self._pieces:
            why = "the optimizer has no parameters"
        if why and stale == "correct":
            raise ConfigurationError(f"stale='correct' is impossible: {why}. stale='auto' takes it as it is")
        if why:
            return None, why
        if self._scheduler is not None:
            self._bare_step()  # without a gradient it does nothing, and no schedule complains that it came first
        return Correction(self.flat, self.layout, spec, self.optimizer, options.lr_scaling), ""

    @property
    def corrects(self) -> bool:
        """Whether a contribution must come with the parameters that its gradient was computed on."""
        return self._correction is not None

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Every parameter by its name, as it is now."""
        return views(self.flat, self.layout.parameters)

    @property
    def digest(self) -> int:
        """A number that changes with the parameters: a checksum of some of them, so that it costs next to nothing."""
        sampled = self.flat[:: max(1, self.flat.numel() // DIGESTED)].contiguous()
        return zlib.crc32(sampled.view(torch.uint8).numpy().tobytes())

    def state(self) -> dict[str, Any]:
        """All that decides the next update, beside the parameters; its tensors are not copies."""
        return {
            "version": self.version,
            "samples": self.samples,
            "epoch_samples": self.epoch_samples,
            "rounds": self._rounds,
            "uneven": self._uneven,
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self._scheduler is None else self._scheduler.state_dict(),
            "correction": None if self._correction is None else self._correction.state(),
        }

    def resume(self, flat: Tensor, state: dict[str, Any]) -> None:
        """Go on where another store stopped; this one is fresh, and of the same model and optimizer."""
        self.flat.copy_(flat)
        self.version, self.samples, self.epoch_samples = state["version"], state["samples"], state["epoch_samples"]
        self._rounds, self._uneven = state["rounds"], state["uneven"]
        self.optimizer.load_state_dict(state["optimizer"])
        if self._scheduler is not None:
            self._scheduler.load_state_dict(state["scheduler"])
        if self._correction is not None:
            self._correction.resume(state["correction"])
        self.learning_rate = float(self.optimizer.param_groups[0]["lr"])

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
        samples = sum(contribution.samples for contribution in contributions)
        share = samples / samples_per_round
        if self._correction is None:
            # In the order of their samples: the sum shall not hang on who came first.
            gradient, seen = combine(sorted(contributions, key=_place), rate)
            self._step(gradient, share)
        else:
            seen = None if rate is None else statistics_of(contributions, rate)
            self._correction.step(contributions, min(1.0, share))
            for worker in departed:
                self._correction.forget(worker)
        self.version += 1
        self.samples += samples
        self._schedule(samples)
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
        state = self.optimizer.state.get(self._tensors[0], {})
        seen = next((state[name] for name in ("exp_avg_sq", "square_avg", "exp_inf") if name in state), None)
        if seen is None:
            return None
        looked_at = seen.flatten()[:: -(-seen.numel() // LOOKED_AT)].double()
        squares = looked_at.square() if "exp_inf" in state else looked_at
        if "exp_avg_sq" in state:
            squares = squares / (1 - group["betas"][1] ** self._rounds)
        size = float((squares / (squares.sqrt() + group["eps"])).sum() / squares.sum())
        return self.learning_rate * size if math.isfinite(size) else None

    def _step(self, gradient: Tensor, share: float) -> None:
        """One step of the optimizer, at the rate that an update of this share of a round has."""
        for parameter, piece in zip(self._tensors, self._views(gradient), strict=True):
            parameter.grad = piece
        share = 1.0 if self._scaling == "none" else min(1.0, share)
        self._rounds += share
        self._uneven = self._uneven or share < 1
        if self._uneven and self._scaling == "sqrt":
            self._count_rounds(share)
        if share == 1.0:
            self._bare_step()
        else:
            self._scaled_step(share)
        for parameter in self._tensors:
            parameter.grad = None  # it lies in the memory of a process, which may be gone soon

    def _count_rounds(self, share: float) -> None:
        """Adam divides by 1 - beta ** step: with betas of this share, so many steps of it as make up all rounds."""
        for state in self.optimizer.state.values():
            if "step" in state:
                state["step"].fill_(self._rounds / share - 1)

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

    def _views(self, flat: Tensor) -> list[Tensor]:
        if len(self._pieces) == 1 and self._pieces[0].size == flat.numel():
            return [flat]
        return [flat[piece.begin : piece.begin + piece.size].view(piece.shape) for piece in self._pieces]

    def _schedule(self, samples: int) -> None:
        """Step the schedule once for every stretch of samples that this update completed."""
        if self._scheduler is None:
            return
        every = self._every or self.epoch_samples
        if every is None:
            raise ConfigurationError(
                "a scheduler counts epochs of worker.batches(dataset, ...); with batches of your own give"
                " scheduler_every, in samples"
            )
        for _ in range(self.samples // every - (self.samples - samples) // every):
            try:
                self._scheduler.step()
            except ValueError as problem:
                raise ConfigurationError(f"the scheduler cannot go on: {problem}") from None
        self.learning_rate = float(self.optimizer.param_groups[0]["lr"])


def _place(contribution: Contribution) -> tuple[int, ...]:
    first = contribution.units[0] if contribution.units else None
    return (contribution.worker,) if first is None else (first.epoch, first.part, first.begin)
