"""Policies side by side in virtual time, with real learning."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.cli import main
from paceline.experiment.comparison import Comparison, CurvePoint, Outcome, Trial, run_trial, run_trials
from paceline.experiment.rows import rows_of
from paceline.experiment.simulation import Simulation
from paceline.report.plots import mean_curve

pytestmark = pytest.mark.slow
GROUP = Simulation(intervals=(1.0, 1.2, 4.0))
COMPARISON = Comparison("digits", GROUP, epochs=2, evaluate_every=500)


def outcome(policy: str, seed: int, accuracies: list[float], factor: float = 1.0, problem: str = "") -> Outcome:
    curve = [CurvePoint(10.0 * (number + 1), 100, accuracy, 1.0) for number, accuracy in enumerate(accuracies)]
    return Outcome(Trial(policy, seed, factor), 30.0, 300, 0.25, 1.0, curve, [], [], problem)


def test_results_are_kept_as_they_come_and_a_comparison_goes_on_where_it_was(tmp_path: Path) -> None:
    trials = [Trial(policy, 0) for policy in ("bsp", "asp")]
    first = next(iter(run_trials(COMPARISON, trials, tmp_path, 1)))
    kept = (tmp_path / "results.jsonl").read_bytes()
    assert kept.count(b"\n") == 2 and first.trial == trials[0]
    (tmp_path / "results.jsonl").write_bytes(kept + b'{"trial":{"poli')  # killed in the middle of a line
    found = list(run_trials(COMPARISON, trials, tmp_path, 2))
    assert [each.trial for each in found] == trials and found[0] == first
    assert (tmp_path / "results.jsonl").read_bytes().startswith(kept)
    assert found[1] == run_trial(COMPARISON, trials[1])  # to the bit, wherever it was computed
    assert found[1].curve[-1].accuracy > 0.8 and found[1].samples == 2 * 1437
    assert found[0].waiting_share > 0.3 and found[1].waiting_share == 0


def test_a_run_that_diverges_is_an_outcome_with_its_reason() -> None:
    found = run_trial(COMPARISON, Trial("asp", 0, 1e30))
    assert "is not finite: the run diverged" in found.problem


def test_rows_take_the_best_learning_rate_and_say_never_where_a_seed_did_not_get_there() -> None:
    outcomes = [
        outcome("bsp", 0, [0.5, 0.9, 0.95]),
        outcome("bsp", 1, [0.5, 0.96]),
        outcome("asp", 0, [0.5, 0.97], factor=1.0),
        outcome("asp", 0, [0.96], factor=0.5),
        outcome("asp", 0, [], factor=2.0, problem="diverged"),
        outcome("ssp", 0, [0.95]),
        outcome("ssp", 1, [0.9]),
    ]
    bsp, asp, ssp = rows_of(outcomes, ["bsp", "asp", "ssp", "absent"], 0.95)
    assert bsp.times == [30.0, 20.0] and bsp.time == (25.0, pytest.approx(7.07, abs=0.01))
    assert asp.factor == 0.5 and asp.time == (10.0, 0.0) and asp.problems == []
    assert ssp.times == [10.0, None] and ssp.time is None


def test_of_learning_rates_that_do_equally_well_the_one_nearest_to_the_given_wins() -> None:
    def winner(*factors: float) -> float:
        (row,) = rows_of([outcome("bsp", 0, [0.9], factor) for factor in factors], ["bsp"], 0.8)
        return row.factor

    assert winner(0.5, 1.0, 2.0) == winner(2.0, 1.0, 0.5) == 1.0
    assert winner(0.1, 3.0) == 3.0 and winner(0.4, 2.0) == 2.0  # by ratio


def test_the_mean_of_curves_is_drawn_where_all_of_them_are() -> None:
    mean = mean_curve([[(0.0, 0.0), (4.0, 4.0)], [(2.0, 0.0), (3.0, 1.0), (9.0, 1.0)]])
    assert mean[0] == (2.0, 1.0) and mean[-1] == (4.0, 2.5)
    assert mean_curve([[(1.0, 2.0)], [(1.0, 4.0)]])[0] == (1.0, 3.0)


@pytest.fixture
def compare(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: str) -> tuple[int, str, str]:
        common = ("compare", "digits", "--out", str(tmp_path / "out"), "--processes", "1")
        monkeypatch.setattr(sys, "argv", ["paceline", *common, *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def test_the_command_prints_a_table_draws_plots_and_gives_the_same_again(
    compare: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    asked = ("--intervals", "1,1,4", "--policy", "bsp", "--policy", "dbw", "--policy", "asp", "--seeds", "1")
    options = (*asked, "--epochs", "2", "--target-accuracy", "0.999", "--evaluate-every", "400")
    code, out, _ = compare(*options)
    assert code == 0 and out.count("never") == 3 and "final" in out
    names = {path.name for path in (tmp_path / "out").iterdir()}
    pictures = {"accuracy-over-time.svg", "accuracy-over-samples.svg", "first-seconds.svg", "dbw-estimates.svg"}
    assert names == {"results.jsonl", *pictures}
    kept = {name: (tmp_path / "out" / name).read_bytes() for name in names}
    code, out, _ = compare(*options, "--json")
    assert code == 0 and [row["policy"] for row in json.loads(out)] == ["bsp", "dbw", "asp"]
    assert {name: (tmp_path / "out" / name).read_bytes() for name in names} == kept
    code, _, err = compare(*options, "--epochs", "3")
    assert code == 2 and "holds the results of another comparison" in err


def test_workers_may_be_given_in_groups_or_as_recorded_times(
    compare: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    asked = ("--policy", "asp", "--seeds", "1", "--epochs", "1", "--json")
    trace = tmp_path / "times.csv"
    trace.write_text("worker,iteration,seconds\n0,0,1\n1,0,1\n2,0,4\n")
    found = []
    for number, group in enumerate((["--intervals", "1,1,4"], ["--workers", "2x1,1x4.0"], ["--trace", str(trace)])):
        code, out, _ = compare(*asked, *group, "--out", str(tmp_path / str(number)))
        assert code == 0
        found.append(out)
    assert found[0] == found[1] == found[2]


def test_a_run_may_end_at_the_target_and_pictures_may_be_png(
    compare: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    asked = ("--intervals", "1,1", "--policy", "bsp", "--seeds", "1", "--epochs", "4", "--target-accuracy", "0.6")
    code, out, _ = compare(*asked, "--stop-at-target", "--evaluate-every", "200", "--format", "png", "--json")
    (row,) = json.loads(out)
    assert code == 0 and row["seconds"] == row["times"][0] and row["samples"] < 1437
    pictures = sorted(path.name for path in (tmp_path / "out").glob("*.png"))
    assert pictures == ["accuracy-over-samples.png", "accuracy-over-time.png", "first-seconds.png"]
    assert all((tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG") for name in pictures)


def test_the_estimates_of_dbw_are_kept_and_of_a_long_run_evenly_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial("dbw:estimator=paper", 0)
    every = run_trial(COMPARISON, trial).choices
    assert len(every) > 20 and all(1 <= each.k <= 3 and each.time > 0 for each in every)
    assert all(None not in (each.variance, each.squared_norm, each.smoothness) for each in every)
    monkeypatch.setattr("paceline.experiment.comparison.MOST_CHOICES", 8)
    some = run_trial(COMPARISON, trial).choices
    assert 3 < len(some) <= 8 and some in [every[::step] for step in (2, 4, 8, 16)]
    assert run_trial(COMPARISON, Trial("bsp", 0)).choices == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--intervals", "1,2", "--seeds", "0"], "--seeds 0: must be at least 1"),
        (["--intervals", "1,2", "--tune-lr", "0,1"], "--tune-lr: must be numbers above 0"),
        (["--intervals", "1,2", "--target-accuracy", "2"], "--target-accuracy 2: must be above 0 and at most 1"),
        (["--policy", "bsp"], "give the workers exactly one way"),
        (["--workers", "2xfast"], "--workers 2xfast: must be a number, or groups with their times: 3x1.0,1x4.0"),
        (["--workers", "2x1,1x2", "--intervals", "1,2"], "--workers and --intervals both give the times"),
        (["--intervals", "1,2", "--format", "gif"], "--format gif: must be svg or png"),
        (["--intervals", "1,2", "--policy", "backup:k=3"], "k=3 gradients per update need at least 3 workers"),
        (["--intervals", "1,2", "--model", "gpt"], "unknown model 'gpt'"),
        (["--intervals", "1,2", "--batch-size", "0"], "batch_size is 0; it must be at least 1"),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: list[str], message: str, compare: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    code, out, err = compare(*arguments)
    assert code == 2 and message in err and out == "" and not (tmp_path / "out").exists()
