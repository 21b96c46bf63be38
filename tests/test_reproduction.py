"""The published experiments as commands: real runs of a few seconds, and the pages that come of them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from paceline.cli import main
from paceline.experiment.comparison import Comparison, Outcome, Trial, run_trials
from paceline.experiment.reproduction import EXPERIMENTS, ExperimentRequest
from paceline.experiment.reproduction.optimizers import rising
from paceline.experiment.reproduction.page import Claim, Page, Section, index, table
from paceline.experiment.reproduction.request import ratio, reached_by_all, rows_by_policy, seconds
from paceline.experiment.simulation import simulate

TRACE = "worker,iteration,seconds\n" + "".join(
    f"{worker},{iteration},{1 + 0.5 * ((worker + iteration) % 3) + worker}\n"
    for worker in range(3)
    for iteration in range(5)
)


def on_digits(folder: Path) -> Callable[[str, Comparison, Sequence[Trial]], list[Outcome]]:
    """The same experiment on data that every machine has, for a moment only."""

    def run(part: str, comparison: Comparison, trials: Sequence[Trial]) -> list[Outcome]:
        small = msgspec.structs.replace(
            comparison, task="digits", model="mlp", epochs=1, batch_size=16, evaluate_every=400, learning_rate=0.05
        )
        if small.simulation.duration is not None:
            small = msgspec.structs.replace(
                small, simulation=msgspec.structs.replace(small.simulation, duration=5.0), stop_at=None
            )
        found = {outcome.trial: outcome for outcome in run_trials(small, trials, folder / part, 1)}
        return [found[trial] for trial in trials]

    return run


@pytest.fixture
def page_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[Page, str]]:
    def run(name: str) -> tuple[Page, str]:
        trace = tmp_path / "times.csv"
        trace.write_text(TRACE)
        request = ExperimentRequest(False, 1, on_digits(tmp_path), tmp_path, None, trace)
        page = EXPERIMENTS[name].run(request)
        return page, page.markdown(f"paceline reproduce {name}", 1, tmp_path)

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "there"),
    [
        (
            "elasticbsp-curves",
            ["elastic-bsp:lookahead=240", "bsp, shared rate", "first-seconds.svg"],
        ),
        ("dssp-table1", ["ssp:staleness=15", "6,159", "capped=false", "accuracy-over-time.svg"]),
        ("trace", ["times.csv, 3 workers", "elastic-bsp:inside=gather", "slowest over fastest"]),
    ],
)
def test_an_experiment_writes_a_page_with_claims_tables_and_pictures(
    name: str, there: list[str], page_of: Callable[[str], tuple[Page, str]], tmp_path: Path
) -> None:
    page, text = page_of(name)
    assert text.startswith(f"# {page.title}\n") and f"paceline reproduce {name}\n" in text
    assert page.verdict.capitalize() in text and len(page.claims) >= 4
    for each in there:
        assert each in text
    for line in text.splitlines():
        if line.startswith("!["):
            assert (tmp_path / line.partition("](")[2].rstrip(")")).stat().st_size > 1000
    assert page_of(name)[1] == text  # from what was kept, to the byte


@pytest.mark.slow
def test_dbw_meets_every_static_k_and_the_blind_variant(
    page_of: Callable[[str], tuple[Page, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["paceline.experiment.reproduction.dbw_static"]
    assert [f"backup:k={k}" for k in range(1, 17)] == module.STATIC
    monkeypatch.setattr(module, "TARGET", 0.5)
    monkeypatch.setattr(module, "STATIC", module.STATIC[::5])  # of 16 in twelve groups some will do here
    monkeypatch.setattr(module, "CASES", (module.CASES[0], module.CASES[8]))  # steady, and slower in mid-run
    page, text = page_of("dbw-static")
    for policy in module.STATIC:
        assert f"| {policy} |" in text
    assert "dbw:estimator=paper,blind=true" in text and text.count("-estimates.svg") == 2 and len(page.claims) == 7


@pytest.mark.slow
def test_every_optimizer_runs_at_the_best_rate_of_bsp_corrected_and_as_it_is(
    page_of: Callable[[str], tuple[Page, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["paceline.experiment.reproduction.optimizers"]
    monkeypatch.setattr(module, "KINDS", module.KINDS[1::2])
    monkeypatch.setattr(module, "FACTORS", (0.5, 1.0))
    monkeypatch.setattr(module, "POLICIES", ("bsp", "asp"))
    page, text = page_of("optimizers")
    assert [claim.text.split(":")[0] for claim in page.claims] == ["momentum, asp"] * 2 + ["AdamW, asp"] * 2
    assert text.count("| asp, as it is |") == text.count("| asp |") == 2 * 3 * 2
    assert (
        "momentum, 4 workers, mlp, rate 0." in text and "AdamW, 3 workers, cnn" in text and "the recorded times" in text
    )


def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few policies, for a moment."""
    module = sys.modules["paceline.experiment.reproduction.autopilot"]
    monkeypatch.setattr(module, "AUTO", "auto:tried=20")
    monkeypatch.setattr(module, "FIXED", ("bsp", "backup, 3/4"))
    monkeypatch.setattr(module, "SECONDS", 5.0)
    monkeypatch.setattr(module, "TARGET", 0.01)
    monkeypatch.setattr(module, "SMOOTHED", 1)


