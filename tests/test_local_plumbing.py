"""What a local run is plumbed with: messages over pipes, memory that processes share, the control pipe, and paces."""

from __future__ import annotations

import contextlib
import math
import mmap
import multiprocessing
import os
import select
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import torch
from fake_link import store_of
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from paceline.core.errors import ConfigurationError
from paceline.recording.progress_log import Evaluation
from paceline.runtimes.local.launcher import Launcher
from paceline.runtimes.pace import Pace
from paceline.runtimes.serving import control as control_module
from paceline.runtimes.serving.channel import AT_ONCE, Channel, ClosedError, ShortWait
from paceline.runtimes.serving.control import (
    ANSWER,
    PIPE,
    Asked,
    Control,
    Refused,
    Scale,
    Scaled,
    Stopping,
    Switch,
    Switched,
    ask,
)
from paceline.runtimes.serving.control import Stop as StopRequest
from paceline.runtimes.serving.evaluator import Evaluations
from paceline.runtimes.serving.launching import Started
from paceline.runtimes.serving.loop import Loop
from paceline.runtimes.serving.memory import SMALL, create, map_segment, pack, unpack
from paceline.runtimes.serving.messages import (
    Evaluate,
    Evaluated,
    Failed,
    Finished,
    FromEvaluator,
    Push,
    Stop,
    ToServer,
)
from paceline.runtimes.speeds import Constant, Lognormal, Recorded, Slowdown
from paceline.training.layout import layout_of
from paceline.training.replica import Replica

# -- channels --


class Note(msgspec.Struct, frozen=True):
    text: str


Ends = tuple[Channel[Note, Note], Channel[Note, Note]]


@pytest.fixture
def ends() -> Iterator[Ends]:
    (one_reads, other_writes), (other_reads, one_writes) = os.pipe(), os.pipe()
    both = Channel[Note, Note](one_reads, one_writes, Note), Channel[Note, Note](other_reads, other_writes, Note)
    yield both
    for each in both:
        each.close()


def raw_channel() -> tuple[Channel[Note, Note], int]:
    """A channel and the descriptor that writes to it, byte by byte if one likes."""
    reading, writing = os.pipe()
    return Channel[Note, Note](reading, -1, Note), writing


def test_messages_arrive_in_their_order_several_at_once(ends: Ends) -> None:
    one, other = ends
    assert other.received() == [] and not other.has_message()
    notes = [Note(text) for text in ("first", "zwölf\nzeilen", "")]
    for note in notes:
        one.send(note)
    assert other.has_message() and other.has_message(10.0)
    assert other.receive() == notes[0]
    assert other.received() == notes[1:]
    assert other.received() == []
    other.send(Note("back"))
    assert one.receive() == Note("back")


def test_a_message_cut_into_pieces_is_put_together() -> None:
    channel, writing = raw_channel()
    for byte in b'{"text":"slow"}':
        os.write(writing, bytes([byte]))
        assert channel.received() == [] and not channel.has_message()
    os.write(writing, b'\n{"text":"next"}\n{"te')
    assert channel.received() == [Note("slow"), Note("next")]
    os.write(writing, b'xt":"last"}\n')
    assert channel.receive() == Note("last")
    os.close(writing)
    channel.close()


def test_what_was_sent_before_the_other_side_closed_still_arrives() -> None:
    channel, writing = raw_channel()
    os.write(writing, b'{"text":"last words"}\n{"text":"cut o')
    os.close(writing)
    assert channel.received() == [Note("last words")]
    assert channel.has_message() and channel.has_message(10.0)  # the end: nobody waits for it
    for read in (channel.received, channel.receive):
        with pytest.raises(ClosedError):
            read()
    channel.close()


def test_who_sends_to_a_closed_side_is_told(ends: Ends) -> None:
    one, other = ends
    other.close()
    other.close()
    with pytest.raises(ClosedError):
        one.send(Note("anybody?"))
    with pytest.raises(ClosedError):
        one.receive()


@pytest.mark.parametrize("size", [AT_ONCE - 1, AT_ONCE, 10 * AT_ONCE + 17])
def test_a_message_larger_than_the_pipe_arrives_whole(ends: Ends, size: int) -> None:
    one, other = ends
    notes = [Note("x" * size), Note("after"), Note("y" * size)]
    sender = threading.Thread(target=lambda: [one.send(note) for note in notes])
    sender.start()
    assert other.receive() == notes[0]
    arrived: list[Note] = []
    while len(arrived) < 2:
        if other.has_message(10.0):
            arrived += other.received()
    sender.join()
    assert arrived == notes[1:]


