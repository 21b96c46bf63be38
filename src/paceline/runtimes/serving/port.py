"""The port of a run with processes: carries out the commands of a lifecycle on processes, their segments and the store.

A worker's segment is written only while that worker waits, so a pull is one version by construction, without locks. A
gradient stays in its slot until its fate is decided; a worker that goes on before that has its gradient set aside.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from paceline.core.errors import ConfigurationError, PacelineError
from paceline.core.messages import Answered, Ask, Follow, UpdateApplied, UpdateRule
from paceline.lifecycle.lifecycle import Lifecycle
from paceline.lifecycle.messages import (
    BeginGroup,
    Discard,
    Dismiss,
    EndProcess,
    GiveUp,
    Interrupt,
    Lease,
    MakeUpdate,
    Place,
    Release,
    SetAside,
    StartProcess,
)
from paceline.lifecycle.validation import PortView
from paceline.runtimes.serving import messages as sent
from paceline.runtimes.serving.holding import Holding, Store
from paceline.runtimes.serving.launching import Launches, Started
from paceline.runtimes.serving.loop import Loop
from paceline.runtimes.serving.memory import map_segment, pack, path_of, unpack_from
from paceline.runtimes.serving.meter import Meter
from paceline.training.aggregation import Aggregation
from paceline.training.checkpoint import Checkpoint, saved_parameters
from paceline.training.choices import UpdateOptions
from paceline.training.layout import Layout, Segment, average, averaged_into, difference
from paceline.training.optimizers import OptimizerSpec, spec_difference
from paceline.training.parameters import ParameterStore


class WorkerFailedError(PacelineError):
    """A worker's function raised, or its process died; the message says which, and why the run cannot go on."""


class WorkerFailedWarning(UserWarning):
    """A worker's function raised, and the others go on; the message is its traceback."""


class Wanted(NamedTuple):
    """The optimizer, as a process wants it."""

    spec: bytes  # a pickled OptimizerSpec
    state: str | None  # where the parcel lies with what it begins with


