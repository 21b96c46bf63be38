"""`paceline report`: its figures, its words, its commands, and what it does with runs that are not whole."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import msgspec
import pytest
from command_line import Command, command
from report_runs import EVENTFUL, EVIL, simulated_run
from training_functions import SAMPLES, train_sgd

import paceline as package
from paceline.core.messages import GradientArrived
from paceline.experiment.configuration import Configuration, Origin, read_configuration
from paceline.experiment.group import Group
from paceline.experiment.repeating import steps
from paceline.experiment.report_curves import POINTS_LOGGED, curves_of
from paceline.experiment.run_files import RunFiles
from paceline.experiment.run_lock import lock
from paceline.experiment.run_report import report_at_the_end
from paceline.experiment.simulation import Simulation, Switch
from paceline.recording.course import LOST, OPEN, UNUSED, Course
from paceline.recording.progress_log import Line, Logged
from paceline.recording.trace import Trace
from paceline.runtimes.speeds import Slowdown

HALF = Simulation(intervals=(1.0, 2.0), duration=100)  # one of two workers needs twice as long


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command(monkeypatch, capsys, "report")


def finish(run: Path) -> Path:
    """As if the work of a simulated run had been done."""
    lines = (run / "trace.jsonl").read_bytes().splitlines(keepends=True)
    end, records = json.loads(lines[-1])["end"], json.loads(lines[-1])["records"]
    left = b'{"now":%f,"event":{"type":"WorkerLeft","worker":0,"reason":"no work left"}}\n' % end
    closing = b'{"end":%f,"records":%d}\n' % (end, records + 1)
    (run / "trace.jsonl").write_bytes(b"".join([*lines[:-1], left, closing]))
    return run


# -- what it says --


def test_the_story_and_the_bill(tmp_path: Path, report: Command) -> None:
    run = finish(simulated_run(tmp_path / "mine", "bsp", HALF))
    told = report(run, "--price", 3600)
    assert told.code == 0 and told.err == ""
    assert told.out.splitlines() == [
        "2 workers trained digits under bsp.",
        "In 1 min 40 s it used 100 samples in 50 updates, 1 a second, and came to accuracy 80.0%.",
        "25% of the workers' time was lost (50 of 200 worker-seconds, worth 50.00 of 200.00): 25% by waiting for each"
        " other.",
        "Worker 1 caused 100% of the loss: an iteration takes it 2 s, the others 1 s.",
        "Its own iteration times, simulated again, say: take elastic-bsp: 1.50 times the gradients of bsp in the same"
        " time; its workers would wait 0% of their time, mean staleness 0.89.",
        "",
        f"{run}/report.html",
    ]
    page = (run / "report.html").read_text()
    for part in ("25% of the workers&#x27; time was lost; worker 1 caused 100% of that", "others waited for worker 1"):
        assert part in page
    assert re.search(r"others waited for worker 1</th><td>50.0</td><td>25%</td><td>50.00</td>", page)
    assert set(re.findall(r"\w+://[^'\"]+", page)) == {"http://www.w3.org/2000/svg"}, "it loads nothing"
    assert (run / "report.html").stat().st_mode & 0o777 == 0o600


def test_figures_as_json(tmp_path: Path, report: Command) -> None:
    run = simulated_run(tmp_path / "mine", "bsp", HALF)
    (found,) = json.loads(report(run, "--json", "--price", "7.2").out)
    bill = found["bill"]
    assert bill["worker_seconds"] == 200 and bill["lost"] == 50 and bill["lost_cost"] == pytest.approx(0.1)
    assert sum(item["seconds"] for item in bill["items"]) == 200
    assert {"worker": 1, "cause": "waiting", "seconds": 50, "cost": pytest.approx(0.1)} in bill["items"]
    assert found["summary"]["updates"] == 50 and found["samples"] == 100 and found["state"] == "stopped"
    assert {summary["policy"] for summary in found["whatif"]} > {"bsp", "asp", "elastic-bsp"}
    assert len(found["story"]) == 5 and not (run / "report.html").exists()


def test_several_runs(tmp_path: Path, report: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [simulated_run(tmp_path / policy, policy, HALF) for policy in ("bsp", "asp")]
    assert report(*runs).out.splitlines() == [
        "bsp: 25% of the workers' time was lost; worker 1 caused 100% of that",
        "This run was ended before its work was done.",
        "asp: 100% of the workers' time was spent computing",
        "This run was ended before its work was done.",
        "report.html",
    ]
    page = (tmp_path / "report.html").read_text()
    assert "2 runs side by side" in page and page.count("<article>") == 2
    assert report(*runs, "--out", tmp_path / "there.html").code == 0 and (tmp_path / "there.html").exists()


def test_text_of_a_run_is_never_markup(tmp_path: Path, report: Command) -> None:
    run = simulated_run(tmp_path / EVIL, "bsp", EVENTFUL, (EVIL, "</script>"))
    assert report(run).code == 0
    page = (run / "report.html").read_text()
    assert "<img" not in page and page.count("</script>") == 2 and "&lt;img src=x" in page


def test_commands_repeat_a_run(tmp_path: Path) -> None:
    slowdowns = (Slowdown(3, 4.0), Slowdown(1, 2.5, 10.0, 20.0), Slowdown(2, 3.0, 5.0))
    task = {"name": "digits", "model": None, "data": None, "optimizer": "adam", "learning_rate": 0.5, "momentum": None}
    task |= {"batch_size": 16, "sharding": "dynamic", "weight_decay": None, "nesterov": True, "epochs": 2}
    told = Configuration(
        *("ssp:staleness=5", Group(2, 2, 4, slowdowns=slowdowns, speed="constant:seconds=0.02"), 2, 9, "sqrt", "x"),
        origin=Origin("digits", task=task),
        threads=1,
        report=False,
    )
    found = {step.purpose: shlex.split(step.command) for step in steps(tmp_path, told, over=False)}
    assert " ".join(found["make the run again"]) == (
        "paceline train digits --optimizer adam --batch-size 16 --lr 0.5 --nesterov --policy ssp:staleness=5"
        " --workers 2..4 --slow 3=4 --slow 1=2.5@10..20 --slow 2=3@5.. --speed constant:seconds=0.02 --epochs 2"
        " --seed 9 --lr-scaling sqrt --no-report"
    )
    assert found["go on with it"] == ["paceline", "train", "--resume", str(tmp_path)]
    assert found["train it again, to the same weights"][-1] == "--weights"
    script = msgspec.structs.replace(told, origin=Origin("mine", script="/a b.py", arguments=("--x", "1 2")))
    again = steps(tmp_path, script, over=True)
    assert again[0].command.startswith("paceline run '/a b.py' --policy") and again[0].command.endswith("-- --x '1 2'")
    assert not any("--resume" in step.command for step in again)


def test_the_course_of_a_run(tmp_path: Path) -> None:
    """What the pictures are drawn from, put together again, is what the trace says."""
    run = simulated_run(tmp_path / "mine", "backup:k=2", EVENTFUL)
    trace, course = Trace(run / "trace.jsonl"), Course()
    for record in trace:
        course.observe(record)
    assert trace.end is not None
    data = course.data(trace.end)
    fates: dict[int, int] = {}
    for number, row in enumerate(data["rows"]):
        at, pushes, ends = 0, [], []
        for gap, compute, wait in zip(row["gaps"], row["computes"], row["waits"], strict=True):
            pushes.append(at + gap + compute)
            at += gap + compute + wait
            ends.append(at)
        for fate in row["fates"]:
            fates[fate] = fates.get(fate, 0) + 1
        assert len(row["waited"]) == len(row["reasons"]) >= sum(wait > 0 for wait in row["waits"])
        assert all(data["reasons"][reason] for reason in row["reasons"])
        if number == 0:
            arrived = [r.now for r in trace if isinstance(r.event, GradientArrived) and r.event.gradient.worker == 0]
            assert [push * data["tick"] for push in pushes[: len(arrived)]] == pytest.approx(arrived, abs=data["tick"])
            assert ends[-1] * data["tick"] == pytest.approx(200, abs=data["tick"])
    assert fates[UNUSED] > 5 and fates[OPEN] >= 1 and fates[LOST] == 1
    kinds = {kind for _, kind, _ in data["marks"]}
    assert kinds == {"join", "leave", "switch"}
    assert sum(count for _, count in data["leads"]) == sum(len(row["gaps"]) for row in data["rows"]) - fates[LOST] - 3


# -- runs that are not whole --


def test_the_story_names_what_the_time_was_lost_by(tmp_path: Path, report: Command) -> None:
    group = Simulation(intervals=(1.0, 1.0, 1.0, 4.0), duration=60.0)
    told = report(simulated_run(tmp_path / "mine", "backup:k=3", group)).out
    assert re.search(r"was lost \([^)]*\): \d+% by gradients that were not used", told)
    page = (tmp_path / "mine" / "report.html").read_text()
    assert "this run, as it was" in page


@pytest.mark.slow
def test_a_run_that_was_changed_is_called_by_both_names(tmp_path: Path, report: Command) -> None:
    group = Simulation(intervals=(1.0, 1.0, 1.0, 4.0), duration=60, switches=(Switch("asp", 20.0),))
    runs = [simulated_run(tmp_path / name, "bsp", group) for name in ("one", "two")]
    report(*runs, "-o", tmp_path / "both.html")
    page = (tmp_path / "both.html").read_text()
    assert page.count("<td>bsp → asp</td>") == 2 and "<span>one: " in page and "<span>two: " in page
    assert "one, stopped" in page
    told = report(runs[0]).out
    assert re.search(r"say: elastic-bsp alone would have used \d+% more gradients than the run as it was", told)


def test_a_trace_that_was_cut_off_says_nothing_of_what_came_later(tmp_path: Path, report: Command) -> None:
    run = simulated_run(tmp_path / "mine", "bsp", HALF)
    lines = (run / "trace.jsonl").read_bytes().splitlines(keepends=True)
    (run / "trace.jsonl").write_bytes(b"".join(lines[: len(lines) // 2]))
    assert "and came to accuracy 32.0%" in report(run).out, "and not to the 80 % of its end"


@pytest.mark.slow
def test_what_a_policy_was_chosen_by(tmp_path: Path, report: Command) -> None:
    group = Simulation(intervals=(1.0, 1.0, 1.0, 4.0), duration=60, switches=(Switch("ssp", 50.0),))
    told = report(simulated_run(tmp_path / "mine", "auto", group))
    assert "4 workers trained digits under auto, as bsp, then " in told.out and ", then ssp" in told.out
    page = (tmp_path / "mine" / "report.html").read_text()
    section = page[page.index("How the policy was chosen") :].partition("</section>")[0]
    last = re.search(r"In force since: (.*?)\.</p>", section)
    assert last is not None and f'<tr class=own><th scope="row">{last[1]}</th>' in section
    assert '<th scope="row">backup:k=3</th>' in section and section.count("<tr") > 8
    assert re.search(r" takes over: .* times bsp&#x27;s pace", page), "and why, at each change"
    report(simulated_run(tmp_path / "other", "dbw", group))
    assert "How the policy was chosen" not in (tmp_path / "other" / "report.html").read_text(), "it chooses a k"


def test_figures_of_a_loop_do_not_make_a_page_large() -> None:
    lines: list[Line] = [
        Logged(float(second), worker, {f"figure {name}": second / 7 for name in range(10)})
        for second in range(2_000)
        for worker in range(4)
    ]
    logged = curves_of(lines)["logged"]
    assert sum(len(curve["values"]) for of_worker in logged.values() for curve in of_worker.values()) <= POINTS_LOGGED
    curve = logged["figure 9"]["3"]
    assert curve["seconds"][0] == 0.0 and curve["seconds"][-1] == 1999.0 and curve["values"][-1] == 285.57
    few = curves_of(lines[:40])["logged"]["figure 0"]["0"]
    assert few["seconds"] == [float(second) for second in range(10)]


def test_a_trace_that_was_cut_off(tmp_path: Path, report: Command) -> None:
    run = simulated_run(tmp_path / "mine", "bsp", HALF)
    content = (run / "trace.jsonl").read_bytes()
    (run / "trace.jsonl").write_bytes(content[: len(content) // 2])
    told = report(run)
    assert told.code == 0 and told.out.startswith("This run was killed: what was written until then is shown.\n")
    assert "Worker 1 caused 100%" in told.out and "others waited for worker 1" in (run / "report.html").read_text()
    alone = tmp_path / "alone.jsonl"
    alone.write_bytes(content[: len(content) // 2])
    told = report(alone)
    assert told.code == 0 and told.out.startswith("The trace is cut off: its closing line is missing.")


def test_a_run_that_goes_on(tmp_path: Path, report: Command, request: pytest.FixtureRequest) -> None:
    run = simulated_run(tmp_path / "mine", "bsp", HALF)
    held = lock(run)
    request.addfinalizer(lambda: os.close(held))
    told = report(run)
    assert told.code == 0 and told.out.startswith("This run goes on: this is how it was 100.0 s after it began.\n")
    assert "2 workers train digits under bsp." in told.out


def test_a_damaged_trace_and_damaged_metrics(tmp_path: Path, report: Command) -> None:
    run = simulated_run(tmp_path / "mine", "bsp", HALF)
    lines = (run / "trace.jsonl").read_bytes().splitlines(keepends=True)
    (run / "trace.jsonl").write_bytes(b"".join([*lines[:60], b"nonsense\n", *lines[61:]]))
    told = report(run)
    assert told.code == 0 and "line 61: not a whole record" in told.out and "What is before that is shown." in told.out
    run = simulated_run(tmp_path / "other", "bsp", HALF)
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b"\xff\xfe\n")
    told = report(run)
    assert told.code == 0 and "metrics.jsonl, line 92 is damaged" in told.out and "accuracy 80.0%" in told.out


@pytest.mark.slow
def test_traces_that_somebody_tampered_with(tmp_path: Path, report: Command) -> None:
    """Lines that are missing, doubled or moved: what is before them is shown, and never a traceback."""
    run = simulated_run(tmp_path / "mine", "bsp", msgspec.structs.replace(EVENTFUL, duration=60.0))
    whole = (run / "trace.jsonl").read_bytes().splitlines(keepends=True)
    told = set()
    for number in range(1, len(whole) - 1, 9):
        for lines in (
            whole[:number] + whole[number + 1 :],
            whole[:number] + whole[number : number + 1] + whole[number:],
            [*whole[:number], *reversed(whole[number:])],
        ):
            (run / "trace.jsonl").write_bytes(b"".join(lines))
            (found,) = json.loads(report(run, "--json").out)
            told |= set(found["notes"])
            bill = found["bill"]
            assert sum(item["seconds"] for item in bill["items"]) == pytest.approx(bill["worker_seconds"])
    assert any("does not follow from what is before it, which is shown." in note for note in told)
    for before, after in ((b'"samples":1', b'"samples":99999999999'), (b'"worker":2', b'"worker":99999999999')):
        (run / "trace.jsonl").write_bytes(b"".join(whole).replace(before, after))
        assert report(run).code == 0
    assert any("records were written" in note for note in told)


def test_an_empty_run(tmp_path: Path, report: Command) -> None:
    run = simulated_run(tmp_path / "mine", "bsp", HALF)
    lines = (run / "trace.jsonl").read_bytes().splitlines(keepends=True)
    (run / "trace.jsonl").write_bytes(lines[0])
    told = report(run)
    assert told.code == 0 and "Nobody has pushed a gradient, so there is nothing to charge yet." in told.out
    (run / "trace.jsonl").write_bytes(b"")
    told = report(run)
    assert told.code == 0 and told.out.startswith("This run has not begun: there is nothing in its trace.\n")
    page = (run / "report.html").read_text()
    assert "Configuration" in page and "mine.train" in page


def test_what_is_no_run(tmp_path: Path, report: Command) -> None:
    (tmp_path / "empty").mkdir()
    told = report(tmp_path / "empty")
    assert told.code == 2 and "empty: is not a run directory" in told.err
    (tmp_path / "notes.txt").write_bytes(b"hello\x00\xff")
    told = report(tmp_path / "notes.txt")
    assert told.code == 2 and "notes.txt, line 1: this is not a paceline trace" in told.err
    told = report(tmp_path / "nowhere")
    assert told.code == 2 and "cannot be read: No such file or directory" in told.err
    run = simulated_run(tmp_path / "below" / "mine", "bsp", HALF)
    told = report(tmp_path / "below")
    assert told.code == 2 and f"the newest is {run}" in told.err
    for wrong, said in (
        (("--price", "-1"), "--price -1: must be a number from 0"),
        (("--json", "-o", "x.html"), "leave out --out"),
        ((run,), "a run is given twice"),
        (("-o", tmp_path / "no" / "x.html"), "x.html: cannot be written: No such file or directory"),
    ):
        told = report(run, *wrong)
        assert told.code == 2 and said in told.err and told.err.count("\n") == 1


# -- at the end of a run --


def test_whoever_does_not_want_to_wait_for_it_interrupts_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run has ended before: what it came to must reach its caller."""
    run = simulated_run(tmp_path / "mine", "bsp", HALF)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("paceline.experiment.run_seen.advice_on", interrupt)  # a signal would come at any line
    report_at_the_end(run)
    assert f"left out; `paceline report {run}` makes it" in capsys.readouterr().err
    assert not (run / "report.html").exists()


@pytest.mark.slow
def test_every_run_leaves_a_report_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(RunFiles, "makes_reports", True)
    result = package.launch(train_sgd, workers=2, run_dir=tmp_path / "a")
    page = (tmp_path / "a" / "report.html").read_text()
    assert f"it used {result.samples:,} samples" in page and 'class="state finished"' in page
    told = read_configuration(tmp_path / "a")
    assert told.versions["paceline"] == package.__version__ and set(told.versions) == {"paceline", "torch", "python"}
    assert "versions.torch" in page and result.samples == SAMPLES
    package.launch(train_sgd, workers=1, run_dir=tmp_path / "b", report=False)
    assert not (tmp_path / "b" / "report.html").exists()
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "report.html").mkdir()  # nothing can be written there
    package.launch(train_sgd, workers=1, run_dir=tmp_path / "c")
    assert "paceline: no report was made:" in capsys.readouterr().err
