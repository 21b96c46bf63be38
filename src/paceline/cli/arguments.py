"""Reads the small languages of the command line: lists of numbers, WORKER@TIME, WORKER=FACTOR@BEGIN..END."""

from __future__ import annotations

import math
import re

from paceline.core.errors import ConfigurationError
from paceline.experiment import Slowdown
from paceline.experiment.simulation import LONGEST, Switch
from paceline.experiment.worker_times import NUMBER, described_times
from paceline.policies import POLICIES
from paceline.policies import policy as build_policy


def policy_names(given: list[str]) -> list[str]:
    """The policies to run, `all` spelled out; each must exist, and none may be there twice."""
    names: list[str] = []
    for name in given:
        names.extend(POLICIES if name == "all" else [name])
    seen: set[str] = set()
    for name in names:
        same = str(build_policy(name))
        if same in seen:
            raise ConfigurationError(f"policy {name!r} is given twice")
        seen.add(same)
    return names


def numbers(text: str, option: str) -> tuple[float, ...]:
    try:
        return tuple(float(number) for number in text.split(",")) if text.strip() else ()
    except ValueError:
        raise ConfigurationError(f"{option} {text}: must be numbers with commas between them, as in 1.0,1.9") from None


def check_price(price: float | None) -> None:
    if price is not None and not 0 <= price < math.inf:
        raise ConfigurationError(f"--price {price:g}: must be a number from 0, of one worker for an hour")


def size_of_group(workers: str | None) -> int | None:
    """The number in --workers; None: it describes the workers one by one."""
    if workers is None or not re.fullmatch(r"\s*[+-]?\d+\s*", workers):
        return None
    return int(workers)


def times_of_group(workers: str | None, intervals: str | None) -> tuple[float, ...] | None:
    """The iteration time of every worker, from --intervals 1,1,1,4 or --workers 3x1,1x4; None: neither is there."""
    described = workers is not None and size_of_group(workers) is None
    if described and intervals is not None:
        raise ConfigurationError("--workers and --intervals both give the times of the workers; leave out one of them")
    if workers is None or not described:
        return None if intervals is None else numbers(intervals, "--intervals")
    return described_times(workers, "--workers")


def times_of_workers(given: list[str], option: str) -> dict[int, float]:
    """Each WORKER@TIME of a repeated option."""
    times: dict[int, float] = {}
    for text in given:
        found = re.fullmatch(rf"(\d+)@({NUMBER})", text)
        if found is None:
            raise ConfigurationError(f"{option} {text}: must be WORKER@TIME, as in 3@20")
        if int(found[1]) in times:
            raise ConfigurationError(f"{option} {text}: worker {found[1]} is given twice")
        times[int(found[1])] = _number(found[2], option, text)
    return times


def switches(given: list[str]) -> tuple[Switch, ...]:
    """Each POLICY@TIME of --switch."""
    found = []
    for text in given:
        policy, _, time = text.rpartition("@")
        if not policy or re.fullmatch(NUMBER, time) is None:
            raise ConfigurationError(f"--switch {text}: must be POLICY@TIME, as in asp@20")
        found.append(Switch(policy, float(time)))
    return tuple(found)


def slowdown(text: str, option: str) -> Slowdown:
    found = re.fullmatch(rf"(\d+)=({NUMBER})(?:@({NUMBER})\.\.({NUMBER})?)?", text)
    if found is None:
        raise ConfigurationError(
            f"{option} {text}: must be WORKER=FACTOR or WORKER=FACTOR@BEGIN..END, as in 3=4.0 or 3=4.0@10..20"
        )
    worker, factor, begin, end = found.groups()
    return Slowdown(
        int(worker),
        _number(factor, option, text),
        0.0 if begin is None else _number(begin, option, text),
        None if end is None else _number(end, option, text),
    )


def freeze(text: str) -> Slowdown:
    found = re.fullmatch(rf"(\d+)@({NUMBER})\.\.({NUMBER})?", text)
    if found is None:
        raise ConfigurationError(f"--freeze {text}: must be WORKER@BEGIN..END or WORKER@BEGIN.., as in 3@10..20")
    worker, begin, end = found.groups()
    return Slowdown(
        int(worker),
        LONGEST,
        _number(begin, "--freeze", text),
        None if end is None else _number(end, "--freeze", text),
    )


def _number(part: str, option: str, text: str) -> float:
    try:
        return float(part)
    except ValueError:
        raise ConfigurationError(f"{option} {text}: {part!r} is not a number") from None
