"""Who gets an answer from our ports, and what crosses them: the handshake, the door, and the frames."""

from __future__ import annotations

import os
import resource
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from paceline.core.errors import ConfigurationError, PacelineError
from paceline.runtimes.serving.channel import ClosedError, can_be_read
from paceline.runtimes.serving.loop import Loop
from paceline.runtimes.serving.memory import create, map_segment, pack, path_of, unpack_from
from paceline.runtimes.serving.messages import (
    Enter,
    Finished,
    Go,
    Leased,
    Push,
    Restart,
    StateReady,
    ToServer,
    ToWorker,
)
from paceline.runtimes.serving.own_pauses import OwnPauses
from paceline.runtimes.sockets import listener as listener_module
from paceline.runtimes.sockets import shard_messages as said
from paceline.runtimes.sockets.channel import AHEAD, HEADER, STRETCH, SocketChannel
from paceline.runtimes.sockets.connecting import connect
from paceline.runtimes.sockets.courier import Courier, Way
from paceline.runtimes.sockets.gradient_codec import GradientCodec, compression_of
from paceline.runtimes.sockets.handshake import CODE, HELLO, Caller, CallerSide, HostSide, RefusedError
from paceline.runtimes.sockets.listener import Listener, Visitor
from paceline.runtimes.sockets.places import PARAMETERS, places_in
from paceline.runtimes.sockets.segment_channel import SegmentChannel
from paceline.runtimes.sockets.shard import PARTS
from paceline.runtimes.sockets.shards import SILENCE, ShardChannel, ShardLostError, Shards
from paceline.runtimes.sockets.stretches import PLACE, Stretches
from paceline.runtimes.sockets.waiting import ready, seconds_busy
from paceline.training.choices import AS_USUAL
from paceline.training.layout import Layout, Segment, layout_of

SECRET = b"s" * CODE
WORKER = Caller(b"w", 3)


def host(seen: set[bytes] | None = None, secret: bytes = SECRET, nonce: bytes = b"h" * CODE) -> HostSide:
    return HostSide(secret, nonce, set() if seen is None else seen, lambda caller: caller == WORKER)


# -- the handshake: bytes to bytes --


def test_two_that_know_the_secret_let_each_other_in() -> None:
    caller, door = CallerSide(SECRET, WORKER, b"c" * CODE), host()
    assert door.feed(caller.hello[:10]) == b"" and not door.done
    welcome = door.feed(caller.hello[10:])
    assert caller.feed(welcome[:1]) == b""
    confirmation = caller.feed(welcome[1:])
    assert caller.done and not door.done
    assert door.feed(confirmation) == b"" and door.done and door.caller == WORKER


@pytest.mark.parametrize(
    "hello",
    [
        CallerSide(b"x" * CODE, WORKER, b"c" * CODE).hello,
        CallerSide(SECRET, Caller(b"w", 4), b"c" * CODE).hello,
        CallerSide(SECRET, Caller(b"d", 3), b"c" * CODE).hello,
        b"\0" * HELLO.size,
        b"GET / HTTP/1.1\r\nHost: example\r\n\r\n".ljust(HELLO.size, b" "),
    ],
    ids=["another secret", "another number", "another role", "zeros", "http"],
)
def test_whoever_is_not_wanted_gets_no_answer(hello: bytes) -> None:
    door = host()
    with pytest.raises(RefusedError):
        door.feed(hello)
    assert not door.done


def test_a_hello_that_was_recorded_is_worth_nothing() -> None:
    seen: set[bytes] = set()
    caller = CallerSide(SECRET, WORKER, b"c" * CODE)
    recorded = caller.feed(host(seen).feed(caller.hello))
    with pytest.raises(RefusedError):
        host(seen).feed(caller.hello)
    other = host(set(), nonce=b"i" * CODE)  # and were its number forgotten, the rest would not fit
    other.feed(caller.hello)
    with pytest.raises(RefusedError):
        other.feed(recorded)
    assert not other.done


def test_a_caller_does_not_trust_whoever_answers() -> None:
    caller = CallerSide(SECRET, WORKER, b"c" * CODE)
    with pytest.raises(RefusedError, match="does not know the secret"):
        caller.feed(b"h" * CODE + b"x" * CODE)


