"""A worker's model and the segment that it shares with the server: gradients go out, parameters come in.

On the CPU the model lives in the segment: its parameters are views of it, and a pull costs the worker nothing. On any
other device it stays there, and both directions are a copy through the segment, which is pinned for CUDA. So are those
of parameters of another type than the segment's, in a model that has several.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from paceline.training.early import PIECE, EarlyGradients, WayAhead, crosses_as_it_is
from paceline.training.layout import Segment, squared_norm, views

LONG = 1 << 15  # numbers of a gradient, on average, from which on a copy takes longer than a look at each


class Replica:
    def __init__(self, model: nn.Module, segment: Segment, *, staged: bool | None = None) -> None:
        """Put the model's state into the segment. `staged`: copy in both directions; None: as the device needs."""
        self.parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self.segment = segment
        device = next(iter(self.parameters.values())).device
        self._staged = device.type != "cpu" if staged is None else staged
        self._incoming = views(segment.parameters, segment.layout.parameters)
        self._slots = views(segment.gradient, segment.layout.parameters)
        self._frozen = {name: parameter for name, parameter in model.named_parameters() if not parameter.requires_grad}
        self._owners = {name: model.get_submodule(name.rpartition(".")[0]) for name, _ in model.named_buffers()}
        if device.type == "cuda":
            _pin(segment.memory)
        self._slot_list = list(self._slots.values())
        self._on_device = list(self.parameters.values())
        self._copied: list[tuple[Tensor, Tensor]] = []  # parameters that are no part of the segment, and where they lie
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                incoming = self._incoming[name]
                incoming.copy_(parameter)
                if self._staged or parameter.dtype != incoming.dtype:
                    self._copied.append((parameter, incoming))
                else:
                    parameter.data = _alone(incoming)
            for name, other in self._others():
                segment.others[name].copy_(other)
                if not self._staged:
                    other.data = _alone(segment.others[name])

    def _others(self) -> Iterator[tuple[str, Tensor]]:
        """Frozen parameters and buffers. A model may assign a buffer anew at any time, so it is asked each time."""
        yield from self._frozen.items()
        for name, owner in self._owners.items():
            yield name, getattr(owner, name.rpartition(".")[2])

    def early(self, way: WayAhead) -> EarlyGradients | None:
        """Gradients that go this way as soon as they are made; None: they are too few, or not in this host's memory."""
        if self._staged or self.segment.gradient.nbytes < 2 * PIECE:
            return None
        return EarlyGradients(self._on_device, self._slot_list, way)

    def lend(self, way: WayAhead) -> float | None:
        """Let the next push take the gradients from where they are, and not from the segment.

        Returns the squared norm of all together; None: they have to be handed in. That is so for many small ones, too:
        to look at each by itself would take longer than to copy them.
        """
        dtype = self.segment.gradient.dtype
        own = [gradient for parameter in self._on_device if (gradient := parameter.grad) is not None]
        long = self.segment.gradient.numel() >= LONG * len(self._on_device)
        whole = len(own) == len(self._on_device) and all(crosses_as_it_is(gradient, dtype) for gradient in own)
        if self._staged or not (long and whole):
            return None
        norm = math.fsum(squared_norm(gradient.view(-1)) for gradient in own)
        if not math.isfinite(norm) or not way.lend(own):
            return None
        with torch.no_grad():
            self._copy_others()
        return norm

    def absent(self) -> tuple[int, ...]:
        """The numbers of the parameters that have no gradient: the loss does not hang on them."""
        return tuple(number for number, parameter in enumerate(self._on_device) if parameter.grad is None)

    def hand_in(self, absent: tuple[int, ...] = (), there: Collection[int] = ()) -> float | None:
        """Copy the gradients, and what the model keeps in buffers, into the segment; of those that are absent, zeros.

        `there`: the numbers of the parameters whose gradients lie in the segment already. Returns the squared norm of
        the whole gradient; None: it is not finite. One pass finds out both.
        """
        parameters, slots = self._on_device, self._slot_list
        if absent or there:
            wanted = [number for number in range(len(slots)) if number not in absent and number not in there]
            parameters, slots = [parameters[number] for number in wanted], [slots[number] for number in wanted]
        gradients = [_dense(parameter.grad) for parameter in parameters if parameter.grad is not None]
        with torch.no_grad():
            for number in absent:
                self._slot_list[number].zero_()
            if slots:
                torch._foreach_copy_(slots, gradients, non_blocking=self._staged)
            self._copy_others()
            if self._staged:
                _synchronize(self._on_device[0].device)
        norm = squared_norm(self.segment.gradient)
        # The squares of finite numbers may overflow, so this only raises a suspicion.
        return norm if math.isfinite(norm) or self.not_finite() is None else None

    def _copy_others(self) -> None:
        for name, other in self._others():
            held = self.segment.others[name]
            if other.data_ptr() != held.data_ptr():
                held.copy_(other, non_blocking=self._staged)

    def not_finite(self) -> str | None:
        """The name of a parameter whose gradient is not finite."""
        return next((name for name, slot in self._slots.items() if not torch.isfinite(slot).all()), None)

    def take(self) -> None:
        """Take over the parameters that the server has put into the segment."""
        if self._copied:
            with torch.no_grad():
                for parameter, incoming in self._copied:
                    parameter.copy_(incoming, non_blocking=self._staged)
                _synchronize(self._on_device[0].device)

    def take_others(self) -> None:
        """Take over buffers and frozen parameters as well: a worker that joins late starts with the group's."""
        for name, other in self._others():
            if other.data_ptr() != self.segment.others[name].data_ptr():
                other.data.copy_(self.segment.others[name])


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def _pin(memory: Tensor) -> None:
    """Lock the segment's pages, so that the GPU copies to and from them directly."""
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    torch.cuda.check_error(runtime.cudaHostRegister(memory.data_ptr(), memory.numel(), 0))


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _alone(view: Tensor) -> Tensor:
    """The same memory as a storage of its own: torch.save writes the whole storage of a tensor, here the segment, and
    refuses one that holds several types."""
    if not view.numel():
        return view
    stretch = view.reshape(-1).view(torch.uint8).numpy()
    return torch.from_numpy(stretch).view(view.dtype).view(view.shape)
