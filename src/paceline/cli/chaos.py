"""`paceline chaos`: let things go wrong on purpose, and see whether anything is lost."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
from typer import Argument, Exit, Option

from paceline.cli import options
from paceline.core.errors import ConfigurationError
from paceline.experiment.chaos.plan import KINDS, NODES, Fault, plan_of, read_plan, written
from paceline.experiment.chaos.setting import Setting, Subject, Verdict, cluster_setting_of, kind_of, setting_of
from paceline.experiment.chaos.virtual import run_virtually, shrunk
from paceline.experiment.group import size_of
from paceline.policies import policy as build_policy
from paceline.report.console import stdout_is_for_json

if TYPE_CHECKING:
    from paceline.runtimes.ray_cluster.here import ClusterHere

TASKS = ("digits",)
LOCAL = "local"


class _Wanted(NamedTuple):
    """What was typed, beside the seeds and how to show what came of them."""

    subject: Subject
    policy: str | None
    workers: str | None
    seconds: float
    virtual: bool
    on_ray: bool
    address: str | None
    servers: int | None
    plan: tuple[Fault, ...] | None
    out: Path | None


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
    cluster: options.Cluster = "local",
    address: Annotated[
        str | None, Option(help="Of a Ray cluster, all of whose nodes are on this machine; local: one made for this.")
    ] = None,
    servers: Annotated[
        int | None, Option(help="As of `paceline train`. Default: another number whenever the run is resumed.")
    ] = None,
    faults: Annotated[
        str | None, Option(help="Let this go wrong instead: 'kill 1@2.5, freeze 0@3+1.5, crash@4'.")
    ] = None,
    out: Annotated[Path | None, Option(help="Keep the runs here. Default: only those that fail are kept.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object per seed.")] = False,
) -> None:
    """Kill, stop, slow down and repeat workers and the launcher, resume, and check that nothing was lost.

    Every sample must be applied exactly once, the recorded events must lead to the same commands, and the run, trained
    again from its trace, to the same weights to the bit. With --virtual no gradient is computed. With --cluster ray
    shards die, too, and nodes of a cluster that is made for it.
    """
    wanted = _Wanted(
        Subject(task, tuple(arguments or ()), epochs),
        policy,
        workers,
        seconds,
        virtual,
        options.is_ray(cluster),
        address,
        servers,
        None if faults is None else read_plan(faults),
        out,
    )
    _check(wanted, seeds)
    failed, counted = [], Counter[str]()
    with ExitStack() as stack:
        here = _cluster(wanted, stack)
        for number in range(seed, seed + seeds):
            with stdout_is_for_json(as_json or here is not None):  # Ray says there which nodes are dead
                tried = _try(wanted, number, here)
            counted.update(kind_of(happened) for happened in tried.verdict.happened)
            if tried.verdict.problem:
                failed.append(number)
            if as_json:
                print(msgspec.json.encode(tried).decode(), flush=True)
            elif seeds == 1 or tried.verdict.problem:
                _tell(wanted, tried)
    if seeds > 1 and not as_json:
        _tell_all(seeds, failed, counted)
    if failed:
        raise Exit(1)


def _cluster(wanted: _Wanted, stack: ExitStack) -> ClusterHere | None:
    if not wanted.on_ray:
        return None
    from paceline.runtimes.ray_cluster.here import cluster_here

    if wanted.address in (None, LOCAL):
        print("paceline: starting a Ray cluster of several nodes on this machine", file=sys.stderr)
    return stack.enter_context(cluster_here(wanted.address or LOCAL))


class _Tried(msgspec.Struct, frozen=True):
    """What --json prints."""

    seed: int
    setting: Setting
    plan: str  # as `written`; of a failure in virtual time, the shortest
    verdict: Verdict


def _try(wanted: _Wanted, seed: int, here: ClusterHere | None) -> _Tried:
    setting, kinds = setting_of(seed, wanted.policy, wanted.workers), KINDS
    if here is not None:
        from paceline.experiment.chaos.on_ray import kinds_on  # torch takes a second to import

        setting = msgspec.structs.replace(setting, cluster=cluster_setting_of(seed, wanted.servers))
        kinds = dict(kinds_on(here, wanted.servers))
    plan = plan_of(seed, wanted.seconds, kinds) if wanted.plan is None else wanted.plan
    if not wanted.virtual:
        return _Tried(seed, setting, written(plan), _run_for_real(wanted, seed, plan, setting, here))
    verdict = run_virtually(seed, plan, setting, wanted.seconds)
    shortest = shrunk(seed, plan, setting, wanted.seconds) if verdict.problem else plan
    return _Tried(seed, setting, written(shortest), verdict)


def _check(wanted: _Wanted, seeds: int) -> None:
    subject = wanted.subject
    if subject.is_script and wanted.virtual:
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
    if not 0 < wanted.seconds <= 3600:
        raise ConfigurationError(f"--seconds {wanted.seconds:g}: must be above 0, and at most 3600")
    if wanted.policy is not None:
        build_policy(wanted.policy)
    if wanted.workers is not None:
        size_of(wanted.workers)
    _check_place(wanted)


def _check_place(wanted: _Wanted) -> None:
    if wanted.on_ray and wanted.virtual:
        raise ConfigurationError("--virtual has no cluster: leave out that or --cluster ray")
    for name, given in (("--address", wanted.address), ("--servers", wanted.servers)):
        if given is not None and not wanted.on_ray:
            raise ConfigurationError(f"{name} is for a cluster: add --cluster ray")
    if wanted.servers is not None and wanted.servers < 1:
        raise ConfigurationError(f"--servers {wanted.servers}: must be at least 1")
    for fault in wanted.plan or ():
        if fault.kind not in KINDS and not wanted.on_ray:
            raise ConfigurationError(f"fault {str(fault)!r} is for a cluster: add --cluster ray")
        if fault.kind in NODES and wanted.address not in (None, LOCAL):
            raise ConfigurationError(
                f"fault {str(fault)!r}: the nodes at {wanted.address} are left alone; leave out --address, and a"
                " cluster is made for this"
            )


def _run_for_real(
    wanted: _Wanted, seed: int, plan: tuple[Fault, ...], setting: Setting, here: ClusterHere | None
) -> Verdict:
    from paceline.experiment.chaos.on_ray import run_on_ray  # torch takes a second to import
    from paceline.experiment.chaos.real import run_for_real

    below = Path(tempfile.mkdtemp(prefix="paceline-chaos-")) if wanted.out is None else wanted.out
    directory = below / f"seed-{seed}"
    if directory.exists():
        raise ConfigurationError(f"{directory}: is there already; choose another --out")
    arguments = (wanted.subject, seed, plan, setting, wanted.seconds, directory)
    verdict = run_for_real(*arguments) if here is None else run_on_ray(here, *arguments)
    if verdict.problem:
        print(f"paceline: what is left of the run is in {directory}", file=sys.stderr)
    elif wanted.out is None:
        shutil.rmtree(below)
    return verdict


def _tell(wanted: _Wanted, tried: _Tried) -> None:
    setting, verdict = tried.setting, tried.verdict
    restart = f", {setting.restart} deaths made up for" if setting.restart else ""
    print(f"Seed {tried.seed}: {setting.policy}, {setting.workers} workers{restart}{_on(setting)}")
    for happened in verdict.happened:
        print(f"  {happened}")
    lives = "" if verdict.lives == 1 else f", {verdict.lives} lives"
    if verdict.problem:
        print(f"FAILED: {verdict.problem}")
    else:
        print(f"Survived: {verdict.samples:,} samples, each once per epoch, {verdict.updates:,} updates{lives}")
    print(f"Again: {_command(wanted, tried)}")


def _tell_all(tried: int, failed: list[int], counted: Counter[str]) -> None:
    for what, times in sorted(counted.items()):
        print(f"{times:>8,}  {what}")
    if failed:
        print(f"{len(failed):,} of {tried:,} seeds FAILED: {', '.join(map(str, failed[:20]))}")
    else:
        print(f"All {tried:,} seeds survived: no sample was lost, none was applied twice.")


def _on(setting: Setting) -> str:
    """Where it is, if it is not here."""
    cluster = setting.cluster
    if cluster is None:
        return ""
    servers = "servers by lot" if cluster.servers is None else f"{cluster.servers} servers"
    return f"; on Ray: {servers}, transport {cluster.transport}, compression {cluster.compression}"


def _options(wanted: _Wanted) -> list[str]:
    given: dict[str, Any] = {"--policy": wanted.policy, "--workers": wanted.workers}
    given |= {"--seconds": f"{wanted.seconds:g}", "--epochs": wanted.subject.epochs}
    given |= {"--cluster": "ray" if wanted.on_ray else None, "--address": wanted.address, "--servers": wanted.servers}
    words = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    return [*words, *(["--virtual"] if wanted.virtual else [])]


def _command(wanted: _Wanted, tried: _Tried) -> str:
    """What does the same again; of a failure in virtual time, the shortest history."""
    given = wanted.plan is not None or (tried.verdict.problem and wanted.virtual)
    faults, subject = ["--faults", tried.plan] if given else [], wanted.subject
    words = ["--", *subject.arguments] if subject.arguments else []
    return shlex.join(
        ["paceline", "chaos", subject.name, "--seed", str(tried.seed), *_options(wanted), *faults, *words]
    )
