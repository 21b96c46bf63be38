"""A plain loop on `worker.prepare`: it stays as it is, and learns what it would have learned alone."""

from __future__ import annotations

import difflib
import io
import itertools
import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fake_link import FakeLink
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from paceline.core.errors import ConfigurationError
from paceline.training.prepared import Transplant
from paceline.training.worker import Worker
from paceline.training.worker_state import unpacked

ROOT = Path(__file__).parents[1]
SAMPLES, BATCH, EPOCHS = 24, 4, 3
STEPS = EPOCHS * 6  # six batches make an epoch


def ramp(step: int) -> float:
    return min(1.0, (step + 1) / 5)


def loader() -> DataLoader[Any]:
    x = torch.randn(SAMPLES, 3, generator=torch.Generator().manual_seed(8))
    # With a generator of its own the loader draws nothing from the random numbers that dropout uses.
    return DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), BATCH, generator=torch.Generator())


def net() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.2), nn.Linear(5, 2))


def adamw(model: nn.Sequential) -> torch.optim.Optimizer:
    decayed, others = [model[0].weight, model[4].weight], [model[0].bias, *model[1].parameters(), model[4].bias]
    groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0, "lr": 0.02}]
    return torch.optim.AdamW(groups, lr=0.05, weight_decay=0.1)


def in_sequence(optimizer: torch.optim.Optimizer) -> lr_scheduler.SequentialLR:
    parts = [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4), lr_scheduler.CosineAnnealingLR(optimizer, STEPS)]
    return lr_scheduler.SequentialLR(optimizer, parts, [4])


SCHEDULES: dict[str, Any] = {
    "lambda": partial(lr_scheduler.LambdaLR, lr_lambda=ramp),
    "one cycle": partial(lr_scheduler.OneCycleLR, max_lr=[0.1, 0.05], total_steps=STEPS + 1),
    "sequential": in_sequence,
    "step": partial(lr_scheduler.StepLR, step_size=2, gamma=0.5),
}


def loop(model: nn.Module, optimizer: Any, batches: Any, scheduler: Any, per_batch: bool) -> list[int]:
    """As anybody would write it; returns how many batches each epoch had."""
    seen = []
    for _ in range(EPOCHS):
        seen.append(0)
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if per_batch:
                scheduler.step()
            seen[-1] += 1
        if not per_batch:
            scheduler.step()
    return seen


def worker_of(link: FakeLink) -> Worker:
    return Worker(0, link, seed=0, epochs=link.epochs)


@pytest.mark.parametrize("every", ["batch", "epoch"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_plain_loop_learns_the_same_bits_with_its_own_optimizer_and_schedule(schedule: str, every: str) -> None:
    plain, ours = net(), net()
    optimizer, made = adamw(plain), adamw(ours)
    torch.manual_seed(5)
    assert loop(plain, optimizer, loader(), SCHEDULES[schedule](optimizer), every == "batch") == [6] * EPOCHS
    link = FakeLink(EPOCHS)
    prepared = worker_of(link).prepare(ours, made, loader(), SCHEDULES[schedule](made), scheduler_every=every)
    link.store.epoch_samples = SAMPLES
    torch.manual_seed(5)
    assert loop(*prepared, every == "batch") == [6] * EPOCHS
    for name, tensor in plain.state_dict().items():
        assert torch.equal(tensor, ours.state_dict()[name]), name
    assert [group["lr"] for group in link.store.optimizer.param_groups] == [
        group["lr"] for group in optimizer.param_groups
    ]


def accumulating(model: nn.Module, optimizer: Any, batches: Any, scheduler: Any, steps_with: str) -> None:
    """A step for every three batches; the schedule steps with each of them, with each batch, or with each epoch."""
    for _ in range(EPOCHS):
        for number, (x, y) in enumerate(batches, 1):
            (F.cross_entropy(model(x), y) / 3).backward()
            if number % 3 == 0:
                optimizer.step()
                optimizer.zero_grad()
            if steps_with == "batch" or (steps_with == "step" and number % 3 == 0):
                scheduler.step()
        if steps_with == "epoch":
            scheduler.step()


def prepared_for(every: str) -> tuple[nn.Module, FakeLink, Any]:
    model, link = net(), FakeLink(EPOCHS)
    made = adamw(model)
    things = worker_of(link).prepare(model, made, loader(), SCHEDULES["one cycle"](made), scheduler_every=every)
    link.store.epoch_samples = SAMPLES
    return model, link, things


@pytest.mark.parametrize("every", ["step", "epoch"])
def test_a_loop_that_accumulates_says_when_its_schedule_steps(every: str) -> None:
    plain = net()
    optimizer = adamw(plain)
    torch.manual_seed(5)
    scheduler = SCHEDULES["one cycle"](optimizer)
    accumulating(plain, optimizer, loader(), scheduler, every)
    ours, link, things = prepared_for(every)
    torch.manual_seed(5)
    accumulating(*things, every)
    assert [group["lr"] for group in link.store.optimizer.param_groups] == scheduler.get_last_lr()
    assert all(torch.equal(tensor, ours.state_dict()[name]) for name, tensor in plain.state_dict().items())


@pytest.mark.parametrize(
    ("said", "done"), [(said, done) for said in ("batch", "step", "epoch") for done in ("batch", "step", "epoch")]
)
def test_a_schedule_that_the_loop_steps_at_other_times_than_it_said_is_told(said: str, done: str) -> None:
    _, _, things = prepared_for(said)
    if said == done:
        accumulating(*things, done)
        return
    with pytest.raises(ConfigurationError, match=rf"you said scheduler_every='{said}'.*: say scheduler_every='{done}'"):
        accumulating(*things, done)


def test_a_loop_with_a_grad_scaler_may_leave_steps_of_its_schedule_out() -> None:
    _, _, things = prepared_for("batch")
    things[1].was_scaled = True
    accumulating(*things, "step")


def test_what_was_handed_over_steps_no_more() -> None:
    model = net()
    optimizer = adamw(model)
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    worker_of(FakeLink(EPOCHS)).prepare(model, optimizer, loader(), scheduler, scheduler_every="batch")
    with pytest.raises(ConfigurationError, match=r"this optimizer was given to worker.prepare: call step"):
        optimizer.step()
    with pytest.raises(ConfigurationError, match=r"this scheduler was given to worker.prepare"):
        scheduler.step()


def test_batches_from_another_loader_than_the_prepared_one_are_refused() -> None:
    model, mine = net(), loader()
    _, optimizer, _ = worker_of(FakeLink(EPOCHS)).prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), mine)
    x, y = next(iter(mine))
    F.cross_entropy(model(x), y).backward()
    with pytest.raises(ConfigurationError, match=r"from elsewhere than from the loader that worker.prepare returned"):
        optimizer.step()