def test_a_channel_can_be_waited_for_among_others(ends: Ends) -> None:
    one, other = ends
    waiter = threading.Thread(target=lambda: one.send(Note("now")))
    waiter.start()
    assert other.has_message(10.0) and other.receive() == Note("now")
    waiter.join()


def test_messages_of_a_union_are_told_apart_and_unknown_losses_are_allowed() -> None:
    reading, writing = os.pipe()
    channel = Channel[ToServer, ToServer](reading, writing, ToServer)
    messages: list[ToServer] = [Push(1, 8, 1, None, 2.5), Push(2, 8, 2, 0.5, None), Failed("a\nb"), Finished()]
    for message in messages:
        channel.send(message)
    assert channel.received() == messages
    channel.close()


class OneEvaluator:
    """A launcher whose evaluator is the test itself, at the other end of the pipes."""

    def __init__(self) -> None:
        (self.server_reads, its_writes), (its_reads, self.server_writes) = os.pipe(), os.pipe()
        self.its_end = Channel[Evaluate | Stop, Evaluated | Failed](its_reads, its_writes, Evaluate | Stop)
        self.descriptor, self.ended = create(), os.pidfd_open(os.getpid())

    def start_evaluator(self) -> Started:
        channel = Channel[Any, Any](self.server_reads, self.server_writes, FromEvaluator, patient=False)
        return Started(0, multiprocessing.current_process(), channel, self.descriptor, self.ended)

    def close(self) -> None:
        self.its_end.close()
        for descriptor in (self.server_reads, self.server_writes, self.descriptor, self.ended):
            os.close(descriptor)


@pytest.fixture
def evaluator() -> Iterator[OneEvaluator]:
    launcher = OneEvaluator()
    yield launcher
    launcher.close()


@pytest.mark.parametrize("figure", [float("nan"), float("inf"), float("-inf")])
def test_figures_of_a_model_that_diverged_come_back_from_the_evaluator(evaluator: OneEvaluator, figure: float) -> None:
    store, loop, found = store_of(nn.Linear(2, 1), lr=0.1), Loop(), list[Evaluation]()
    evaluations = Evaluations(cast(Launcher, evaluator), loop, found.append, 10)
    evaluations.start()
    assert not evaluations.last_is_known(store, list, 1.5)
    assert not evaluations.last_is_known(store, list, 2.5)  # it is asked once
    assert evaluator.its_end.received() == [Evaluate(store.layout)]
    evaluator.its_end.send(Evaluated({"accuracy": 0.1, "loss": figure}))
    loop.turn(10.0)
    loop.close()
    assert evaluations.last_is_known(store, list, 3.5)
    assert [(each.seconds, each.version, each.figures["accuracy"]) for each in found] == [(1.5, 0, 0.1)]
    assert not math.isfinite(found[0].figures["loss"])


def test_an_evaluator_that_does_not_read_holds_nobody_up(evaluator: OneEvaluator) -> None:
    """The description of a large model is more than a pipe holds."""
    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(2000)))
    store, loop, found = store_of(model, lr=0.1), Loop(), list[Evaluation]()
    evaluations = Evaluations(cast(Launcher, evaluator), loop, found.append, 10)
    evaluations.start()
    assert len(msgspec.json.encode(store.layout)) > AT_ONCE
    assert not evaluations.last_is_known(store, list, 1.5)  # comes back at once, though nobody reads
    while not (arrived := evaluator.its_end.received()):
        loop.turn(10.0)
    assert arrived == [Evaluate(store.layout)]
    loop.close()


def test_a_side_that_never_waits_keeps_what_the_pipe_does_not_take() -> None:
    reading, writing = os.pipe()
    one, other = Channel[Note, Note](-1, writing, Note, patient=False), Channel[Note, Note](reading, -1, Note)
    loop, notes = Loop(), [Note(f"{number} " + "x" * 1000) for number in range(200)]
    for note in notes:
        loop.send(one, note)
    assert one.has_unsent
    arrived: list[Note] = []
    while len(arrived) < len(notes):
        arrived += other.received()
        if one.has_unsent:
            loop.turn(10.0)
    assert arrived == notes and not one.has_unsent
    other.close()
    loop.send(one, notes[0])  # to a dead side: nothing happens, and nothing is kept
    assert not one.has_unsent
    one.close()
    loop.close()


