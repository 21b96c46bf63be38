"""A model in one piece of memory: what lies where, on both sides, with and without a copy in between."""

from __future__ import annotations

import itertools

import msgspec
import pytest
import torch
from fake_link import flat_of, segment_of
from torch import Tensor, nn

from paceline.core.errors import ConfigurationError
from paceline.training.layout import ALIGNMENT, Layout, averaged_into, difference, layout_of, views
from paceline.training.replica import Replica

STAGED = pytest.mark.parametrize("staged", [False, True], ids=["in the segment", "as on a GPU"])


class Everything(nn.Module):
    """Odd sizes, a scalar, tied weights, something frozen, and buffers of every kind."""

    count: Tensor
    scratch: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 3)
        self.norm = nn.BatchNorm1d(3)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(3, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("scratch", torch.full((5,), 0.5), persistent=False)
        self.register_buffer("none", None)
        self.register_buffer("empty", torch.zeros(0, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        self.scratch.mul_(2)
        return self.head(self.frozen(self.norm(self.embedding(x)))) * self.scale  # type: ignore[no-any-return]


def everything() -> Everything:
    torch.manual_seed(5)
    return Everything()


def backward(model: nn.Module, seed: int = 1) -> None:
    x = torch.randint(7, (6,), generator=torch.Generator().manual_seed(seed))
    model(x).square().sum().backward()


def gradients_of(model: nn.Module) -> Tensor:
    return torch.cat([each.grad.reshape(-1) for each in model.parameters() if each.grad is not None])


# -- the layout --


def test_a_layout_names_trained_parameters_all_other_tensors_and_every_key_of_the_state() -> None:
    layout = layout_of(everything())
    trained = ["scale", "embedding.weight", "norm.weight", "norm.bias"]
    assert [entry.name for entry in layout.parameters] == trained
    assert {entry.name for entry in layout.others} == {
        *("frozen.weight", "frozen.bias", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"),
        *("mask", "count", "scratch", "empty"),
    }
    assert [key for key, _ in layout.keys] == list(everything().state_dict())
    assert dict(layout.keys)["head.weight"] == "embedding.weight"
    assert layout.parameter_count == 1 + 21 + 3 + 3 and layout.dtype == torch.float32


def test_a_layout_crosses_a_process_border_as_text() -> None:
    layout = layout_of(everything())
    assert msgspec.json.decode(msgspec.json.encode(layout), type=Layout) == layout


def test_no_two_parts_of_a_segment_overlap_and_each_begins_aligned() -> None:
    layout = layout_of(everything())
    segment = segment_of(layout)
    parts = sorted(
        (each.data_ptr() - segment.memory.data_ptr(), each.nbytes)
        for each in [segment.parameters, segment.gradient, *segment.others.values()]
        if each.nbytes
    )
    assert all(begin % ALIGNMENT == 0 for begin, _ in parts)
    assert all(begin + size <= following for (begin, size), (following, _) in itertools.pairwise(parts))
    assert sum(parts[-1]) <= layout.segment_bytes


def test_views_lie_one_after_another() -> None:
    layout = layout_of(nn.Linear(2, 3))
    found = views(torch.arange(9.0), layout.parameters)
    assert found["weight"].tolist() == [[0, 1], [2, 3], [4, 5]] and found["bias"].tolist() == [6, 7, 8]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.ReLU(), "nothing to train"),
        (nn.Linear(2, 2).requires_grad_(False), "nothing to train"),
    ],
)
def test_models_that_cannot_be_laid_out_are_refused(model: nn.Module, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        layout_of(model)


def test_a_model_whose_shapes_are_not_known_yet_is_refused_with_a_sentence() -> None:
    with pytest.raises(ConfigurationError, match=r"weight.*(lazy|uninitialized|forward)"):
        layout_of(nn.LazyLinear(3))


def test_the_first_difference_between_two_models_is_named() -> None:
    one = layout_of(nn.Sequential(nn.Linear(3, 2)))
    assert difference(one, layout_of(nn.Sequential(nn.Linear(4, 2)))) == (
        "its parameter '0.weight' has shape (2, 4), not (2, 3)"
    )
    assert difference(one, layout_of(nn.Linear(3, 2))) == "it has no parameter '0.weight'"
    assert difference(one, layout_of(nn.Sequential(nn.Linear(3, 2)).double())) == (
        "its parameter '0.weight' is float64, not float32"
    )
    longer = layout_of(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)))
    assert difference(one, longer) == "it has a parameter '1.bias' that the others do not have"
    with_buffers = nn.Sequential(nn.Linear(3, 2))
    with_buffers.register_buffer("extra", torch.zeros(1))
    assert difference(one, layout_of(with_buffers)) == (
        "its buffers, its frozen parameters or the order of its parameters differ"
    )


