"""Gradients as fewer bytes: what arrives, what is kept for the next one, and what no decoder accepts."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.core.errors import ConfigurationError
from paceline.core.spec import build, parameters
from paceline.training.compression import COMPRESSIONS, Compression, PayloadError, UnsendableError
from paceline.training.compression.base import CHUNK
from paceline.training.compression.int8 import Int8
from paceline.training.layout import squared_norm

TEXTS = ("none", "bf16", "int8", "int8:block=16", "topk", "topk:share=0.3", "topk:share=0.5")
REMEMBERING = ("topk", "topk:share=0.3")
EVERY = pytest.mark.parametrize("text", TEXTS)
BOTH_TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
# One number, less than a block, whole blocks, a rest of one, several chunks with a rest.
SIZES = (1, 15, 1024, 1025, 2 * CHUNK + 1025)


def compression(text: str) -> Compression:
    return build(text, COMPRESSIONS, "compression")


def gradient_of(size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Sizes from next to nothing to a thousand."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-6, 4, (size,), generator=generator)
    return (torch.randn(size, generator=generator) * 10.0**exponents).to(dtype)


def joined(payload: list[memoryview]) -> Tensor:
    return torch.frombuffer(bytearray(b"".join(payload)) or bytearray(1), dtype=torch.uint8)[: sum(map(len, payload))]


def as_payload(data: bytes) -> Tensor:
    return joined([memoryview(data)])


def arrived(how: Compression, payload: Tensor, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """What the decoder writes; nothing is written beside it, and the norm that it tells is of that."""
    memory = torch.full((size + 2,), 7.0, dtype=dtype)
    into = memory[1:-1]
    norm = how.decoder(size, dtype).decode(payload, into)
    assert memory[0] == memory[-1] == 7.0
    assert math.isclose(norm, squared_norm(into), rel_tol=1e-3, abs_tol=1e-30)
    return into


# -- names --


def test_a_compression_is_built_from_its_name_and_parameters() -> None:
    for name in COMPRESSIONS:
        for each in parameters(type(compression(name))):
            assert each.meaning and each.parse(each.default_text) == each.default
    assert compression("topk:share=0.25").largest_bytes(1000, torch.float32) == 8 * 313


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("int9", "unknown compression 'int9' (did you mean 'int8'?); there are: none, bf16, int8, topk"),
        (
            "topk:share=0.6",
            "compression 'topk': share=0.6 is not possible; share is float > 0 <= 0.5, default 0.01"
            " (of the numbers that are sent)",
        ),
        ("bf16:share=1", "compression 'bf16' has no parameter 'share'; its parameters: none"),
    ],
)
def test_a_wrong_name_or_parameter_is_answered_with_what_exists(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        compression(text)
    assert str(caught.value) == message


@pytest.mark.parametrize("text", ["bf16", "int8", "topk"])
def test_16_bit_gradients_cross_as_they_are_or_not_at_all(text: str) -> None:
    for side in (compression(text).encoder, compression(text).decoder):
        with pytest.raises(ConfigurationError, match="for float32 and float64 gradients, not bfloat16; take 'none'"):
            side(10, torch.bfloat16)
    gradient = gradient_of(10, torch.bfloat16)
    sent = joined(compression("none").encoder(10, torch.bfloat16).encode(gradient, 0))
    into = torch.empty_like(gradient)
    compression("none").decoder(10, torch.bfloat16).decode(sent, into)
    assert torch.equal(into, gradient)


@pytest.mark.parametrize("size", [0, 1 << 31])
def test_a_slice_has_at_least_one_number_and_no_more_than_a_position_can_name(size: int) -> None:
    with pytest.raises(ConfigurationError, match=r"a slice has 1 to 2,147,483,647 numbers"):
        compression("topk").decoder(size, torch.float32)


# -- what arrives --


@EVERY
@BOTH_TYPES
@pytest.mark.parametrize("size", SIZES)
def test_what_arrives_and_what_was_not_sent_are_the_gradient(text: str, dtype: torch.dtype, size: int) -> None:
    how, gradient = compression(text), gradient_of(size, dtype)
    encoder, before = how.encoder(size, dtype), gradient.clone()
    sent = joined(encoder.encode(gradient, 0))
    assert torch.equal(gradient, before)
    assert len(sent) <= how.largest_bytes(size, dtype)
    found, unsent = arrived(how, sent, size, dtype), encoder.state()
    if text == "none":
        assert torch.equal(found, gradient)
    elif text == "bf16":
        assert torch.allclose(found, gradient, rtol=2**-8, atol=0.0)
    elif isinstance(how, Int8):
        padded = torch.nn.functional.pad(gradient, (0, -size % how.block)).view(-1, how.block)
        largest = padded.abs().amax(1).repeat_interleave(how.block)[:size]
        assert ((gradient - found).abs() <= largest / 126).all()
    else:
        assert unsent is not None
        assert torch.allclose(found + unsent, gradient, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_largest_number_of_a_block_is_never_rounded_beyond_127(sign: float) -> None:
    """128 would be -128 in a byte."""
    how, gradient = compression("int8"), torch.full((CHUNK,), sign * 0.3)
    encoder = how.encoder(CHUNK, torch.float32)
    for clock in range(3):
        found = arrived(how, joined(encoder.encode(gradient, clock)), CHUNK)
        assert torch.allclose(found, gradient, rtol=0.01, atol=0.0)


def test_int8_is_right_in_the_mean_of_small_numbers_beside_large_ones_too() -> None:
    how, gradient = compression("int8"), torch.full((1024,), 1e-3)
    gradient[::16] = 1.0
    encoder, total, rounds = how.encoder(1024, torch.float32), torch.zeros(1024), 200
    for clock in range(rounds):
        total += arrived(how, joined(encoder.encode(gradient, clock)), 1024)
    small = gradient < 1.0
    assert math.isclose(total[small].mean() / rounds, 1e-3, rel_tol=0.03)
    assert math.isclose(total[~small].mean() / rounds, 1.0, rel_tol=1e-3)


def test_what_is_random_hangs_on_seed_and_clock_alone() -> None:
    how, gradient = compression("int8"), gradient_of(5_000)
    state = torch.get_rng_state()
    payloads = [
        joined(how.encoder(5_000, torch.float32, seed).encode(gradient, clock))
        for seed, clock in [("a", 0), ("a", 0), ("a", 1), ("b", 0)]
    ]
    assert torch.equal(payloads[0], payloads[1])
    assert not torch.equal(payloads[0], payloads[2]) and not torch.equal(payloads[0], payloads[3])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("size", [400, 300_000])
def test_topk_sends_about_its_share_and_the_largest_numbers(size: int) -> None:
    how, gradient = compression("topk:share=0.05"), gradient_of(size)
    encoder = how.encoder(size, torch.float32)
    found = arrived(how, joined(encoder.encode(gradient, 0)), size)
    unsent = encoder.state()
    assert unsent is not None and 0.8 * 0.05 <= found.count_nonzero() / size <= 1.25 * 0.05
    assert found[found != 0].abs().min() >= unsent.abs().max()


@pytest.mark.parametrize(
    "gradient", [torch.ones(5_000), torch.zeros(5_000), torch.eye(1, 5_000)[0], torch.full((5_000,), 1e-42)]
)
@EVERY
def test_equal_numbers_zeros_single_ones_and_tiny_ones_cross(text: str, gradient: Tensor) -> None:
    how = compression(text)
    encoder = how.encoder(5_000, torch.float32)
    found, unsent = arrived(how, joined(encoder.encode(gradient, 0)), 5_000), encoder.state()
    assert torch.allclose(found + (0.0 if unsent is None else unsent), gradient, rtol=0.01, atol=1e-38)


def test_a_payload_may_lie_anywhere_in_memory() -> None:
    how, gradient = compression("topk:share=0.3"), gradient_of(101)
    sent = joined(how.encoder(101, torch.float32).encode(gradient, 0))
    for offset in (1, 4):
        shifted = torch.cat([torch.zeros(offset, dtype=torch.uint8), sent])[offset:]
        assert torch.equal(arrived(how, shifted, 101), arrived(how, sent, 101))


# -- what is kept for the next gradient --


def test_in_the_long_run_everything_arrives() -> None:
    """Numbers a thousand times smaller than others, too: they would be lost without memory."""
    size, rounds = 64, 400
    how, gradient = compression("topk:share=0.3"), torch.full((size,), 1e-3)
    gradient[::16] = 1.0
    encoder, total = how.encoder(size, torch.float32), torch.zeros(size)
    for _ in range(rounds):
        total += arrived(how, joined(encoder.encode(gradient, 0)), size)
    assert torch.allclose(total / rounds, gradient, rtol=0.02, atol=0.0)


@pytest.mark.parametrize("text", REMEMBERING)
def test_what_was_not_sent_stays_bounded(text: str) -> None:
    """Also when payloads are dropped: their fate is no business of the encoder's."""
    encoder, sizes = compression(text).encoder(500, torch.float32), []
    for seed in range(400):
        encoder.encode(torch.randn(500, generator=torch.Generator().manual_seed(seed)), seed)
        unsent = encoder.state()
        assert unsent is not None
        sizes.append(float(unsent.norm()))
    assert max(sizes[200:]) <= 1.5 * max(sizes[:200])