def test_a_loop_that_never_steps_is_told_so() -> None:
    link, model = FakeLink(EPOCHS), net()
    worker = worker_of(link)
    _, _, batches = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader())
    given = iter(batches)
    for x, y in itertools.islice(given, 6):
        F.cross_entropy(model(x), y).backward()
    with pytest.warns(UserWarning, match=r"took 6 batches of an epoch and never called step\(\)"):
        assert next(given, None) is None
    assert [each.samples for each in link.pushed] == [SAMPLES]


def test_a_loop_can_go_by_the_epochs_of_the_run_whatever_limits_it() -> None:
    model, link = net(), FakeLink(EPOCHS)
    worker = worker_of(link)
    worker.epochs = None
    _, optimizer, batches = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader())
    seen = []
    for epoch in worker.each_epoch():
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            assert worker.epoch == epoch
        seen.append(epoch)
    assert seen == [0, 1, 2]


def test_a_schedule_crosses_to_another_process_without_the_optimizer_that_it_was_made_for() -> None:
    model = nn.Linear(1000, 1000)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
    crossed = pickle.dumps(Transplant(in_sequence(optimizer)))
    assert len(crossed) < 10_000
    other = torch.optim.SGD([{"params": [nn.Parameter(torch.zeros(1))], "initial_lr": 0.4, "lr": 0.04}], lr=1.0)
    schedule = pickle.loads(crossed)(other)
    for _ in range(5):
        other.step()
        schedule.step()
        optimizer.step()
    assert schedule.optimizer is other and other.param_groups[0]["lr"] > 0.3


def test_what_is_left_of_an_epoch_is_pushed_without_the_first_batch_of_the_next() -> None:
    """Accumulation over four batches, of which an epoch has six: the last push of an epoch is made of two."""
    link, model = FakeLink(EPOCHS), net()
    worker = worker_of(link)
    _, optimizer, batches = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader())
    assert len(batches) == 6 and len(batches.dataset) == SAMPLES
    for epoch in range(EPOCHS):
        for number, (x, y) in enumerate(batches, 1):
            assert worker.epoch == epoch
            F.cross_entropy(model(x), y).backward()
            if number % 4 == 0 or number == len(batches):
                optimizer.step()
                optimizer.zero_grad()
        assert worker.epoch == epoch
    assert [each.samples for each in link.pushed] == [16, 8] * EPOCHS
    with pytest.warns(UserWarning, match=r"begins epoch 4, and the run has 3: give launch\(epochs=...\)"):
        assert list(batches) == []


def test_what_a_loop_accumulated_and_did_not_step_with_is_pushed_at_the_end_of_the_epoch() -> None:
    link, model = FakeLink(EPOCHS), net()
    worker = worker_of(link)
    _, optimizer, batches = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader())
    for _ in range(EPOCHS):
        for number, (x, y) in enumerate(batches, 1):
            F.cross_entropy(model(x), y).backward()
            if number % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
    assert [each.samples for each in link.pushed] == [16, 8] * EPOCHS