@given(st.binary(min_size=HELLO.size, max_size=HELLO.size))
def test_random_bytes_get_no_answer(said: bytes) -> None:
    with pytest.raises(RefusedError):
        host().feed(said)


@given(st.integers(0, HELLO.size - 1), st.integers(1, 255))
def test_a_hello_with_one_other_byte_gets_no_answer(at: int, change: int) -> None:
    hello = bytearray(CallerSide(SECRET, WORKER, b"c" * CODE).hello)
    hello[at] ^= change
    with pytest.raises(RefusedError):
        host().feed(bytes(hello))


# -- the door --


class Door:
    """A listener in a loop that turns when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.loop = Loop()
        self.visitors: list[Visitor] = []
        self.listener = Listener(
            "127.0.0.1", SECRET, lambda caller: caller == WORKER, self.visitors.append, clock=lambda: self.now
        )
        self.listener.attach(self.loop)

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.loop.turn(0.05)

    def stranger(self, said: bytes = b"", *, unix: bool = False) -> socket.socket:
        address = self.listener.address
        connection = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
        connection.settimeout(5)
        connection.connect("\0" + address.unix if unix else (address.host, address.port))
        connection.sendall(said)
        return connection

    def close(self) -> None:
        self.listener.close()
        for visitor in self.visitors:
            visitor.connection.close()
            if visitor.memory >= 0:
                os.close(visitor.memory)
        self.loop.close()


@pytest.fixture
def door() -> Iterator[Door]:
    with closing(Door()) as opened:
        yield opened


def shake_hands(door: Door, connection: socket.socket, nonce: bytes, share: int = -1) -> None:
    side = CallerSide(SECRET, WORKER, nonce)
    connection.sendall(side.hello)
    door.turn(3)
    answer = side.feed(connection.recv(side.missing))
    if share >= 0:
        socket.send_fds(connection, [answer], [share])
    else:
        connection.sendall(answer)
    door.turn(2)


@pytest.mark.parametrize("unix", [False, True])
@pytest.mark.parametrize("said", [b"x" * HELLO.size, CallerSide(b"y" * CODE, WORKER, b"n" * CODE).hello])
def test_a_stranger_hears_nothing_but_the_end(door: Door, unix: bool, said: bytes) -> None:
    with closing(door.stranger(said, unix=unix)) as stranger:
        door.turn(3)
        assert stranger.recv(100) == b"" and not door.visitors


def test_nothing_is_said_to_one_that_says_nothing_and_it_is_shown_out_in_the_end(door: Door) -> None:
    with closing(door.stranger(b"paceline")) as slow:
        door.turn(3)
        assert not select.select([slow], [], [], 0)[0]
        door.now += listener_module.PATIENCE + 1
        door.listener.look()
        assert slow.recv(100) == b""


def test_a_crowd_of_strangers_keeps_nobody_out(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "MOST", 4)
    crowd = [door.stranger() for _ in range(9)]
    door.turn(12)
    with closing(door.stranger()) as friend:
        shake_hands(door, friend, b"1" * CODE)
        assert [visitor.caller for visitor in door.visitors] == [WORKER]
    for stranger in crowd:
        stranger.close()


def test_a_friend_on_the_same_host_brings_memory_and_a_stranger_cannot(door: Door) -> None:
    memory = os.memfd_create("test")
    os.write(memory, b"shared")
    with closing(door.stranger(unix=True)) as friend:
        shake_hands(door, friend, b"1" * CODE, memory)
        (visitor,) = door.visitors
        assert os.pread(visitor.memory, 6, 0) == b"shared"
    before = len(os.listdir("/proc/self/fd"))
    with closing(door.stranger(unix=True)) as stranger:
        socket.send_fds(stranger, [b"x" * HELLO.size], [memory])
        door.turn(3)
    assert len(os.listdir("/proc/self/fd")) <= before
    os.close(memory)


def test_what_is_bound_is_the_address_that_was_given_and_a_port_of_the_range() -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        arguments = ("127.0.0.1", SECRET, lambda caller: True, lambda visitor: None)
        with pytest.raises(ConfigurationError, match=f"no port could be opened on 127.0.0.1, ports {port} to {port}"):
            Listener(*arguments, ports=range(port, port + 1))  # type: ignore[arg-type]
        with closing(Listener(*arguments)) as opened:  # type: ignore[arg-type]
            assert opened._tcp.getsockname()[0] == "127.0.0.1"


def test_nobody_there_and_nobody_who_answers_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.runtimes.sockets.connecting.PATIENCE", 0.1)
    with closing(Door()) as silent, pytest.raises(RefusedError, match="no answer within"):
        connect(silent.listener.address, WORKER, SECRET)
    with pytest.raises(OSError, match="refused"):
        connect(silent.listener.address, WORKER, SECRET)


# -- frames --


def pair(shared: bool = False) -> tuple[SegmentChannel[Any, Any], SegmentChannel[Any, Any], int, int]:
    """The worker's end, the server's, and the memory of both."""
    one, other = socket.socketpair()
    theirs = create()
    ours = os.dup(theirs) if shared else create()
    worker: SegmentChannel[Any, Any] = SegmentChannel(ToWorker, theirs, patient=False)
    server: SegmentChannel[Any, Any] = SegmentChannel(ToServer, ours, patient=False)
    worker.connect(one, shared=shared)
    server.connect(other, shared=shared)
    return worker, server, theirs, ours


def crossed(sender: SocketChannel[Any, Any], receiver: SocketChannel[Any, Any]) -> Any:
    """The next message, however many pieces it comes in."""
    while True:
        sender.flush()
        found = receiver.received() if select.select([receiver], [], [], 5)[0] else []
        if found:
            (message,) = found
            return message


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("size", [1, 3, 400_000])  # more than a socket takes at once
def test_what_a_message_is_about_comes_with_it(shared: bool, size: int) -> None:
    worker, server, theirs, ours = pair(shared)
    net = nn.BatchNorm1d(size)
    layout = layout_of(net)
    segment = map_segment(theirs, layout)
    worker.use(places_in(segment))
    segment.parameters.fill_(2.0)
    segment.others["running_mean"].fill_(5.0)
    worker.send(Enter(layout, b"optimizer"))
    assert crossed(worker, server) == Enter(layout, b"optimizer")
    copy = map_segment(ours, layout)
    assert torch.equal(copy.parameters, segment.parameters) and copy.others["running_mean"][0] == 5

    copy.parameters.fill_(3.0)
    copy.others["running_mean"].fill_(6.0)
    server.send(Go())  # its first: with the group's buffers
    assert crossed(server, worker) == Go()
    assert segment.parameters[-1] == 3 and segment.others["running_mean"][-1] == 6

    segment.gradient.copy_(torch.arange(2.0 * size))
    segment.others["running_mean"].fill_(7.0)
    worker.send(Push(1, 8, 1, None, None))
    assert crossed(worker, server) == Push(1, 8, 1, None, None)
    assert torch.equal(copy.gradient, segment.gradient) and copy.others["running_mean"][0] == 7

    segment.others["running_mean"].fill_(8.0)
    worker.send(Restart(8, 1))
    crossed(worker, server)
    assert copy.others["running_mean"][0] == 8

    copy.parameters.fill_(4.0)
    copy.others["running_mean"].fill_(9.0)
    server.send(Leased(None, parameters=True))
    crossed(server, worker)
    assert segment.parameters[0] == 4
    assert segment.others["running_mean"][0] == (9 if shared else 8)  # its own are newer
    for descriptor in (theirs, ours):
        os.close(descriptor)
    worker.close()
    server.close()


def test_a_parcel_goes_ahead_of_the_message_that_names_it() -> None:
    worker, server, *memory = pair()
    layout = layout_of(nn.Linear(1, 1))
    worker.use(places_in(map_segment(memory[0], layout)))
    state = {"moments": torch.arange(100_000.0), "step": 3}
    parcel = pack(state)
    worker.send(Enter(layout, b"", path_of(parcel)))
    os.close(parcel)
    there = crossed(worker, server)
    assert torch.equal(unpack_from(there.state)["moments"], state["moments"])
    parcel = pack("back")
    server.send(StateReady(path_of(parcel)))
    os.close(parcel)
    assert unpack_from(crossed(server, worker).path) == "back"
    for channel in (worker, server):
        channel.close()
    for descriptor in memory:
        os.close(descriptor)


def test_a_sign_of_life_is_no_message_and_is_heard() -> None:
    worker, server, *memory = pair()
    server.heard_at = 0.0
    worker.show_life()
    assert select.select([server], [], [], 5)[0] and server.received() == [] and server.heard_at > 0
    for channel in (worker, server):
        channel.close()
    for descriptor in memory:
        os.close(descriptor)


# -- a gradient that goes ahead --


def entered(size: int = 50) -> tuple[SegmentChannel[Any, Any], SegmentChannel[Any, Any], Segment, Segment, Courier]:
    """Both ends, after a worker's model has crossed; their segments; and what sends ahead."""
    worker, server, theirs, ours = pair()
    layout = layout_of(nn.Linear(size, 1, bias=False))
    segment = map_segment(theirs, layout)
    worker.use(places_in(segment))
    worker.send(Enter(layout, b""))
    crossed(worker, server)
    copy = map_segment(ours, layout)
    os.close(theirs)
    os.close(ours)
    return worker, server, segment, copy, Courier([Way(worker, 0, size)], segment)