class ProcessPort:
    def __init__(
        self,
        lifecycle: Lifecycle,
        launcher: Launches,
        loop: Loop,
        *,
        updates: UpdateOptions,
        statistics: bool,
        started: Callable[[Started], None],
        begun: Callable[[UpdateRule], None],
        ask: Callable[[Ask], Answered | None],
        rule_under: Callable[[Follow], UpdateRule],
        resumed: Checkpoint | None = None,
    ) -> None:
        """`started`: called with every new process; `begun`: when the group begins, with how updates are made;
        `ask`: finds answers; `rule_under`: how updates are made under a policy; `resumed`: what it goes on from."""
        self.aggregation: Holding | None = None  # once the group has begun
        self.processes: dict[int, Started] = {}
        self.wake_time: float | None = None
        self._lifecycle = lifecycle
        self._launcher = launcher
        self._loop = loop
        self._updates = updates
        self._statistics = statistics
        self._on_start = started
        self._on_begin = begun
        self.ask, self.rule_under = ask, rule_under
        self.meter = Meter(loop)
        self._segments: dict[int, Segment] = {}  # of the processes whose model is here
        self._optimizers: dict[int, Wanted] = {}  # by seat
        self._states: dict[int, int] = {}  # by seat: the parcel with the optimizer's state that it asked for
        self._buffers: dict[int, Mapping[str, Tensor]] = {}  # of processes that trained and have ended
        self._resumed = resumed
        self._elsewhere = launcher.elsewhere  # the processes that hold the parameters; None: this one
        self.told: dict[int, bytes] = {}  # by seat: what only its worker knows, as of its latest push
        self._told_others: dict[int, Mapping[str, Tensor]] = {}  # and its buffers at that time
        self._places: dict[int, Place] = {}  # by seat: which its process was told
        self._words: dict[int, bytes] = {}  # that belong to a push which is not here yet
        self._asks = False
        self._rates: dict[int, tuple[float, ...]] = {}  # by seat: the learning rates that it knows
        if resumed is not None:
            here = {seat.index for seat in lifecycle.seats.values() if seat.away}
            others = resumed.training["others"]
            self._buffers = {seat: buffers for seat, buffers in others.items() if seat not in here}

    def attach(self, redeliver: Callable[[int, sent.ToServer], None], deliver: Callable[[UpdateApplied], None]) -> None:
        """The loop begins; as in Elsewhere."""

        def updated(event: UpdateApplied) -> None:
            self.meter.updated()
            deliver(event)

        if self._elsewhere is not None:
            self._elsewhere.attach(self._loop, redeliver, updated)

    @property
    def store(self) -> Store:
        assert self.aggregation is not None
        return self.aggregation.store

    # -- processes --

    def start_process(self, command: StartProcess) -> None:
        process = self._launcher.start_worker(command.seat)
        self.processes[command.seat] = process
        self.meter.wire.watch(command.seat, process.channel)
        self._on_start(process)

    def take_model(self, seat: int, layout: Layout, optimizer: bytes, state: str | None = None) -> None:
        """A model lies in the segment of this process. If the group has begun, it gets the group's buffers. `state`:
        where that of its optimizer lies, to begin with."""
        self._segments[seat] = map_segment(self.processes[seat].descriptor, layout)
        self._optimizers[seat] = Wanted(optimizer, state)
        if self.aggregation is not None:
            self._compare(seat, self.store.layout, "the others'")
            self._compare_optimizers(seat, self.store.spec, "the others'")
            averaged_into(self._segments[seat], self.replicas())
        elif self._resumed is not None:
            averaged_into(self._segments[seat], list(self._resumed.training["others"].values()))
        if self._resumed is not None and self._lifecycle.seats[seat].away:
            for name, tensor in self._resumed.training["others"].get(seat, {}).items():
                if name in self._segments[seat].others:
                    self._segments[seat].others[name].copy_(tensor)

    def is_complete(self, seat: int, message: sent.ToServer) -> bool:
        """Whether all that belongs to what a process said is here; if not, it will be said again when it is."""
        return self._elsewhere is None or self._elsewhere.is_complete(seat, message)

    def take_gradient(self, seat: int, squared_norm: float | None, absent: tuple[int, ...] = ()) -> None:
        assert self.aggregation is not None
        segment = self._segments[seat]
        self.aggregation.hand_in(seat, segment.gradient, squared_norm, segment.parameters, absent)

    def close_process(self, seat: int) -> int | None:
        """A process has ended: let go of its memory and descriptors. Its buffers count as long as the group's do."""
        process = self.processes.pop(seat)
        self._optimizers.pop(seat, None)
        self._words.pop(seat, None)
        self._places.pop(seat, None)
        self._rates.pop(seat, None)
        self._forget_state(seat)
        self.meter.forget(seat)
        segment = self._segments.pop(seat, None)
        if segment is not None and self.aggregation is not None:
            self.aggregation.forget(seat)
            self._buffers[seat] = _copies(segment.others)
        trained = self._lifecycle.trained
        if trained:
            self._buffers = {seat: buffers for seat, buffers in self._buffers.items() if seat in trained}
        if self._elsewhere is not None:
            self._elsewhere.forget(seat)
        self._loop.forget(process.ended)
        self._loop.forget_channel(process.channel)
        return self._launcher.close(process)

    def stop_all(self) -> None:
        if self._elsewhere is not None and self._elsewhere.is_lost:
            self.aggregation = None  # there is nothing to ask for any more
        for process in self.processes.values():
            self._loop.send(process.channel, sent.Stop())

    def close(self) -> None:
        """Let go of the memory that is shared with processes."""
        self._segments.clear()
        for seat in list(self._states):
            self._forget_state(seat)
        self.aggregation = None

    # -- the optimizer's state --

    def hand_over_state(self, seat: int, wanted: bool) -> None:
        """Into a parcel that stays until the process has it, and wants it no longer."""
        self._forget_state(seat)
        if not wanted:
            return
        self._states[seat] = pack(self.store.optimizer_state())
        self._tell(seat, sent.StateReady(path_of(self._states[seat])))

    def _forget_state(self, seat: int) -> None:
        parcel = self._states.pop(seat, None)
        if parcel is not None:
            os.close(parcel)

    # -- commands --

    def begin_group(self, command: BeginGroup) -> None:
        first = self._segments[command.seats[0]]
        for seat in command.seats[1:]:
            self._compare(seat, first.layout, f"that of worker {command.seats[0]}")
        wanted = self._optimizers[command.seats[0]]
        spec: OptimizerSpec = pickle.loads(wanted.spec)
        for seat in command.seats[1:]:
            if self._optimizers[seat].spec != wanted.spec:
                self._compare_optimizers(seat, spec, f"that of worker {command.seats[0]}")
        if wanted.state is not None and self._resumed is None:
            spec = spec._replace(state=unpack_from(wanted.state))
        self.aggregation = self._hold(command.seats[0], first, spec)
        if self._resumed is not None:
            others = self._resumed.training["others"]
            self._resumed = self._resumed._replace(model={}, training={"others": others})  # the rest is in use
        self._loop.short_wait.parameters = first.layout.parameter_count
        self._on_begin(self.store.rule_for(statistics=self._statistics))

    def _hold(self, seat: int, first: Segment, spec: OptimizerSpec) -> Holding:
        """The parameters that the group begins with, or goes on from."""
        layout, saved = first.layout, self._resumed
        flat = None if saved is None else saved_parameters(layout, saved)
        try:
            if self._elsewhere is not None:
                resumed = None
                if flat is not None and saved is not None:
                    resumed = flat, saved.training["store"], saved.training["pending"]
                return self._elsewhere.begin(
                    layout,
                    spec,
                    self._updates,
                    statistics=self._statistics,
                    first=seat,
                    hand_over=lambda: self._tell(seat, sent.HandOver()),
                    has_ended=lambda: self.processes[seat].process.exitcode is not None,
                    resumed=resumed,
                )
            store = ParameterStore(layout, first.parameters, spec, self._updates)
            aggregation = Aggregation(store, statistics=self._statistics)
            if flat is not None and saved is not None:
                store.resume(flat, saved.training["store"])
                aggregation.resume(saved.training["pending"])
        except (ValueError, KeyError, TypeError) as problem:
            if saved is None:
                raise
            raise ConfigurationError(f"the checkpoint is of another optimizer: {problem}") from None
        return aggregation

    def _compare_optimizers(self, seat: int, spec: OptimizerSpec, whose: str) -> None:
        found = spec_difference(spec, pickle.loads(self._optimizers[seat].spec))
        if found:
            raise ConfigurationError(f"the optimizer of worker {seat} differs from {whose}: {found}")

    def _compare(self, seat: int, layout: Layout, whose: str) -> None:
        if self._segments[seat].layout != layout:
            found = difference(layout, self._segments[seat].layout)
            raise ConfigurationError(f"the model of worker {seat} differs from {whose}: {found}")

    def release(self, command: Release) -> None:
        assert self.aggregation is not None
        aggregation, seat = self.aggregation, command.seat
        self.meter.pull(seat, lambda: aggregation.hand_out(seat, self._segments[seat]))
        place, rates = self._new_place(command.seat), self._news_of_rates(command.seat)
        if command.requested:
            self._tell(command.seat, sent.Leased(command.unit, True, command.ahead, place, rates))
        else:
            go = sent.Go(command.unit, self._asks, command.ahead, place, command.enough, rates)
            self._tell(command.seat, go)

    def _new_place(self, seat: int) -> Place | None:
        """None: it knows it already."""
        place = self._lifecycle.place_of(seat)
        if self._places.get(seat, Place()) == place:
            return None
        self._places[seat] = place
        return place

    def _news_of_rates(self, seat: int) -> tuple[float, ...]:
        """Those in force, if the process does not know them yet."""
        rates = self.store.rates
        if self._rates.get(seat) is rates:
            return ()
        self._rates[seat] = rates
        return rates

    def lease(self, command: Lease) -> None:
        opened = self._lifecycle.samples.opened
        if self.store.epoch_samples is None and opened is not None:
            self.store.open(opened)
        # Before the first update only: which rates a loop sees shall not hang on when it asks for batches.
        rates = () if self.store.version else self._news_of_rates(command.seat)
        self._tell(command.seat, sent.Leased(command.unit, ahead=command.ahead, rates=rates))

    def interrupt(self, command: Interrupt) -> None:
        """Its segment must not be written while it computes: it says when it has stopped, and is served then."""
        self._tell(command.seat, sent.Interrupt())

    def dismiss(self, command: Dismiss) -> None:
        self._tell(command.seat, sent.Stop())

    def end_process(self, command: EndProcess) -> None:
        """Its end will be seen."""
        process = self.processes.get(command.seat)
        if process is not None:
            process.process.kill()

    def _tell(self, seat: int, message: sent.ToWorker) -> None:
        process = self.processes.get(seat)
        if process is not None:
            self._loop.send(process.channel, message)

    def make_update(self, command: MakeUpdate) -> UpdateApplied | None:
        assert self.aggregation is not None
        aggregation = self.aggregation
        return self.meter.update(len(command.parts), lambda: aggregation.make_update(command))

    def set_aside(self, command: SetAside) -> None:
        assert self.aggregation is not None
        self.aggregation.set_aside(command.gradient, command.seat, command.version)

    def discard(self, command: Discard) -> None:
        assert self.aggregation is not None
        self.aggregation.discard(command.gradient, command.seat)

    def give_up(self, command: GiveUp) -> None:
        if self._elsewhere is not None:
            self._elsewhere.look_closely()
        raise WorkerFailedError(command.reason)

    def wake_at(self, time: float) -> None:
        self.wake_time = time

    def view(self) -> PortView:
        return PortView() if self.aggregation is None else self.aggregation.view()

    # -- checkpoints --

    def ask_what_they_know(self) -> None:
        """From now on every push comes with what only its worker knows."""
        self._asks = True

    def take_word(self, seat: int, state: bytes) -> None:
        """A worker tells what it knows; its push comes next."""
        self._words[seat] = state

    def take_note(self, seat: int) -> None:
        """A worker has pushed, and waits, so that its buffers hold still: what it told belongs to this moment."""
        word = self._words.pop(seat, None)
        if word is not None and self._asks:
            self.told[seat] = word
            self._told_others[seat] = _copies(self._segments[seat].others)

    def enough(self) -> None:
        self._asks = False
        self.told.clear()
        self._told_others.clear()

    def kept(self) -> dict[str, Any]:
        """All that a checkpoint holds beside the model: a tree, whose tensors are not copies."""
        assert self.aggregation is not None
        progress, members = self._lifecycle.coordinator.progress, self._lifecycle.members
        pending = [
            (gradient, members[gradient.worker].index) if gradient.worker in members else (gradient, -1)
            for gradient in progress.pending
        ]
        held = {seat: segment.others for seat, segment in self._segments.items()}
        store, held_back = self.aggregation.everything(pending)
        return {
            "store": store,
            "pending": held_back,
            "others": self._buffers | held | self._told_others,
            "workers": dict(self.told),
        }

    # -- the model --

    def replicas(self) -> Sequence[Mapping[str, Tensor]]:
        """The buffers of the group as it is now; if nobody is left, of all that there were."""
        held = self._buffers | {seat: segment.others for seat, segment in self._segments.items()}
        trained = [held[seat] for seat in self._lifecycle.trained if seat in held]
        return trained or list(self._buffers.values()) or list(held.values())

    def model_state(self) -> dict[str, Tensor]:
        """What state_dict() of the model would be: the store's parameters, and the average of the workers' buffers."""
        layout = self.store.layout
        tensors = {name: tensor.clone() for name, tensor in self.store.parameters.items()}
        tensors |= average(self.replicas(), layout.averaged)
        return {key: tensors[name] for key, name in layout.keys}


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}