def test_a_source_that_an_earlier_call_of_the_same_turn_closed_is_not_called() -> None:
    loop, called = Loop(), list[int]()
    pipes = [os.pipe(), os.pipe()]
    readers = [reading for reading, _ in pipes]

    def call(number: int) -> None:
        called.append(number)
        loop.forget(readers[1 - number])

    for number, (reading, writing) in enumerate(pipes):
        loop.watch(reading, partial(call, number))
        os.write(writing, b"x")
    loop.turn(10.0)
    assert len(called) == 1
    loop.interrupted = True
    loop.turn(0.0)
    assert len(called) == 1
    loop.close()
    for descriptor in (*pipes[0], *pipes[1]):
        os.close(descriptor)


def test_waiting_is_short_where_answers_are_quick_and_sleeps_at_once_where_they_are_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ShortWait, "LONGEST", 0.0)
    asked = 0

    def never() -> bool:
        nonlocal asked
        asked += 1
        return False

    wait = ShortWait()
    wait.parameters = ShortWait.SMALL
    assert wait.pays_off(lambda: True)
    assert not wait.pays_off(never)
    for _ in range(ShortWait.TRY_AGAIN):
        asked = 0
        assert not wait.pays_off(never) and asked == 1
    answers = iter([False, True])
    monkeypatch.setattr(ShortWait, "LONGEST", 60.0)
    assert wait.pays_off(lambda: next(answers))  # it tries again, and looks more than once
    wait.parameters += 1  # a larger model: it looks once, and sleeps
    answers = iter([False, True])
    assert not wait.pays_off(lambda: next(answers))


# -- parcels --


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(20, 20), nn.Linear(20, 20)
        self.second.weight = self.first.weight
        self.register_buffer("table", torch.arange(100.0))
        self.register_buffer("again", self.table)


def carried(content: Any) -> Any:
    descriptor = pack(content)
    try:
        return unpack(descriptor)
    finally:
        os.close(descriptor)


def test_a_data_set_comes_out_of_a_parcel_as_it_went_in() -> None:
    x, y = torch.randn(50, 3), torch.arange(50)
    found = carried(TensorDataset(x, y))
    assert torch.equal(found.tensors[0], x) and torch.equal(found.tensors[1], y)
    assert found.tensors[1].dtype == torch.int64


TENSORS = {
    "bool": torch.arange(600) % 3 == 0,
    "bfloat16": torch.randn(300).bfloat16(),
    "complex conjugate": torch.randn(100, dtype=torch.complex64).conj(),
    "turned": torch.randn(20, 30).t(),
    "a stretch": torch.randn(2000)[3:1500:7],
    "expanded": torch.randn(1, 40).expand(30, 40),
    "just large enough": torch.zeros(SMALL, dtype=torch.uint8) + 7,
    "small": torch.ones(3),
    "a scalar": torch.tensor(4.5),
    "empty": torch.zeros(0, 7),
    "sparse": torch.eye(20).to_sparse(),
    "requires grad": torch.randn(200).requires_grad_(),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_of_any_kind_comes_out_with_the_same_values(name: str) -> None:
    tensor = TENSORS[name]
    found = carried([tensor, "after"])
    assert found[1] == "after"
    assert found[0].dtype == tensor.dtype and found[0].shape == tensor.shape
    assert found[0].requires_grad == tensor.requires_grad and found[0].is_sparse == tensor.is_sparse
    assert torch.equal(found[0].to_dense(), tensor.to_dense())


def test_tied_parameters_and_buffers_stay_tied() -> None:
    model = Tied()
    found = carried(model)
    assert found.first.weight is found.second.weight and found.table is found.again
    assert isinstance(found.first.weight, nn.Parameter) and found.first.weight.requires_grad
    for key, each in model.state_dict().items():
        assert torch.equal(found.state_dict()[key], each)
    with torch.no_grad():
        found.first.weight.fill_(2.0)
    assert found.second.weight.eq(2.0).all()


def test_who_writes_into_a_tensor_of_a_parcel_writes_for_itself() -> None:
    descriptor = pack({"x": torch.zeros(5000)})
    one, other = unpack(descriptor), unpack(descriptor)
    one["x"].fill_(1.0)
    assert one["x"].eq(1.0).all() and other["x"].eq(0.0).all() and unpack(descriptor)["x"].eq(0.0).all()
    os.close(descriptor)


def test_tensors_are_not_copied_by_those_who_only_read_them() -> None:
    marked = torch.full((5000,), 0x55, dtype=torch.uint8)
    descriptor = pack(marked)
    found = [unpack(descriptor), unpack(descriptor)]
    with mmap.mmap(descriptor, 0) as memory:
        at = memory.find(b"\x55" * 5000)
        memory[at] = 0x66  # whoever has a copy does not see this
    os.close(descriptor)
    assert [int(each[0]) for each in found] == [0x66, 0x66]


def test_a_tensor_that_is_there_twice_is_packed_once() -> None:
    x = torch.zeros(100_000)
    once, twice = pack([x]), pack([x, x])
    assert os.fstat(twice).st_size - os.fstat(once).st_size < 1000
    found = unpack(twice)
    assert found[0] is found[1]
    os.close(once)
    os.close(twice)


class Unwilling:
    def __reduce__(self) -> Any:
        raise ValueError("it holds a handle")


@pytest.mark.parametrize(
    "content",
    [threading.Lock(), (number for number in ()), Unwilling()],
    ids=["a lock", "a generator", "its own error"],
)
def test_what_cannot_be_sent_to_a_process_is_refused_with_a_sentence(content: object) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ConfigurationError, match=r"this cannot be sent to a new process: .*make it inside"):
        pack({"train": content})
    assert len(os.listdir("/proc/self/fd")) == before