PUSH = Push(1, 8, 1, None, None)


@pytest.mark.parametrize("order", [[(0, 10), (10, 20), (40, 50)], [(30, 50), (0, 30)], [(7, 8)], []])
def test_what_went_ahead_and_the_rest_are_the_gradient(order: list[tuple[int, int]]) -> None:
    worker, server, segment, copy, courier = entered()
    for number in (1, 2):
        segment.gradient.copy_(number * torch.arange(50.0))
        for begin, end in order:
            courier.send(begin, end)
        courier.keep()
        worker.send(PUSH)
        assert crossed(worker, server) == PUSH
        assert torch.equal(copy.gradient, segment.gradient)
    courier.close()
    for channel in (worker, server):
        channel.close()


def test_what_went_ahead_of_no_push_counts_for_nothing() -> None:
    worker, server, segment, copy, courier = entered()
    segment.gradient.fill_(1.0)
    courier.send(0, 30)
    courier.drop()
    worker.send(Restart(8, 1))
    assert crossed(worker, server) == Restart(8, 1)
    segment.gradient.fill_(2.0)
    courier.send(20, 50)  # which overlaps with what was dropped
    courier.keep()
    worker.send(PUSH)
    assert crossed(worker, server) == PUSH and (copy.gradient == 2).all()
    courier.send(0, 10)
    courier.drop()
    segment.gradient.fill_(3.0)
    worker.send(PUSH)  # all of it, as ever
    assert crossed(worker, server) == PUSH and (copy.gradient == 3).all()
    courier.close()
    for channel in (worker, server):
        channel.close()


