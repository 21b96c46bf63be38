"""`paceline chaos`: let things go wrong on purpose, and see whether anything is lost."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import msgspec
from typer import Argument, Exit, Option

from paceline.core.errors import ConfigurationError
from paceline.experiment.chaos.plan import Fault, plan_of, read_plan, written
from paceline.experiment.chaos.setting import Setting, Subject, Verdict, kind_of, setting_of
from paceline.experiment.chaos.virtual import run_virtually, shrunk
from paceline.experiment.group import size_of
from paceline.policies import policy as build_policy

TASKS = ("digits",)


def chaos_command(
    task: Annotated[
        str,
        Argument(metavar="TASK|SCRIPT", help="What is trained meanwhile: digits, or a Python file with train(worker)."),
    ] = "digits",
    arguments: Annotated[list[str] | None, Argument(help="For the script, after --; they are in its sys.argv.")] = None,
    policy: Annotated[str | None, Option("--policy", "-p", help="A policy. Default: the seed chooses one.")] = None,
    workers: Annotated[str | None, Option(help="As of `paceline train`. Default: the seed chooses.")] = None,
    seed: Annotated[int, Option(help="Decides what goes wrong, and when.")] = 0,
    seeds: Annotated[int, Option(help="Try so many seeds, from --seed on.")] = 1,
    seconds: Annotated[float, Option(help="For how long things go wrong.")] = 10.0,
    epochs: Annotated[int | None, Option(help="Of a script; as many as take about that time. Default: 1.")] = None,
    virtual: Annotated[bool, Option("--virtual", help="In virtual time: thousands of seeds a minute.")] = False,
    faults: Annotated[
        str | None, Option(help="Let this go wrong instead: 'kill 1@2.5, freeze 0@3+1.5, crash@4'.")
    ] = None,
    out: Annotated[Path | None, Option(help="Keep the runs here. Default: only those that fail are kept.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object per seed.")] = False,
) -> None:
    """Kill, stop, slow down and repeat workers and the launcher, resume, and check that nothing was lost.

    Every sample must be applied exactly once, the recorded events must lead to the same commands, and the run, trained
    again from its trace, to the same weights to the bit. With --virtual no gradient is computed.
    """
    subject = Subject(task, tuple(arguments or ()), epochs)
    _check(subject, policy, workers, seeds, seconds, virtual)
    given = None if faults is None else read_plan(faults)
    failed, counted, tried = [], Counter[str](), 0
    for number in range(seed, seed + seeds):
        plan = plan_of(number, seconds) if given is None else given
        setting = setting_of(number, policy, workers)
        if virtual:
            verdict = run_virtually(number, plan, setting, seconds)
        else:
            verdict = _run_for_real(subject, number, plan, setting, seconds, out)
        tried += 1
        counted.update(kind_of(happened) for happened in verdict.happened)
        if verdict.problem and virtual:
            plan = shrunk(number, plan, setting, seconds)
        if verdict.problem:
            failed.append(number)
        if as_json:
            line = {"seed": number, "setting": setting, "plan": written(plan), "verdict": verdict}
            print(msgspec.json.encode(line).decode(), flush=True)
        elif seeds == 1 or verdict.problem:
            _tell(number, setting, verdict)
            options = _options(policy, workers, seconds, epochs, virtual)
            print(f"Again: {_command(subject, number, plan, verdict, options)}")
    if seeds > 1 and not as_json:
        _tell_all(tried, failed, counted)
    if failed:
        raise Exit(1)


def _check(
    subject: Subject, policy: str | None, workers: str | None, seeds: int, seconds: float, virtual: bool
) -> None:
    if subject.is_script and virtual:
        raise ConfigurationError("--virtual computes no gradients, so that it needs no script: leave that out")
    if subject.is_script:
        from paceline.experiment.script import script_functions  # torch takes a second to import

        script_functions(Path(subject.name), subject.arguments)  # or refuse now
    elif subject.name not in TASKS:
        raise ConfigurationError(
            f"unknown task {subject.name!r}; there are: {', '.join(TASKS)}; or name a script of yours, as in train.py"
        )
    elif subject.arguments:
        raise ConfigurationError(f"{subject.arguments[0]}: a task takes no arguments of its own; a script does")
    if subject.epochs is not None and subject.epochs < 1:
        raise ConfigurationError(f"--epochs {subject.epochs}: must be at least 1")
    if seeds < 1:
        raise ConfigurationError(f"--seeds {seeds}: must be at least 1")
    if not 0 < seconds <= 3600:
        raise ConfigurationError(f"--seconds {seconds:g}: must be above 0, and at most 3600")
    if policy is not None:
        build_policy(policy)
    if workers is not None:
        size_of(workers)


def _run_for_real(
    subject: Subject, seed: int, plan: tuple[Fault, ...], setting: Setting, seconds: float, out: Path | None
) -> Verdict:
    from paceline.experiment.chaos.real import run_for_real  # torch takes a second to import

    below = Path(tempfile.mkdtemp(prefix="paceline-chaos-")) if out is None else out
    directory = below / f"seed-{seed}"
    if directory.exists():
        raise ConfigurationError(f"{directory}: is there already; choose another --out")
    verdict = run_for_real(subject, seed, plan, setting, seconds, directory)
    if verdict.problem:
        print(f"paceline: what is left of the run is in {directory}", file=sys.stderr)
    elif out is None:
        shutil.rmtree(below)
    return verdict


def _tell(seed: int, setting: Setting, verdict: Verdict) -> None:
    restart = f", {setting.restart} deaths made up for" if setting.restart else ""
    print(f"Seed {seed}: {setting.policy}, {setting.workers} workers{restart}")
    for happened in verdict.happened:
        print(f"  {happened}")
    if verdict.problem:
        print(f"FAILED: {verdict.problem}")
        return
    lives = "" if verdict.lives == 1 else f", {verdict.lives} lives"
    print(f"Survived: {verdict.samples:,} samples, each once per epoch, {verdict.updates:,} updates{lives}")


def _tell_all(tried: int, failed: list[int], counted: Counter[str]) -> None:
    for what, times in sorted(counted.items()):
        print(f"{times:>8,}  {what}")
    if failed:
        print(f"{len(failed):,} of {tried:,} seeds FAILED: {', '.join(map(str, failed[:20]))}")
    else:
        print(f"All {tried:,} seeds survived: no sample was lost, none was applied twice.")


def _options(policy: str | None, workers: str | None, seconds: float, epochs: int | None, virtual: bool) -> list[str]:
    given: list[tuple[str, Any]] = [("--policy", policy), ("--workers", workers), ("--seconds", f"{seconds:g}")]
    given.append(("--epochs", None if epochs is None else str(epochs)))
    words = [word for name, value in given if value is not None for word in (name, value)]
    return [*words, *(["--virtual"] if virtual else [])]


def _command(subject: Subject, seed: int, plan: tuple[Fault, ...], verdict: Verdict, options: list[str]) -> str:
    """What does the same again; of a failure in virtual time, the shortest history."""
    faults = ["--faults", written(plan)] if verdict.problem and "--virtual" in options else []
    words = ["--", *subject.arguments] if subject.arguments else []
    return shlex.join(["paceline", "chaos", subject.name, "--seed", str(seed), *options, *faults, *words])