# -- the state --


@STAGED
def test_the_state_of_a_segment_loads_into_the_same_model_strictly(staged: bool) -> None:
    model = everything()
    segment = segment_of(layout_of(model))
    replica = Replica(model, segment, staged=staged)
    backward(model)
    replica.hand_in()
    torch.manual_seed(99)
    other = Everything()
    other.load_state_dict(segment.state(), strict=True)
    assert other.state_dict().keys() == segment.state().keys()
    for key, each in model.state_dict().items():
        assert torch.equal(other.state_dict()[key], each)
        assert other.state_dict()[key].dtype == each.dtype
    assert other.head.weight is other.embedding.weight


def test_a_state_can_be_had_with_the_parameters_of_the_server() -> None:
    model = nn.Linear(2, 1)
    segment = segment_of(layout_of(model))
    Replica(model, segment)
    state = segment.state(torch.tensor([7.0, 8.0, 9.0]))
    assert state["weight"].tolist() == [[7.0, 8.0]] and state["bias"].tolist() == [9.0]


def test_a_model_with_a_state_beyond_tensors_is_refused_before_it_is_trained() -> None:
    class WithExtra(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"revision": 3}

    with pytest.raises(ConfigurationError, match="_extra_state"):
        layout_of(WithExtra(2, 2))


# -- the replica --


@STAGED
def test_a_model_keeps_its_values_when_it_moves_into_its_segment(staged: bool) -> None:
    model, same = everything(), everything()
    segment = segment_of(layout_of(model))
    Replica(model, segment, staged=staged)
    for key, each in same.state_dict().items():
        assert torch.equal(model.state_dict()[key], each)
        assert torch.equal(segment.state()[key], each)
    assert torch.equal(model.scratch, same.scratch) and torch.equal(segment.others["scratch"], same.scratch)
    assert torch.equal(segment.parameters, flat_of(same))


@STAGED
def test_gradients_go_out_and_parameters_come_in(staged: bool) -> None:
    model, same = everything(), everything()
    segment = segment_of(layout_of(model))
    replica = Replica(model, segment, staged=staged)
    for net in (model, same):
        backward(net)
    assert replica.hand_in()
    assert torch.equal(segment.gradient, gradients_of(same))
    segment.parameters.fill_(0.25)
    replica.take()
    assert torch.equal(flat_of(model), torch.full((28,), 0.25))
    assert model.head.weight is model.embedding.weight and model.frozen.weight.ne(0.25).any()
    assert not segment.gradient.eq(0.25).any()


@STAGED
def test_what_a_model_keeps_in_buffers_reaches_the_segment_with_the_gradient(staged: bool) -> None:
    model = everything()
    segment = segment_of(layout_of(model))
    replica = Replica(model, segment, staged=staged)
    backward(model)
    replica.hand_in()
    assert segment.others["count"] == 1 and segment.others["norm.num_batches_tracked"] == 1
    assert segment.others["scratch"].tolist() == [1.0] * 5
    assert segment.others["mask"].tolist() == [True, False, True]
    assert torch.equal(segment.others["norm.running_mean"], model.norm.running_mean)  # type: ignore[arg-type]