def test_a_worker_that_dies_in_the_middle_has_pushed_nothing() -> None:
    worker, server, segment, _, courier = entered()
    courier.send(0, 50)
    worker.flush_stretches()
    worker.close()
    assert read_to_the_end(server) == []
    courier.close()
    server.close()
    assert (segment.gradient == 0).all()


def two_shards() -> tuple[Courier, list[SocketChannel[Any, Any]], list[Segment]]:
    """A worker's connections to two shards, each end beside the other; and its segment before theirs."""
    layout = layout_of(nn.Linear(50, 1, bias=False))
    segments = [Segment(layout, torch.zeros(layout.segment_bytes, dtype=torch.uint8)) for _ in range(3)]
    ends: list[SocketChannel[Any, Any]] = []
    for number, (begin, end) in enumerate([(0, 20), (20, 50)]):
        for connection, segment in zip(socket.socketpair(), (segments[0], segments[1 + number]), strict=True):
            channel: SocketChannel[Any, Any] = SocketChannel(said.WorkerToShard, patient=False, parts=PARTS)
            channel.connect(connection, shared=False)
            channel.use(places_in(segment, begin, end))
            ends.append(channel)
    return Courier([Way(ends[0], 0, 20), Way(ends[2], 20, 50)], segments[0]), ends, segments