def test_a_gradient_is_not_pushed_again_where_the_last_batch_of_an_epoch_had_none() -> None:
    link, model = FakeLink(1), net()
    _, optimizer, batches = worker_of(link).prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader())
    for number, (x, y) in enumerate(batches, 1):
        if number == 6:
            continue  # the gradient of the fifth is still there
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert len(link.pushed) == 5


def test_a_model_that_lives_in_the_segment_is_saved_alone() -> None:
    model = net()
    worker_of(FakeLink()).prepare(torch.optim.SGD(model.parameters(), lr=0.1), model)
    written = io.BytesIO()
    torch.save(model.state_dict(), written)  # parameters of 32 and a count of 64 bits, of the same segment
    written.seek(0)
    for name, tensor in torch.load(written).items():
        assert torch.equal(tensor, model.state_dict()[name]) and tensor.untyped_storage().nbytes() == tensor.nbytes


def made(momentum: float = 0.0) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)


def stepped() -> tuple[Any, ...]:
    model, optimizer = made(momentum=0.9)
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    return model, optimizer


def of_another() -> tuple[Any, ...]:
    return (*made(), lr_scheduler.StepLR(made()[1], 1))


def scheduled() -> tuple[Any, ...]:
    model, optimizer = made()
    return model, optimizer, lr_scheduler.StepLR(optimizer, 1)


@pytest.mark.parametrize(
    ("things", "options", "message"),
    [
        (lambda: (made()[0],), {}, "no optimizer"),
        (lambda: (made()[1],), {}, "no model"),
        (lambda: (*made(), loader(), loader()), {}, "more than one loader; give only the loader that is trained from"),
        (lambda: (*made(), 3), {}, "got a int; it takes a model"),
        (stepped, {}, "has made steps already"),
        (of_another, {"scheduler_every": "epoch"}, "not one of the optimizer that came with it"),
        (scheduled, {}, "did not say how often the scheduler steps"),
        (scheduled, {"scheduler_every": "round"}, "said 'round' for how often the scheduler steps"),
        (scheduled, {"scheduler_every": "batch"}, "needs a loader with a batch_size"),
    ],
)
def test_what_cannot_be_prepared_is_told_in_a_sentence(things: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        worker_of(FakeLink()).prepare(*things(), **options)


# -- the script of docs/migrating.md --


def test_the_converted_script_differs_in_six_lines_and_the_page_shows_them() -> None:
    plain, converted = ((ROOT / f"examples/{name}_training.py").read_text() for name in ("plain", "converted"))
    lines = list(difflib.unified_diff(plain.splitlines(), converted.splitlines(), n=0, lineterm=""))[2:]
    changed = [line for line in lines if line[0] in "+-" and line[1:].strip()]
    assert len([line for line in changed if line[0] == "+"]) == 6
    assert len([line for line in changed if line[0] == "-"]) == 2  # each of them was replaced
    page = (ROOT / "docs/migrating.md").read_text()
    assert "\n".join(changed) in page


# -- what only shows in odd company --


def test_an_optimizer_whose_state_is_there_from_the_start_is_taken_over() -> None:
    model = net()
    worker = Worker(0, FakeLink(), seed=0)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    assert worker.prepare(model, optimizer)[1].param_groups[0]["lr"] == 0.1


class Demanding(torch.optim.SGD):
    """Its rate has no default, though its groups hold one."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr=lr)


def test_an_optimizer_that_must_be_given_a_rate_is_given_one() -> None:
    model = net()
    prepared = Worker(0, FakeLink(), seed=0).prepare(model, Demanding(model.parameters(), lr=0.3))
    assert prepared[1].param_groups[0]["lr"] == 0.3


def test_what_a_grad_scaler_left_over_at_the_end_of_an_epoch_is_dropped_and_counted() -> None:
    """Its gradients are scaled, and nobody but the scaler knows by how much."""
    link = FakeLink(epochs=1)
    model = net()
    model, optimizer, batches = Worker(0, link, seed=0).prepare(model, adamw(model), loader())
    scaler = torch.amp.GradScaler("cpu")
    for number, (x, y) in enumerate(batches, 1):
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        if number % 4 == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert [pushed.samples for pushed in link.pushed] == [16] and link.skipped == [2]


def test_a_batch_that_is_held_for_the_next_epoch_is_not_behind_a_run_that_goes_on() -> None:
    link = FakeLink(epochs=2)
    link.keep_wanted = True
    model = net()
    worker = Worker(0, link, seed=0, epochs=2)
    model, optimizer, batches = worker.prepare(model, adamw(model), ThreeBatches())
    for number, (x, y) in enumerate(batches, 1):
        F.cross_entropy(model(x), y).backward()
        if number % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
    assert unpacked(link.kept[-1])["own"]["batches"] == 0  # what was left of the first epoch was pushed at its end


class ThreeBatches:
    """Can only be walked through, so it is the worker's own."""

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(loader(), 3)