@STAGED
def test_a_buffer_that_the_model_assigns_anew_reaches_the_segment_too(staged: bool) -> None:
    class MovingAverage(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 2)
            self.register_buffer("mean", torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            found = super().forward(x)
            self.mean = 0.5 * self.mean + 0.5 * found.detach().mean(0)
            return found

    model = MovingAverage()
    segment = segment_of(layout_of(model))
    replica = Replica(model, segment, staged=staged)
    for _ in range(2):
        model(torch.ones(4, 2)).sum().backward()
        replica.hand_in()
        assert torch.equal(segment.others["mean"], model.mean)
    segment.others["mean"].fill_(4.0)
    replica.take_others()
    assert model.mean.tolist() == [4.0, 4.0]


@STAGED
def test_who_joins_late_takes_over_buffers_and_frozen_parameters(staged: bool) -> None:
    model = everything()
    segment = segment_of(layout_of(model))
    replica = Replica(model, segment, staged=staged)
    for each in segment.others.values():
        each.fill_(1)
    replica.take_others()
    assert model.count == 1 and model.norm.running_mean.tolist() == [1, 1, 1]  # type: ignore[union-attr]
    assert model.frozen.bias.tolist() == [1, 1, 1] and not model.frozen.bias.requires_grad
    assert model.mask.all()  # type: ignore[operator]


@STAGED
def test_parameters_without_a_gradient_are_absent_and_handed_in_as_zeros(staged: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    replica = Replica(model, segment_of(layout_of(model)), staged=staged)
    assert replica.absent() == (0, 1, 2, 3)
    model[0](torch.ones(1, 2)).sum().backward()
    assert replica.absent() == (2, 3)
    replica.segment.gradient.fill_(7.0)
    assert replica.hand_in(replica.absent()) == 6.0
    assert replica.segment.gradient.tolist() == [1.0] * 6 + [0.0] * 6
    model(torch.ones(1, 2)).sum().backward()
    assert replica.absent() == ()


@STAGED
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_gradient_that_is_not_finite_is_seen_and_named(staged: bool, bad: float) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    replica = Replica(model, segment_of(layout_of(model)), staged=staged)
    model(torch.ones(1, 2)).sum().backward()
    assert replica.hand_in() == pytest.approx(float(replica.segment.gradient.square().sum()))
    model[1].bias.grad[1] = bad  # type: ignore[index]
    assert replica.hand_in() is None and replica.not_finite() == "1.bias"


def test_finite_gradients_whose_squares_overflow_are_finite() -> None:
    model = nn.Linear(2, 2)
    replica = Replica(model, segment_of(layout_of(model)))
    for each in model.parameters():
        each.grad = torch.full_like(each, 3e38)
    assert replica.hand_in() and replica.not_finite() is None


def test_a_sparse_gradient_is_handed_in_as_well() -> None:
    model = nn.Embedding(4, 2, sparse=True)
    segment = segment_of(layout_of(model))
    replica = Replica(model, segment)
    model(torch.tensor([1, 1, 3])).sum().backward()
    assert replica.hand_in()
    assert segment.gradient.view(4, 2).tolist() == [[0, 0], [2, 2], [0, 0], [1, 1]]


def test_parameters_that_do_not_lie_in_order_of_their_rows_keep_their_values() -> None:
    model = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
    model.register_parameter("turned", nn.Parameter(torch.arange(6.0).view(3, 2).t()))
    before = {name: each.clone() for name, each in model.state_dict().items()}
    segment = segment_of(layout_of(model))
    Replica(model, segment)
    for name, each in model.state_dict().items():
        assert torch.equal(each, before[name]) and torch.equal(segment.state()[name], before[name])


# -- the average of several replicas --


def replicas_of(*means: float) -> list[dict[str, Tensor]]:
    replicas = []
    for number, mean in enumerate(means):
        segment = segment_of(layout_of(nn.BatchNorm1d(2)))
        segment.others["running_mean"].fill_(mean)
        segment.others["num_batches_tracked"].fill_(number + 10)
        replicas.append(segment.others)
    return replicas


def test_floating_point_buffers_are_averaged_and_of_the_others_the_first_counts() -> None:
    target = segment_of(layout_of(nn.BatchNorm1d(2)))
    averaged_into(target, replicas_of(1.0, 2.0, 6.0))
    assert target.others["running_mean"].tolist() == [3.0, 3.0] and target.others["num_batches_tracked"] == 10
    averaged_into(target, replicas_of(5.0))
    assert target.others["running_mean"].tolist() == [5.0, 5.0]
    averaged_into(target, [])
    assert target.others["running_mean"].tolist() == [5.0, 5.0]
