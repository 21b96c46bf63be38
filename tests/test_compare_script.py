"""A user's own loop in virtual time: the same weights as a real run, the same bytes each time, under every policy."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from group import QUICK
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, StepLR
from torch.utils.data import DataLoader, TensorDataset

import paceline
from paceline.cli import main
from paceline.core.errors import ConfigurationError, TraceError
from paceline.experiment.comparison import Comparison, Trial, run_trial
from paceline.experiment.own_loop import OwnFunctions, digest_of, own_functions
from paceline.experiment.script import script_functions
from paceline.experiment.simulation import Simulation, worker_speeds
from paceline.experiment.training import launch
from paceline.experiment.virtual_loops import TRAINING_LOSS, OwnLoop, train_loops_virtually
from paceline.experiment.worker_times import recorded_times
from paceline.recording.trace import Trace
from paceline.training.data import order_of
from paceline.training.loop_learner import LoopFailedError
from paceline.training.memory_use import available_bytes, refuse_if_too_large, resident_bytes
from paceline.training.remote_optimizer import GradientError
from paceline.training.worker import Worker

SAMPLES, BATCH, EPOCHS = 96, 8, 2
GROUP = Simulation(intervals=(1.0, 1.2, 4.0))
X = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(X, (X.sum(1) > 0).long())


def net(*, plain: bool = False) -> nn.Module:
    if plain:
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 2))


def loop(
    worker: Worker,
    *,
    plain: bool = False,
    kind: type[torch.optim.Optimizer] = torch.optim.SGD,
    gathers: int = 1,
    spoils: int = 0,
    own: bool = False,
    ends_with_a_step: bool = False,
    **options: Any,
) -> None:
    """A user's loop. `gathers`: batches of one step; `spoils`: every so many gradients one is not finite.
    `ends_with_a_step`: also of fewer batches, if they are the last."""
    model = net(plain=plain)
    optimizer = worker.optimizer(model, kind, **({"lr": 0.1} | options))
    leased = worker.batches(DATA, BATCH)
    batches = worker.batches(DataLoader(DATA, BATCH, shuffle=True), sharding="own") if own else leased
    number = 0
    for number, (x, y) in enumerate(batches, 1):
        loss = F.cross_entropy(model(x), y) * (float("nan") if spoils and number % spoils == 0 else 1.0)
        loss.backward()
        if number % gathers == 0:
            optimizer.step(loss)
            optimizer.zero_grad()
    if number % gathers and ends_with_a_step:
        optimizer.step(loss)


def accuracy(state: dict[str, torch.Tensor]) -> float:
    model = net()
    model.load_state_dict(state)
    model.eval()
    with torch.no_grad():
        return float((model(X).argmax(1) == DATA.tensors[1]).float().mean())


def own(**options: Any) -> OwnLoop:
    return OwnLoop(lambda: partial(loop, **options))


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(tensor, second[name]) for name, tensor in first.items())


# -- what a loop comes to --


@pytest.mark.parametrize("policy", [*QUICK, "backup:k=2,late=interrupt", "backup:k=2,late=pull", "dbw:blind=true"])
def test_the_same_arguments_give_the_same_bytes_and_use_every_sample(policy: str, tmp_path: Path) -> None:
    group = Simulation(intervals=(1.0, 1.1, 4.0), jitter=0.2, seed=3)
    options: dict[str, Any] = {"kind": torch.optim.AdamW, "lr": 0.01}
    results = []
    for number in range(2):
        torch.manual_seed(number)  # what the caller has drawn does not matter
        results.append(
            train_loops_virtually(own(**options), policy, group, epochs=EPOCHS, trace_file=tmp_path / f"{number}")
        )
    assert (tmp_path / "0").read_bytes() == (tmp_path / "1").read_bytes()
    assert same(results[0].model_state, results[1].model_state)
    assert results[0].samples == SAMPLES * EPOCHS and results[0].evaluations == results[1].evaluations
    rule = Trace(tmp_path / "0").header.updates
    assert rule is not None and (rule.correction != "none") == (
        policy in ("asp", "ssp", "dssp", "elastic-bsp", "buffered")
    )


@pytest.mark.parametrize("policy", QUICK)
def test_one_worker_is_plain_pytorch_to_the_bit(policy: str) -> None:
    options: dict[str, Any] = {"momentum": 0.9, "plain": True}
    result = train_loops_virtually(own(**options), policy, Simulation(intervals=(1.0,)), epochs=EPOCHS)
    torch.manual_seed(0)
    model = net(plain=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(EPOCHS):
        for indices in order_of(SAMPLES, 0, epoch).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(X[indices]), DATA.tensors[1][indices]).backward()
            optimizer.step()
    assert same(result.model_state, model.state_dict())


def test_accumulation_schedules_and_parameter_groups_do_as_in_plain_pytorch() -> None:
    schedule = partial(CosineAnnealingLR, T_max=EPOCHS)
    options: dict[str, Any] = {"plain": True, "gathers": 2, "scheduler": schedule, "momentum": 0.9}
    result = train_loops_virtually(own(**options), "bsp", Simulation(intervals=(1.0,)), epochs=EPOCHS)
    assert result.samples == SAMPLES * EPOCHS and result.summary.updates == SAMPLES * EPOCHS // BATCH // 2
    torch.manual_seed(0)
    model = net(plain=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = schedule(optimizer)
    for epoch in range(EPOCHS):
        for number, indices in enumerate(order_of(SAMPLES, 0, epoch).split(BATCH), 1):
            F.cross_entropy(model(X[indices]), DATA.tensors[1][indices]).backward()
            if number % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
        scheduler.step()
    assert same(result.model_state, model.state_dict())


@pytest.mark.parametrize("policy", ["bsp", "asp", "backup:k=2,late=interrupt"])
def test_gradients_that_are_not_finite_are_skipped_and_counted_or_end_the_run(policy: str) -> None:
    result = train_loops_virtually(own(spoils=5), policy, GROUP, epochs=EPOCHS, not_finite="skip")
    assert result.dropped > 0 and result.samples + result.dropped == SAMPLES * EPOCHS
    with pytest.raises(GradientError, match=r"the gradient of .* is not finite"):
        train_loops_virtually(own(spoils=3), policy, GROUP)


def test_batches_of_the_loops_own_are_walked_through_by_each() -> None:
    result = train_loops_virtually(own(own=True), "asp", GROUP, epochs=EPOCHS, evaluate_every=100)
    assert result.samples == 3 * SAMPLES * EPOCHS and len(result.evaluations) == 3 * SAMPLES * EPOCHS // 100 + 1
    last = result.evaluations[-1].figures
    assert list(last) == [TRAINING_LOSS] and 0 < last[TRAINING_LOSS] < 1


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 4), nn.Linear(4, 2).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).double()).float()


def mixed_loop(worker: Worker) -> None:
    model = Mixed()
    optimizer = worker.optimizer(model, torch.optim.SGD, lr=0.1)
    for x, y in worker.batches(DATA, BATCH):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def test_parameters_of_several_types_come_back_as_they_were() -> None:
    state = train_loops_virtually(OwnLoop(lambda: mixed_loop), "bsp", GROUP).model_state
    assert {name: tensor.dtype for name, tensor in state.items()} == {
        name: tensor.dtype for name, tensor in Mixed().state_dict().items()
    }


def test_a_worker_may_fail_and_another_join_late() -> None:
    group = Simulation(intervals=(1.0, 1.2, 4.0), failures={1: 3.0}, joins={2: 5.0})
    result = train_loops_virtually(own(), "bsp", group, epochs=EPOCHS)
    assert result.samples == SAMPLES * EPOCHS
    assert [gone.worker for gone in result.summary.departures] == [1]


@pytest.mark.parametrize("policy", ["bsp", "asp", "elastic-bsp", "backup"])
def test_nothing_is_lost_when_somebody_fails_and_the_others_were_let_go_in_the_middle_of_a_gradient(
    policy: str,
) -> None:
    stood_in = 0
    for tenths in range(1, 90, 3):
        group = Simulation(intervals=(1.0, 1.3), failures={1: tenths / 10})
        result = train_loops_virtually(own(gathers=5, ends_with_a_step=True), policy, group)
        assert result.samples == SAMPLES
        stood_in += any(each.worker > 1 for each in result.summary.workers)
    assert policy != "asp" or stood_in


def test_the_times_of_a_run_are_the_speeds_of_another(tmp_path: Path) -> None:
    first = train_loops_virtually(own(), "bsp", GROUP, epochs=EPOCHS, trace_file=tmp_path / "trace.jsonl")
    times = recorded_times(tmp_path)
    assert {worker: {round(time, 6) for time in own} for worker, own in times.items()} == {0: {1.0}, 1: {1.2}, 2: {4.0}}
    again = train_loops_virtually(own(), "bsp", Simulation(trace=str(tmp_path)), epochs=EPOCHS)
    assert again.seconds == pytest.approx(first.seconds) and same(again.model_state, first.model_state)
    (tmp_path / "trace.jsonl").write_bytes((tmp_path / "trace.jsonl").read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(TraceError, match="nobody pushed anything"):
        recorded_times(tmp_path)


def test_a_run_may_end_early() -> None:
    group = Simulation(intervals=(1.0, 1.2, 4.0), duration=6.0)
    assert train_loops_virtually(own(), "asp", group, epochs=100).seconds == 6.0
    halted = train_loops_virtually(own(), "asp", GROUP, epochs=100, on_evaluation=lambda found: True)
    assert halted.samples == SAMPLES


@pytest.mark.parametrize("brings_its_own", [False, True])
@pytest.mark.parametrize("policy", ["bsp", "asp", "elastic-bsp"])
def test_a_run_may_end_after_full_rounds(policy: str, brings_its_own: bool) -> None:
    result = train_loops_virtually(own(own=brings_its_own), policy, GROUP, epochs=None, steps=7)
    more = 0 if policy == "bsp" or not brings_its_own else 2  # of their own, each brings the batch that it is at
    assert 0 <= result.samples // BATCH - 7 * 3 <= more


def test_a_comparison_ends_with_the_first_limit() -> None:
    options: dict[str, Any] = {"policies": ["bsp"], "workers": [1.0, 2.0], "seeds": 1}
    for limits, samples in (({}, 96), ({"steps": 3}, 48), ({"epochs": 1, "steps": 50}, 96), ({"budget": 4.0}, 32)):
        assert paceline.compare(loop, **options, **limits).rows[0].samples == samples


# -- what cannot be done --


def test_mistakes_of_a_loop_are_told_in_a_sentence_or_by_its_traceback() -> None:
    def raises(worker: Worker) -> None:
        raise ValueError("no file")

    def has_no_model(worker: Worker) -> None:
        return

    shared = net()

    def shares(worker: Worker) -> None:
        worker.optimizer(shared, torch.optim.SGD, lr=0.1)

    def differs(worker: Worker) -> None:
        worker.optimizer(nn.Linear(2 + worker.index, 1), torch.optim.SGD, lr=0.1)

    def run(train: Callable[[Worker], None]) -> None:
        train_loops_virtually(OwnLoop(lambda: train), "bsp", GROUP)

    with pytest.raises(LoopFailedError, match=r"worker 0 raised:\n(.*\n)*.*ValueError: no file"):
        run(raises)
    with pytest.raises(ConfigurationError, match=r"worker 0 came to its end before it had a model: `train` must call"):
        run(has_no_model)
    with pytest.raises(ConfigurationError, match="workers 0 and 1 train the same model object"):
        run(shares)
    with pytest.raises(ConfigurationError, match="the model of worker 1 differs from that of worker 0: its parameter"):
        run(differs)


def test_an_evaluation_that_raises_is_told_by_its_traceback() -> None:
    def evaluate(state: dict[str, torch.Tensor]) -> float:
        raise ValueError("no labels")

    with pytest.raises(LoopFailedError, match=r"the evaluation raised:\n(.*\n)*.*ValueError: no labels"):
        train_loops_virtually(OwnLoop(lambda: loop, lambda: evaluate), "bsp", GROUP)


def test_more_workers_than_memory_are_refused() -> None:
    free = available_bytes()
    assert free is not None and resident_bytes() > 0
    refuse_if_too_large(free // 100, 10, 12)
    with pytest.raises(ConfigurationError, match="64 simulated workers do not fit into memory: each has a model"):
        refuse_if_too_large(free // 10, 62, 64)


def test_a_factor_is_on_every_learning_rate_and_refused_where_a_schedule_sets_it() -> None:
    small = train_loops_virtually(own(lr=0.05), "bsp", GROUP)
    assert same(train_loops_virtually(own(lr=0.1), "bsp", GROUP, factor=0.5).model_state, small.model_state)
    default = train_loops_virtually(own(kind=torch.optim.Adam, lr=1e-3), "bsp", GROUP, factor=0.5)
    assert not same(default.model_state, small.model_state)
    for cycle in (partial(OneCycleLR, max_lr=0.1, total_steps=100), partial(OneCycleLR, max_lr=0.1)):
        with pytest.raises(ConfigurationError, match="the schedule sets the learning rate itself"):
            train_loops_virtually(own(scheduler=cycle), "bsp", GROUP, factor=0.5)
    follows = partial(StepLR, step_size=1)
    train_loops_virtually(own(scheduler=follows), "bsp", GROUP, factor=0.5)


# -- comparing --


@pytest.mark.slow
def test_a_closure_is_compared_in_this_process_and_shows_the_training_loss(tmp_path: Path) -> None:
    rate = 0.1

    def train(worker: Worker) -> None:
        loop(worker, lr=rate)

    before = torch.get_num_threads()
    asked: dict[str, Any] = {"workers": "2x1.0,1x4.0", "policies": ["bsp", "asp"], "seeds": 2, "epochs": EPOCHS}
    found = paceline.compare(train, **asked, out=tmp_path)
    assert [row.policy for row in found.rows] == ["bsp", "asp"] and len(found.outcomes) == 4
    assert "training loss" in str(found) and found.rows[0].figure == TRAINING_LOSS
    assert found.rows[0].seconds > 2 * found.rows[1].seconds and torch.get_num_threads() == before
    assert (tmp_path / "training-loss-over-time.svg").exists()
    kept = (tmp_path / "results.jsonl").read_bytes()
    again = paceline.compare(train, **asked, out=tmp_path)
    assert again == found and (tmp_path / "results.jsonl").read_bytes() == kept

    def other(worker: Worker) -> None:
        loop(worker, lr=2 * rate)

    with pytest.raises(ConfigurationError, match="holds the results of another comparison"):
        paceline.compare(other, **asked, out=tmp_path)


@pytest.mark.slow
def test_every_policy_gets_its_best_rate_by_what_is_measured() -> None:
    asked: dict[str, Any] = {
        "workers": [1.0, 4.0],
        "policies": ["asp"],
        "seeds": 1,
        "tune_lr": (1e-3, 1.0),
        "processes": 1,
    }
    by_loss = paceline.compare(loop, **asked)
    by_accuracy = paceline.compare(loop, **asked, evaluate=accuracy, target_accuracy=0.2)
    assert by_loss.rows[0].factor == by_accuracy.rows[0].factor == 1.0  # less loss is better, and more accuracy
    assert by_accuracy.rows[0].figure == "accuracy" and by_accuracy.rows[0].time is not None
    assert "factor" in str(by_accuracy) and "20%" in str(by_accuracy)


def test_a_run_that_diverges_is_an_outcome_with_its_reason() -> None:
    own_loop = OwnFunctions(partial(loop, spoils=3))
    comparison = Comparison("loop", GROUP, epochs=1, own="loop")
    assert "is not finite" in run_trial(comparison, Trial("bsp", 0), own_loop).problem


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": "3xfast"}, "workers 3xfast: must be a number, or groups with their times"),
        ({"workers": 3}, "exactly one way"),
        ({"workers": [1.0, 2.0], "seeds": 0}, "seeds is 0; it must be at least 1"),
        ({"workers": [1.0, 2.0], "policies": ["bps"]}, "unknown policy 'bps'"),
        ({"workers": [1.0, 2.0], "tune_lr": ()}, "tune_lr: must be numbers above 0"),
        ({"workers": [1.0, 2.0], "not_finite": "go on"}, "unknown not_finite 'go on'"),
        ({"workers": [1.0, 2.0], "target_accuracy": 0.5}, "without evaluate nobody finds an accuracy"),
        ({"workers": [1.0, 2.0], "evaluate": 3}, r"evaluate\(state\) must be a function, not 3"),
    ],
)
def test_what_is_impossible_is_refused_before_anything_runs(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        paceline.compare(loop, **options)


def test_an_evaluation_without_an_accuracy_reaches_no_target() -> None:
    with pytest.raises(ConfigurationError, match="finds error, and no accuracy that could reach a target"):
        paceline.compare(
            loop, workers=[1.0], policies=["bsp"], seeds=1, evaluate=lambda state: {"error": 0.5}, target_accuracy=0.5
        )


# -- scripts --

SCRIPT = """
import sys
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
NOISE = torch.randn(4)  # a process draws this after it was seeded
seen = []  # of a process, not of the group