@EVERY
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_cannot_be_sent_leaves_no_trace(text: str, bad: float) -> None:
    encoder = compression(text).encoder(100, torch.float32)
    encoder.encode(gradient_of(100), 0)
    kept = encoder.state()
    before = None if kept is None else kept.clone()
    spoilt = gradient_of(100, seed=1)
    spoilt[57] = bad
    with pytest.raises(UnsendableError, match="must be finite, and at most "):
        encoder.encode(spoilt, 0)
    after = encoder.state()
    assert (before is None and after is None) or (
        before is not None and after is not None and torch.equal(before, after)
    )


@pytest.mark.parametrize("text", ["bf16", "int8", "topk"])
def test_numbers_that_rounding_may_make_infinite_are_refused(text: str) -> None:
    for dtype, large in ((torch.float32, 3.4e38), (torch.float64, 1e300)):
        with pytest.raises(UnsendableError, match=r"at most 1e\+38"):
            compression(text).encoder(2, dtype).encode(torch.tensor([1.0, -large], dtype=dtype), 0)
        assert compression("none").encoder(1, dtype).encode(torch.tensor([large], dtype=dtype), 0)


@EVERY
def test_numbers_whose_squares_overflow_cross(text: str) -> None:
    how, gradient = compression(text), torch.full((100,), 9e37)
    encoder = how.encoder(100, torch.float32)
    into = torch.empty(100)
    assert how.decoder(100, torch.float32).decode(joined(encoder.encode(gradient, 0)), into) == math.inf
    assert torch.isfinite(into).all()


