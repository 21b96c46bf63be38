"""What is said to people: public names, help, wrong input, widths, deaths, captions."""

from __future__ import annotations

import inspect
import io
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_link import FakeLink
from rich.console import Console
from torch import nn

import paceline
from paceline.core.errors import ConfigurationError
from paceline.core.messages import NOT_STALE, Record, UpdateRule, WorkerJoined, WorkerLeft
from paceline.experiment.comparison import Comparison
from paceline.experiment.given import KINDS, check_function
from paceline.experiment.pictures import caption_of
from paceline.experiment.simulation import Simulation, simulate
from paceline.experiment.training import launch
from paceline.experiment.whatif import recommendation, whatif
from paceline.recording.observer import Observer
from paceline.recording.progress_log import Failure, Logged, Measurement, MetricsWriter, read_metrics
from paceline.recording.timeline import Span
from paceline.recording.trace import Trace
from paceline.report.console import NARROWEST, WITHOUT_TERMINAL, output
from paceline.report.live import LiveTable, mean_of
from paceline.report.plots import draw_gantt, focus
from paceline.report.tables import summary_table
from paceline.runtimes.serving.failures import cause_of, died, raised
from paceline.runtimes.serving.last_words import ROOM, last_words, remember_stderr
from paceline.runtimes.serving.memory import create
from paceline.training.choices import UpdateOptions
from paceline.training.layout import layout_of
from paceline.training.optimizers import OptimizerSpec, spec_of
from paceline.training.own_figures import OwnFigures
from paceline.training.parameters import ParameterStore
from paceline.training.worker import Worker

# -- names and help --


def test_completion_shows_the_public_names() -> None:
    assert set(paceline.__all__) <= set(dir(paceline))
    assert not {"Any", "import_module", "annotations"} & set(dir(paceline))
    assert all(getattr(paceline, name) is not None for name in paceline.__all__)


def test_help_documents_every_argument_of_launch() -> None:
    lines = (launch.__doc__ or "").splitlines()
    documented = [line.split()[0] for line in lines if line[:4].isspace() and line[4:5].isalpha() and "  " in line[4:]]
    assert list(inspect.signature(launch).parameters) == documented


# -- wrong input --


def nothing() -> None:
    pass