def test_who_maps_the_same_segment_sees_the_same_tensors() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    layout = layout_of(model)
    descriptor = create()
    worker, server = map_segment(descriptor, layout), map_segment(descriptor, layout)
    os.close(descriptor)
    Replica(model, worker)
    for key, each in model.state_dict().items():
        assert torch.equal(server.state()[key], each)
    server.parameters.fill_(0.5)
    weights: Tensor = model[0].weight  # type: ignore[assignment]
    assert weights.eq(0.5).all()


# -- the control pipe --


def test_a_running_group_hears_requests_and_answers_them(tmp_path: Path) -> None:
    control = Control(tmp_path)
    assert control.requests() == []
    answers = [Scaled(2), Switched("asp", "bsp"), Refused("no")]
    with ThreadPoolExecutor(1) as pool:
        for request, answer in zip([Scale(3), Switch("asp"), Switch("asap")], answers, strict=True):
            asking = pool.submit(ask, tmp_path, request)
            select.select([control], [], [], 10.0)
            (asked,) = control.requests()
            assert asked.request == request
            control.answer(Asked(asked.number + 1, request), Scaled(9))  # somebody else's
            control.answer(asked, answer)
            if isinstance(answer, Refused):
                with pytest.raises(ConfigurationError, match=f"{tmp_path}: no"):
                    asking.result()
            else:
                assert asking.result() == answer
    control.close()
    control.close()
    assert list(tmp_path.iterdir()) == []


def test_several_may_ask_at_the_same_time_and_each_gets_its_own_answer(tmp_path: Path) -> None:
    control, sizes = Control(tmp_path), range(1, 6)
    with ThreadPoolExecutor(len(sizes)) as pool:
        asking = {size: pool.submit(ask, tmp_path, Scale(size)) for size in sizes}
        heard: list[Asked] = []
        while len(heard) < len(sizes):
            select.select([control], [], [], 10.0)
            heard += control.requests()
        for asked in heard:
            assert isinstance(asked.request, Scale)
            control.answer(asked, Scaled(asked.request.workers))
        assert {size: answer.result() for size, answer in asking.items()} == {size: Scaled(size) for size in sizes}
    control.close()


def test_a_run_that_reads_nothing_is_too_busy_to_be_asked(tmp_path: Path) -> None:
    control = Control(tmp_path)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(control.fileno(), b"\n" * 4096)
    with pytest.raises(ConfigurationError, match="the run is too busy to be asked for anything"):
        ask(tmp_path, Scale(2))
    control.close()


def test_what_is_no_request_is_passed_over_and_one_may_come_in_pieces(tmp_path: Path) -> None:
    control = Control(tmp_path)
    descriptor = os.open(tmp_path / PIPE, os.O_WRONLY)
    os.write(descriptor, b'2\nmany\n[1,{"type":"Scale","workers":"two"}]\n\xff\n[7,{"type":"Scale",')
    assert control.requests() == []
    os.write(descriptor, b'"workers":5}]\n')
    os.close(descriptor)
    assert control.requests() == [Asked(7, Scale(5))] and control.requests() == []
    with pytest.raises(ConfigurationError, match="a request has at most 4096 bytes"):
        ask(tmp_path, Switch("a" * 5000))
    control.close()


def test_who_asks_for_what_this_version_does_not_know_is_told_so(tmp_path: Path) -> None:
    control = Control(tmp_path)
    descriptor = os.open(tmp_path / PIPE, os.O_WRONLY)
    os.write(descriptor, b'[8,{"type":"Teleport","worker":2}]\n[9,{"type":"Evict","worker":"two"}]\n[10,5]\n')
    os.close(descriptor)
    assert control.requests() == []
    [answer] = tmp_path.glob(f"{ANSWER}.*")
    told = answer.read_text()
    assert answer.name.endswith(".8") and "it is of another version of paceline, and cannot teleport" in told
    control.close()