@pytest.mark.slow
def test_auto_is_held_against_every_fixed_policy_in_groups_of_all_kinds(
    page_of: Callable[[str], tuple[Page, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["paceline.experiment.reproduction.autopilot"]
    everything = module.scenarios(ExperimentRequest(False, 1, on_digits(Path()), Path()))
    assert len(everything) >= 14 and len({one.name for one in everything}) == len(everything)
    few = [everything[0], everything[-1]]
    monkeypatch.setattr(module, "scenarios", lambda request: few)
    hurried(monkeypatch)
    page, text = page_of("autopilot")
    assert [claim.text.split(":")[0] for claim in page.claims] == ["pace"] * 4 + ["time"] * 4
    assert "16 workers, the server is the limit" in text and text.count("| **mean** |") == 2
    assert page_of("autopilot")[1] == text


@pytest.mark.slow
def test_groups_that_auto_was_not_built_with_are_drawn_once_and_for_all(
    page_of: Callable[[str], tuple[Page, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["paceline.experiment.reproduction.unseen_groups"]
    drawn = module.groups()
    assert drawn == module.groups() and len({one.name for one in drawn}) == len(drawn) >= 20
    for one in drawn:
        simulate("asp", msgspec.structs.replace(one.simulation, duration=5.0))
    monkeypatch.setattr(module, "GROUPS", 1)
    hurried(monkeypatch)
    page, text = page_of("autopilot-unseen")
    assert len(page.claims) == 6 and "(seeds 200)" in text  # none are as fast as each other


@pytest.mark.slow
def test_unseen_settings_have_seeds_of_their_own_and_the_correction_alone(
    page_of: Callable[[str], tuple[Page, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["paceline.experiment.reproduction.unseen_optimizers"]
    monkeypatch.setattr(sys.modules["paceline.experiment.reproduction.optimizers"], "FACTORS", (1.0,))
    monkeypatch.setattr(module, "KINDS", module.KINDS[1:2])
    monkeypatch.setattr(module, "POLICIES", ("bsp", "asp"))
    page, text = page_of("optimizers-unseen")
    assert [claim.text.split(":")[0] for claim in page.claims] == ["momentum, asp"] * 2
    assert "(seeds 10)" in text and "as it is" not in text and "momentum, 8 workers, resnet20" in text


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], []),
        ([0.1, 0.2, 0.2, 0.5], [0.1, 0.2, 0.2, 0.5]),
        ([0.1, 0.6, 0.4, 0.5, 0.7], [0.1, 0.5, 0.5, 0.5, 0.7]),
        ([0.9, 0.3, 0.3], [0.5, 0.5, 0.5]),
    ],
)
def test_a_curve_is_made_to_rise(values: list[float], expected: list[float]) -> None:
    assert rising(values) == pytest.approx(expected)


@pytest.mark.slow
def test_search_times_are_measured_once_and_compared_with_the_printed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["paceline.experiment.reproduction.search_times"]
    monkeypatch.setattr(module, "MOST_SECONDS", 0.05)
    monkeypatch.setattr(module, "DRAWS", 5)
    request = ExperimentRequest(False, 1, on_digits(tmp_path), tmp_path)
    text = EXPERIMENTS["elasticbsp-table2"].run(request).markdown("", 0, tmp_path)
    assert "| zipline, paper | 149 | 1,320 | 6,370 | 49,900 | 253,000 | 2,380,000 |" in text and "| - |" in text
    assert (tmp_path / "search-times.svg").exists() and "no random numbers" in text
    assert EXPERIMENTS["elasticbsp-table2"].run(request).markdown("", 0, tmp_path) == text


# -- the results that are published --

RESULTS = Path(__file__).parents[1] / "docs" / "results"


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("results.jsonl")), ids=lambda path: path.parent.name)
def test_published_results_are_read_and_written_as_they_are(path: Path) -> None:
    header, *lines = path.read_bytes().splitlines()
    assert msgspec.json.encode(msgspec.json.decode(header, type=Comparison)) == header
    for line in lines:
        assert msgspec.json.encode(msgspec.json.decode(line, type=Outcome)) == line


@pytest.mark.slow
@pytest.mark.parametrize("name", ["elasticbsp-curves", "dssp-table1", "dbw-static"])
def test_from_published_results_comes_the_published_page_and_nothing_is_computed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(RESULTS / name, tmp_path / name)
    monkeypatch.setattr("paceline.experiment.comparison.run_trial", lambda comparison, trial: pytest.fail(f"{trial}"))

    def run(part: str, comparison: Comparison, trials: Sequence[Trial]) -> list[Outcome]:
        found = {outcome.trial: outcome for outcome in run_trials(comparison, trials, tmp_path / name / part, 1)}
        return [found[trial] for trial in trials]

    page = EXPERIMENTS[name].run(ExperimentRequest(False, 3, run, tmp_path / name))
    assert page.markdown(f"paceline reproduce {name}", 3, tmp_path) == (RESULTS / f"{name}.md").read_text()


# -- pages --


def test_a_verdict_follows_from_the_claims() -> None:
    def verdict(*holds: bool) -> str:
        return Page("t", "p", "s", [Claim("c", "s", each) for each in holds]).verdict

    assert verdict(True, True) == "reproduced" and verdict(False) == "not reproduced"
    assert verdict(True, False) == "partly reproduced"


def test_tables_escape_what_would_break_them() -> None:
    assert table(["a", "b\nc"], [["x|y", "1"]]) == "| a | b c |\n| :-- | --: |\n| x\\|y | 1 |"


def test_pictures_are_linked_from_where_the_page_is(tmp_path: Path) -> None:
    section = Section("h", pictures=[("what", tmp_path / "results" / "deep" / "a.svg")])
    text = Page("t", "p", "s", [Claim("c", "s", True)], [section]).markdown("do it", 2, tmp_path / "results")
    assert "![what](deep/a.svg)" in text and "seeds 0, 1" in text and "do it" in text


def test_the_index_names_every_page_and_its_verdict(tmp_path: Path) -> None:
    for name, holds in (("one", True), ("two", False)):
        page = Page(f"About {name}", "p", "s", [Claim("c", "s", holds)])
        (tmp_path / f"{name}.md").write_text(page.markdown("", 1, tmp_path))
    (tmp_path / "README.md").write_text(index(tmp_path))
    text = index(tmp_path)  # which is not a page about an experiment itself
    assert "| [one](one.md) | About one | reproduced | 1 of 1 claims hold here. |" in text
    assert "| [two](two.md) | About two | not reproduced | 0 of 1 claims hold here. |" in text
    assert "README.md" not in text and text.count("\n|") == 4


def test_words_for_times_that_never_come() -> None:
    never = float("inf")
    assert seconds(never) == "never" and seconds(12.345) == "12.35 s" and ratio(10, 4) == "2.50x"
    assert ratio(10, never) == "never got there" and ratio(never, 4) == "which never got there"


def test_levels_and_rows_come_from_the_outcomes() -> None:
    from paceline.experiment.comparison import CurvePoint

    def outcome(policy: str, seed: int, best: float, factor: float = 1.0) -> Outcome:
        curve = [CurvePoint(1.0, 10, best, 1.0), CurvePoint(2.0, 20, best - 0.1, 1.0)]
        return Outcome(Trial(policy, seed, factor), 2.0, 20, 0.0, 0.0, curve, [], [])

    outcomes = [outcome("bsp", 1, 0.876), outcome("bsp", 0, 0.873), outcome("bsp", 0, 0.5, 0.25)]
    assert reached_by_all(outcomes[:2]) == 0.87
    rows = rows_by_policy(outcomes, 0.87, {("bsp", 0.25): "bsp, slower"})
    assert list(rows) == ["bsp", "bsp, slower"] and rows["bsp"].time == (1.0, 0.0)
    assert rows["bsp, slower"].time is None


# -- the command --


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "unknown experiment 'nope'; there are: elasticbsp-table2"),
        (["trace"], "give --trace FILE"),
        (["trace", "--trace", "absent.csv"], "absent.csv"),
        (["dssp-table1", "--trace", "times.csv"], "--trace is for the experiments trace, optimizers and autopilot"),
        (["dssp-table1", "--seeds", "0"], "--seeds 0: must be at least 1"),
        (["dssp-table1", "--data", "absent"], "absent"),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["paceline", "reproduce", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and message in capsys.readouterr().err
    assert not (tmp_path / "docs").exists()