def test_what_was_not_sent_is_given_up_when_it_adds_up_to_infinity() -> None:
    encoder, gradient = compression("topk:share=0.01").encoder(1_000, torch.float32), torch.full((1_000,), 1e38)
    encoder.resume(torch.full((1_000,), 3e38))
    with pytest.raises(UnsendableError, match="add up to more than float32 holds"):
        encoder.encode(gradient, 0)
    unsent = encoder.state()
    assert unsent is not None and not unsent.any()
    encoder.encode(gradient, 0)


@pytest.mark.parametrize("text", REMEMBERING)
def test_an_encoder_goes_on_where_another_one_was(text: str) -> None:
    how = compression(text)
    first, second = how.encoder(300, torch.float32), how.encoder(300, torch.float32)
    first.encode(gradient_of(300), 0)
    state = first.state()
    assert state is not None
    second.resume(state.clone())
    following = gradient_of(300, seed=1)
    assert torch.equal(joined(first.encode(following, 0)), joined(second.encode(following, 0)))
    second.resume(None)
    assert torch.equal(
        joined(second.encode(following, 0)), joined(how.encoder(300, torch.float32).encode(following, 0))
    )


def test_a_state_of_another_size_or_that_is_not_finite_is_refused() -> None:
    for text in TEXTS:
        with pytest.raises(ConfigurationError, match=r"has shape \(3,\), the gradient \(4,\)"):
            compression(text).encoder(4, torch.float32).resume(torch.zeros(3))
    with pytest.raises(ConfigurationError, match="not finite"):
        compression("topk").encoder(2, torch.float32).resume(torch.tensor([0.0, math.nan]))