def test_a_run_that_ends_before_it_answers_has_done_what_was_asked_if_that_was_to_stop(tmp_path: Path) -> None:
    for request in (StopRequest(), Scale(2)):
        control = Control(tmp_path)
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(ask, tmp_path, request)
            select.select([control], [], [], 10.0)
            assert [asked.request for asked in control.requests()] == [request]
            control.close()
            if isinstance(request, StopRequest):
                assert asking.result() == Stopping(ended=True)
            else:
                with pytest.raises(ConfigurationError, match=f"{tmp_path}: the run came to its end before it answered"):
                    asking.result()


def test_a_run_that_ends_in_the_moment_in_which_it_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pipe was still there to be opened."""
    write = os.write
    for request in (StopRequest(), Scale(2)):
        control = Control(tmp_path)

        def ends(descriptor: int, line: bytes, control: Control = control) -> int:
            control.close()
            return write(descriptor, line)

        monkeypatch.setattr(control_module.os, "write", ends)
        if isinstance(request, StopRequest):
            assert ask(tmp_path, request) == Stopping(ended=True)
        else:
            with pytest.raises(ConfigurationError, match="the run came to its end before it answered"):
                ask(tmp_path, request)


def test_a_pipe_that_a_killed_run_left_is_no_running_group(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / PIPE)
    with pytest.raises(ConfigurationError, match="no run is going on there"):
        ask(tmp_path, Scale(2))
    control = Control(tmp_path)  # the next run in this place takes over
    assert control.requests() == []
    control.close()


def test_a_request_to_nobody_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for directory in (tmp_path, tmp_path / "missing", tmp_path / "file"):
        with pytest.raises(ConfigurationError, match=f"{directory}: no run is going on there"):
            ask(directory, Scale(2))


def test_a_group_that_does_not_answer_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_module, "PATIENCE", 0.0)
    control = Control(tmp_path)
    control.answer(Asked(1, Scale(9)), Scaled(9))  # an old answer is none
    with pytest.raises(ConfigurationError, match="the run did not answer within 0 seconds"):
        ask(tmp_path, Scale(2))
    control.close()


# -- paces --


def test_a_speed_model_sets_the_time_of_an_iteration_but_cannot_make_it_shorter() -> None:
    seconds = Pace(Constant(2.0), ()).start("seed")
    assert seconds(0, 0.0, 0.5) == 2.0 and seconds(1, 2.0, 3.0) == 3.0
    recorded = Pace(Recorded((1.0, 4.0)), ()).start("seed")
    assert [recorded(number, 0.0, 0.1) for number in range(4)] == [1.0, 4.0, 1.0, 4.0]


def test_the_same_seed_gives_the_same_times() -> None:
    times = [[Pace(Lognormal(), ()).start(seed)(number, 0.0, 0.0) for number in range(3)] for seed in ("a", "a", "b")]
    assert times[0] == times[1] != times[2]


def test_without_a_speed_model_an_iteration_takes_as_long_as_it_does_and_slower() -> None:
    seconds = Pace(None, (Slowdown(0, 4.0),)).start("seed")
    assert seconds(0, 100.0, 0.5) == 2.0


@pytest.mark.parametrize(
    ("began", "expected"),
    [(0.0, 2.0), (9.0, 4.0), (10.0, 6.0), (11.0, 6.0), (17.0, 4.0), (19.0, 2.0 + 2 / 3), (20.0, 2.0)],
)
def test_a_slowdown_stretches_the_part_of_an_iteration_that_lies_within_it(began: float, expected: float) -> None:
    seconds = Pace(Constant(2.0), (Slowdown(0, 3.0, 10.0, 20.0),)).start("seed")
    assert seconds(0, began, 0.0) == pytest.approx(expected)


@pytest.mark.parametrize("turned", [False, True])
def test_two_slowdowns_follow_each_other_in_whatever_order_they_are_given(turned: bool) -> None:
    windows = (Slowdown(0, 2.0, 0.0, 10.0), Slowdown(0, 3.0, 10.0, 20.0))
    seconds = Pace(Constant(8.0), windows[::-1] if turned else windows).start("seed")
    assert seconds(0, 0.0, 0.0) == pytest.approx(19.0)  # five seconds of work by 10, and three more at a third