def fine(worker: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seed": "a"}, "seed is 'a'; it must be a whole number of at most 63 bits"),
        ({"seed": 2**70}, "seed is 1180591620717411303424; it must be"),
        ({"policy": None}, "policy is None; it must be a string, as in 'ssp:staleness=3', or an object"),
        ({"policy": 3}, "policy is 3; it must be"),
        ({"workers": 1.5}, r"workers is 1.5; it must be a number or a range, as in 4, '2..4' or \(2, 4\)"),
        ({"workers": True}, "workers is True; it must be"),
        ({"epochs": "x"}, "epochs is 'x'; it must be a whole number"),
        ({"evaluate": 3}, r"evaluate is 3; it must be a function evaluate\(state\)"),
        ({"evaluate": nothing}, r"evaluate: nothing\(\) cannot be called as nothing\(state\): too many"),
        ({"train": None}, r"train is None; it must be a function train\(worker\)"),
        ({"train": nothing}, r"train: nothing\(\) cannot be called as nothing\(worker\): too many positional"),
        ({"slowdown": 3}, "slowdown is 3; it must be"),
        ({"slowdown": {0: "x"}}, "slowdown is {0: 'x'}; it must be numbers of workers with factors"),
        ({"patience": 3}, "patience is 3; it must be a string"),
        ({"device": None}, "device is None; it must be a string"),
        ({"run_dir": 3}, "run_dir is 3; it must be a path"),
        ({"checkpoint_every": 5}, "checkpoint_every is 5; it must be a string, as in '30s'"),
        ({"keep": None}, "keep is None; it must be at least 1"),
        ({"resume": 3}, "resume is 3; it must be the directory of a run, or 'auto'"),
        ({"group": 3}, "group is 3"),
        ({"observers": [3]}, r"observers is \[3\]; it must be a list"),
        ({"callbacks": 3}, "callbacks is 3; it must be a list"),
    ],
)
def test_wrong_input_is_one_sentence_before_anything_starts(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as found:
        launch(**{"train": fine, **given})
    assert "\n" not in str(found.value)


def test_what_can_be_called_with_one_argument_is_a_function() -> None:
    check_function("train", partial(lambda worker, extra: None, extra=3), "worker")
    check_function("train", int, "worker")  # of C: nobody knows what it takes
    assert set(KINDS) <= set(inspect.signature(launch).parameters)


def test_a_policy_that_is_none_is_refused_by_simulate_too() -> None:
    with pytest.raises(ConfigurationError, match="policy is None; it must be a string"):
        simulate(None, Simulation(intervals=(1.0,)))  # type: ignore[arg-type]


# -- widths --


@pytest.mark.parametrize(
    ("columns", "width"), [(None, WITHOUT_TERMINAL), ("100", 100), ("40", NARROWEST), ("wide", WITHOUT_TERMINAL)]
)
def test_a_pipe_obeys_columns(columns: str | None, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    assert output().width == width


# -- what if --


def test_the_table_of_whatif_and_its_sentence_use_one_measure(tmp_path: Path) -> None:
    group = Simulation(intervals=(1.0, 1.0, 4.0), duration=100.0)
    simulate("backup:k=2", group, trace_file=tmp_path / "trace.jsonl")
    summaries = whatif(Trace(tmp_path / "trace.jsonl"), ["bsp", "backup:k=2", "asp"])
    console = Console(file=io.StringIO(), width=120)
    recorded = summaries[1].policy
    console.print(summary_table(summaries, beside=recorded))
    shown = {line.split()[0]: line.split()[1:3] for line in console.file.getvalue().splitlines()[3:]}  # type: ignore[attr-defined]
    used = {summary.policy: summary.applied / summary.seconds for summary in summaries}
    for policy, (rate, times) in shown.items():
        assert float(rate) == pytest.approx(used[policy], rel=1e-3)
        assert times == f"{used[policy] / used[recorded]:.2f}x"
    assert shown[recorded][1] == "1.00x"
    times = shown["asp"][1].rstrip("x")
    assert f"{times} times the gradients of {recorded}" in recommendation(summaries, recorded)


# -- deaths, and last words --


def test_the_cause_of_a_death_is_said_in_words() -> None:
    assert cause_of(3) == "its process died (exit code 3)"
    assert cause_of(-9) == "its process was killed by SIGKILL (out of memory?)"
    assert cause_of(-62) == "its process was killed by signal 62"
    assert died(1, 2.0, "killed", -15, "bye") == Failure(1, 2.0, "killed", None, "SIGTERM", "bye")
    assert str(died(1, 2.0, cause_of(3), 3, "bye")) == (
        "worker 1 died after 2.0 s: its process died (exit code 3); its last words: bye"
    )
    failure = raised(0, 1.0, "worker 0 raised:\nTraceback:\n  File\nKeyError: 'x'\n")
    assert str(failure) == "worker 0 died after 1.0 s: it raised KeyError: 'x'"


def test_the_last_line_on_stderr_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, memory = io.TextIOWrapper(io.BytesIO()), create()
    monkeypatch.setattr(sys, "stderr", stream)
    assert last_words(memory) == ""
    remember_stderr(memory)
    print("first\nsecond", file=stream)
    assert last_words(memory) == "second"
    print("a ", end="", file=stream)
    print("third\n\n", file=stream)
    assert last_words(memory) == "a third"
    print("ä" * ROOM, file=stream)
    assert set(last_words(memory)) == {"ä"}
    stream.seek(0)
    assert stream.read().startswith("first\nsecond\na third\n")
    monkeypatch.setattr(sys, "stderr", None)
    remember_stderr(memory)  # there is nothing to remember


class Lines:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.shown: list[Any] = []

    def print(self, line: str) -> None:
        self.lines.append(line)

    def show(self, snapshot: Any) -> None:
        self.shown.append(snapshot)


def test_the_live_table_says_once_that_a_worker_died_and_shows_what_was_logged() -> None:
    lines = Lines()
    table = LiveTable("bsp", lines)  # type: ignore[arg-type]
    table.begun(UpdateRule("Adagrad", "linear", why=NOT_STALE, doubt="the policy does not know it"))
    table.observe(Record(0.0, WorkerJoined(0)))
    failure = Failure(0, 1.0, "its process died (exit code 3)", 3)
    table.worker_failed(failure)
    table.observe(Record(1.0, WorkerLeft(0, failure.reason)))
    assert lines.lines == ["bsp: the policy does not know it", f"bsp: {failure}"]
    assert table.tells and not Observer().tells
    table.logged(Logged(1.0, 0, {"norm": 1.0}))
    table.logged(Logged(1.0, 1, {"norm": 3.0}))
    table.measured(Measurement(1.0, 8, None, 1, 1, 2, 0.1, None))
    assert lines.shown[-1].figures == {"norm": 2.0}
    assert mean_of({0: 1.0, 1: 3.0}, {1, 2}) == 3.0 and mean_of({0: 1.0, 1: 3.0}, set()) == 2.0


# -- figures of a loop's own --


def test_figures_are_means_over_what_was_logged_since_the_last_time() -> None:
    figures = OwnFigures(2, 0.0)
    assert not figures.any and not figures.due(10.0)
    figures.add({"a": 1, "b": torch.tensor(4.0)})
    figures.add({"a": 2})
    assert not figures.due(0.9) and figures.due(1.0)
    assert figures.means(1.0) == {"a": 1.5, "b": 4.0}
    assert not figures.any and not figures.due(10.0)


@pytest.mark.parametrize("wrong", [3, {"a": "x"}, {"a": torch.ones(2)}, {"a": None}])
def test_what_is_no_figure_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"worker 2: worker\.log"):
        OwnFigures(2, 0.0).add(wrong)


def test_a_worker_tells_what_it_logged_with_a_push_and_at_its_end() -> None:
    link = FakeLink()
    worker = Worker(0, link, seed=0)
    worker.send_log()
    assert link.logged == []
    worker.log({"norm": 1.0})
    worker.log({"norm": 2.0})
    worker.send_log()
    worker.send_log()
    assert link.logged == [{"norm": 1.5}]


def test_lines_of_the_metrics_come_back_as_they_were(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path / "metrics.jsonl")
    lines = [Logged(1.0, 0, {"norm": 2.0}), Failure(1, 2.0, "it raised X", last_words="X"), Failure(2, 3.0, "y", 3)]
    writer.logged(lines[0])  # type: ignore[arg-type]
    for failure in lines[1:]:
        writer.worker_failed(failure)  # type: ignore[arg-type]
    writer.logged(Logged(4.0, 0, {"norm": float("nan")}))
    writer.close()
    *read, last = read_metrics(tmp_path / "metrics.jsonl")
    assert read == lines and isinstance(last, Logged) and last.figures["norm"] != last.figures["norm"]


# -- an optimizer that a policy does not know --


class OwnSGD(torch.optim.SGD):
    pass


def store_with(kind: type[torch.optim.Optimizer]) -> ParameterStore:
    model = nn.Linear(2, 1)
    layout = layout_of(model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    spec: OptimizerSpec = spec_of(layout, names, kind, None, {"lr": 0.1})
    return ParameterStore(layout, torch.zeros(layout.parameter_count), spec, UpdateOptions("auto", "auto", False))


def test_a_policy_that_reckons_with_steps_doubts_an_optimizer_that_it_does_not_know() -> None:
    for kind in (torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop):
        assert store_with(kind).rule_for(statistics=True).doubt == ""
    for kind in (torch.optim.Adagrad, OwnSGD):
        assert kind.__name__ in store_with(kind).rule_for(statistics=True).doubt
        assert store_with(kind).rule_for(statistics=False).doubt == ""


# -- pictures --


def test_the_axis_shows_where_the_curves_are_once_they_have_risen() -> None:
    rising = [(0.0, 0.1), (1.0, 0.4), (2.0, 0.8), (10.0, 0.9)]
    low, high = focus([rising], None) or (0.0, 0.0)
    assert 0.75 < low < 0.8 and 0.9 < high < 0.95
    low, high = focus([rising], 0.95, [[(0.0, 0.97)]]) or (0.0, 0.0)
    assert 0.75 < low < 0.8 and 0.97 < high < 1.0
    flat = [(0.0, 0.1), (10.0, 0.1)]
    low, _ = focus([rising, flat], None) or (0.0, 0.0)
    assert low < 0.1  # one that never learns is seen
    assert focus([], None) is None and focus([flat], None) is None


def test_a_picture_says_what_it_is_of_and_numbers_the_workers(tmp_path: Path) -> None:
    comparison = Comparison(task="digits", simulation=Simulation(intervals=(1.0, 4.0)), epochs=1)
    caption = caption_of(comparison)
    assert caption == "digits (mlp), 2 workers, sgd, rate 0.05, momentum 0.9, batches of 32"
    spans = [[Span(0.0, 1.0, False)], [Span(0.0, 0.5, False), Span(0.5, 1.0, True)]]
    marks = [(0.5, "asp"), (9.0, "ssp")]
    draw_gantt(
        {"bsp": spans},
        tmp_path / "gantt.svg",
        title="the first seconds",
        across="seconds",
        caption=caption,
        marks=marks,
    )
    drawn = (tmp_path / "gantt.svg").read_text()
    assert "<!-- ssp" not in drawn  # it is beyond what is drawn
    for text in ("the first seconds", caption, "bsp", "0", "1", "worker", "asp"):
        assert f"<!-- {text}" in drawn


# -- what commands leave and print --


@pytest.mark.slow  # real processes
def test_json_names_the_directory_and_the_model(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "paceline", "train", "digits", "--epochs", "1", "--json", "--out", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    (row,) = json.loads(ended.stdout)
    assert row["samples"] == row["samples_asked"]
    assert Path(row["run_dir"]).parent == tmp_path and Path(row["model"]).exists()