def data():
    x = torch.randn(240, 8, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, (x.sum(1) > 0).long())

def net():
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))

def train(worker):
    assert not seen
    seen.append(worker.index)
    model = net()
    optimizer = worker.optimizer(model, torch.optim.AdamW, lr=1e-2)
    for x, y in worker.batches(data(), batch_size=8):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x + NOISE.mean()), y)
        loss.backward()
        optimizer.step(loss)

def evaluate(state):
    model = net()
    model.load_state_dict(state)
    model.eval()
    x, y = data().tensors
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def paceline_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["paceline", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_a_real_run_of_bsp_comes_to_the_same_weights(workers: int, script: Path, tmp_path: Path) -> None:
    train, evaluate = script_functions(script, ())
    assert evaluate is not None
    group = Simulation(intervals=(1.0, 1.2, 4.0)[:workers])
    virtual = train_loops_virtually(OwnLoop(train.anew, evaluate.anew), "bsp", group, epochs=EPOCHS)
    real = launch(train, workers=workers, policy="bsp", epochs=EPOCHS, evaluate=evaluate, run_dir=tmp_path / "run")
    assert same(virtual.model_state, real.model_state) and virtual.samples == real.samples == 240 * EPOCHS
    assert virtual.evaluations[-1].figures == real.evaluations[-1].figures
    times = recorded_times(tmp_path / "run")
    assert list(times) == list(range(workers)) and sum(map(len, times.values())) == 240 * EPOCHS // 8
    assert len(worker_speeds(Simulation(trace=str(tmp_path / "run")))) == workers


@pytest.mark.slow
def test_the_command_compares_a_script_and_gives_the_same_again(
    script: Path, tmp_path: Path, paceline_command: Callable[..., tuple[int, str, str]]
) -> None:
    asked = ("compare", script, "--policy", "bsp", "--policy", "dbw", "--seeds", "2", "--epochs", "2")
    common = (*asked, "--workers", "2x1.0,1x4.0", "--target-accuracy", "0.6")
    code, out, _ = paceline_command(*common, "--out", tmp_path / "one", "--processes", "1")
    assert code == 0 and "60%" in out and "final" in out
    code, again, _ = paceline_command(*common, "--out", tmp_path / "two", "--processes", "2")
    assert code == 0 and again.replace("two", "one") == out
    names = {path.name for path in (tmp_path / "one").iterdir()}
    pictures = {"accuracy-over-time.svg", "accuracy-over-samples.svg", "first-seconds.svg", "dbw-estimates.svg"}
    assert names == {"results.jsonl", *pictures}
    for name in names:
        lines = [(tmp_path / which / name).read_bytes().splitlines() for which in ("one", "two")]
        assert sorted(lines[0]) == sorted(lines[1])  # two processes finish in any order
    code, out, _ = paceline_command(*common, "--out", tmp_path / "one", "--json")
    assert code == 0 and [row["figure"] for row in json.loads(out)] == ["accuracy", "accuracy"]
    script.write_text(SCRIPT.replace("0.3", "0.2"))
    code, _, err = paceline_command(*common, "--out", tmp_path / "one")
    assert code == 2 and "holds the results of another comparison" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py"], "there is no such script"),
        (["own.py", "--lr", "0.1"], "--lr is for the built-in tasks; a script says that itself"),
        (["empty.py"], "has no function train(worker)"),
        (["silent.py", "--target-accuracy", "0.5"], "has no evaluate(state) that could find an accuracy"),
        (["digit"], "unknown task 'digit'; there are: digits, fashion-mnist, cifar10; or name a script of yours"),
        (["digits", "--", "--fast"], "--fast: a task takes no arguments of its own"),
    ],
)
def test_what_a_command_cannot_compare_is_told(
    arguments: list[str],
    message: str,
    script: Path,
    monkeypatch: pytest.MonkeyPatch,
    paceline_command: Callable[..., tuple[int, str, str]],
) -> None:
    monkeypatch.chdir(script.parent)
    (script.parent / "empty.py").write_text("")
    (script.parent / "silent.py").write_text("def train(worker): ...")
    code, _, err = paceline_command("compare", arguments[0], "--workers", "2x1.0", *arguments[1:])
    assert code == 2 and message in err


def test_functions_of_the_script_that_runs_are_found_in_its_file(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["__main__"]
    monkeypatch.setattr(module, "__file__", str(script), raising=False)
    monkeypatch.setattr(module, "loop", loop, raising=False)
    found = own_functions(loop, None)
    assert getattr(found.train, "path", None) == script and found.crosses
    before = digest_of(found)
    script.write_text(SCRIPT + "\n# changed\n")
    assert digest_of(found) != before
    assert own_functions(partial(loop), accuracy).evaluate is accuracy