def test_of_two_shards_each_gets_its_part_of_a_stretch() -> None:
    courier, ends, segments = two_shards()
    segments[0].gradient.copy_(torch.arange(50.0))
    courier.send(15, 30)
    courier.keep()
    for worker, shard in ((ends[0], ends[1]), (ends[2], ends[3])):
        worker.send(said.Here(1))
        assert crossed(worker, shard) == said.Here(1)
    assert torch.equal(segments[1].gradient[:20], torch.arange(20.0)) and not segments[1].gradient[20:].any()
    assert torch.equal(segments[2].gradient[20:], torch.arange(20.0, 50.0)) and not segments[2].gradient[:20].any()
    courier.close()
    for channel in ends:
        channel.close()


@pytest.mark.parametrize("cuts", [[50], [20, 30], [7, 7, 36]])
def test_a_gradient_that_is_lent_crosses_from_where_it_lies(cuts: list[int]) -> None:
    worker, server, segment, copy, courier = entered()
    lent = [part.clone() for part in torch.arange(50.0).split(cuts)]
    assert courier.lend(lent)
    worker.send(PUSH)
    assert crossed(worker, server) == PUSH
    assert torch.equal(copy.gradient, torch.arange(50.0)) and not segment.gradient.any()
    worker.send(PUSH)  # it was lent for one push only
    assert crossed(worker, server) == PUSH and not copy.gradient.any()
    courier.lend(lent)
    courier.drop()  # its push never came
    worker.send(Restart(8, 1))
    assert crossed(worker, server) == Restart(8, 1)
    worker.send(PUSH)
    assert crossed(worker, server) == PUSH and not copy.gradient.any()
    courier.close()
    for channel in (worker, server):
        channel.close()


def test_of_two_shards_each_gets_its_part_of_what_is_lent_and_nothing_is_lent_if_one_sees_the_segment() -> None:
    courier, ends, segments = two_shards()
    assert courier.lend([torch.arange(30.0), torch.arange(30.0, 50.0)])
    for worker, shard in ((ends[0], ends[1]), (ends[2], ends[3])):
        worker.send(said.Here(1))
        assert crossed(worker, shard) == said.Here(1)
    assert torch.equal(segments[1].gradient[:20], torch.arange(20.0))
    assert torch.equal(segments[2].gradient[20:], torch.arange(20.0, 50.0))
    alone = Courier([Way(ends[0], 0, 20)], segments[0])
    assert not alone.lend([torch.ones(50)])
    for one in (courier, alone):
        one.close()
    for channel in ends:
        channel.close()


def read_to_the_end(channel: SocketChannel[Any, Any]) -> list[Any]:
    messages = []
    try:
        while True:
            messages += channel.received()
    except ClosedError:
        return messages


def stretch(begin: int, end: int, first: bool = False) -> bytes:
    return HEADER.pack(STRETCH, PLACE.size, end - begin) + PLACE.pack(first, begin) + bytes(end - begin)


def ahead(message: Push = PUSH) -> bytes:
    encoded = msgspec.json.encode(message)
    return HEADER.pack(AHEAD, len(encoded), 0) + encoded


BROKEN_STRETCHES = {
    "beyond the slot": stretch(0, 201, True),
    "far beyond": HEADER.pack(STRETCH, PLACE.size, 2**62) + PLACE.pack(True, 2**63),
    "empty": stretch(4, 4, True),
    "overlapping": stretch(0, 100, True) + stretch(99, 104),
    "overlapping from before": stretch(50, 100, True) + stretch(0, 51),
    "the same twice": stretch(0, 100, True) + stretch(0, 100),
    "no place": HEADER.pack(STRETCH, 0, 8) + bytes(8),
    "a part is missing": stretch(0, 100, True) + stretch(104, 200) + ahead(),
    "nothing is there": ahead(),
    "nothing is there any more": stretch(0, 200, True) + ahead() + ahead(),
    "the first ended what came before": stretch(0, 100, True) + stretch(100, 200, True) + ahead(),
}


@pytest.mark.parametrize("frames", BROKEN_STRETCHES.values(), ids=BROKEN_STRETCHES.keys())
def test_stretches_that_break_the_rules_end_the_connection(frames: bytes) -> None:
    worker, server, _, _, courier = entered()
    assert worker._connection is not None
    worker._connection.sendall(frames)
    assert len(read_to_the_end(server)) <= max(0, frames.count(ahead()) - 1)  # never the broken one
    courier.close()
    for channel in (worker, server):
        channel.close()