@pytest.mark.parametrize("text", REMEMBERING)
def test_what_was_not_sent_can_be_cut_into_other_slices(text: str) -> None:
    """It is a vector like the gradient, so a run resumes into another number of slices."""
    how, encoder = compression(text), compression(text).encoder(300, torch.float32)
    encoder.encode(gradient_of(300), 0)
    state = encoder.state()
    assert state is not None
    for part in state.split([100, 200]):
        slice_encoder = how.encoder(len(part), torch.float32)
        slice_encoder.resume(part)
        found = arrived(how, joined(slice_encoder.encode(torch.zeros(len(part)), 1)), len(part))
        rest = slice_encoder.state()
        assert rest is not None
        assert torch.allclose(found + rest, part)


# -- what no decoder accepts --


@EVERY
@pytest.mark.parametrize("change", [-1, 1, 8_000])
def test_a_payload_of_a_wrong_length_is_refused(text: str, change: int) -> None:
    how = compression(text)
    length = how.largest_bytes(100, torch.float32) + change
    with pytest.raises(PayloadError, match=f"a payload of {length} bytes"):
        how.decoder(100, torch.float32).decode(torch.zeros(length, dtype=torch.uint8), torch.empty(100))


@pytest.mark.parametrize("scale", [math.nan, math.inf, -1.0, 1e37])
def test_scales_must_be_numbers_that_make_numbers(scale: float) -> None:
    payload = torch.zeros(104, dtype=torch.uint8)
    payload[:4].view(torch.float32)[0] = scale
    with pytest.raises(PayloadError, match="scales that are not finite, negative or too large"):
        compression("int8").decoder(100, torch.float32).decode(payload, torch.empty(100))


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ([-1, 5], "positions from -1 to 5, of 100 numbers"),
        ([5, 100], "positions from 5 to 100, of 100 numbers"),
        ([3, 3], "positions that do not ascend"),
        ([0, 200, 99], "positions that do not ascend"),
        ([0, -7, 99], "positions that do not ascend"),
        ([0, -(2**31), 2**31 - 1, 99], "positions that do not ascend"),
    ],
)
def test_positions_must_ascend_within_the_slice(positions: list[int], message: str) -> None:
    sent = torch.tensor(positions, dtype=torch.int32).view(torch.uint8)
    payload = torch.cat([sent, torch.ones(len(positions)).view(torch.uint8)])
    with pytest.raises(PayloadError, match=message):
        compression("topk:share=0.3").decoder(100, torch.float32).decode(payload, torch.empty(100))


@pytest.mark.parametrize("text", ["none", "bf16", "topk:share=0.5"])
def test_numbers_must_be_finite(text: str) -> None:
    how, gradient = compression(text), gradient_of(4)
    sent = joined(how.encoder(4, torch.float32).encode(gradient, 0))
    sent[-2:] = 0xFF
    with pytest.raises(PayloadError, match="numbers that are not finite"):
        how.decoder(4, torch.float32).decode(sent, torch.empty(4))


@EVERY
@BOTH_TYPES
@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=200), size=st.integers(1, 70), cut=st.booleans())
@example(data=b"\xff" * 200, size=20, cut=True)
@example(data=b"", size=1, cut=False)
def test_random_bytes_are_a_gradient_or_refused(
    text: str, dtype: torch.dtype, data: bytes, size: int, cut: bool
) -> None:
    """Cut to the right length they get further."""
    how = compression(text)
    payload = as_payload(data[: how.largest_bytes(size, dtype)] if cut else data)
    memory = torch.full((size + 2,), 7.0, dtype=dtype)
    try:
        how.decoder(size, dtype).decode(payload, memory[1:-1])
    except PayloadError:
        pass
    else:
        assert torch.isfinite(memory).all()
    assert memory[0] == memory[-1] == 7.0