def test_where_gradients_are_encoded_none_goes_ahead() -> None:
    worker, server, _, copy, courier = entered()
    compression = compression_of("bf16")
    assert compression is not None and worker._connection is not None
    server.encode_gradients(GradientCodec(compression, copy.gradient))
    worker._connection.sendall(stretch(0, 100, True))
    with pytest.raises(ClosedError):
        server.received()
    courier.close()
    for channel in (worker, server):
        channel.close()


@given(st.lists(st.tuples(st.integers(-2, 12), st.integers(-2, 12)), max_size=8))
def test_stretches_are_what_a_set_of_bytes_is(asked: list[tuple[int, int]]) -> None:
    stretches, naive = Stretches(10), set[int]()
    for begin, end in asked:
        wanted = set(range(begin, end))
        fits = 0 <= begin < end <= 10 and not wanted & naive
        if fits:
            stretches.add(begin, end)
            naive |= wanted
        else:
            with pytest.raises(ValueError, match="a stretch from"):
                stretches.add(begin, end)
        assert stretches.are_all == (len(naive) == 10) and bool(stretches) == bool(naive)
        gaps = [set(range(*gap)) for gap in stretches.gaps()]
        assert set().union(*gaps) == set(range(10)) - naive and all(gaps)


def test_the_system_says_how_long_a_wire_was_busy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
        with closing(one), closing(other):
            before = seconds_busy(one)
            one.sendall(bytes(1 << 16))
            after = seconds_busy(one)
    assert before is not None and after is not None and 0 <= before <= after < 60
    left, right = socket.socketpair()
    assert seconds_busy(left) is None
    left.close()
    right.close()


@pytest.mark.parametrize("shared", [False, True])
def test_a_channel_says_for_how_long_a_wire_was_busy_with_it(shared: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    theirs, ours = create(), create()
    worker: SegmentChannel[Any, Any] = SegmentChannel(ToWorker, theirs, patient=False)
    server: SegmentChannel[Any, Any] = SegmentChannel(ToServer, ours, patient=False)
    assert server.carried() is None  # nobody is there yet
    worker.connect(one, shared=shared)
    server.connect(other, shared=shared)
    segment = map_segment(theirs, layout_of(nn.Linear(500, 500)))
    worker.use(places_in(segment))
    server.use(places_in(map_segment(ours, segment.layout)))
    worker.send(Push(1, 1, 0, None, 0.0))
    assert isinstance(crossed(worker, server), Push)
    carried = server.carried()
    assert (carried is None) == shared
    assert carried is None or (carried.out >= 0.0 and carried.gradient > 0.0)
    for channel, descriptor in ((worker, theirs), (server, ours)):
        channel.close()
        os.close(descriptor)


BROKEN = {
    "tensors without a segment": HEADER.pack(PARAMETERS, 0, 8),
    "a message without end": HEADER.pack(0, 2**32 - 1, 0),
    "no message of ours": HEADER.pack(0, 3, 0) + b"[1]",
    "tensors of another size": HEADER.pack(7, 2, 2**40) + b"{}",
}


@pytest.mark.parametrize("said", BROKEN.values(), ids=BROKEN.keys())
def test_one_that_breaks_the_rules_is_heard_no_more(said: bytes) -> None:
    one, other = socket.socketpair()
    channel: SegmentChannel[Any, Any] = SegmentChannel(ToServer, -1, patient=False)
    channel.connect(other, shared=False)
    ends: list[bool] = []
    channel.on_close = lambda: ends.append(True)
    one.sendall(said)
    with pytest.raises(ClosedError):
        channel.received()
    assert ends == [True]
    one.close()
    channel.close()


@settings(max_examples=200)
@given(st.binary(min_size=1, max_size=200))
def test_random_bytes_never_do_more_than_end_a_connection(said: bytes) -> None:
    one, other = socket.socketpair()
    channel: SegmentChannel[Any, Any] = SegmentChannel(ToServer, -1, patient=False)
    channel.connect(other, shared=False)
    one.sendall(said)
    one.close()
    try:
        while True:
            for message in channel.received():
                assert isinstance(message, msgspec.Struct)
    except ClosedError:
        pass
    channel.close()


def test_the_header_is_what_the_page_says() -> None:
    assert HEADER.size == struct.calcsize("<BIQ") == 13


def test_a_loop_forgets_a_channel_that_never_was_connected() -> None:
    """Of a process that died before it called."""
    loop = Loop()
    loop.forget_channel(SocketChannel(str, patient=False))
    loop.close()


def test_a_message_that_is_too_long_is_refused_by_its_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    sender, receiver, *segments = pair()
    monkeypatch.setattr("paceline.runtimes.sockets.channel.LONGEST", 3)
    with pytest.raises(ConfigurationError, match=r"worker\.keep"):
        sender.send(Finished(0))
    sender.close()
    receiver.close()
    for segment in segments:
        os.close(segment)


def test_waiting_knows_descriptors_of_any_number() -> None:
    reading, writing = os.pipe()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit <= 1_030:
        resource.setrlimit(resource.RLIMIT_NOFILE, (2_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    far = [os.dup2(reading, 1_028), os.dup2(writing, 1_029)]
    assert ready([far[0]], [far[1]]) == ([], [far[1]]) and not can_be_read(far[0], 0.0)
    os.write(far[1], b"x")
    assert ready([far[0]]) == ([far[0]], [])
    assert can_be_read(far[0], 0.0)
    for descriptor in (reading, writing, *far):
        os.close(descriptor)


def test_what_is_posted_goes_out_together_after_a_turn_and_before_the_next_one_waits() -> None:
    near, far = socket.socketpair()
    channel: ShardChannel = SocketChannel(said.FromShard, patient=False)
    channel.connect(near, shared=False)
    far.setblocking(False)
    loop = Loop()
    for seat in (1, 2):
        loop.post(channel, channel.framed(said.Forget(seat)))
    with pytest.raises(BlockingIOError):
        far.recv(1)
    loop.turn(0.0)
    once = far.recv(1 << 16)
    assert once == channel.framed(said.Forget(1)) + channel.framed(said.Forget(2))
    far.send(channel.framed(said.Alive()))
    loop.watch(channel, lambda: loop.post(channel, channel.framed(said.Forget(len(channel.received())))))
    loop.turn(1.0)
    assert far.recv(1 << 16) == channel.framed(said.Forget(1))
    loop.close()
    channel.close()
    far.close()


def shards_and_a_far_end() -> tuple[Shards, socket.socket]:
    near, far = socket.socketpair()
    channel: ShardChannel = SocketChannel(said.FromShard, patient=False)
    channel.connect(near, shared=False)
    return Shards([channel]), far


def test_a_shard_that_dies_while_it_is_asked_is_lost_also_if_it_has_not_heard_all() -> None:
    shards, far = shards_and_a_far_end()
    channel = shards.channels[0]
    while not channel.has_unsent:
        channel.send(said.Begin(Layout((), (), ()), bytes(1 << 16), AS_USUAL, 0, 1, False, 0))
    far.close()
    with pytest.raises(ShardLostError):
        shards.ask(said.Shown)
    assert shards.is_lost
    shards.close()


def test_a_shard_that_stands_still_is_lost_and_one_that_shows_life_is_not() -> None:
    shards, far = shards_and_a_far_end()
    shards.channels[0].heard_at -= SILENCE - 1
    shards.look()
    shards.channels[0].heard_at -= 2
    shards.pause(3)
    shards.look()
    shards.channels[0].heard_at -= 3
    with pytest.raises(ShardLostError, match="no sign of life"):
        shards.look()
    shards.close()
    far.close()


def test_whoever_hands_over_the_first_model_may_end_meanwhile() -> None:
    shards, far = shards_and_a_far_end()
    with pytest.raises(PacelineError, match="begin again"):
        shards.ask(said.Begun, lambda: True)
    shards.close()
    far.close()


def test_the_servers_own_pause_is_known_from_its_first_look_on() -> None:
    pauses: list[float] = []
    own = OwnPauses(1.0, pauses.append)
    for now in (1_000.0, 1_001.0, 1_011.0, 1_012.0):
        own.look(now)
    assert pauses == [9.0]


def test_a_loop_calls_soon_without_waiting() -> None:
    loop, called = Loop(), []
    loop.soon(lambda: called.append(1))
    loop.turn(3600.0)
    assert called == [1]
    loop.close()
